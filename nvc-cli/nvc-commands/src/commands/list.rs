//! Lists the parts of the driver that a container needs.

use libnvc::host::query::QueryProcess;
use libnvc::host::{DriverConfig, GpusAsked};
use libnvc::select::Choice;

use super::open;
use crate::failure::{Categorise, CommandError, category};
use crate::listing::Listing;
use crate::output;
use crate::request::List;

pub(super) fn run(
    driver: DriverConfig,
    list: &List,
    query: QueryProcess,
) -> Result<(), CommandError> {
    let driver = DriverConfig {
        gpus: GpusAsked::Named(list.devices.ids.clone()),
        ..driver
    };
    let mut session = open(driver, &list.devices.imex_channels, query)?;
    session.look_ahead(list.driver_options);
    session.ready().category(category::INITIALIZATION)?;
    let driver = session
        .info(list.driver_options)
        .category(category::DETECTION)?;
    if let Err(error) = session.check_libraries(&driver) {
        log::warn!("{}", error.message());
    }
    let devices = session.devices().category(category::DETECTION)?;
    let choice = Choice::make(&devices, &list.devices)?;
    let listing = Listing::collect(list, &driver, &choice, &session)?;
    output::list(list.format, &listing)
}
