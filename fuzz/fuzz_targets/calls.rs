//! What the side that speaks with the cluster asks for: any bytes are survived, and a call is the same after writing and
//! reading.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The crate has hundreds of dependencies that these files do not need.
#[path = "../../nvc-node/src/sides/call.rs"]
mod call;
#[allow(dead_code)] // what claims need
#[path = "../../nvc-node/src/grants/record.rs"]
mod record;
mod grants {
    pub(crate) use super::record::Record;
}

use call::Call;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(call) = serde_json::from_slice::<Call>(bytes) {
        let text = serde_json::to_vec(&call).unwrap_or_default();
        assert_eq!(serde_json::from_slice::<Call>(&text).ok(), Some(call));
    }
});
