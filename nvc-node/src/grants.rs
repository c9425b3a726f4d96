//! Writes what a container with some devices gets: a CDI specification for each claim, and a record of it.
//!
//! Nothing here knows Kubernetes. Every specification is made of what the driver says now, never of what was said before,
//! so there is no stored answer that could be stale.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libnvc::host::DriverConfig;
use libnvc::options::LibraryOptions;
use libnvc::{Error, ErrorKind, Result, kmods};
use nix::fcntl::{Flock, FlockArg};
use nvc_cdi::emit::Format;
use nvc_cdi::transform::{Side, Transform};
use nvc_cdi::{Spec, file, registry, version};
use nvc_generate::{
    Find, GeneratedSpecs, HookProgram, Hooks, Mode, Names, Naming, Options, Rendering, generate,
};
use serde::{Deserialize, Serialize};

use crate::machine::Source;

mod record;

pub(crate) use record::{Grant, Record, check_uid};

/// As with NVIDIA's driver: the files of a claim have the same names.
const VENDOR: &str = "k8s.gpu.nvidia.com";
const CLASS: &str = "claim";
/// The lock over the records, which NVIDIA's driver takes too.
const LOCK: &str = "pu.lock";
/// The devices by name.
const BEARERS: &str = "devices.json";
/// The directory of the records.
const RECORDS: &str = "claims";

/// Seconds between the clocks of this node and of the scheduler, with its delay, that do not matter.
const MAX_SKEW: i64 = 30;

/// A query that takes longer waits for a GPU.
const SLOW: Duration = Duration::from_secs(5);
/// What every container with a GPU needs. Without one of them a pod would run, and have no GPU.
const NEEDED_NODES: [&str; 2] = ["/dev/nvidiactl", "/dev/nvidia-uvm"];
const NEEDED_LIBRARIES: [&str; 2] = ["libcuda.so.", "libnvidia-ml.so."];

/// Which GPU has had a name, and since when: a claim names a device, and must not get one of another GPU that has the name
/// by now. A MIG device that was created again at its place is as good as before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Bearer {
    gpu: String,
    /// Seconds since 1970; 0 for the first one that was ever seen.
    since: i64,
}

/// Gives devices to claims, and takes them back.
#[derive(Clone, Debug)]
pub(crate) struct Grants {
    pub(crate) source: Source,
    /// The driver root on the host.
    pub(crate) host_driver_root: String,
    pub(crate) cdi_root: PathBuf,
    /// The driver's own directory.
    pub(crate) state: PathBuf,
    pub(crate) hook: HookProgram,
    /// The hook program is of this build.
    pub(crate) is_hook_ours: bool,
}

/// The right to change files of claims, alone on this machine.
#[derive(Debug)]
pub(crate) struct Locked<'g> {
    grants: &'g Grants,
    _lock: Flock<File>,
}

/// Returns the name of a claim's device for engines.
pub(crate) fn qualified(uid: &str, device: &str) -> String {
    format!("{VENDOR}/{CLASS}={uid}-{device}")
}

