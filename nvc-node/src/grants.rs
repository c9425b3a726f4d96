//! Writes what a container with some devices gets: a CDI specification for each claim, and a record of it.
//!
//! Nothing here knows Kubernetes. Every specification is made of what the driver says now, never of what was said before,
//! so there is no stored answer that could be stale.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libnvc::{Error, ErrorKind, Result};
use nix::fcntl::Flock;
use nvc_cdi::emit::Format;
use nvc_cdi::{Spec, file, registry};
use nvc_generate::HookProgram;
use serde::{Deserialize, Serialize};

use crate::drafts::sweep;
use crate::lock;
use crate::machine::Source;

mod record;
mod specification;
#[cfg(test)]
mod tests;

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

/// The limit of claims that have devices. A kubelet has some hundred pods.
const MAX_CLAIMS: usize = 1000;
/// Seconds between the clocks of this node and of the scheduler, with its delay, that do not matter.
const MAX_SKEW: i64 = 30;

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
        let lock = lock::open(&path).and_then(|file| lock::wait(file, &path));
        Ok(Locked {
            grants: self,
            _lock: lock.map_err(|error| of_file(&path, &error))?,
        })
    }

    /// Gives a claim its devices, unless another one has one of them. Returns true if it had none before.
    ///
    /// # Errors
    /// Those of [`Locked::give`]; another claim has a device.
    pub(crate) fn give(&self, record: &Record) -> Result<bool> {
        let locked = self.lock()?;
        let is_new = !self.record(&record.uid).exists();
        let records = locked.records()?;
        if is_new && records.len() >= MAX_CLAIMS {
            let text = format!("{MAX_CLAIMS} claims have devices");
            return Err(Error::new(ErrorKind::Malformed, text));
        }
        if let Some(other) = conflict(&records, record) {
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
                instances: None,
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
            sweep(&path, Duration::ZERO);
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
        sweep(&path, Duration::ZERO);
        file::write(&path, spec, Format::Yaml, None)?;
        // What engines will read. Also after a write that a full disk or another program has damaged.
        if registry::read(&path)? != *spec {
            let text = format!("{} is not what was written", path.display());
            return Err(Error::new(ErrorKind::Malformed, text));
        }
        fs::create_dir_all(grants.records()).map_err(|error| of_file(&grants.records(), &error))?;
        let text = serde_json::to_vec(record).unwrap_or_default();
        let path = grants.record(uid);
        sweep(&path, Duration::ZERO);
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
            sweep(&path, Duration::ZERO);
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

fn of_file(path: &Path, error: &io::Error) -> Error {
    Error::fault(ErrorKind::System, path.display(), error.to_string())
}
