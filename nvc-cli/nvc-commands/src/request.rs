//! Converts a well-formed command line to a task for libnvc, and rejects invalid values.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use libnvc::host::{DriverConfig, Identity};
use libnvc::options::{CudaCompatMode, DriverOptions, Ldconfig, LibraryOptions};
use libnvc::request::{Capabilities, DeviceRequest, ImageOptions, Policy, Request, parse_names};
use libnvc::require::{MAX_REQUIREMENTS, Requirement};
use libnvc::select::parse_imex_channels;
use libnvc::{Error, HostPath, Target};
use nix::errno::Errno;
use nvc_options::Given;
use nvc_options::getopt::CommandLine;

use crate::failure::{Categorise, CommandError, INVALID_ROOTFS, category};
use crate::user;

/// What a command line asks for.
#[derive(Debug)]
pub(crate) struct Invocation {
    /// The debug log.
    pub(crate) debug: Option<OsString>,
    /// The driver, as the options before the command describe it.
    pub(crate) driver: DriverConfig,
    pub(crate) task: Task,
}

#[derive(Debug)]
pub(crate) enum Task {
    Info(Format),
    List(List),
    Configure(Box<Configure>),
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Csv,
    Json,
}

/// Options of `list`.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) devices: DeviceRequest,
    /// True if there was an option for devices, possibly with an empty list.
    pub(crate) lists_devices: bool,
    pub(crate) libraries: bool,
    pub(crate) compat32: bool,
    pub(crate) binaries: bool,
    pub(crate) ipcs: bool,
    pub(crate) firmwares: bool,
    pub(crate) driver_options: DriverOptions,
    pub(crate) format: Format,
}

/// Options of `configure`.
#[derive(Debug)]
pub(crate) struct Configure {
    /// The request, without the driver.
    pub(crate) request: Request,
    pub(crate) target: Target,
    /// Print the plan instead of applying it.
    pub(crate) dry_run: Option<Format>,
}

/// Interprets the parsed command line.
pub(crate) fn read(words: &CommandLine) -> Result<Invocation, CommandError> {
    let (global, given) = (&words.global, &words.options);
    let driver = driver(global)?;
    let task = match words.command.name {
        "info" => Task::Info(info(given)?),
        "list" => Task::List(list(given, words.command_words)?),
        _ => {
            let mut configure = configure(given, words.operand.as_deref())?;
            configure.request.policy.no_pivot = global.has("no-pivot");
            Task::Configure(Box::new(configure))
        }
    };
    Ok(Invocation {
        debug: global.last("debug").map(OsStr::to_owned),
        driver,
        task,
    })
}

fn driver(given: &Given) -> Result<DriverConfig, CommandError> {
    let mut options = LibraryOptions::empty();
    options.set(LibraryOptions::LOAD_KMODS, given.has("load-kmods"));
    options.set(
        LibraryOptions::NO_CREATE_IMEX_CHANNELS,
        given.has("no-create-imex-channels"),
    );
    let user = match given.last("user") {
        Some(text) => Some(user::parse(&text.to_string_lossy()).category(category::INPUT)?),
        None if given.has("user") => Some(Identity::caller()),
        None => None,
    };
    Ok(DriverConfig {
        root: given.last("root").map_or("/".into(), PathBuf::from),
        ldcache: given.last("ldcache").map(HostPath::new),
        options,
        user,
        ..DriverConfig::default()
    })
}

fn info(given: &Given) -> Result<Format, CommandError> {
    match (given.has("csv"), format(given)?) {
        (true, None) => Ok(Format::Csv),
        (true, Some(_)) => Err(CommandError::input(
            "--csv and --format exclude each other",
            "leave one out",
        )),
        (false, format) => Ok(format.unwrap_or(Format::Text)),
    }
}

