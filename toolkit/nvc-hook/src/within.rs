//! Configures a container in this process, like the nvidia-container-cli installed with it.

use std::ffi::OsString;

use libnvc::host::DriverSession;
use libnvc::options::DriverOptions;
use libnvc::{Error, ErrorKind, Result};
use nvc_commands::{Answers, Caller};
use nvc_hostfile::programs;
use nvc_policy::config::Config;
use nvc_policy::image::Devices;
use nvc_policy::platform;
use nvc_program::warnings;

use crate::call::Program;
use crate::input::Input;
use crate::report::Report;
use crate::{CLI, jetson};

/// Returns true if the configuration needs nothing that only the program can do: a log, another user, its own
/// environment.
pub(crate) fn is_possible(config: &Config, debug: bool, os_release: &str) -> bool {
    let cli = &config.cli;
    !debug
        && cli.debug.is_empty()
        && cli.environment.is_empty()
        && config.user(os_release).is_empty()
}

/// Configures the container as the program would with these words, or leaves it unchanged. `inventory` is the text of
/// NVML's answers that the runtime has handed over.
pub(crate) fn configure(
    config: &Config,
    input: &Input,
    devices: &Devices,
    words: &[OsString],
    program: &Program,
    inventory: Option<&str>,
    report: &Report,
) -> Result<()> {
    let pid = i32::try_from(input.pid).ok().filter(|pid| *pid > 0);
    demand_own_mounts(pid.ok_or_else(|| {
        let text = format!("{} is not a process id", input.pid);
        Error::new(ErrorKind::Malformed, text)
    })?)?;
    let answers = match inventory {
        Some(text) => Answers::Known(text),
        // As early as possible, because NVML takes longest.
        None => Answers::Query(nvc_commands::start_query()),
    };
    let mut opened = |session: &mut DriverSession| {
        if inventory.is_none() {
            let is_jetson = || {
                // While NVML is busy.
                session.look_ahead(DriverOptions::empty());
                let listed = platform::listed(session);
                platform::is_jetson(platform::is_tegra(config.driver_root()), &listed)
            };
            jetson::refuse(config, devices, is_jetson)?;
        }
        // Not those about the driver, which are the same for each container: nvidia-ctk doctor has them.
        warnings::keep();
        Ok(())
    };
    report.enter_container();
    let caller = Caller {
        name: crate::NAME,
        answers,
        path: Some(search_path(program)),
        opened: &mut opened,
    };
    nvc_commands::configure(words, caller).map_err(|error| error.into_error().context(CLI))
}

/// Refuses a process in this program's mount namespace: everything would be mounted on the host.
fn demand_own_mounts(pid: i32) -> Result<()> {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt"));
    match (namespace(&pid.to_string()), namespace("self")) {
        (Ok(its), Ok(own)) if its == own => {}
        // Whether there is such a process is checked later.
        _ => return Ok(()),
    }
    let text = format!(
        "{}: the container has no mount namespace of its own: the driver's files would be mounted on the host",
        crate::NAME
    );
    let hint = "start it without --gpus, or with a mount namespace";
    Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint))
}

/// Returns the search path of the driver's programs. A hook can be started without `PATH`.
fn search_path(program: &Program) -> OsString {
    let usual = || {
        let own = std::env::var_os("PATH");
        programs::joined(&programs::directories(own.as_deref()))
    };
    program.search_path.clone().unwrap_or_else(usual)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_mounts_are_not_the_containers() {
        let own = i32::try_from(std::process::id()).unwrap();
        let error = demand_own_mounts(own).unwrap_err();
        assert!(error.message().contains("no mount namespace"), "{error:?}");
        assert!(demand_own_mounts(0).is_ok());
    }

    #[test]
    fn what_needs_a_program_is_left_to_it() {
        let with = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            is_possible(&config, false, "")
        };
        assert!(with(&|_| {}));
        assert!(!is_possible(&Config::default(), true, ""));
        assert!(!is_possible(&Config::default(), false, "ID_LIKE=\"suse\""));
        assert!(!with(&|config| config.cli.debug = "/var/log/x".into()));
        assert!(!with(&|config| config.cli.environment = vec!["A=1".into()]));
        assert!(!with(&|config| config.cli.user = Some("root:video".into())));
    }
}
