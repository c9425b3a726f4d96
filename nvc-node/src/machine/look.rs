//! Asks the driver what there is now.

use libnvc::host::{DeviceInfo, DriverConfig, DriverSession};
use libnvc::{Error, Result};

use super::{Gpu, Health, Machine, Mig, Source};

/// Asks NVML in a process of its own.
///
/// # Errors
/// The driver does not answer, or no GPU does.
pub(super) fn machine(source: &Source) -> Result<Machine> {
    let config = DriverConfig {
        root: source.driver_root.clone(),
        dev_root: Some(source.dev_root.clone()).filter(|root| *root != source.driver_root),
        program: source.query.clone(),
        ..DriverConfig::default()
    };
    let mut session = DriverSession::open(&config, None)?;
    let info = session.devices()?;
    let versions = session.versions()?;
    Ok(Machine {
        driver: versions.driver,
        cuda: versions.cuda,
        gpus: gpus(&info),
    })
}

/// Returns an error's message with its hint.
pub(super) fn reason(error: &Error) -> String {
    match error.advice() {
        Some(advice) => format!("{}: {advice}", error.message()),
        None => error.message(),
    }
}

fn gpus(info: &DeviceInfo) -> Vec<Gpu> {
    let gpu = |gpu: &libnvc::host::Gpu| {
        let (major, minor) = gpu.arch.split_once('.').unwrap_or_default();
        Gpu {
            minor: gpu.minor,
            uuid: gpu.uuid.clone(),
            busid: short_address(&gpu.busid),
            model: gpu.model.clone(),
            brand: gpu.brand.clone(),
            compute: (
                major.parse().unwrap_or_default(),
                minor.parse().unwrap_or_default(),
            ),
            memory: None,
            addressing: None,
            is_divided: info.divided.contains(&gpu.index),
            migs: gpu.mig_devices.iter().map(mig).collect(),
            health: Health::Well,
        }
    };
    let mut gpus: Vec<Gpu> = info.gpus.iter().map(gpu).collect();
    gpus.sort_by_key(|gpu| gpu.minor);
    gpus
}

fn mig(mig: &libnvc::host::MigDevice) -> Mig {
    Mig {
        uuid: mig.uuid.clone(),
        profile: String::new(),
        profile_id: mig.gi,
        start: 0,
        size: 0,
        multiprocessors: 0,
        copy_engines: 0,
        decoders: 0,
        encoders: 0,
        jpeg_engines: 0,
        ofa_engines: 0,
        memory: 0,
        health: Health::Well,
    }
}

/// Returns a PCI address with the four digits of sysfs, and lower case.
fn short_address(busid: &str) -> String {
    let short = busid.strip_prefix("0000").filter(|rest| rest.len() > 8);
    short.unwrap_or(busid).to_ascii_lowercase()
}