fn list(given: &Given, command_words: usize) -> Result<List, CommandError> {
    let driver_options = driver_options(given);
    // The later of the two has precedence.
    let firmwares = given.has("firmwares")
        && (!given.has("no-gsp-firmware")
            || given.place("firmwares") > given.place("no-gsp-firmware"));
    let mut list = List {
        devices: devices(given)?,
        lists_devices: given.has("device"),
        libraries: given.has("libraries"),
        compat32: given.has("compat32"),
        binaries: given.has("binaries"),
        ipcs: given.has("ipcs"),
        firmwares,
        driver_options,
        format: format(given)?.unwrap_or(Format::Text),
    };
    // Upstream counts words: `list --imex-channel=3` lists everything, `list --imex-channel 3` only the channel.
    if command_words == 1 || (command_words == 2 && given.has("imex-channel")) {
        list.devices.ids = vec!["all".to_owned()];
        list.lists_devices = true;
        list.libraries = true;
        list.compat32 = true;
        list.binaries = true;
        list.ipcs = true;
        list.firmwares = true;
    }
    Ok(list)
}

fn configure(given: &Given, operand: Option<&OsStr>) -> Result<Configure, CommandError> {
    let pid = given.last("pid").map(pid).transpose()?.flatten();
    let rootfs = PathBuf::from(operand.unwrap_or_default());
    // With a process, `/' can be its root; libnvc compares that with the caller's.
    if !rootfs.is_absolute() || pid.is_none() && rootfs == Path::new("/") {
        return Err(CommandError::input(
            INVALID_ROOTFS,
            "ROOTFS is the absolute path of the container's root; `/' is one only with --pid",
        ));
    }
    let requirements: Vec<Requirement> = given
        .all("require")
        .map(|text| Requirement::new(text.to_string_lossy()))
        .collect();
    if requirements.len() > MAX_REQUIREMENTS {
        return Err(CommandError::input(
            "too many requirements",
            format!("at most {MAX_REQUIREMENTS}"),
        ));
    }
    let format = format(given)?;
    if format.is_some() && !given.has("dry-run") {
        return Err(CommandError::input(
            "--format without --dry-run",
            "configure prints something only with --dry-run",
        ));
    }
    let target = match pid {
        Some(pid) => Target::Process { pid, rootfs },
        // The caller's parent, found in the container's own /proc.
        None => Target::Parent { rootfs },
    };
    let user = given.last("process-user");
    let user = user.map(|text| text.to_string_lossy().parse()).transpose();
    let policy = Policy {
        process_user: user.category(category::INPUT)?,
        driver_options: driver_options(given),
        device_nodes: !given.has("no-devbind"),
        device_rules: !given.has("no-cgroups"),
        cuda_compat: cuda_compat(given)?,
        image: ImageOptions {
            ldconfig: given
                .last("ldconfig")
                .map(Ldconfig::parse)
                .unwrap_or_default(),
            ..ImageOptions::default()
        },
        ..Policy::default()
    };
    Ok(Configure {
        request: Request {
            devices: devices(given)?,
            capabilities: capabilities(given),
            requirements,
            policy,
        },
        target,
        dry_run: given
            .has("dry-run")
            .then_some(format.unwrap_or(Format::Text)),
    })
}

/// Parses a pid; zero and below mean none.
fn pid(text: &OsStr) -> Result<Option<i32>, CommandError> {
    let failed = |errno| {
        Err(Error::system("parse pid failed", errno)
            .hint("expected the id of a process in the container"))
        .category(category::INPUT)
    };
    let text = text.to_string_lossy();
    let number = text.trim_start();
    let digits = number.strip_prefix(['+', '-']).unwrap_or(number);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return failed(Errno::EINVAL);
    }
    match number.parse::<i32>() {
        Ok(pid) => Ok((pid > 0).then_some(pid)),
        Err(_) => failed(Errno::ERANGE),
    }
}

fn devices(given: &Given) -> Result<DeviceRequest, CommandError> {
    let channels = names(given, "imex-channel", "IMEX channels").category(category::IMEX)?;
    let imex_channels = parse_imex_channels(&channels).category(category::IMEX)?;
    let names = |option, what| names(given, option, what).category(category::INPUT);
    Ok(DeviceRequest {
        ids: names("device", "devices")?,
        mig_config: names("mig-config", "mig-config devices")?,
        mig_monitor: names("mig-monitor", "mig-monitor devices")?,
        imex_channels,
    })
}

