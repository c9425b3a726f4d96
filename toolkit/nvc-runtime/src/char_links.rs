//! Creates the links `/dev/char/MAJOR:MINOR` of a container's devices.
//!
//! Without them, runc 1.1.3 to 1.1.6 loses the device rules when systemd reloads or the container is updated. udev
//! creates them for most devices, but not for NVIDIA's. If they cannot be created, containers start anyway.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use libnvc::host::{CharDrivers, DeviceNumber, numbers};
use libnvc::kmods::CharLinks;
use nvc_oci::spec::Spec;
use serde_json::Value;

/// Creates the missing links for NVIDIA's devices in the specification; `dev` is the host's /dev.
pub(crate) fn make(spec: &Spec, dev: &Path) {
    let Ok(links) = CharLinks::open(&dev.join("char")) else {
        return;
    };
    let drivers = CharDrivers::discover();
    let devices = &spec.value()["linux"]["devices"];
    for device in devices.as_array().into_iter().flatten() {
        let Some((path, number)) = device_of(device) else {
            continue;
        };
        let Some(name) = path.strip_prefix("/dev/") else {
            continue;
        };
        let is_nvidias =
            name.starts_with("nvidia") && numbers::is_known(path) && !name.contains("..");
        // The container chooses its paths, so link a name only if the host has this device there.
        let is_that = is_nvidias
            && drivers.check(path, number).is_ok()
            && fs::symlink_metadata(dev.join(name)).is_ok_and(|facts| {
                facts.file_type().is_char_device()
                    && DeviceNumber::from_rdev(facts.rdev()) == number
            });
        if is_that {
            // Another container's start may have created it.
            let _ = links.add(number, Path::new(&format!("../{name}")));
        }
    }
}

/// Returns a device's path and number.
fn device_of(device: &Value) -> Option<(&str, DeviceNumber)> {
    let number = |name| u32::try_from(device.get(name)?.as_u64()?).ok();
    let (major, minor) = (number("major")?, number("minor")?);
    let path = device.get("path")?.as_str()?;
    Some((path, DeviceNumber { major, minor }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_the_host_has_is_linked() {
        let dev = tempfile::tempdir().unwrap();
        fs::create_dir(dev.path().join("char")).unwrap();
        fs::write(dev.path().join("nvidia0"), "").unwrap();
        let devices = json!([
            {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0},
            {"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1},
            {"path": "/dev/null", "type": "c", "major": 1, "minor": 3},
            {"path": "/dev/nvidia0"},
        ]);
        make(
            &Spec::new(json!({"linux": {"devices": devices}})),
            dev.path(),
        );
        assert_eq!(fs::read_dir(dev.path().join("char")).unwrap().count(), 0);
        make(&Spec::new(json!({})), Path::new("/no/such"));
    }
}
