//! Reads what a claim was allocated.

use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use kube::{Api, Client};
use libnvc::{Error, ErrorKind, Result};

use super::{answer, parameters};
use crate::options::DRIVER;

/// What a claim was allocated.
#[derive(Debug)]
pub(crate) struct Allocated {
    /// Of this driver.
    pub(crate) results: Vec<DeviceRequestAllocationResult>,
    /// Seconds since 1970; not later than the allocation.
    pub(crate) since: i64,
}

/// Returns what this driver has to give for a claim.
///
/// # Errors
/// The API server does not answer; it has no such claim, or another one of that name; the claim is not allocated; its
/// parameters ask for something that this driver does not have.
pub(crate) async fn allocated(
    client: &Client,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Result<Allocated> {
    let claim = answer(Api::<ResourceClaim>::namespaced(client.clone(), namespace).get(name)).await;
    let claim = claim.map_err(|failure| Error::new(ErrorKind::System, failure.to_string()))?;
    of_claim(claim, uid)
}

fn of_claim(claim: ResourceClaim, uid: &str) -> Result<Allocated> {
    let invalid = |text: String| Error::new(ErrorKind::InvalidArgument, text);
    let found = claim.metadata.uid.unwrap_or_default();
    if found != uid {
        let text = format!("the claim was replaced by another one, {found}");
        return Err(invalid(text));
    }
    let allocation = claim.status.and_then(|status| status.allocation);
    let allocation = allocation.ok_or_else(|| invalid("the claim is not allocated".into()))?;
    // An API server may not tell when it was allocated.
    let since = allocation
        .allocation_timestamp
        .or(claim.metadata.creation_timestamp);
    let since = since.map_or(0, |time| time.0.as_second());
    let devices = allocation.devices.unwrap_or_default();
    for config in devices.config.iter().flatten() {
        let opaque = config.opaque.as_ref();
        if let Some(opaque) = opaque.filter(|opaque| opaque.driver == DRIVER) {
            parameters::check(&opaque.parameters.0)?;
        }
    }
    let results = devices.results.into_iter().flatten();
    let results: Vec<_> = results.filter(|result| result.driver == DRIVER).collect();
    if results.is_empty() {
        return Err(invalid(format!("the claim has no device of {DRIVER}")));
    }
    Ok(Allocated { results, since })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(config: &Value) -> ResourceClaim {
        serde_json::from_value(json!({
            "metadata": {"uid": "u1", "name": "c"}, "spec": {},
            "status": {"allocation": {"devices": {
                "results": [
                    {"request": "r/x", "driver": DRIVER, "pool": "n1", "device": "gpu-0"},
                    {"request": "q", "driver": "other.com", "pool": "n1", "device": "x"},
                ],
                "config": config,
            }}},
        }))
        .unwrap()
    }

    #[test]
    fn only_our_results_of_this_claim() {
        let results = of_claim(claim(&json!([])), "u1").unwrap().results;
        assert_eq!(results.len(), 1);
        assert_eq!(results[0].device, "gpu-0");
        let said = of_claim(claim(&json!([])), "u2").unwrap_err().message();
        assert_eq!(said, "the claim was replaced by another one, u1");
        let said = of_claim(
            ResourceClaim {
                status: None,
                ..claim(&json!([]))
            },
            "u1",
        );
        assert_eq!(said.unwrap_err().message(), "the claim is not allocated");
    }

    #[test]
    fn parameters_for_more_than_a_device_are_refused() {
        let config = |driver: &str, parameters: Value| json!([{"source": "FromClaim", "requests": [], "opaque": {"driver": driver, "parameters": parameters}}]);
        let said = |driver: &str, parameters: Value| {
            let found = of_claim(claim(&config(driver, parameters)), "u1");
            found.err().map(|error| error.message())
        };
        let api = "resource.nvidia.com/v1beta1";
        assert_eq!(
            said(DRIVER, json!({"apiVersion": api, "kind": "GpuConfig"})),
            None
        );
        assert_eq!(said("other.com", json!({"x": 1})), None);
        for (parameters, expected) in [
            (json!([]), "the claim's parameters are no object"),
            (
                json!({"apiVersion": api, "kind": "GpuConfig", "sharing": {"strategy": "MPS"}}),
                "this driver shares no device: sharing.strategy is \"MPS\"",
            ),
            (
                json!({"apiVersion": api, "kind": "GpuConfig", "shring": {}}),
                "GpuConfig has no field \"shring\"",
            ),
            (
                json!({"apiVersion": api, "kind": "VfioDeviceConfig"}),
                "this driver has no parameters \"VfioDeviceConfig\" of \"resource.nvidia.com/v1beta1\"",
            ),
        ] {
            assert_eq!(said(DRIVER, parameters).unwrap(), expected);
        }
    }
}