impl Grants {
    /// Waits for the lock.
    ///
    /// # Errors
    /// The file of the lock cannot be opened.
    pub(crate) fn lock(&self) -> Result<Locked<'_>> {
        let path = self.state.join(LOCK);
        let failed = |cause: String| Error::fault(ErrorKind::System, path.display(), cause);
        let mut options = OpenOptions::new();
        // Whoever may read it could lock it for ever.
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path);
        let file = file.map_err(|error| failed(error.to_string()))?;
        let lock = Flock::lock(file, FlockArg::LockExclusive);
        Ok(Locked {
            grants: self,
            _lock: lock.map_err(|(_, errno)| failed(errno.to_string()))?,
        })
    }

    /// Makes the driver's nodes, and loads its modules, if a node that every container needs is missing: later there is
    /// no right to load a module.
    pub(crate) fn load_modules(&self) {
        let dev = |path: &&str| self.source.dev_root.join(path.trim_start_matches('/'));
        if self.source.is_loaded() && !NEEDED_NODES.iter().map(dev).all(|node| node.exists()) {
            self.make_nodes();
        }
    }

    fn make_nodes(&self) -> Option<String> {
        let config = DriverConfig {
            root: self.source.dev_root.clone(),
            options: LibraryOptions::LOAD_KMODS,
            ..DriverConfig::default()
        };
        let warning = kmods::prepare(&config);
        if let Some(warning) = &warning {
            log::warn!("{warning}");
        }
        warning
    }

    /// Gives a claim its devices, unless another one has one of them. Returns true if it had none before.
    ///
    /// # Errors
    /// Those of [`Locked::give`]; another claim has a device.
    pub(crate) fn give(&self, record: &Record) -> Result<bool> {
        let locked = self.lock()?;
        if let Some(other) = conflict(&locked.records()?, record) {
            let Record {
                namespace, name, ..
            } = other;
            // Also of a claim that the API server no longer has: its container may still run.
            let text = format!("the claim {namespace}/{name} has the same device");
            let error = Error::new(ErrorKind::NotFound, text);
            let path = self.record(&other.uid);
            return Err(error.hint(format!(
                "the kubelet gives it back when the pod has ended; if the kubelet has forgotten that claim, remove {}",
                path.display()
            )));
        }
        let is_new = !self.record(&record.uid).exists();
        locked.give(record)?;
        Ok(is_new)
    }

    fn specification(&self, uid: &str) -> PathBuf {
        let name = format!("{VENDOR}-{CLASS}_{uid}.yaml");
        self.cdi_root.join(name)
    }

    fn records(&self) -> PathBuf {
        self.state.join(RECORDS)
    }

    pub(crate) fn record(&self, uid: &str) -> PathBuf {
        self.records().join(format!("{uid}.json"))
    }

    /// Asks the driver about devices, and makes the specification of a claim.
    fn make(&self, uid: &str, grants: &[Grant]) -> Result<Spec> {
        let started = Instant::now();
        let made = self.generated(grants).or_else(|error| {
            // Nodes are not the reason, and there is no time for another.
            if started.elapsed() > SLOW {
                return Err(error);
            }
            log::info!("Making the driver's nodes: {}", error.message());
            let warning = self.make_nodes();
            // The second error says what is still missing.
            self.generated(grants).map_err(|error| match warning {
                Some(why) if why.contains("kernel module") => error.hint(format!(
                    "{why}; the driver's pod loads modules when it starts"
                )),
                _ => error,
            })
        })?;
        for warning in &made.warnings {
            log::debug!("claim {uid}: {warning}");
        }
        let mut spec = made.spec;
        for device in &mut spec.devices {
            let grant = grants.iter().find(|grant| grant.uuid == device.name);
            let grant = grant.ok_or_else(|| {
                Error::new(
                    ErrorKind::Malformed,
                    format!("{} is not asked for", device.name),
                )
            })?;
            device.name = format!("{uid}-{}", grant.name);
        }
        let as_seen = self.source.driver_root.to_string_lossy();
        Transform::new(&as_seen, &self.host_driver_root, Side::Host).apply(&mut spec)?;
        spec.cdi_version = version::minimum(&spec).0.into();
        nvc_cdi::validate::spec(&spec)?;
        Ok(spec)
    }

    fn generated(&self, grants: &[Grant]) -> Result<GeneratedSpecs> {
        let options = Options {
            find: Find {
                driver_root: self.source.driver_root.clone(),
                dev_root: self.source.dev_root.clone(),
                ids: grants.iter().map(|grant| grant.uuid.clone()).collect(),
                query: self.source.query.clone(),
                ..Find::new(Mode::Nvml)
            },
            names: Names {
                naming: vec![Naming::Uuid],
                no_all: true,
                vendor: VENDOR.into(),
                class: CLASS.into(),
            },
            rendering: Rendering {
                hooks: Hooks {
                    program: self.hook.clone(),
                    disabled: [].into(),
                    enabled: [].into(),
                    merged: self.is_hook_ours,
                    is_ours: self.is_hook_ours,
                },
                ldconfig: None,
                gids: false,
                additional_gids: false,
            },
        };
        let made = generate(&options)?;
        check_whole(&made, grants)?;
        Ok(made)
    }
}

