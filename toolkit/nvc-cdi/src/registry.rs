//! Loads the specifications of all directories and indexes their devices.
//!
//! As in engines, a later directory has precedence; a device defined by two files of one directory does not exist; a
//! file that cannot be read or breaks a rule is skipped as a whole. Skipped files are recorded with the reason, for the
//! caller to report.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libnvc::select::devices_here;
use libnvc::{Error, ErrorKind, Result};
use nvc_hostfile::{HandedPaths, system};

use super::model::{CHARACTER, Device, DeviceNode, Edits, Spec};
use super::{MAX_SIZE, compare, file, names, validate};

/// The specifications that were found.
#[derive(Debug, Default)]
pub struct Registry {
    files: Vec<SpecFile>,
    /// Index of the file, and of the device in it, by qualified name.
    devices: BTreeMap<String, (usize, usize)>,
    problems: Vec<Problem>,
}

/// A file with a valid specification.
#[derive(Debug)]
pub struct SpecFile {
    pub path: PathBuf,
    /// Rank of its directory; the higher has precedence.
    pub priority: usize,
    /// Its content.
    pub spec: Spec,
}

impl SpecFile {
    /// Returns true for a claim of Kubernetes: a driver of NVIDIA's for dynamic resource allocation writes its files, and
    /// removes them when the pod ends.
    fn is_claim(&self) -> bool {
        let vendor = self.spec.vendor_and_class().0;
        vendor.starts_with("k8s.") && vendor.ends_with(".nvidia.com")
    }
}

/// A skipped file or directory, or devices dropped because of a conflict.
#[derive(Clone, Debug)]
pub struct Problem {
    pub path: PathBuf,
    pub error: Error,
}

impl Registry {
    /// Loads all specifications of some directories, the most important last.
    pub fn load<P: AsRef<Path>>(directories: &[P]) -> Self {
        let mut registry = Self::default();
        for (priority, directory) in directories.iter().enumerate() {
            match names(directory.as_ref()) {
                Ok(names) => names
                    .into_iter()
                    .for_each(|path| registry.add(path, priority)),
                Err(error) => registry.problems.push(Problem {
                    path: directory.as_ref().into(),
                    error,
                }),
            }
        }
        registry.index();
        registry
    }

    fn add(&mut self, path: PathBuf, priority: usize) {
        match read(&path) {
            Ok(spec) => self.files.push(SpecFile {
                path,
                priority,
                spec,
            }),
            Err(error) => self.problems.push(Problem { path, error }),
        }
    }

    /// Indexes the devices by name, and records conflicts.
    fn index(&mut self) {
        let mut conflicts: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        let mut devices: HashMap<String, (usize, usize)> = HashMap::new();
        for (n, file) in self.files.iter().enumerate() {
            for (place, device) in file.spec.devices.iter().enumerate() {
                let name = format!("{}={}", file.spec.kind, device.name);
                // Files are in the order of their directories, so an equal rank is a conflict.
                if let Some(&(other, _)) = devices.get(&name)
                    && self.files[other].priority == file.priority
                {
                    conflicts.entry(name).or_default().extend([other, n]);
                    continue;
                }
                devices.insert(name, (n, place));
            }
        }
        // Two copies of a file share all their devices: one problem for each set of files.
        let mut shared: BTreeMap<BTreeSet<usize>, Vec<String>> = BTreeMap::new();
        for (name, files) in conflicts {
            devices.remove(&name);
            shared.entry(files).or_default().push(name);
        }
        for (files, names) in shared {
            self.problems.extend(self.conflict(&files, &names));
        }
        self.devices = devices.into_iter().collect();
    }

