//! Carries out the commands: each discovers, then prints or applies.

use nix::unistd::geteuid;

use libnvc::host::Identity;
use libnvc::host::query::{QueryProcess, QueryProgram};

use crate::failure::{Categorise, Failure, category};
use crate::logging;
use crate::privileges::Privileges;
use crate::request::{Global, Request, Task};
use crate::session::{Session, Settings};

mod configure;
mod info;
mod list;

/// The process that will ask NVML, or why there is none.
pub(crate) type Query = libnvc::Result<QueryProcess>;

/// Starts the process that will ask NVML. To be called before capabilities are given up, which it needs.
pub(crate) fn start_query() -> Query {
    QueryProcess::start(&QueryProgram::ThisProcess)
}

/// Does what was asked for.
pub(crate) fn run(request: &Request, query: Query, program: &str) -> Result<(), Failure> {
    logging::start(request.global.debug.as_deref(), program);
    let global = &request.global;
    match &request.task {
        Task::Info(info) => info::run(global, info, query),
        Task::List(list) => list::run(global, list, query),
        Task::Configure(configure) => configure::run(global, configure, query),
    }
}

/// What a command does with its Linux capabilities.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Power {
    /// It only reads: a caller without privileges may do that too.
    Reads,
    /// It changes a container, and stops at once if it cannot.
    Changes,
}

/// Gives up what is not needed, and opens the driver root.
fn open(
    global: &Global,
    power: Power,
    imex_channels: &[u32],
    query: Query,
) -> Result<Session, Failure> {
    let root = geteuid().is_root();
    if root || power == Power::Changes {
        let mut found = Privileges::read().category(category::PERMISSION)?;
        if power == Power::Changes {
            found.demand_needed().category(category::PERMISSION)?;
        }
        found.trim().category(category::PERMISSION)?;
    }

    let identity = match global.user {
        Some(identity) => identity,
        None if root || power == Power::Changes => {
            Identity::overflow().category(category::INITIALIZATION)?
        }
        None => Identity::caller(),
    };
    let settings = Settings {
        root: &global.root,
        ldcache: global.ldcache.as_deref(),
        identity,
        options: global.options,
        imex_channels,
    };
    Session::open(&settings, query).category(category::INITIALIZATION)
}