/// Checks that a specification has what every container with a GPU needs.
fn check_whole(made: &GeneratedSpecs, grants: &[Grant]) -> Result<()> {
    let common = &made.spec.container_edits;
    let lacks_node = |path: &&&str| !common.device_nodes.iter().any(|node| node.path == **path);
    let lacks_library = |name: &&&str| {
        let mut files = common
            .mounts
            .iter()
            .map(|mount| Path::new(&mount.container_path));
        !files.any(|path| {
            let file = path.file_name().and_then(|file| file.to_str());
            file.is_some_and(|file| file.starts_with(**name))
        })
    };
    let lacks_device = |grant: &&Grant| made.spec.device(&grant.uuid).is_none();
    let mut missing: Vec<&str> = NEEDED_NODES.iter().filter(lacks_node).copied().collect();
    missing.extend(NEEDED_LIBRARIES.iter().filter(lacks_library));
    missing.extend(
        grants
            .iter()
            .filter(lacks_device)
            .map(|grant| grant.uuid.as_str()),
    );
    if missing.is_empty() {
        return Ok(());
    }
    let warnings = made.warnings.iter().map(String::as_str);
    let is_about = |warning: &&str| missing.iter().any(|name| warning.contains(name));
    let why: Vec<&str> = warnings.filter(is_about).collect();
    let text = format!("a container would lack {}", missing.join(", "));
    Err(Error::new(ErrorKind::NotFound, text).with_cause(why.join("; ")))
}

