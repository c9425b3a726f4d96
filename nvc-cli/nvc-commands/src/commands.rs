//! Runs the commands: each discovers, then prints or applies.

use std::io::IsTerminal as _;

use libnvc::host::query::{QueryProcess, QueryProgram};
use libnvc::host::{DriverConfig, DriverSession, Identity};
use libnvc::{caller, kmods};
use nix::unistd::geteuid;
use nvc_program::messages;
use nvc_program::privileges;

use configure::{Answers, Caller};

use crate::failure::{Categorise, CommandError, category};
use crate::logging;
use crate::request::{Configure, Invocation, Task};

pub(crate) mod configure;
mod info;
mod list;

/// Starts the query process. Call this before dropping capabilities, which the process needs.
pub fn start_query() -> QueryProcess {
    QueryProcess::start(&QueryProgram::ThisProcess)
}

/// Runs the requested command.
pub(crate) fn run(
    invocation: Invocation,
    query: QueryProcess,
    program: &str,
) -> Result<(), CommandError> {
    let Invocation {
        debug,
        driver,
        task,
    } = invocation;
    logging::start(debug.as_deref(), program);
    match task {
        Task::Info(format) => info::run(driver, format, query),
        Task::List(list) => list::run(driver, &list, query),
        Task::Configure(configure) => {
            let Configure {
                request,
                target,
                dry_run,
            } = *configure;
            if let Some(format) = dry_run {
                return configure::show(driver, request, target, format, query);
            }
            let caller = Caller {
                name: program,
                answers: Answers::Query(query),
                path: None,
                opened: &mut |session| {
                    tell_if_slow(session);
                    logging::begin_container();
                    Ok(())
                },
            };
            configure::run(driver, request, target, caller)
        }
    }
}

/// A command's use of its Linux capabilities.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Power {
    /// Only reads, which callers without privileges may do too.
    Reads,
    /// Changes a container, and fails early if it cannot.
    Changes,
}

/// Opens the driver root, for a command that reads. With --load-kmods, the caller of such a command wants the nodes of
/// these channels too.
fn open(
    driver: DriverConfig,
    imex_channels: &[u32],
    query: QueryProcess,
) -> Result<DriverSession, CommandError> {
    let config = driver_config(driver, Power::Reads)?;
    if let Some(warning) = kmods::prepare(&config) {
        log::warn!("{warning}");
    }
    let session = DriverSession::open(&config, Some(query));
    let mut session = session.category(category::INITIALIZATION)?;
    kmods::create_channels(session.root(), &config, imex_channels);
    tell_if_slow(&mut session);
    Ok(session)
}

/// Drops unneeded privileges, and returns how to reach the driver.
fn driver_config(driver: DriverConfig, power: Power) -> Result<DriverConfig, CommandError> {
    if power == Power::Changes {
        privileges::demand_needed().category(category::PERMISSION)?;
    }
    if geteuid().is_root() || power == Power::Changes {
        privileges::trim().category(category::PERMISSION)?;
    }

    let user = match (driver.user, power) {
        // As upstream: even a caller who is not root, but has the capabilities.
        (None, Power::Changes) => Some(Identity::overflow().category(category::INITIALIZATION)?),
        (user, _) => user,
    };
    Ok(DriverConfig {
        user,
        deadline: DriverConfig::deadline_of(caller::variable("NVC_DRIVER_TIMEOUT").as_deref()),
        ..driver
    })
}

/// Shows on a terminal that the program is waiting for the driver.
fn tell_if_slow(session: &mut DriverSession) {
    if std::io::stderr().is_terminal() {
        session.when_slow(|elapsed| {
            let seconds = elapsed.as_secs();
            messages::write_line(&format!(
                "still waiting for the driver after {seconds} s ..."
            ));
        });
    }
}
