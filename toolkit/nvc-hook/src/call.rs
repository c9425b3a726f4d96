//! Builds the call of nvidia-container-cli: program, arguments, environment.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use libnvc::options::Ldconfig;
use libnvc::request::names as listed;
use libnvc::{Error, ErrorKind, Result};
use nvc_cdi::names;
use nvc_hostfile::programs;
use nvc_policy::config::Config;
use nvc_policy::config::ldconfig;
use nvc_policy::image::{ContainerRequest, qualified};

use crate::CLI;
use crate::input::Input;

/// The program and its search path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub path: PathBuf,
    /// None: the hook's own.
    pub search_path: Option<OsString>,
}

/// Finds nvidia-container-cli, first in the driver root.
pub(crate) fn find(config: &Config, path: Option<&OsStr>) -> Result<Program> {
    if !config.cli.path.is_empty() {
        return Ok(Program {
            path: config.cli.path.as_str().into(),
            search_path: None,
        });
    }
    let mut directories = programs::directories(path);
    if !config.cli.root.is_empty() && config.cli.root != "/" {
        let root = Path::new(&config.cli.root);
        let inside = |entry: &PathBuf| {
            let relative = entry.strip_prefix("/").unwrap_or(entry);
            root.join(relative)
        };
        let inside: Vec<PathBuf> = directories.iter().map(inside).collect();
        directories.splice(0..0, inside);
    }
    let failed = |why| {
        let text = format!("couldn't find binary {CLI} in PATH: exec: \"{CLI}\": {why}");
        Error::new(ErrorKind::NotFound, text)
    };
    let path = programs::find(CLI, &directories)
        .ok_or_else(|| failed("executable file not found in $PATH"))?;
    if path.is_relative() {
        return Err(failed(
            "cannot run executable found relative to current directory",
        ));
    }
    Ok(Program {
        path,
        search_path: Some(programs::joined(&directories)),
    })
}

/// Returns nvidia-container-cli's environment, derived from the hook's; a name may occur twice.
pub(crate) fn environment(
    own: impl Iterator<Item = (OsString, OsString)>,
    search_path: Option<&OsStr>,
    more: &[String],
) -> Vec<OsString> {
    let mut found = false;
    let mut all: Vec<OsString> = own
        .map(|(name, value)| {
            let value = match search_path {
                Some(path) if name == "PATH" => {
                    found = true;
                    path.to_owned()
                }
                _ => value,
            };
            entry(&name, &value)
        })
        .collect();
    if let (Some(path), false) = (search_path, found) {
        all.push(entry("PATH".as_ref(), path));
    }
    all.extend(more.iter().map(OsString::from));
    all
}

fn entry(name: &OsStr, value: &OsStr) -> OsString {
    [name, value].join(OsStr::new("="))
}

