//! What is read of a claim: a record is that of its file, and the same after writing and reading; parameters that ask for
//! more than a device are refused; a UID is no path.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;

// The crate has hundreds of dependencies that these files do not need.
#[path = "../../nvc-node/src/api/parameters.rs"]
mod parameters;
#[path = "../../nvc-node/src/grants/record.rs"]
mod record;

use record::{Record, check_uid};

const UID: &str = "5e9b0f5c-61d1-4a4f-9c5b-7e0d3f4f2a10";

fuzz_target!(|bytes: &[u8]| {
    if let Ok(record) = Record::parse(UID, bytes) {
        let text = serde_json::to_vec(&record).unwrap_or_default();
        assert_eq!(Record::parse(UID, &text), Ok(record.clone()));
        assert!(Record::parse("other", bytes).is_err());
        for one in &record.grants {
            assert!(one.overlaps(one));
            let is_same = |other| one.overlaps(other) == other.overlaps(one);
            assert!(record.grants.iter().all(is_same));
        }
    }
    if let Ok(value) = serde_json::from_slice::<Value>(bytes)
        && parameters::check(&value).is_ok()
    {
        let is_plain = |(name, value): (&String, &Value)| match name.as_str() {
            "apiVersion" => value == "resource.nvidia.com/v1beta1",
            "kind" => value.is_string(),
            name => name == "sharing" && value.is_null(),
        };
        assert!(
            value
                .as_object()
                .is_some_and(|fields| fields.iter().all(is_plain))
        );
    }
    if let Ok(uid) = str::from_utf8(bytes)
        && check_uid(uid).is_ok()
    {
        assert!(!uid.contains(['/', '.', '\0']) && !uid.is_empty() && uid.len() < 100);
    }
});
