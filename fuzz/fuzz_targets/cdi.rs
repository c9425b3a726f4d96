//! Foreign CDI specifications: any text is refused with a reason or read; a valid specification survives writing and
//! reading, and can be compared, transformed and applied to a config.json.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::host::CharDrivers;
use nvc_cdi::edits::{Host, apply};
use nvc_cdi::emit::{Format, text};
use nvc_cdi::nodes::HostNode;
use nvc_cdi::transform::{Side, Transform};
use nvc_cdi::{compare, parse, validate, version};
use nvc_oci::spec::Spec;

fuzz_target!(|bytes: &[u8]| {
    let Ok(spec) = parse(bytes) else {
        return;
    };
    if validate::spec(&spec).is_err() {
        return;
    }
    for format in [Format::Yaml, Format::Json] {
        let text = text(&spec, format, Some("fuzz\ned"));
        let again = parse(text.as_bytes()).expect("what is written is read");
        assert!(spec == again, "{text}");
    }
    assert!(compare::differences(&spec, &spec).is_empty());
    assert!(version::rank(version::minimum(&spec).0) <= version::rank(&spec.cdi_version));
    let mut moved = spec.clone();
    let _ = Transform::new("/a", "/b", Side::Host).apply(&mut moved);
    let mut config = Spec::new(serde_json::json!({ "process": { "user": { "uid": 1 } } }));
    let drivers = CharDrivers::default();
    let host = Host {
        look_up: |_| {
            Ok(HostNode {
                kind: 'c',
                major: 1,
                minor: 3,
                mode: 0o666,
            })
        },
        drivers: &drivers,
    };
    for device in &spec.devices {
        let _ = apply(&mut config, &[device.container_edits.clone()], host);
    }
});
