//! The text by which the runtime passes NVML's answers to the hook: any text is refused with a reason, or means exactly
//! what it says and is fit for paths, terminals and masks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::host::Inventory;
use libnvc::testing::{self, inventory_parts};

fuzz_target!(|text: &str| {
    let inventory = match text.parse::<Inventory>() {
        Ok(inventory) => inventory,
        Err(error) => {
            assert!(!error.message().is_empty());
            return;
        }
    };
    assert_eq!(inventory.to_string(), text);
    assert!(text.len() <= testing::MAX_INVENTORY);
    let (versions, gpus) = inventory_parts(inventory).expect("checked");
    assert!(!versions.driver.contains('/') && !versions.driver.starts_with('.'));
    for gpu in gpus {
        assert!(graphic(&gpu.uuid) && graphic(&gpu.busid) && graphic(&gpu.arch));
        assert!(!gpu.busid.contains('/'));
        assert!(gpu.minor < 1 << 20, "{}", gpu.minor);
        let node = gpu.node.expect("not WSL2");
        assert_eq!(node.path.to_string(), format!("/dev/nvidia{}", gpu.minor));
        assert_eq!((node.number.major, node.number.minor), (195, gpu.minor));
        assert!(gpu.proc_dir.is_none() && gpu.drm_nodes.is_empty());
        for mig in &gpu.mig_devices {
            assert!(graphic(&mig.uuid));
            let directory = format!(
                "/proc/driver/nvidia/capabilities/gpu{}/mig/gi{}",
                gpu.minor, mig.gi
            );
            assert_eq!(mig.gi_caps_path.to_string(), directory);
        }
    }
});

fn graphic(text: &str) -> bool {
    !text.is_empty() && text.len() < 1000 && text.bytes().all(|b| b.is_ascii_graphic())
}
