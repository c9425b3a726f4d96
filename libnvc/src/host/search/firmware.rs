//! Finds the firmware files of the GPU system processors (GSP).

use log::info;

use super::places::Places;
use crate::host::{DriverFile, FileClass};
use crate::path::HostPath;
use crate::read_file;

/// Returns the firmware of a driver version from all directories that the kernel searches, sorted by name in each.
pub(super) fn firmware(places: &mut Places<'_>, version: &str) -> Vec<DriverFile> {
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
        let names: Vec<String> = places
            .names(&directory)
            .iter()
            .filter(|name| is_firmware(name))
            .cloned()
            .collect();
        for name in names {
            // Not resolved: the kernel opens it by this name, even if /lib is a link.
            let path = directory.join(name);
            if places.file(&path).is_some() {
                found.push(DriverFile::new(path, FileClass::Firmware));
            }
        }
    }
    if found.is_empty() {
        info!("missing firmware nvidia/{version}/gsp*.bin");
    }
    found
}

/// Returns true for the names of firmware that containers get: of the GSP, and microcode (since R615).
fn is_firmware(name: &str) -> bool {
    (name.starts_with("gsp") || name.starts_with("ucodes")) && name.ends_with(".bin")
}
