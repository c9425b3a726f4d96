//! Builds the call of nvidia-container-cli: program, arguments, environment.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};
use nvc_hostfile::programs;
use nvc_policy::config::{Config, ldconfig};
use nvc_policy::image::ContainerRequest;

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

/// Returns the arguments, in upstream's order.
pub(crate) fn words(
    config: &Config,
    debug: bool,
    input: &Input,
    request: &ContainerRequest,
    host: &Host<'_>,
) -> Vec<String> {
    let cli = &config.cli;
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
    words.value("--ldconfig", &ldconfig::for_program(config, host.exists));
    words.switch("--no-cgroups", cli.no_cgroups);
    words.value("--device", &request.devices.names().join(","));
    words.value("--mig-config", request.mig_config.as_deref().unwrap_or(""));
    words.value(
        "--mig-monitor",
        request.mig_monitor.as_deref().unwrap_or(""),
    );
    let channels: Vec<String> = request.imex_channels.iter().map(u32::to_string).collect();
    words.value("--imex-channel", &channels.join(","));
    for capability in request.capabilities.words() {
        words.0.push(format!("--{capability}"));
    }
    for requirement in &request.requirements {
        words.0.push(format!("--require={requirement}"));
    }
    // A negative number is formatted as upstream formats it, and rejected by the program.
    words.0.push(format!("--pid={}", input.pid.cast_unsigned()));
    words.0.push(input.root.display().to_string());
    words.0
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
struct Words(Vec<String>);

impl Words {
    fn switch(&mut self, name: &str, on: bool) {
        if on {
            self.0.push(name.to_owned());
        }
    }

    fn value(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.0.push(format!("{name}={value}"));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nvc_policy::image::{self, Environment, Policy};
    use nvc_policy::this_machine::ThisMachine;

    use super::*;

    fn words_for(env: &[&str], config: &Config) -> String {
        let container = image::Container {
            environment: Environment::new(env).unwrap(),
            privileged: true,
            ..Default::default()
        };
        let policy = Policy::new(config).unwrap();
        let answer = image::request(&container, &policy, &ThisMachine::new(config)).unwrap();
        let input = Input {
            pid: -1,
            root: "/r".into(),
            container,
        };
        let host = Host {
            os_release: "",
            exists: &|_| false,
        };
        words(config, false, &input, &answer.request.unwrap(), &host).join(" ")
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
