//! Configures a container with the driver and the chosen devices, or prints the plan.

use std::ffi::OsString;

use libnvc::host::query::QueryProcess;
use libnvc::host::{DriverConfig, DriverSession, Inventory};
use libnvc::options::LibraryOptions;
use libnvc::request::Request;
use libnvc::{Configuration, Target};
use nvc_program::messages;

use super::{Power, driver_config, start_query, tell_if_slow};
use crate::failure::CommandError;
use crate::output;
use crate::request::Format;

/// What a caller has that is no word of the command line.
#[expect(missing_debug_implementations, reason = "it has a closure")]
pub struct Caller<'a> {
    /// The name in messages.
    pub name: &'a str,
    pub answers: Answers<'a>,
    /// Search path of the driver's programs; `PATH` if None.
    pub path: Option<OsString>,
    /// Called between opening the driver and looking at the container. NVML may still be busy.
    pub opened: &'a mut dyn FnMut(&mut DriverSession) -> libnvc::Result<()>,
}

/// Where NVML's answers come from.
#[derive(Debug)]
pub enum Answers<'a> {
    /// A query that has been started.
    Query(QueryProcess),
    /// Another process has handed them over, as text of an [`Inventory`]. If they cannot be used, a query starts.
    Known(&'a str),
}

/// Configures a container.
pub(crate) fn run(
    driver: DriverConfig,
    mut request: Request,
    target: Target,
    caller: Caller<'_>,
) -> Result<(), CommandError> {
    request.policy.driver = driver_config(driver, Power::Changes)?;
    request.policy.driver.path = caller.path;
    let mut configuration = begin(&request, caller.answers, caller.name)?;
    (caller.opened)(configuration.session())?;
    let report = configuration.prepare(target)?.apply_before_exit()?;
    for reason in &report.skipped {
        log::warn!("skipped (optional): {}", reason.message());
    }
    Ok(())
}

/// Prints what [`run`] would do.
pub(super) fn show(
    driver: DriverConfig,
    mut request: Request,
    target: Target,
    format: Format,
    query: QueryProcess,
) -> Result<(), CommandError> {
    request.policy.driver = driver_config(driver, Power::Reads)?;
    // It changes nothing, the host included.
    let options = &mut request.policy.driver.options;
    options.remove(LibraryOptions::LOAD_KMODS);
    let mut configuration = Configuration::begin(&request, query)?;
    tell_if_slow(configuration.session());
    let (plan, image) = configuration.plan(target)?;
    output::plan(format, &plan, &image)
}

fn begin<'r>(
    request: &'r Request,
    answers: Answers<'_>,
    name: &str,
) -> libnvc::Result<Configuration<'r>> {
    let query = match answers {
        Answers::Query(query) => query,
        Answers::Known(text) => {
            let inventory = text.parse::<Inventory>();
            match inventory.and_then(|inventory| Configuration::begin_known(request, inventory)) {
                Ok(configuration) => return Ok(configuration),
                Err(error) => {
                    messages::write_line(&format!("{name}: querying NVML: {}", error.message()));
                    start_query()
                }
            }
        }
    };
    Configuration::begin(request, query)
}
