//! Configures a container in this process, like the nvidia-container-cli installed with it.

use std::ffi::OsString;

use libnvc::host::query::{QueryProcess, QueryProgram};
use libnvc::host::{DriverConfig, Inventory};
use libnvc::options::{CudaCompatMode, Ldconfig, LibraryOptions};
use libnvc::request::{self, DeviceRequest, ImageOptions};
use libnvc::require::Requirement;
use libnvc::{Configuration, Error, ErrorKind, HostPath, Phase, Result, Target};
use nvc_hostfile::programs;
use nvc_policy::config::Config;
use nvc_policy::config::ldconfig;
use nvc_policy::image::{ContainerRequest, Devices, qualified};
use nvc_policy::mode::Setting;
use nvc_program::privileges::Privileges;
use nvc_program::{messages, warnings};

use crate::call::Program;
use crate::failure::of_cli;
use crate::input::Input;
use crate::jetson;
use crate::report::Report;

/// Kind of the devices with a generated specification, whose names are GPUs'.
const AUTOMATIC: &str = "runtime.nvidia.com/gpu";

/// Returns true if the configuration needs nothing that only the program can do: a log, another user, its own
/// environment.
pub(crate) fn is_possible(config: &Config, debug: bool, os_release: &str) -> bool {
    let cli = &config.cli;
    !debug
        && cli.debug.is_empty()
        && cli.environment.is_empty()
        && config.user(os_release).is_empty()
        && std::env::var_os("NVC_DRIVER_TIMEOUT").is_none()
}

/// Configures the container according to the request, or leaves it unchanged. `program` is the one that would be
/// executed otherwise, `inventory` the text of NVML's answers that the runtime has handed over.
pub(crate) fn configure(
    config: &Config,
    input: &Input,
    request: &ContainerRequest,
    program: &Program,
    inventory: Option<&str>,
    report: &mut Report,
) -> Result<()> {
    let devices = devices(config, request)?;
    let pid = i32::try_from(input.pid).map_err(|_| {
        let text = format!("{} is not a process id", input.pid);
        Error::new(ErrorKind::Malformed, text)
    })?;
    demand_own_mounts(pid)?;
    let start = || QueryProcess::start(&QueryProgram::ThisProcess);
    // As early as possible, because NVML takes longest.
    let query = inventory.is_none().then(start);
    give_up_capabilities().map_err(|error| of_cli("permission error", error))?;
    let driver = driver(config, program);
    let requirements = request.requirements.iter();
    let request = request::Request {
        capabilities: request.capabilities,
        requirements: requirements
            .map(|text| Requirement::new(text.as_str()))
            .collect(),
        policy: policy(config, driver),
        devices,
    };
    let rootfs = input.root.clone();
    let may_be_jetson = inventory.is_none()
        && !config.hook.skip_mode_detection
        && Setting::of(config) == Setting::Auto;
    let apply = || {
        let handed_over = inventory.and_then(|text| begin_known(&request, text));
        let mut configuration = match handed_over {
            Some(configuration) => configuration,
            None => Configuration::begin(&request, query.unwrap_or_else(start))?,
        };
        if may_be_jetson {
            jetson::refuse(configuration.session(), config)?;
        }
        // Not those about the driver, which are the same for each container: nvidia-ctk doctor has them.
        warnings::keep();
        let prepared = configuration.prepare(Target::Process { pid, rootfs })?;
        prepared.apply_before_exit()
    };
    report.enter_container();
    let applied = apply().map_err(|error| {
        let phase = error.phase().unwrap_or(Phase::Mount);
        of_cli(&phase.to_string(), error)
    })?;
    for reason in &applied.skipped {
        report.warning_of_cli(&format!("skipped (optional): {}", reason.message()));
    }
    Ok(())
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

/// Begins with the runtime's answers; None if they cannot be used, and NVML must be queried.
fn begin_known<'r>(request: &'r request::Request, text: &str) -> Option<Configuration<'r>> {
    let inventory = text.parse::<Inventory>();
    let known = inventory.and_then(|inventory| Configuration::begin_known(request, inventory));
    known
        .inspect_err(|error| {
            let reason = error.message();
            messages::write_line(&format!("{}: querying NVML: {reason}", crate::NAME));
        })
        .ok()
}

fn give_up_capabilities() -> Result<()> {
    let mut found = Privileges::read()?;
    found.demand_needed()?;
    found.trim()
}

fn devices(config: &Config, request: &ContainerRequest) -> Result<DeviceRequest> {
    let names: Vec<&str> = match &request.devices {
        Devices::None => Vec::new(),
        some => {
            let names = some.names().into_iter();
            names
                .map(|name| plain(name, config))
                .collect::<Result<_, _>>()?
        }
    };
    Ok(DeviceRequest {
        ids: split(names.into_iter()),
        mig_config: split(request.mig_config.as_deref().into_iter()),
        mig_monitor: split(request.mig_monitor.as_deref().into_iter()),
        imex_channels: request.imex_channels.clone(),
    })
}

/// Splits values as the options of nvidia-container-cli: a variable can be a list, and a mount's name can have commas.
fn split<'a>(values: impl Iterator<Item = &'a str>) -> Vec<String> {
    let names = values.flat_map(request::names);
    names.map(str::to_owned).collect()
}

