//! Creates the links `/dev/char/MAJOR:MINOR` of a container's devices.
//!
//! Without them, runc 1.1.3 to 1.1.6 loses the device rules when systemd reloads or the container is updated. udev
//! creates them for most devices, but not for NVIDIA's. If they cannot be created, containers start anyway.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};
use std::path::Path;

use nvc_toolkit::oci::spec::Spec;
use serde_json::Value;

/// Creates the missing links for NVIDIA's devices in the specification; `dev` is the host's /dev.
pub(crate) fn make(spec: &Spec, dev: &Path) {
    let links = dev.join("char");
    if !links.is_dir() {
        return;
    }
    let devices = &spec.value()["linux"]["devices"];
    for device in devices.as_array().into_iter().flatten() {
        let number = |name| device.get(name).and_then(Value::as_u64);
        let (Some(major), Some(minor)) = (number("major"), number("minor")) else {
            continue;
        };
        let path = device.get("path").and_then(Value::as_str);
        let Some(name) = path.and_then(|path| path.strip_prefix("/dev/nvidia")) else {
            continue;
        };
        let name = format!("nvidia{name}");
        // The container chooses its paths, so link a name only if the host has this device there.
        let is_that = fs::symlink_metadata(dev.join(&name)).is_ok_and(|facts| {
            let number = (major_of(facts.rdev()), minor_of(facts.rdev()));
            facts.file_type().is_char_device() && number == (major, minor)
        });
        if is_that && !name.contains("..") {
            // Another container's start may have created it.
            let _ = symlink(format!("../{name}"), links.join(format!("{major}:{minor}")));
        }
    }
}

fn major_of(number: u64) -> u64 {
    rustix::fs::major(number).into()
}

fn minor_of(number: u64) -> u64 {
    rustix::fs::minor(number).into()
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
