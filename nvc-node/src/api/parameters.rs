//! Reads the parameters of a claim: this driver gives devices, and nothing else.

use libnvc::{Error, ErrorKind, Result};
use serde_json::Value;

/// Parameters that NVIDIA's driver knows for GPUs and MIG devices.
const PARAMETERS: &str = "resource.nvidia.com/v1beta1";
const KINDS: [&str; 2] = ["GpuConfig", "MigDeviceConfig"];

/// Refuses parameters of this driver that ask for more than a device.
///
/// # Errors
/// They do, or they are none that NVIDIA's driver knows.
pub(crate) fn check(parameters: &Value) -> Result<()> {
    let refuse = |text: String| {
        let error = Error::new(ErrorKind::InvalidArgument, text);
        Err(error.hint("leave the config out of the claim and of its DeviceClass"))
    };
    let Value::Object(fields) = parameters else {
        return refuse("the claim's parameters are no object".into());
    };
    let word = |name: &str| parameters[name].as_str().unwrap_or_default();
    let (version, kind) = (word("apiVersion"), word("kind"));
    if version != PARAMETERS || !KINDS.contains(&kind) {
        return refuse(format!(
            "this driver has no parameters \"{kind}\" of \"{version}\""
        ));
    }
    for (name, value) in fields {
        match name.as_str() {
            "apiVersion" | "kind" => {}
            "sharing" if value.is_null() => {}
            "sharing" => {
                let strategy = value["strategy"].as_str().unwrap_or_default();
                return refuse(format!(
                    "this driver shares no device: sharing.strategy is \"{strategy}\""
                ));
            }
            _ => return refuse(format!("{kind} has no field \"{name}\"")),
        }
    }
    Ok(())
}
