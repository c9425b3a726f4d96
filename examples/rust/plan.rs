//! Prints the plan for a container with the driver and one GPU, as JSON. Changes nothing.
//!
//!     plan PID ROOTFS GPU [DRIVER-ROOT]

use std::env::args;
use std::error::Error;

use libnvc::host::query::{self, QueryProcess};
use libnvc::request::{Capabilities, DeviceRequest, Policy, Request};
use libnvc::{Configuration, Target, render};

fn main() -> Result<(), Box<dyn Error>> {
    // A separate process queries NVML: this program, executed again.
    query::serve_if_asked();

    let words: Vec<String> = args().skip(1).collect();
    let (pid, rootfs, gpu, root) = match words.as_slice() {
        [pid, rootfs, gpu] => (pid, rootfs, gpu, "/"),
        [pid, rootfs, gpu, root] => (pid, rootfs, gpu, root.as_str()),
        _ => return Err("usage: plan PID ROOTFS GPU [DRIVER-ROOT]".into()),
    };
    let mut policy = Policy {
        device_rules: false,
        ..Policy::default()
    };
    policy.driver.root = root.into();
    let request = Request {
        devices: DeviceRequest {
            ids: vec![gpu.clone()],
            ..DeviceRequest::default()
        },
        capabilities: Capabilities::UTILITY | Capabilities::COMPUTE,
        policy,
        ..Request::default()
    };
    let target = Target::Process {
        pid: pid.parse()?,
        rootfs: rootfs.into(),
    };

    let query = QueryProcess::start(&request.policy.driver.program);
    let (plan, image) = Configuration::begin(&request, query)?.plan(target)?;
    let json = render::json(&plan, &image);
    println!("{}", serde_json::to_string_pretty(&json)?);
    Ok(())
}
