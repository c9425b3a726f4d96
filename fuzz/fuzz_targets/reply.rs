//! The query process's reply: any bytes are survived; a parsed message survives writing and reading, and its content is
//! fit for paths and terminals.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::HostPath;
use libnvc::testing::{Reply, reply};

// Messages as they are, or lines that become messages with the right lengths.
fuzz_target!(|bytes: &[u8]| {
    let bytes = match bytes.first() {
        Some(b'{') => {
            let framed = |body: &[u8]| [&(body.len() as u32).to_le_bytes(), body].concat();
            bytes
                .split(|byte| *byte == b'\n')
                .flat_map(framed)
                .collect()
        }
        _ => bytes.to_vec(),
    };
    let found = reply(&bytes);
    assert!(found.rest <= bytes.len());
    assert!(found.rest + 5 * found.messages.len() <= bytes.len());
    let again = reply(&found.messages.concat());
    assert_eq!(again.messages, found.messages);
    assert!(!again.garbled && again.rest == 0);
    fit(&found);
});

fn fit(reply: &Reply) {
    if let Some(Ok(versions)) = &reply.versions {
        assert!(
            HostPath::new("/firmware").join(&versions.driver).parent()
                == HostPath::new("/firmware")
        );
        assert!(
            versions
                .cuda
                .bytes()
                .all(|b| b.is_ascii_digit() || b == b'.')
        );
    }
    let Some(Ok(devices)) = &reply.devices else {
        return;
    };
    for gpu in &devices.gpus {
        assert!(!gpu.model.contains(char::is_control));
        assert!(graphic(&gpu.uuid) && graphic(&gpu.busid) && graphic(&gpu.arch));
        assert!(gpu.mig_devices.iter().all(|mig| graphic(&mig.uuid)));
        // The kernel has 20 bits for a minor number; masks are as long as the highest.
        assert!(gpu.minor < 1 << 20, "{}", gpu.minor);
    }
    for failed in &devices.failed {
        assert!(failed.uuid.as_deref().is_none_or(graphic));
        assert!(!failed.error.message().contains(char::is_control));
    }
}

fn graphic(text: &str) -> bool {
    text.len() < 1000 && text.bytes().all(|b| b.is_ascii_graphic())
}