/// Returns the arguments, in upstream's order. If the program is ours, its devices have no kind, and it gets an ldconfig
/// only if one is chosen.
///
/// # Errors
/// A device is one that our program cannot add.
pub(crate) fn words(
    config: &Config,
    debug: bool,
    input: &Input,
    request: &ContainerRequest,
    host: &Host<'_>,
    is_ours: bool,
) -> Result<Vec<OsString>> {
    let cli = &config.cli;
    let mut devices = request.devices.names();
    let mut ldconfig = Some(ldconfig::for_program(config, host.exists));
    if is_ours {
        for name in &mut devices {
            *name = plain(name, config)?;
        }
        if devices.contains(&"none") {
            devices.clear();
        }
        ldconfig = match ldconfig::for_library(config) {
            Ldconfig::Auto => None,
            chosen => Some(chosen.to_string()),
        };
    }
    // Quotes and blanks are those of the value, not of names in it, such as a mount's.
    let list = devices.join(",");
    if let Some((odd, _)) = (devices.iter().zip(listed(&list))).find(|(name, read)| *name != read) {
        return Err(Error::fault(ErrorKind::NotFound, odd, "unknown device"));
    }
    let mut words = Words::default();
    words.value("--root", &cli.root);
    words.switch("--load-kmods", cli.load_kmods);
    let no_channels = config.features.disable_imex_channel_creation;
    words.switch("--no-create-imex-channels", no_channels);
    words.switch("--no-pivot", cli.no_pivot);
    words.value("--debug", if debug { "/dev/stderr" } else { &cli.debug });
    words.value("--ldcache", &cli.ldcache);
    words.value("--user", &config.user(host.os_release));
    words.switch("configure", true);
    words.value("--cuda-compat-mode", cuda_compat_mode(config));
    words.value("--ldconfig", ldconfig.as_deref().unwrap_or_default());
    words.switch("--no-cgroups", cli.no_cgroups);
    words.value("--device", &list);
    words.value("--mig-config", request.mig_config.as_deref().unwrap_or(""));
    words.value(
        "--mig-monitor",
        request.mig_monitor.as_deref().unwrap_or(""),
    );
    let channels: Vec<String> = request.imex_channels.iter().map(u32::to_string).collect();
    words.value("--imex-channel", &channels.join(","));
    for capability in request.capabilities.words() {
        words.switch(&format!("--{capability}"), true);
    }
    for requirement in &request.requirements {
        words.switch(&format!("--require={requirement}"), true);
    }
    if let (true, Some(user)) = (is_ours, &input.user) {
        words.value("--process-user", &user.to_string());
    }
    // A negative number is formatted as upstream formats it, and rejected by the program.
    words.switch(&format!("--pid={}", input.pid.cast_unsigned()), true);
    words.0.push(input.root.clone().into());
    Ok(words.0)
}

/// Returns the name of a device without the kind, if that is the kind of this machine's GPUs.
fn plain<'a>(name: &'a str, config: &Config) -> Result<&'a str> {
    let own = &config.runtime.cdi_default_kind;
    match names::parse(name) {
        None => Ok(name),
        Some(parts) if [qualified::AUTOMATIC, own].contains(&parts.kind) => Ok(parts.device),
        Some(parts) => {
            let text = format!(
                "{}: {name}: a hook cannot add devices of kind {}, only {own}",
                crate::NAME,
                parts.kind
            );
            let hint =
                "use the NVIDIA runtime (docker: --runtime=nvidia), or the engine's --device";
            Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint))
        }
    }
}

/// The host's properties that affect the arguments.
#[derive(Clone, Copy)]
pub(crate) struct Host<'a> {
    /// Content of os-release.
    pub os_release: &'a str,
    /// Returns true if a file exists.
    pub exists: &'a dyn Fn(&str) -> bool,
}

/// Returns the value of the option; empty for none.
fn cuda_compat_mode(config: &Config) -> &'static str {
    match config.runtime.legacy_cuda_compat_mode.as_str() {
        "ldconfig" => "ldconfig",
        "mount" => "mount",
        "disabled" | "hook" => "disabled",
        _ if config.features.allow_cuda_compat_libs_from_container => "",
        _ => "disabled",
    }
}

#[derive(Default)]
struct Words(Vec<OsString>);

impl Words {
    fn switch(&mut self, name: &str, on: bool) {
        if on {
            self.0.push(name.into());
        }
    }