impl Locked<'_> {
    /// Returns the records of the claims that have been given devices.
    ///
    /// # Errors
    /// The directory cannot be read: devices could be given twice.
    pub(crate) fn records(&self) -> Result<Vec<Record>> {
        let directory = self.grants.records();
        let failed = |error: io::Error| of_file(&directory, &error);
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut records = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|ending| ending == "json") {
                records.extend(read(&path).or_else(|| self.by_specification(&path)));
            }
        }
        Ok(records)
    }

    /// Returns what the specification of a claim with a damaged record says, since its container may run. Without either,
    /// the claim costs no other one a device, and it can be taken back.
    fn by_specification(&self, record: &Path) -> Option<Record> {
        let uid = record.file_stem()?.to_str()?;
        let spec = registry::read(&self.grants.specification(uid)).ok()?;
        let bearers = self.bearers()?;
        let grant = |name: &str| {
            let gpu = &bearers.get(name)?.gpu;
            // The UUID of a MIG device is not known, but its name is enough.
            let is_mig = name.contains("-mig-");
            Some(Grant {
                name: name.into(),
                uuid: if is_mig { name } else { gpu }.into(),
                gpu: gpu.clone(),
                is_shared: false,
            })
        };
        let names = spec.devices.iter().map(|device| &device.name);
        let names = names.filter_map(|name| name.strip_prefix(uid)?.strip_prefix('-'));
        Some(Record {
            uid: uid.into(),
            namespace: "?".into(),
            name: uid.into(),
            grants: names.filter_map(grant).collect(),
            ..Record::default()
        })
    }

    /// Remembers which devices have which names from now on, before anybody can claim them by these. Returns the names
    /// that must not be claimed yet.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn name(&self, names: &[(String, String)], now: i64) -> Result<Vec<String>> {
        let known = self.bearers();
        let mut bearers = known.clone().unwrap_or_default();
        for (name, gpu) in names {
            let since = match bearers.get(name) {
                // Unless the clock was set back.
                Some(bearer) if bearer.gpu == *gpu && bearer.since <= now + MAX_SKEW => continue,
                Some(_) => {
                    log::info!("{name} is another GPU now, {gpu}: it is published in a minute");
                    now + MAX_SKEW
                }
                // Whoever claims it means this one, also if NVIDIA's driver has published it.
                None => 0,
            };
            let gpu = gpu.clone();
            bearers.insert(name.clone(), Bearer { gpu, since });
        }
        if known.as_ref() != Some(&bearers) {
            let text = serde_json::to_vec(&bearers).unwrap_or_default();
            let path = self.grants.state.join(BEARERS);
            sweep(&path);
            nvc_hostfile::create(&path, &text, 0o600)?;
        }
        // Who claimed it before it moved, and who did after, are told apart by the clocks of several machines.
        bearers.retain(|_, bearer| now < bearer.since + MAX_SKEW);
        Ok(bearers.into_keys().collect())
    }

    /// Returns the devices by name; None if the file is missing or damaged.
    fn bearers(&self) -> Option<BTreeMap<String, Bearer>> {
        let text = fs::read(self.grants.state.join(BEARERS)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Checks that the devices had their names when they were claimed.
    fn check_names(&self, record: &Record) -> Result<()> {
        let bearers = self.bearers().unwrap_or_default();
        for Grant { name, gpu, .. } in &record.grants {
            let Some(bearer) = bearers.get(name) else {
                continue;
            };
            if bearer.gpu != *gpu || bearer.since > record.since {
                let text = format!("{name} is of another GPU, {gpu}, than when it was claimed");
                let error = Error::new(ErrorKind::NotFound, text);
                return Err(error.hint("delete the pod and its claim"));
            }
        }
        Ok(())
    }

    /// Gives a claim its devices, again if it had them: the driver is asked now. The record comes last, so that one
    /// without a specification does not exist unless that was removed.
    ///
    /// # Errors
    /// A device does not answer or a part of it is missing; a file cannot be written. A claim that had nothing has
    /// nothing then.
    pub(crate) fn give(&self, record: &Record) -> Result<()> {
        let grants = self.grants;
        let uid = record.uid.as_str();
        self.check_names(record)?;
        let spec = grants.make(uid, &record.grants)?;
        let done = self.write(record, &spec);
        if done.is_err() && !grants.record(uid).exists() {
            let _ = self.take_back(uid);
        }
        done
    }

    fn write(&self, record: &Record, spec: &Spec) -> Result<()> {
        let grants = self.grants;
        let uid = record.uid.as_str();
        let path = grants.specification(uid);
        sweep(&path);
        file::write(&path, spec, Format::Yaml, None)?;
        // What engines will read. Also after a write that a full disk or another program has damaged.
        if registry::read(&path)? != *spec {
            let text = format!("{} is not what was written", path.display());
            return Err(Error::new(ErrorKind::Malformed, text));
        }
        fs::create_dir_all(grants.records()).map_err(|error| of_file(&grants.records(), &error))?;
        let text = serde_json::to_vec(record).unwrap_or_default();
        let path = grants.record(uid);
        sweep(&path);
        nvc_hostfile::create(&path, &text, 0o600)
    }

    /// Gives a claim its devices again if its specification is gone, or of another driver: the kubelet asks only once, and
    /// restarts a pod's containers with what it was told. `is_thorough` reads the file, too. Returns true if it was made.
    ///
    /// # Errors
    /// Those of [`give`](Self::give).
    pub(crate) fn renew(&self, uid: &str, driver: &str, is_thorough: bool) -> Result<bool> {
        // It may have been taken back meanwhile.
        let Some(record) = read(&self.grants.record(uid)) else {
            return Ok(false);
        };
        let path = self.grants.specification(uid);
        let is_whole = if is_thorough {
            registry::read(&path).is_ok()
        } else {
            path.exists()
        };
        if is_whole && record.driver == driver {
            return Ok(false);
        }
        let driver = driver.to_owned();
        self.give(&Record { driver, ..record }).map(|()| true)
    }

    /// Takes back the devices of a claim, also of one that NVIDIA's driver gave, or of one that has none.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub(crate) fn take_back(&self, uid: &str) -> Result<()> {
        for path in [self.grants.specification(uid), self.grants.record(uid)] {
            sweep(&path);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(of_file(&path, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the record of another claim that has one of the devices.
fn conflict<'r>(records: &'r [Record], wanted: &Record) -> Option<&'r Record> {
    let has = |other: &Record| {
        let mut pairs = wanted
            .grants
            .iter()
            .flat_map(|one| other.grants.iter().map(move |two| (one, two)));
        pairs.any(|(one, two)| one.overlaps(two) && !one.is_shared && !two.is_shared)
    };
    let mut others = records.iter().filter(|other| other.uid != wanted.uid);
    others.find(|other| has(other))
}

/// Reads a record; returns None if there is none, or a damaged one.
fn read(path: &Path) -> Option<Record> {
    let text = fs::read(path).ok()?;
    let uid = path.file_stem().unwrap_or_default();
    Record::parse(&uid.to_string_lossy(), &text)
        .map_err(|error| log::debug!("{} is damaged: {error}", path.display()))
        .ok()
}

/// Removes drafts of a file that a daemon left when it was killed. Nobody writes one now: the caller has the lock.
fn sweep(path: &Path) {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return;
    };
    let prefix = format!(".{}.", name.display());
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(&prefix))
        {
            // It only takes space.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn of_file(path: &Path, error: &io::Error) -> Error {
    Error::fault(ErrorKind::System, path.display(), error.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use libnvc::host::query::QueryProgram;

    use super::*;

    fn grants(state: &Path) -> Grants {
        Grants {
            source: Source {
                driver_root: "/".into(),
                dev_root: "/".into(),
                query: QueryProgram::ThisExecutable,
                ignored_xids: Vec::new(),
                verdicts: "/no/such".into(),
                quiet: std::time::Duration::ZERO,
            },
            host_driver_root: "/".into(),
            cdi_root: state.join("cdi"),
            state: state.into(),
            hook: HookProgram {
                path: "/hook".into(),
            },
            is_hook_ours: true,
        }
    }

    fn record(uid: &str, since: i64) -> Record {
        let grant = Grant {
            name: "gpu-0".into(),
            uuid: "GPU-0".into(),
            gpu: "GPU-0".into(),
            is_shared: false,
        };
        Record {
            uid: uid.into(),
            namespace: "ns".into(),
            name: "c".into(),
            grants: vec![grant],
            since,
            driver: "1.0".into(),
        }
    }

    #[test]
    fn a_name_that_has_moved_is_an_error() {
        let state = tempfile::tempdir().unwrap();
        let grants = grants(state.path());
        let locked = grants.lock().unwrap();
        let is = |uuid: &str| [("gpu-0".to_owned(), uuid.to_owned())];
        // Claimed before our first start.
        assert!(locked.name(&is("GPU-0"), 1000).unwrap().is_empty());
        assert!(locked.check_names(&record("a", 50)).is_ok());
        // Another one has the name, and then the first one again.
        assert_eq!(locked.name(&is("GPU-1"), 2000).unwrap(), ["gpu-0"]);
        assert!(locked.check_names(&record("a", 2500)).is_err());
        assert_eq!(locked.name(&is("GPU-0"), 3000).unwrap(), ["gpu-0"]);
        // Claimed before that, by a clock that is 29 seconds fast, and after it was published again by one that is slow.
        assert!(locked.check_names(&record("a", 3029)).is_err());
        assert_eq!(locked.name(&is("GPU-0"), 3059).unwrap(), ["gpu-0"]);
        assert!(locked.name(&is("GPU-0"), 3060).unwrap().is_empty());
        assert!(locked.check_names(&record("a", 3060 - 29)).is_ok());
        // The clock was set back.
        assert_eq!(locked.name(&is("GPU-0"), 500).unwrap(), ["gpu-0"]);
        assert!(locked.check_names(&record("a", 570)).is_ok());
        // A new name is claimed for what has it.
        let new = [("gpu-1".to_owned(), "GPU-1".to_owned())];
        assert!(locked.name(&new, 1000).unwrap().is_empty());
        let of = |name: &str, gpu: &str| Record {
            grants: vec![Grant {
                name: name.into(),
                uuid: gpu.into(),
                gpu: gpu.into(),
                is_shared: false,
            }],
            ..record("a", 50)
        };
        assert!(locked.check_names(&of("gpu-1", "GPU-1")).is_ok());
        assert!(locked.check_names(&of("gpu-1", "GPU-0")).is_err());
    }

    #[test]
    fn a_damaged_record_costs_its_claim_alone() {
        let state = tempfile::tempdir().unwrap();
        let grants = grants(state.path());
        let locked = grants.lock().unwrap();
        assert!(locked.records().unwrap().is_empty());
        fs::create_dir(grants.records()).unwrap();
        let text = serde_json::to_vec(&record("a", 0)).unwrap();
        fs::write(grants.record("a"), text).unwrap();
        fs::write(grants.record("b"), "{\"uid\":").unwrap();
        // That of another claim names files that are not its own.
        let text = serde_json::to_vec(&record("../a", 0)).unwrap();
        fs::write(grants.record("e"), text).unwrap();
        fs::create_dir(grants.record("f")).unwrap();
        assert_eq!(locked.records().unwrap(), [record("a", 0)]);
        // The files of NVIDIA's driver have the same names.
        fs::create_dir(&grants.cdi_root).unwrap();
        for uid in ["b", "c", "d"] {
            fs::write(grants.specification(uid), "x").unwrap();
            let draft = format!(".k8s.gpu.nvidia.com-claim_{uid}.yaml.5f");
            fs::write(grants.cdi_root.join(draft), "x").unwrap();
            locked.take_back(uid).unwrap();
        }
        locked.take_back("unknown").unwrap();
        assert!(!grants.record("b").exists());
        assert_eq!(fs::read_dir(&grants.cdi_root).unwrap().count(), 0);
    }

    #[test]
    fn uids_are_no_paths() {
        assert!(check_uid("5e9b0f5c-61d1-4a4f-9c5b-7e0d3f4f2a10").is_ok());
        for bad in ["", "..", "a/b", "a.b", &"a".repeat(65)] {
            assert!(check_uid(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_gpu_and_its_parts_are_not_given_to_two() {
        let record = |uid: &str, uuid: &str, gpu: &str, is_shared| Record {
            uid: uid.into(),
            namespace: "ns".into(),
            name: uid.into(),
            grants: vec![Grant {
                name: uuid.to_lowercase(),
                uuid: uuid.into(),
                gpu: gpu.into(),
                is_shared,
            }],
            since: 0,
            driver: String::new(),
        };
        let known = [
            record("a", "GPU-0", "GPU-0", false),
            record("b", "MIG-1", "GPU-1", false),
            record("c", "GPU-2", "GPU-2", true),
        ];
        let conflict = |uuid, gpu, is_shared| {
            let found = conflict(&known, &record("d", uuid, gpu, is_shared));
            found.map(|other| other.uid.clone())
        };
        let is = |uid: &str| Some(uid.to_owned());
        assert_eq!(conflict("GPU-0", "GPU-0", false), is("a"));
        assert_eq!(conflict("GPU-0", "GPU-0", true), None);
        assert_eq!(conflict("MIG-0", "GPU-0", false), is("a"));
        assert_eq!(conflict("MIG-1", "GPU-1", false), is("b"));
        assert_eq!(conflict("MIG-2", "GPU-1", false), None);
        // Its container sees the whole GPU as soon as MIG mode is off.
        assert_eq!(conflict("GPU-1", "GPU-1", false), is("b"));
        assert_eq!(conflict("GPU-2", "GPU-2", false), None);
    }
}
