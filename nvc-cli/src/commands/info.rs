//! Reports the driver's versions and the GPUs.

use libnvc::host::query::QueryProcess;

use super::open;
use crate::failure::{Categorise, CommandError, category};
use crate::output;
use crate::request::{Global, Info};

pub(super) fn run(global: &Global, info: &Info, query: QueryProcess) -> Result<(), CommandError> {
    let mut session = open(global, &[], query)?;
    session.ready().category(category::INITIALIZATION)?;
    let versions = session.versions().category(category::DETECTION)?;
    let devices = session.devices().category(category::DETECTION)?;
    output::info(info.format, &versions, &devices)
}
