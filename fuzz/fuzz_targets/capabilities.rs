//! The kernel module's small files: capability files, `params`, `version`, and /proc/devices.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::testing::{container_params, major, module_version, procfs_number};

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    for key in ["DeviceFileMinor", "Device Minor", "ModifyDeviceFiles"] {
        if let Some(number) = procfs_number(&text, key) {
            assert!(text.contains(key));
            assert_eq!(
                procfs_number(&format!("{key}: {number}\n{text}"), key),
                Some(number)
            );
        }
    }

    let params = container_params(&text);
    assert_eq!(params.len(), text.len());
    assert!(
        !params
            .split('\n')
            .any(|line| line == "ModifyDeviceFiles: 1")
    );
    assert_eq!(container_params(&params), params);

    if let Some(version) = module_version(&text) {
        assert!(version.contains('.') && version.len() > 1);
        assert!(version.bytes().all(|b| b.is_ascii_digit() || b == b'.'));
        let line = format!("NVRM version: {version}\n");
        assert_eq!(module_version(&line), Some(version));
    }

    for driver in ["nvidia-caps", "nvidia-caps-imex-channels"] {
        if let Some(number) = major(bytes, driver) {
            assert!(text.contains("Character devices:"));
            assert!(text.contains(driver));
            let line = format!(
                "Character devices:\n{number:3} {driver}\n\nBlock devices:\n  9 {driver}\n"
            );
            assert_eq!(major(line.as_bytes(), driver), Some(number));
        }
    }
});
