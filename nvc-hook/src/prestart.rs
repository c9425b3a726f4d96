//! Implements the hook: reads the configuration and the container, decides, and configures the container or executes
//! nvidia-container-cli.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use libnvc::debuglog::printable;
use nvc_toolkit::config::{Config, lookup};
use nvc_toolkit::image::{self, ContainerRequest, Devices, Policy};
use nvc_toolkit::mode::{self, Mode, Setting};
use nvc_toolkit::record::{self, Format, Level};
use nvc_toolkit::this_machine::ThisMachine;
use nvc_toolkit::{cause, ours, platform};

use crate::arguments::Options;
use crate::call::{self, Host, Program};
use crate::failure::HookError;
use crate::input::{self, Input};
use crate::within;

/// Configures the container on standard input, if it requests GPUs.
///
/// Does not return if the nvidia-container-cli it finds is not ours, because the process executes it.
pub(crate) fn run(options: &Options) -> Result<(), HookError> {
    let (config, policy) =
        configuration(options).map_err(|what| format!("error getting hook config: {what}"))?;
    let input = input::read()?;
    let answer = image::request(&input.container, &policy, &ThisMachine::new(&config))
        .map_err(|error| error.to_string())?;
    for warning in &answer.warnings {
        warn(warning);
    }
    let Some(mut request) = answer.request else {
        return Ok(());
    };
    // The runtime resolves devices that a container can use. Whoever partitions GPUs needs those without MIG devices too,
    // and must name `all`, not each MIG device.
    let partitions = request.mig_config.is_some() || request.mig_monitor.is_some();
    let resolved = match partitions && request.devices == Devices::All {
        true => &Options::default(),
        false => options,
    };
    if let Some(devices) = &resolved.devices {
        request.devices = Devices::Names(devices.clone());
    }
    let program = call::find(&config, std::env::var_os("PATH").as_deref());
    if let Ok(program) = &program
        && within::is_possible(&config, options.debug, &os_release(&config))
        && is_ours(program)
    {
        say_mode(&config, &request)?;
        let inventory = resolved.inventory.as_deref();
        return within::configure(&config, &input, &request, program, inventory);
    }
    if !config.hook.skip_mode_detection {
        check_mode(&config, &request)?;
    }
    Ok(execute(
        &config,
        options.debug,
        &input,
        &request,
        &program?,
    )?)
}

/// Returns true if the nvidia-container-cli it has found was installed together with this program.
fn is_ours(program: &Program) -> bool {
    let own = std::env::current_exe();
    own.is_ok_and(|own| ours::is_ours(&program.path, call::CLI, &own))
}

/// Returns the content of os-release, if a default of the configuration depends on it.
fn os_release(config: &Config) -> String {
    match config.cli.user {
        Some(_) => String::new(),
        None => std::fs::read_to_string("/etc/os-release").unwrap_or_default(),
    }
}

/// Prints which mode the configuration selects for this container, and by which line. This program adds the devices in
/// every mode except Jetson's, which has no driver of the usual form.
fn say_mode(config: &Config, request: &ContainerRequest) -> Result<(), HookError> {
    let (mode, how) = match Setting::of(config) {
        _ if config.hook.skip_mode_detection => (Mode::Legacy, "mode detection is skipped: "),
        Setting::Auto => (
            mode::automatic(&request.devices, platform::is_tegra, Mode::Legacy),
            "automatic ",
        ),
        Setting::Fixed(mode) => (mode, ""),
        Setting::Unknown(word) => {
            let origin = config.mode_origin();
            return Err(format!("invalid mode {word:?} ({}: {origin})", mode::KEY).into());
        }
    };
    let origin = config.mode_origin();
    let said = format!("{how}mode {mode} ({}: {origin})", mode::KEY);
    if mode == Mode::Csv {
        let text = format!(
            "{}: {said}: a hook cannot give the devices of a Jetson",
            crate::NAME
        );
        return Err(HookError::from(text)
            .hint("use the NVIDIA runtime (docker: --runtime=nvidia instead of --gpus)"));
    }
    let ContainerRequest {
        devices, origin, ..
    } = request;
    let line = format!("devices {devices} by {origin}; {said}");
    // Names come from the image's environment: they must not forge lines.
    eprintln!("{}: {}", crate::NAME, printable(&line));
    Ok(())
}

fn configuration(options: &Options) -> Result<(Config, Policy), String> {
    let place = lookup::place(options.config.as_deref(), |name| std::env::var_os(name));
    let loaded = lookup::load(&place, place.named).map_err(|error| {
        let what = if error.is_of_the_file() {
            "couldn't open required configuration file: "
        } else {
            ""
        };
        format!("failed to load config: {what}{error}")
    })?;
    for warning in &loaded.warnings {
        warn(warning);
    }
    let policy = Policy::new(&loaded.config).map_err(|error| error.to_string())?;
    Ok((loaded.config, policy))
}

/// Rejects containers that another program is configured to serve.
fn check_mode(config: &Config, request: &ContainerRequest) -> Result<(), String> {
    let mode = match mode::Setting::of(config) {
        Setting::Auto => {
            let mode = mode::automatic(&request.devices, platform::is_tegra, Mode::Legacy);
            eprintln!("Auto-detected mode as '{mode}'");
            mode.to_string()
        }
        Setting::Fixed(_) | Setting::Unknown(_) => {
            let mode = &config.runtime.mode;
            eprintln!("Using requested mode '{mode}'");
            mode.clone()
        }
    };
    if mode == Mode::Legacy.to_string() {
        return Ok(());
    }
    Err("invoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag) is not \
         supported. Please use the NVIDIA Container Runtime (e.g. specify the --runtime=nvidia flag) instead"
        .into())
}

/// Executes nvidia-container-cli; returns only on failure.
fn execute(
    config: &Config,
    debug: bool,
    input: &Input,
    request: &ContainerRequest,
    program: &Program,
) -> Result<(), String> {
    let os_release = os_release(config);
    let host = Host {
        os_release: &os_release,
        exists: &|path| Path::new(path).exists(),
    };
    let words = call::words(config, debug, input, request, &host);
    let environment = call::environment(
        std::env::vars_os(),
        program.search_path.as_deref(),
        &config.cli.environment,
    );
    let path = c_string(program.path.as_os_str().as_bytes())?;
    let mut arguments = vec![path.clone()];
    for word in words {
        arguments.push(c_string(word.as_bytes())?);
    }
    let environment: Vec<CString> = environment
        .iter()
        .map(|entry| c_string(entry))
        .collect::<Result<_, _>>()?;
    let Err(number) = nix::unistd::execve(&path, &arguments, &environment);
    Err(format!("exec failed: {}", cause::text(&number.into())))
}

fn c_string(bytes: &[u8]) -> Result<CString, String> {
    // JSON and TOML strings can contain a zero byte, a command line cannot.
    CString::new(bytes).map_err(|_| {
        let text = String::from_utf8_lossy(bytes);
        format!("exec failed: a zero byte in {text:?}")
    })
}

fn warn(message: &str) {
    eprint!("{}", record::line(Format::Text, Level::Warning, message));
}
