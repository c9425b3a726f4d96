//! Finds programs and firmware in all directories where a driver may install them.

use std::os::fd::AsFd;
use std::path::{Component, PathBuf};

use log::info;

use super::search::Search;
use crate::host::firmware::is_firmware;
use crate::host::{DriverFile, FileClass, catalogue};
use crate::path::{ContainerPath, HostPath, STANDARD_PATH};
use crate::{inroot, read_file};

/// Returns the existing programs, with links resolved. In a container, each has the name under which it was found.
///
/// Debian's /usr/bin/nvidia-smi is a link by way of /etc/alternatives. Its target is in no directory of an image's `PATH`.
pub(super) fn programs(search: &mut Search<'_>, given: &[HostPath]) -> Vec<DriverFile> {
    let standard = STANDARD_PATH.iter().map(HostPath::new);
    let directories: Vec<_> = given.iter().cloned().chain(standard).collect();
    let mut found = Vec::new();
    for pattern in catalogue::programs_of_everything() {
        let mut places = directories.iter().map(|place| place.join(pattern.name));
        let program = places.find_map(|place| {
            let real = search.file(&place)?;
            is_executable(search, &real).then_some((place, real))
        });
        match program {
            Some((place, real)) => {
                let mut file = pattern.file(real);
                let at = name_in_container(search, &place);
                file.at = (at.as_path() != file.path.as_path()).then_some(at);
                found.push(file);
            }
            None => info!("missing program {}", pattern.name),
        }
    }
    found
}

/// Returns the path without `.`, `..` and repeated slashes, which no specification should contain.
fn name_in_container(search: &mut Search<'_>, place: &HostPath) -> ContainerPath {
    let has_parent = place
        .as_path()
        .components()
        .any(|c| c == Component::ParentDir);
    let place = match search.real_directory(&place.parent()) {
        Some(real) if has_parent => real.join(place.file_name()),
        _ => place.clone(),
    };
    ContainerPath::new(place.as_path().components().collect::<PathBuf>())
}

fn is_executable(search: &Search<'_>, file: &HostPath) -> bool {
    let found = search.root.resolve(file);
    let stat = found.and_then(|found| inroot::stat(found.as_fd()));
    stat.is_ok_and(|stat| stat.st_mode & 0o111 != 0)
}

/// Returns the firmware of a driver version from all directories that the kernel searches.
pub(super) fn firmware(search: &mut Search<'_>, version: &str) -> Vec<DriverFile> {
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
        let names = search.names(&directory).iter();
        let firmware = names.filter(|name| is_firmware(name.as_bytes()));
        // Not resolved: the kernel opens it by this name, even if /lib is a link.
        found.extend(
            firmware.map(|name| DriverFile::new(directory.join(name), FileClass::Firmware)),
        );
    }
    found
}
