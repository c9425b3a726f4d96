//! Creates the links `/dev/char/MAJOR:MINOR` of a container's devices.
//!
//! Without them, runc 1.1.3 to 1.1.6 loses the device rules when systemd reloads or the container is updated. udev
//! creates them for most devices, but not for NVIDIA's. If they cannot be created, containers start anyway.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use libnvc::host::DeviceNumber;
use libnvc::kmods::CharLinks;

use nvc_toolkit::oci::spec::Spec;
use serde_json::Value;

/// Creates the missing links for NVIDIA's devices in the specification; `dev` is the host's /dev.
pub(crate) fn make(spec: &Spec, dev: &Path) {
    let Ok(links) = CharLinks::open(&dev.join("char")) else {
        return;
    };
    let devices = &spec.value()["linux"]["devices"];
    for device in devices.as_array().into_iter().flatten() {
        let number = |name| {
            let number = device.get(name).and_then(Value::as_u64)?;
            u32::try_from(number).ok()
        };
        let (Some(major), Some(minor)) = (number("major"), number("minor")) else {
            continue;
        };
        let path = device.get("path").and_then(Value::as_str);
        let Some(name) = path.and_then(|path| path.strip_prefix("/dev/nvidia")) else {
            continue;
        };
        let name = format!("nvidia{name}");
        // The container chooses its paths, so link a name only if the host has this device there.
        let number = DeviceNumber { major, minor };
        let is_that = fs::symlink_metadata(dev.join(&name)).is_ok_and(|facts| {
            facts.file_type().is_char_device() && DeviceNumber::from_rdev(facts.rdev()) == number
        });
        if is_that && !name.contains("..") {
            // Another container's start may have created it.
            let _ = links.add(number, Path::new(&format!("../{name}")));
        }
    }
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
