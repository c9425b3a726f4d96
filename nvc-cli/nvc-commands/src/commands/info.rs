//! Reports the driver's versions and the GPUs.

use libnvc::host::DriverConfig;
use libnvc::host::query::QueryProcess;

use super::open;
use crate::failure::{Categorise, CommandError, category};
use crate::output;
use crate::request::Format;

pub(super) fn run(
    driver: DriverConfig,
    format: Format,
    query: QueryProcess,
) -> Result<(), CommandError> {
    let mut session = open(driver, &[], query)?;
    session.ready().category(category::INITIALIZATION)?;
    let versions = session.versions().category(category::DETECTION)?;
    let devices = session.devices().category(category::DETECTION)?;
    output::info(format, &versions, &devices)
}
