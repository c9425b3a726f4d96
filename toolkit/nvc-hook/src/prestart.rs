//! Implements the hook: reads the configuration and the container, decides, and configures the container or executes
//! nvidia-container-cli.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use libnvc::host::query::QueryProgram;
use libnvc::{Error, ErrorKind, Result};
use log::Record;
use nix::errno::Errno;
use nvc_hostfile::ours;
use nvc_policy::config::{self, Config, lookup};
use nvc_policy::image::{self, ContainerRequest, Policy};
use nvc_policy::mode::{self, Mode};
use nvc_policy::platform;
use nvc_policy::this_machine::ThisMachine;
use nvc_program::debuglog;
use nvc_program::messages;

use crate::arguments::Options;
use crate::call::{self, Host, Program};
use crate::input::{Input, Texts};
use crate::jetson;
use crate::report::{INVALID_VALUE, Report};
use crate::within;

/// Configures the container on standard input, if it requests GPUs.
///
/// Does not return if the nvidia-container-cli it finds is not ours, because the process executes it.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    // First, because it decides whether anything is printed.
    let texts = Texts::read(options, report)?;
    let (config, policy) = configuration(options, report)?;
    let input = Input::parse(texts, options)?;
    let chosen = options.devices.clone();
    let answer = image::request(
        &input.container,
        &policy,
        chosen,
        &ThisMachine::new(&config),
    )
    .map_err(|error| Error::new(ErrorKind::Unsatisfied, error.to_string()))?;
    for warning in &answer.warnings {
        report.warn(warning);
    }
    let Some(request) = answer.request else {
        return Ok(());
    };
    let program = call::find(&config, std::env::var_os("PATH").as_deref());
    let own = program.as_ref().ok().filter(|program| is_ours(program));
    let os_release = os_release(&config);
    let host = Host {
        os_release: &os_release,
        exists: &|path| Path::new(path).exists(),
    };
    let debug = options.debug;
    let words = || call::words(&config, debug, &input, &request, &host, own.is_some());
    if let Some(program) = own {
        let devices = &request.devices;
        if within::is_possible(&config, debug, &os_release) {
            // If there is NVML, its answers decide later.
            let is_jetson = || platform::is_jetson_without_nvml(config.driver_root());
            jetson::refuse(&config, devices, is_jetson)?;
            let inventory = options.inventory.as_deref();
            return within::configure(
                &config,
                &input,
                devices,
                &words()?,
                program,
                inventory,
                report,
            );
        }
        log_mode(&config, debug, &request);
    }
    if !config.hook.skip_mode_detection {
        check_mode(&config, &request)?;
    }
    // A foreign one would not use it.
    let log = own.map(|_| report.system_log_for_program());
    execute(&config, words()?, &program?, log)
}

/// Returns true if the nvidia-container-cli it has found was installed together with this program.
fn is_ours(program: &Program) -> bool {
    let own = std::env::current_exe();
    own.is_ok_and(|own| ours::is_ours(&program.path, crate::CLI, &own))
}

/// Returns the content of os-release, if a default of the configuration depends on it.
fn os_release(config: &Config) -> String {
    match config.cli.user {
        Some(_) => String::new(),
        None => std::fs::read_to_string("/etc/os-release").unwrap_or_default(),
    }
}

/// Writes devices and mode to the debug log, if there is one; then nvidia-container-cli continues it.
fn log_mode(config: &Config, debug: bool, request: &ContainerRequest) {
    let ContainerRequest {
        devices, origin, ..
    } = request;
    let is_jetson = || platform::is_jetson_without_nvml(config.driver_root());
    let said = match mode::choose(config, devices, is_jetson, Mode::Legacy) {
        _ if config.hook.skip_mode_detection => "mode detection is skipped".to_owned(),
        Ok(chosen) => chosen.said,
        Err(_) => return,
    };
    let line = format!("devices {devices} by {origin}; {said}");
    match (debug, config.cli.debug.as_str()) {
        (true, _) => messages::write_line(&format!("{}: {line}", crate::NAME)),
        (false, "") => {}
        (false, file) => append(file, &line),
    }
}

/// Appends a line to the debug log. A failure is left to nvidia-container-cli, which opens the same file.
fn append(file: &str, line: &str) {
    let opened = OpenOptions::new().append(true).create(true).open(file);
    let args = format_args!("{line}");
    let record = Record::builder()
        .args(args)
        .level(log::Level::Info)
        .file(Some(file!()))
        .line(Some(line!()))
        .build();
    if let Ok(mut log) = opened {
        let _ = log.write_all(debuglog::line(&record).as_bytes());
    }
}

fn configuration(options: &Options, report: &mut Report) -> Result<(Config, Policy)> {
    let failed = |what: &str| {
        let text = format!("error getting hook config: {what}");
        Error::new(ErrorKind::Malformed, text)
    };
    let place = lookup::place(options.config.as_deref(), |name| std::env::var_os(name));
    let loaded = lookup::load(&place, place.named).map_err(|error| match error {
        config::Error::Value(text) => {
            failed(&format!("failed to load config: {text}{INVALID_VALUE}"))
        }
        error if error.is_of_the_file() => failed(&format!(
            "failed to load config: couldn't open required configuration file: {error}"
        )),
        error => failed(&format!("failed to load config: {error}")),
    })?;
    for warning in &loaded.warnings {
        report.warn(warning);
    }
    let policy = Policy::new(&loaded.config).map_err(|error| failed(&error.to_string()))?;
    Ok((loaded.config, policy))
}

/// Rejects containers that another program is configured to serve.
fn check_mode(config: &Config, request: &ContainerRequest) -> Result<()> {
    let mode = if let Ok(None) = Mode::configured(config) {
        let root = config.driver_root();
        let is_jetson = || platform::is_jetson_here(root, &QueryProgram::ThisProcess);
        let chosen = mode::choose(config, &request.devices, is_jetson, Mode::Legacy)?;
        let mode = chosen.mode.to_string();
        messages::write_line(&format!("Auto-detected mode as '{mode}'"));
        mode
    } else {
        let mode = &config.runtime.mode;
        messages::write_line(&format!("Using requested mode '{mode}'"));
        mode.clone()
    };
    if mode == Mode::Legacy.to_string() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        "invoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag) is not \
         supported. Please use the NVIDIA Container Runtime (e.g. specify the --runtime=nvidia flag) instead",
    ))
}

/// Executes nvidia-container-cli; returns only on failure. `log` is the variable for its lines in the system's log.
fn execute(
    config: &Config,
    words: Vec<OsString>,
    program: &Program,
    log: Option<String>,
) -> Result<()> {
    let mut environment = call::environment(
        // The first one of a name would win.
        std::env::vars_os().filter(|(name, _)| name != messages::SYSTEM_LOG),
        program.search_path.as_deref(),
        &config.cli.environment,
    );
    environment.extend(log.map(Into::into));
    let mut path = program.path.clone();
    if path.components().count() == 1 {
        // A name in config.toml is a path, not one to search for.
        path = Path::new(".").join(path);
    }
    let done = libnvc::execute(path.as_os_str(), words, Some(environment));
    done.map(|never| match never {}).map_err(|error| {
        let text = format!("could not execute '{}'", path.display());
        match error.raw_os_error() {
            Some(number) => Error::system(text, Errno::from_raw(number))
                .hint("nvidia-container-cli.path of config.toml names it"),
            // JSON and TOML strings can contain a zero byte, a command line cannot.
            None => Error::new(ErrorKind::Malformed, format!("{text}: {error}")),
        }
    })
}