fn driver_options(given: &Given) -> DriverOptions {
    let mut options = DriverOptions::empty();
    for (name, option) in [
        ("no-persistenced", DriverOptions::NO_PERSISTENCED),
        ("no-fabricmanager", DriverOptions::NO_FABRICMANAGER),
        ("no-gsp-firmware", DriverOptions::NO_GSP_FIRMWARE),
    ] {
        options.set(option, given.has(name));
    }
    options
}

fn capabilities(given: &Given) -> Capabilities {
    let words = Capabilities::all().words();
    let named = words.filter(|word| given.has(word));
    named.filter_map(Capabilities::from_word).collect()
}

fn cuda_compat(given: &Given) -> Result<CudaCompatMode, CommandError> {
    let mode = match given.last("cuda-compat-mode") {
        None => CudaCompatMode::Mount,
        Some(mode) => match mode.to_str() {
            Some("mount") => CudaCompatMode::Mount,
            Some("ldconfig") => CudaCompatMode::Ldconfig,
            Some("disabled") => CudaCompatMode::Disabled,
            _ => {
                return Err(CommandError::input(
                    format!("unsupported CUDA compatibility mode: {}", mode.display()),
                    "use mount, ldconfig or disabled",
                ));
            }
        },
    };
    Ok(if given.has("no-cntlibs") {
        CudaCompatMode::Disabled
    } else {
        mode
    })
}

fn format(given: &Given) -> Result<Option<Format>, CommandError> {
    let Some(name) = given.last("format") else {
        return Ok(None);
    };
    match name.to_str() {
        Some("text") => Ok(Some(Format::Text)),
        Some("json") => Ok(Some(Format::Json)),
        _ => Err(CommandError::input(
            format!("unsupported format: {}", name.display()),
            "use text or json",
        )),
    }
}