    fn value(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.0.push(format!("{name}={value}").into());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nvc_policy::image::{self, Environment, Policy};
    use nvc_policy::this_machine::ThisMachine;

    use super::*;

    fn words_of(env: &[&str], config: &Config, is_ours: bool) -> Result<String> {
        let container = image::Container {
            environment: Environment::new(env).unwrap(),
            privileged: true,
            ..Default::default()
        };
        let policy = Policy::new(config).unwrap();
        let answer = image::request(&container, &policy, None, &ThisMachine::new(config)).unwrap();
        let input = Input {
            pid: -1,
            root: "/r".into(),
            container,
            user: "1000:100,44".parse().ok(),
        };
        let host = Host {
            os_release: "",
            exists: &|_| false,
        };
        let request = answer.request.unwrap();
        let words = words(config, false, &input, &request, &host, is_ours)?;
        Ok(words.join(OsStr::new(" ")).into_string().unwrap())
    }

    fn words_for(env: &[&str], config: &Config) -> String {
        words_of(env, config, false).unwrap()
    }

    #[test]
    fn our_program_gets_names_without_the_kind_of_this_machine() {
        let found = |names: &str| -> Result<Option<String>> {
            let env = [&*format!("NVIDIA_VISIBLE_DEVICES={names}")];
            let words = words_of(&env, &Config::default(), true)?;
            let mut words = words.split(' ');
            Ok(words.find_map(|word| word.strip_prefix("--device=").map(str::to_owned)))
        };
        assert_eq!(found("0,GPU-1").unwrap().unwrap(), "0,GPU-1");
        assert_eq!(found("none").unwrap(), None);
        let names = "nvidia.com/gpu=0,nvidia.com/gpu=1:2";
        assert_eq!(found(names).unwrap().unwrap(), "0,1:2");
        assert_eq!(found("runtime.nvidia.com/gpu=all").unwrap().unwrap(), "all");
        let failure = found("other.nvidia.com/gpu=0").unwrap_err();
        let failure = failure.message();
        assert!(failure.contains("other.nvidia.com/gpu"), "{failure}");
    }

    #[test]
    fn our_program_gets_a_chosen_ldconfig_alone() {
        let of = |ldconfig: &str| {
            let mut config = Config::default();
            config.cli.ldconfig = Some(ldconfig.into());
            words_of(&["NVIDIA_VISIBLE_DEVICES=0"], &config, true).unwrap()
        };
        let usual = of("@/sbin/ldconfig");
        assert!(!usual.contains("--ldconfig"), "{usual}");
        let forced = of("program:@/sbin/ldconfig");
        assert!(forced.contains(" --ldconfig=@/sbin/ldconfig "), "{forced}");
        assert!(forced.contains(" --process-user=1000:100,44 "), "{forced}");
    }

    #[test]
    fn everything_has_its_place() {
        let mut config = Config::default();
        config.cli.no_cgroups = true;
        config.cli.no_pivot = true;
        config.cli.root = "/d".into();
        let env = [
            "NVIDIA_VISIBLE_DEVICES=0,0,1",
            "NVIDIA_MIG_CONFIG_DEVICES=all",
            "NVIDIA_MIG_MONITOR_DEVICES=0",
            "NVIDIA_IMEX_CHANNELS=3",
            "NVIDIA_REQUIRE_CUDA=cuda>=11 x",
        ];
        assert_eq!(
            words_for(&env, &config),
            "--root=/d --load-kmods --no-pivot configure --cuda-compat-mode=ldconfig --ldconfig=@/sbin/ldconfig \
             --no-cgroups --device=0,1 --mig-config=all --mig-monitor=0 --imex-channel=3 --compute --utility \
             --require=cuda>=11 x --pid=18446744073709551615 /r"
        );
        let none = words_for(&["NVIDIA_VISIBLE_DEVICES=none"], &Config::default());
        assert!(!none.contains("--device"), "{none}");
    }

    #[test]
    fn the_compat_mode_is_one_that_the_program_knows() {
        let table = [
            ("ldconfig", false, "ldconfig"),
            ("mount", false, "mount"),
            ("hook", true, "disabled"),
            ("disabled", true, "disabled"),
            ("", false, "disabled"),
            ("frob", true, ""),
        ];
        for (mode, allowed, expected) in table {
            let mut config = Config::default();
            config.runtime.legacy_cuda_compat_mode = mode.into();
            config.features.allow_cuda_compat_libs_from_container = allowed;
            assert_eq!(cuda_compat_mode(&config), expected, "{mode}");
        }
    }

    #[test]
    fn the_search_path_takes_its_place() {
        let own = || [("A", "1"), ("PATH", "/x")].map(|(n, v)| (n.into(), v.into()));
        let more = ["A=2".to_owned()];
        let all = environment(own().into_iter(), Some("/y".as_ref()), &more);
        assert_eq!(all, ["A=1", "PATH=/y", "A=2"]);
        let all = environment(own().into_iter().take(1), Some("/y".as_ref()), &[]);
        assert_eq!(all, ["A=1", "PATH=/y"]);
    }
}
