//! Prints, as JSON, what a container would get of the driver and of one GPU, and changes nothing.
//!
//!     plan PID ROOTFS GPU [DRIVER-ROOT]

use std::env::args;
use std::error::Error;

use libnvc::container::{Container, ContainerConfig};
use libnvc::host::{DriverConfig, DriverSession, query};
use libnvc::options::{ContainerOptions, DriverOptions};
use libnvc::plan::{self, Plan};

fn main() -> Result<(), Box<dyn Error>> {
    // NVML is asked by a process of its own: this program, executed once more.
    query::serve_if_asked();

    let words: Vec<String> = args().skip(1).collect();
    let (pid, rootfs, gpu, root) = match words.as_slice() {
        [pid, rootfs, gpu] => (pid, rootfs, gpu, "/"),
        [pid, rootfs, gpu, root] => (pid, rootfs, gpu, root.as_str()),
        _ => return Err("usage: plan PID ROOTFS GPU [DRIVER-ROOT]".into()),
    };
    let config = ContainerConfig {
        pid: pid.parse()?,
        rootfs: rootfs.into(),
        ..ContainerConfig::default()
    };

    // discover
    let mut session = DriverSession::open(&DriverConfig {
        root: root.into(),
        ..DriverConfig::default()
    })?;
    let options = ContainerOptions::parse("supervised no-cgroups utility compute")?;
    let container = Container::discover(&config, options)?;
    let driver = session.info(DriverOptions::empty())?;
    let devices = session.devices()?;
    let position: usize = gpu.parse()?;
    let gpu = devices.gpus.get(position).ok_or("no such GPU")?;

    // plan
    let plan: Plan = [
        plan::driver(&driver, &container.facts, &[gpu.minor]),
        plan::device(gpu, &driver, &container.facts),
        plan::ldcache(&driver, &container.facts),
    ]
    .into_iter()
    .collect();
    println!("{}", serde_json::to_string_pretty(&plan)?);
    Ok(())
}