/// Returns the names in all values of an option, which name `what`.
fn names(given: &Given, option: &str, what: &str) -> libnvc::Result<Vec<String>> {
    let values: Vec<_> = given.all(option).map(|v| v.to_string_lossy()).collect();
    parse_names(what, &values)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use nvc_options::getopt::{self, Caller, Parsed};

    fn invocation(line: &[&str]) -> Result<Invocation, CommandError> {
        let words: Vec<OsString> = line.iter().map(OsString::from).collect();
        let caller = Caller::new(None);
        match getopt::read(&caller, &words) {
            Parsed::Run(words) => read(&words),
            other => panic!("{line:?}: {other:?}"),
        }
    }

    fn list_of(line: &[&str]) -> List {
        match invocation(&[&["list"], line].concat()).unwrap().task {
            Task::List(list) => list,
            other => panic!("{other:?}"),
        }
    }

    fn configure_of(line: &[&str]) -> Configure {
        match invocation(&[&["configure"], line].concat()).unwrap().task {
            Task::Configure(configure) => *configure,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn last_value_counts() {
        let Invocation { debug, driver, .. } =
            invocation(&["-d", "a", "-db", "-r", "/x", "--root=/y", "-kk", "info"]).unwrap();
        assert_eq!(debug.unwrap(), "b");
        assert_eq!(driver.root, Path::new("/y"));
        assert_eq!(driver.options, LibraryOptions::LOAD_KMODS);
        assert_eq!(driver.ldcache, None);
    }

    #[test]
    fn users() {
        let user = |line: &[&str]| invocation(line).unwrap().driver.user;
        assert_eq!(user(&["info"]), None);
        assert_eq!(user(&["-u", "info"]), Some(Identity::caller()));
        let named = Identity { uid: 5, gid: 6 };
        assert_eq!(user(&["-u5:6", "info"]), Some(named));
        assert_eq!(user(&["-u5:6", "-u", "info"]), Some(Identity::caller()));
        assert_eq!(user(&["-u", "-u5:6", "info"]), Some(named));
        assert!(invocation(&["--user=", "info"]).is_err());
    }

    #[test]
    fn plain_list_is_everything() {
        let everything = |list: &List| {
            list.libraries && list.binaries && list.ipcs && list.firmwares && list.compat32
        };
        for line in [&[][..], &["--imex-channel=3"], &["--format=json"]] {
            let list = list_of(line);
            assert!(everything(&list), "{line:?}");
            assert!(list.lists_devices && list.devices.ids == ["all"]);
        }
        for line in [
            &["--imex-channel", "3"][..],
            &["--no-gsp-firmware"],
            &["--"],
        ] {
            let list = list_of(line);
            assert!(!everything(&list), "{line:?}");
            assert!(!list.lists_devices && list.devices.ids.is_empty());
        }
    }

    #[test]
    fn lists_are_joined() {
        let list = list_of(&["-d", "0", "-d", "1,2", "--mig-config="]);
        assert_eq!(list.devices.ids, ["0", "1", "2"]);
        assert_eq!(list.devices.mig_config, [""; 0]);
        let most = list_of(&["-d0,0,"; 512]);
        assert_eq!(most.devices.ids.len(), 1024);
        let list = list_of(&["-d", ""]);
        assert!(list.lists_devices && list.devices.ids.is_empty());
        let channels = list_of(&["--imex-channel=0,1", "--imex-channel=7"]);
        assert_eq!(channels.devices.imex_channels, [0, 1, 7]);
    }

    #[test]
    fn firmware_options_count_in_order() {
        assert!(!list_of(&["-f", "--no-gsp-firmware"]).firmwares);
        assert!(list_of(&["--no-gsp-firmware", "-f"]).firmwares);
        assert!(!list_of(&["-f", "--no-gsp-firmware", "-f", "--no-gsp-firmware"]).firmwares);
        assert!(list_of(&["-f", "--no-gsp-firmware", "-f"]).firmwares);
    }

    #[test]
    fn container_options() {
        let configure = configure_of(&["-gp5", "--no-cntlibs", "--cuda-compat-mode=mount", "/x"]);
        let (request, policy) = (&configure.request, &configure.request.policy);
        assert!(matches!(configure.target, Target::Process { pid: 5, .. }));
        assert_eq!(request.capabilities, Capabilities::GRAPHICS);
        assert_eq!(policy.cuda_compat, CudaCompatMode::Disabled);
        assert!(policy.device_nodes && policy.device_rules);
        let configure = configure_of(&["-p", "-3", "--no-devbind", "--no-cgroups", "/x"]);
        let policy = configure.request.policy;
        assert!(matches!(configure.target, Target::Parent { .. }));
        assert!(!policy.device_nodes && !policy.device_rules);
        assert_eq!(policy.cuda_compat, CudaCompatMode::Mount);
    }

    #[test]
    fn mistakes() {
        let many = ["--require=cuda>1"; 33];
        let devices = ["-d0,0,"; 513];
        let channels = format!("--imex-channel={}", "0,".repeat(1025));
        for (line, text) in [
            (
                &["-uabc", "info"][..],
                "input error: parse user/group failed: no such file or directory",
            ),
            (
                &["info", "--format=xml"],
                "input error: unsupported format: xml",
            ),
            (
                &["info", "--csv", "--format=json"],
                "input error: --csv and --format exclude each other",
            ),
            (
                &["configure", "-pabc", "/x"],
                "input error: parse pid failed: invalid argument",
            ),
            (
                &["configure", "-p", "", "/x"],
                "input error: parse pid failed: invalid argument",
            ),
            (
                &["configure", "-p9999999999", "/x"],
                "input error: parse pid failed: numerical result out of range",
            ),
            (&["configure", "/"], "input error: invalid rootfs directory"),
            (&["configure", "x"], "input error: invalid rootfs directory"),
            (&["configure", ""], "input error: invalid rootfs directory"),
            (
                &["configure", "--format=json", "/x"],
                "input error: --format without --dry-run",
            ),
            (
                &["configure", "--cuda-compat-mode=x", "/x"],
                "input error: unsupported CUDA compatibility mode: x",
            ),
            (
                &["configure", "--imex-channel=all", "/x"],
                "error parsing IMEX info: unsupported IMEX channel value: all",
            ),
            (
                &[&["configure"][..], &many, &["/x"]].concat(),
                "input error: too many requirements",
            ),
            (
                &[&["list"][..], &devices].concat(),
                "input error: too many devices: 1026",
            ),
            (
                &["configure", &channels, "/x"],
                "error parsing IMEX info: too many IMEX channels: 1025",
            ),
        ] {
            let lines = invocation(line).unwrap_err().lines("cli");
            assert_eq!(lines[0], format!("cli: {text}"), "{line:?}");
        }
    }
}