    /// Describes devices that several files of a directory define.
    fn conflict(&self, files: &BTreeSet<usize>, names: &[String]) -> Option<Problem> {
        let paths: Vec<String> = files
            .iter()
            .map(|&n| self.files[n].path.display().to_string())
            .collect();
        let first = self.files.get(*files.first()?)?.path.clone();
        let devices = match names {
            [] => return None,
            [name] => format!("device {name} is"),
            [name, rest @ ..] => format!("device {name} and {} more are", rest.len()),
        };
        let text = format!(
            "{devices} in {}, so engines ignore {}",
            paths.join(" and in "),
            if names.len() == 1 { "it" } else { "them" }
        );
        let hint = "remove one of the files, or the device from one of them";
        Some(Problem {
            path: first,
            error: Error::new(ErrorKind::Malformed, text).hint(hint),
        })
    }

    /// Returns the qualified names of all devices, sorted.
    pub fn device_names(&self) -> impl Iterator<Item = &str> {
        self.devices.keys().map(String::as_str)
    }

    /// Returns a device and the file that defines it.
    pub fn device(&self, qualified: &str) -> Option<(&SpecFile, &Device)> {
        let &(file, place) = self.devices.get(qualified)?;
        let file = self.files.get(file)?;
        Some((file, file.spec.devices.get(place)?))
    }

    /// Returns the valid files, ordered by directory and name.
    pub fn files(&self) -> &[SpecFile] {
        &self.files
    }

    /// Returns the valid files that a user can answer for: all but those of Kubernetes' claims.
    pub fn lasting_files(&self) -> impl Iterator<Item = &SpecFile> {
        self.files.iter().filter(|file| !file.is_claim())
    }

    /// Returns the skipped files with the reasons.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Combines the edits of devices: those of each file once, before those of its first device. Returns warnings, too:
    /// of NVIDIA's devices, mounts of paths that a user other than root and the caller could exchange are left out. Older
    /// specifications have such mounts, of daemons' sockets.
    ///
    /// The error names all missing devices, and the existing ones of the same kind; or a file that is gone, with
    /// its specification: the low-level runtime's error would not say whose mount it is.
    pub fn edits<S: AsRef<str>>(&self, devices: &[S]) -> Result<(Edits, Vec<String>)> {
        let mut edits = Edits::default();
        let (mut missing, mut files) = (Vec::new(), BTreeSet::new());
        let (mut paths, mut warnings) = (HandedPaths::default(), Vec::new());
        let mut append = |spec: &Spec, part: &Edits| {
            let before = (edits.device_nodes.len(), edits.mounts.len());
            edits.append(part);
            if names::is_nvidias(spec.vendor_and_class().0) {
                edits.device_nodes[before.0..]
                    .iter_mut()
                    .for_each(as_character);
                for mount in edits.mounts.split_off(before.1) {
                    match mount.exposed(&mut paths) {
                        None => edits.mounts.push(mount),
                        Some(why) => warnings.push(format!("left out: {why}")),
                    }
                }
            }
        };
        for name in devices {
            let Some(&(file, place)) = self.devices.get(name.as_ref()) else {
                missing.push(name.as_ref());
                continue;
            };
            let SpecFile { path, spec, .. } = &self.files[file];
            if files.insert(file) {
                check(path, &spec.container_edits)?;
                append(spec, &spec.container_edits);
            }
            check(path, &spec.devices[place].container_edits)?;
            append(spec, &spec.devices[place].container_edits);
        }
        if missing.is_empty() {
            Ok((edits, warnings))
        } else {
            Err(self.unresolvable(&missing))
        }
    }

    fn unresolvable(&self, missing: &[&str]) -> Error {
        let text = format!("unresolvable CDI devices {}", missing.join(", "));
        let kinds: BTreeSet<&str> = missing
            .iter()
            .filter_map(|name| name.split_once('=').map(|(kind, _)| kind))
            .collect();
        let is_of_them = |name: &&str| {
            name.split_once('=')
                .is_some_and(|(kind, _)| kinds.contains(kind))
        };
        let there = devices_here(self.device_names().filter(is_of_them));
        let hint = there.unwrap_or_else(|| match self.problems.first() {
            Some(Problem { path, error }) => {
                format!("{} was skipped: {}", path.display(), error.message())
            }
            None => {
                "no specification defines devices of that kind; nvidia-ctk cdi generate makes one"
                    .into()
            }
        });
        Error::new(ErrorKind::NotFound, text).hint(hint)
    }
}

