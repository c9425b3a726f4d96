//! Finds programs, firmware and sockets in all directories where a driver may install them.

use std::ffi::{OsStr, OsString};

use log::{debug, info};
use nix::sys::stat::SFlag;

use super::{RealPaths, names};
use crate::capability::Capability;
use crate::host::{DriverFile, DriverRoot, FileClass, catalogue};
use crate::options::DriverOptions;
use crate::path::{ContainerPath, HostPath};
use crate::read_file;

/// Directories searched after those of `PATH`.
const STANDARD: &[&str] = &[
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// Returns the existing programs. Each keeps its host path in the container, because it is called by that path.
pub(super) fn programs(
    root: &DriverRoot,
    path: Option<&OsStr>,
    options: DriverOptions,
) -> Vec<DriverFile> {
    let mut paths = RealPaths::new(root);
    let path = path.map(|path| std::env::split_paths(path).collect::<Vec<_>>());
    let given = path.unwrap_or_default().into_iter().map(HostPath::new);
    let directories: Vec<_> = given.chain(STANDARD.iter().map(HostPath::new)).collect();
    let mut found = Vec::new();
    for pattern in catalogue::programs(options, true) {
        let mut places = directories
            .iter()
            .map(|directory| directory.join(pattern.name));
        let program = places.find_map(|place| match paths.resolve_with_kind(&place) {
            Ok((real, SFlag::S_IFREG)) => Some((place, real)),
            _ => None,
        });
        let Some((place, real)) = program else {
            info!("missing program {}", pattern.name);
            continue;
        };
        debug!("selecting {real}");
        let mut file = pattern.file(real);
        file.at = (place != file.path).then(|| ContainerPath::from(&place));
        found.push(file);
    }
    found
}

/// Returns the firmware of a driver version from all directories that the kernel searches.
pub(super) fn firmware(root: &DriverRoot, version: &str) -> Vec<DriverFile> {
    let release = nix::sys::utsname::uname();
    let release = release.as_ref().map(|name| name.release().to_owned());
    let release = release.unwrap_or_default();
    let set =
        read_file::read_path("/sys/module/firmware_class/parameters/path").unwrap_or_default();
    let set = String::from_utf8_lossy(&set).trim().to_owned();
    let usual = HostPath::new("/lib/firmware");
    let directories = [
        (!set.is_empty()).then(|| HostPath::new(set)),
        Some(usual.join("updates").join(&release)),
        Some(usual.join("updates")),
        Some(usual.join(&release)),
        Some(usual),
    ];
    let mut found = Vec::new();
    for directory in directories.into_iter().flatten() {
        let directory = directory.join("nvidia").join(version);
        let is_firmware = |name: &&OsString| {
            let name = name.to_string_lossy();
            name.starts_with("gsp") && name.ends_with(".bin")
        };
        for name in names(root, &directory)
            .unwrap_or_default()
            .iter()
            .filter(is_firmware)
        {
            found.push(DriverFile::new(directory.join(name), FileClass::Firmware));
        }
    }
    found
}

/// Returns the daemons' sockets. Omits the MPS directory, as upstream does: access to it is granted elsewhere.
pub(super) fn sockets(root: &DriverRoot, options: DriverOptions) -> Vec<DriverFile> {
    let wanted = [
        (DriverOptions::NO_PERSISTENCED, "nvidia-persistenced/socket"),
        (
            DriverOptions::NO_FABRICMANAGER,
            "nvidia-fabricmanager/socket",
        ),
    ];
    let wanted = wanted.into_iter().filter(|(no, _)| !options.contains(*no));
    let mut paths = RealPaths::new(root);
    let find = |(_, name): (DriverOptions, &str)| {
        let mut places = ["/run", "/var/run"].into_iter();
        let found = places.find_map(|top| {
            let path = HostPath::new(top).join(name);
            match paths.resolve_with_kind(&path) {
                Ok((_, kind)) if kind != SFlag::S_IFDIR => Some(path),
                _ => None,
            }
        });
        if found.is_none() {
            info!("missing ipc {name}");
        }
        let socket = |path| DriverFile::new(path, FileClass::Socket).of(Some(Capability::Utility));
        found.map(socket)
    };
    wanted.filter_map(find).collect()
}
