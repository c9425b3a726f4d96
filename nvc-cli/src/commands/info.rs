//! Reports the driver's versions and the GPUs.

use libnvc::options::DriverOptions;

use super::{Power, open};
use crate::failure::{Categorise, Failure, category};
use crate::output;
use crate::request::{Global, Info};

pub(super) fn run(global: &Global, info: &Info) -> Result<(), Failure> {
    let session = open(global, Power::Reads, &[])?;
    let driver = session
        .driver_info(DriverOptions::empty())
        .category(category::DETECTION)?;
    let devices = session.devices().category(category::DETECTION)?;
    output::info(info.format, &driver, &devices)
}