/// Returns the name of a device without the kind, if that is the kind of this machine's GPUs.
fn plain<'a>(name: &'a str, config: &Config) -> Result<&'a str> {
    match qualified::parse(name) {
        None => Ok(name),
        Some(parts) if [AUTOMATIC, &config.runtime.cdi_default_kind].contains(&parts.kind) => {
            Ok(parts.device)
        }
        Some(parts) => {
            let (own, other) = (&config.runtime.cdi_default_kind, parts.kind);
            let text = format!(
                "{}: {name}: a hook cannot add devices of kind {other}, only {own}",
                crate::NAME
            );
            let hint =
                "use the NVIDIA runtime (docker: --runtime=nvidia), or the engine's --device";
            Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint))
        }
    }
}

fn driver(config: &Config, program: &Program) -> DriverConfig {
    let cli = &config.cli;
    let mut options = LibraryOptions::empty();
    options.set(LibraryOptions::LOAD_KMODS, cli.load_kmods);
    let no_channels = config.features.disable_imex_channel_creation;
    options.set(LibraryOptions::NO_CREATE_IMEX_CHANNELS, no_channels);
    let root = if cli.root.is_empty() { "/" } else { &cli.root };
    let ldcache = Some(&cli.ldcache).filter(|path| !path.is_empty());
    DriverConfig {
        root: root.into(),
        ldcache: ldcache.map(HostPath::new),
        options,
        path: Some(search_path(program)),
        ..DriverConfig::default()
    }
}

/// Returns the search path of the driver's programs. A hook can be started without `PATH`.
fn search_path(program: &Program) -> OsString {
    let usual = || {
        let own = std::env::var_os("PATH");
        programs::joined(&programs::directories(own.as_deref()))
    };
    program.search_path.clone().unwrap_or_else(usual)
}

fn policy(config: &Config, driver: DriverConfig) -> request::Policy {
    request::Policy {
        driver,
        device_rules: !config.cli.no_cgroups,
        cuda_compat: match config.runtime.legacy_cuda_compat_mode.as_str() {
            "ldconfig" => CudaCompatMode::Ldconfig,
            "mount" => CudaCompatMode::Mount,
            "disabled" | "hook" => CudaCompatMode::Disabled,
            // nvidia-container-cli mounts them by default.
            _ if config.features.allow_cuda_compat_libs_from_container => CudaCompatMode::Mount,
            _ => CudaCompatMode::Disabled,
        },
        image: ImageOptions {
            ldconfig: ldconfig::for_library(config),
            ..ImageOptions::default()
        },
        no_pivot: config.cli.no_pivot,
        ..request::Policy::default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nvc_policy::image::{self, Container, Environment, Policy};
    use nvc_policy::this_machine::ThisMachine;

    use super::*;

    fn request_for(env: &[&str]) -> ContainerRequest {
        let container = Container {
            environment: Environment::new(env).unwrap(),
            ..Container::default()
        };
        let config = Config::default();
        let policy = Policy::new(&config).unwrap();
        image::request(&container, &policy, &ThisMachine::new(&config))
            .unwrap()
            .request
            .unwrap()
    }

    #[test]
    fn the_hosts_mounts_are_not_the_containers() {
        let own = i32::try_from(std::process::id()).unwrap();
        let error = demand_own_mounts(own).unwrap_err();
        assert!(error.message().contains("no mount namespace"), "{error:?}");
        assert!(demand_own_mounts(0).is_ok());
    }

    #[test]
    fn names_lose_the_kind_of_this_machine() {
        let ids = |names: &str| {
            let request = request_for(&[&format!("NVIDIA_VISIBLE_DEVICES={names}")]);
            devices(&Config::default(), &request).map(|devices| devices.ids)
        };
        assert_eq!(ids("0,GPU-1").unwrap(), ["0", "GPU-1"]);
        assert_eq!(ids("none").unwrap(), [""; 0]);
        assert_eq!(
            ids("nvidia.com/gpu=0,nvidia.com/gpu=1:2").unwrap(),
            ["0", "1:2"]
        );
        assert_eq!(ids("runtime.nvidia.com/gpu=all").unwrap(), ["all"]);
        let failure = ids("other.nvidia.com/gpu=0").unwrap_err();
        let failure = failure.message();
        assert!(failure.contains("other.nvidia.com/gpu"), "{failure}");
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

    #[test]
    fn the_configuration_becomes_policy() {
        let of = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            policy(&config, DriverConfig::default())
        };
        let usual = of(&|_| {});
        assert!(usual.device_rules && !usual.no_pivot);
        assert_eq!(usual.cuda_compat, CudaCompatMode::Ldconfig);
        assert_eq!(usual.image.ldconfig, Ldconfig::Auto);
        assert!(!of(&|config| config.cli.no_cgroups = true).device_rules);
        assert!(of(&|config| config.cli.no_pivot = true).no_pivot);
        let table = [
            ("mount", false, CudaCompatMode::Mount),
            ("hook", true, CudaCompatMode::Disabled),
            ("", true, CudaCompatMode::Mount),
            ("", false, CudaCompatMode::Disabled),
        ];
        for (mode, allowed, expected) in table {
            let policy = of(&|config| {
                config.runtime.legacy_cuda_compat_mode = mode.into();
                config.features.allow_cuda_compat_libs_from_container = allowed;
            });
            assert_eq!(policy.cuda_compat, expected, "{mode}");
        }
        let forced = of(&|config| config.cli.ldconfig = Some("program:@/sbin/ldconfig".into()));
        assert_eq!(
            forced.image.ldconfig,
            Ldconfig::Host("/sbin/ldconfig".into())
        );
    }
}