/// Checks that the files of a specification's edits exist, if nvidia-ctk wrote it: then the command is known that writes it
/// again. What others list is theirs to keep; NVIDIA's runtime does not look at it.
fn check(path: &Path, edits: &Edits) -> Result<()> {
    let Some(gone) = compare::gone(edits).into_iter().next() else {
        return Ok(());
    };
    let text = content(path).unwrap_or_default();
    let Some(words) = file::command_of(&String::from_utf8_lossy(&text)) else {
        return Ok(());
    };
    let again = file::command_again(&words, path);
    let text = format!("{}: {gone}", path.display());
    Err(Error::new(ErrorKind::NotFound, text).hint(format!("write the file again: {again}")))
}

/// Makes the type of a node explicit: all of NVIDIA's devices are character devices, and older files record no type. A
/// node with a recorded number must exist, as long as its type is not recorded.
fn as_character(node: &mut DeviceNode) {
    let path = node.on_host();
    if node.kind.is_empty() && (node.major == 0 || Path::new(path).symlink_metadata().is_ok()) {
        node.kind = CHARACTER.into();
    }
}

/// Rejects a file whose devices another file in the same directory defines: engines would drop both.
pub fn check_siblings(path: &Path, spec: &Spec) -> Result<()> {
    let Some(directory) = path.parent() else {
        return Ok(());
    };
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Ok(()); // created later, or the write reports the error
    };
    for entry in entries.flatten() {
        let other = entry.path();
        let is_spec = other
            .extension()
            .is_some_and(|e| e == "json" || e == "yaml");
        if !is_spec || other.file_name() == path.file_name() {
            continue;
        }
        let Ok(sibling) = read(&other) else {
            continue; // engines skip it too
        };
        if sibling.kind != spec.kind {
            continue;
        }
        if let Some(device) = spec
            .devices
            .iter()
            .find(|d| sibling.device(&d.name).is_some())
        {
            let text = format!(
                "{} defines {}={} too; engines would drop the device",
                other.display(),
                spec.kind,
                device.name
            );
            let hint = format!("remove {}, or write to it", other.display());
            return Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint));
        }
    }
    Ok(())
}

/// Reads and validates one specification.
pub fn read(path: &Path) -> Result<Spec> {
    let spec = super::parse(&content(path)?)?;
    validate::spec(&spec)?;
    Ok(spec)
}

/// Returns the bytes of a regular file. Does not block on a fifo.
pub(super) fn content(path: &Path) -> Result<Vec<u8>> {
    nvc_hostfile::read(path, MAX_SIZE)
}

/// Returns the sorted specification files of a directory. None if the directory is missing.
fn names(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error: std::io::Error| system("open failed", directory, &error);
    match std::fs::symlink_metadata(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
        // Engines read a file that is named as a directory, if its name is that of a specification.
        Ok(metadata) if !metadata.is_dir() && is_spec_name(directory.as_os_str()) => {
            return Ok(vec![directory.into()]);
        }
        Ok(metadata) if metadata.is_file() => return Ok(Vec::new()),
        Ok(metadata) if metadata.is_symlink() => {
            let text = format!(
                "{} is a symbolic link: engines do not read it",
                directory.display()
            );
            return Err(Error::new(ErrorKind::Malformed, text));
        }
        Ok(_) => {}
    }
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if is_spec_name(&entry.file_name()) && !entry.file_type().map_err(failed)?.is_dir() {
            paths.push(entry.path());
        }
    }
    paths.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    Ok(paths)
}

fn is_spec_name(name: &OsStr) -> bool {
    name.as_bytes().ends_with(b".json") || name.as_bytes().ends_with(b".yaml")
}
