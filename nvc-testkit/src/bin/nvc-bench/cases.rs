//! Lists the commands that are measured, with upstream's recorded figures and the goals.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use nvc_testkit::cli::PATH;
use nvc_testkit::container::Container;
use nvc_testkit::machine::cgroup_hierarchy;
use nvc_testkit::userland;
use serde_json::Value;

use crate::bed::{self, Bed, Cgroup, Root};

/// Time of `/bin/true` when upstream's figures were recorded, ms.
pub(crate) const UPSTREAM_TRUE: f64 = 0.54;

/// A command to be measured.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Name in tables.
    pub(crate) name: String,
    /// Upstream's figures on the conformance fixture.
    pub(crate) upstream: Option<Upstream>,
    /// The case that does the same with a minimum of calls.
    pub(crate) baseline: Option<&'static str>,
    kind: Kind,
}

/// Recorded figures of upstream, and the goal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upstream {
    /// Median time, ms.
    pub(crate) time: f64,
    /// System calls.
    pub(crate) calls: u32,
    /// Goal as a ratio to that time.
    pub(crate) goal: f64,
}

#[derive(Clone, Debug)]
enum Kind {
    True,
    Ldconfig,
    BaselineInfo(PathBuf),
    BaselineConfigure(PathBuf),
    /// `info` or `list`.
    Shows(&'static str),
    Configure(Vec<String>, Cgroup, Ldconfig),
}

/// Updater of the container's ld.so.cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ldconfig {
    /// The host's program.
    Host,
    /// nvidia-container-cli itself.
    Builtin,
}

const BASELINE_INFO: &str = "baseline of info";
const BASELINE_CONFIGURE: &str = "baseline of configure";

/// A runtime's usual options.
pub(crate) const USUAL: &[&str] = &["--compute", "--utility", "--device=0"];
const EVERYTHING: &[&str] = &[
    "--compute",
    "--utility",
    "--graphics",
    "--video",
    "--display",
    "--ngx",
    "--compat32",
    "--device=all",
];

/// An nvidia-container-cli binary.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// True if it can work without ldconfig.
    has_builtin: bool,
}

impl Program {
    /// Detects a program's features.
    ///
    /// # Errors
    /// It cannot be run.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize().map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        let help = Command::new(&path).args(["configure", "--help"]).output()?;
        let text = [help.stdout, help.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        // Older programs, used for comparisons, have the second word.
        let has_builtin = ["`auto'", "`builtin'"]
            .iter()
            .any(|word| text.contains(word));
        Ok(Self { path, has_builtin })
    }

    fn on(&self, bed: &Bed, word: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.arg(format!("--root={}", bed.driver.display()));
        command.arg(word);
        command
    }
}

/// A command ready for one run, with its container.
pub(crate) struct Ready {
    pub(crate) command: Command,
    // Dropped in this order: the process, then its root.
    _container: Option<Container>,
    _root: Option<Root>,
}

impl Case {
    /// Runs the host's ldconfig alone on the same root, without a sandbox.
    pub(crate) fn bare_ldconfig() -> Self {
        Self::new("ldconfig alone", Kind::Ldconfig)
    }

    /// Runs `info` and `list`.
    pub(crate) fn shows() -> [Self; 2] {
        let info = Self::new("info", Kind::Shows("info")).upstream(6.5, 2450, 0.25);
        let list = Self::new("list", Kind::Shows("list")).upstream(6.5, 2500, 0.25);
        [info.against(BASELINE_INFO), list]
    }

    /// Runs `configure` without a device cgroup.
    pub(crate) fn configure(name: &str, arguments: &[&str], ldconfig: Ldconfig) -> Self {
        Self::in_cgroup(name, arguments, ldconfig, Cgroup::None)
    }

    fn in_cgroup(name: &str, arguments: &[&str], ldconfig: Ldconfig, cgroup: Cgroup) -> Self {
        let arguments = arguments.iter().map(|&word| word.to_owned()).collect();
        Self::new(name, Kind::Configure(arguments, cgroup, ldconfig))
    }

    /// Runs `configure` in each kind of device cgroup on this machine.
    pub(crate) fn cgroups() -> impl Iterator<Item = Self> {
        let all = [
            (1, "configure, cgroup v1", Cgroup::V1, 11.6, 4300),
            (2, "configure, cgroup v2", Cgroup::V2, 13.0, 4360),
        ];
        let here = |(version, ..): &(u32, _, _, _, _)| cgroup_hierarchy(*version).is_some();
        all.into_iter()
            .filter(here)
            .map(|(_, name, cgroup, time, calls)| {
                Self::in_cgroup(name, USUAL, Ldconfig::Host, cgroup).upstream(time, calls, 0.35)
            })
    }

    fn new(name: &str, kind: Kind) -> Self {
        Self {
            name: name.to_owned(),
            upstream: None,
            baseline: None,
            kind,
        }
    }

    fn upstream(mut self, time: f64, calls: u32, goal: f64) -> Self {
        self.upstream = Some(Upstream { time, calls, goal });
        self
    }

    fn against(mut self, baseline: &'static str) -> Self {
        self.baseline = Some(baseline);
        self
    }

    /// Returns the commands of the main table; the baselines are those of `scripts/bench/baseline.c`.
    pub(crate) fn all(baseline: Option<&Path>) -> Vec<Self> {
        use Ldconfig::{Builtin, Host};
        let mut cases = vec![Self::new("/bin/true", Kind::True), Self::bare_ldconfig()];
        if let Some(program) = baseline {
            let program = program.to_owned();
            let configure = Kind::BaselineConfigure(program.clone());
            cases.push(Self::new(BASELINE_INFO, Kind::BaselineInfo(program)));
            cases.push(Self::new(BASELINE_CONFIGURE, configure));
        }
        cases.extend(Self::shows());
        cases.extend([
            Self::configure("configure", USUAL, Host)
                .upstream(9.3, 3970, 0.38)
                .against(BASELINE_CONFIGURE),
            Self::configure("configure, builtin", USUAL, Builtin).upstream(9.3, 3970, 0.30),
            Self::configure("everything", EVERYTHING, Host).upstream(12.6, 6480, 0.40),
            Self::configure("everything, builtin", EVERYTHING, Builtin).upstream(12.6, 6480, 0.33),
        ]);
        cases.extend(Self::cgroups());
        cases
    }

    /// Returns true for commands of nvidia-container-cli.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.kind, Kind::Shows(_) | Kind::Configure(..))
    }

    /// Returns true if a program supports it.
    pub(crate) fn suits(&self, program: &Program) -> bool {
        !matches!(self.kind, Kind::Configure(_, _, Ldconfig::Builtin)) || program.has_builtin
    }

    /// Prepares one run.
    ///
    /// # Errors
    /// A container cannot be made.
    pub(crate) fn prepare(&self, program: &Program, bed: &Bed) -> io::Result<Ready> {
        let (mut root, mut container) = (None, None);
        let ldconfig = userland::host_ldconfig();
        let at_host = format!("--ldconfig=@{}", ldconfig.display());
        let mut command = match &self.kind {
            Kind::True => Command::new("/bin/true"),
            Kind::Ldconfig => {
                let mut command = Command::new(ldconfig);
                command.arg("-r").arg(&root.insert(bed.root()?).path);
                command
            }
            Kind::BaselineInfo(baseline) => {
                let mut command = Command::new(baseline);
                command.arg("info").arg(&bed.driver);
                command
            }
            Kind::BaselineConfigure(baseline) => {
                let root = root.insert(bed.root()?);
                let container = container.insert(bed::start(&root.path, Cgroup::None)?);
                let pid = container.pid().to_string();
                let mut dry = program.on(bed, "configure");
                dry.args(["--dry-run", "--format=json", "--no-cgroups"]);
                dry.arg(format!("--pid={pid}")).arg(at_host);
                let plan = dry.args(USUAL).arg(&root.path).output()?;
                let file = root.scratch.join("plan");
                fs::write(&file, calls_of(&serde_json::from_slice(&plan.stdout)?))?;
                let mut command = Command::new(baseline);
                command.arg("configure").arg(&bed.driver).arg(pid);
                command.args([&root.path, &ldconfig, &file]);
                command
            }
            Kind::Shows(word) => program.on(bed, word),
            Kind::Configure(arguments, cgroup, who) => {
                let root = root.insert(bed.root()?);
                let container = container.insert(bed::start(&root.path, *cgroup)?);
                let mut command = program.on(bed, "configure");
                command.arg(format!("--pid={}", container.pid()));
                command.arg(match who {
                    Ldconfig::Host => at_host,
                    Ldconfig::Builtin => "--ldconfig=builtin".into(),
                });
                if *cgroup == Cgroup::None {
                    command.arg("--no-cgroups");
                }
                command.args(arguments).arg(&root.path);
                command
            }
        };
        command.env_clear().env("PATH", PATH).env("LANG", "C");
        command.current_dir("/");
        Ok(Ready {
            command,
            _container: container,
            _root: root,
        })
    }
}

/// Formats a plan as the baseline's input: a letter and paths per line (see `scripts/bench/baseline.c`).
fn calls_of(plan: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let place = |value: &Value| {
        let layout = &plan["image"]["layout"];
        let mut found = text(&value["at"]);
        for (kind, directory) in [
            ("library", "libs_dir"),
            ("library32", "libs32_dir"),
            ("program", "bins_dir"),
        ] {
            if let Some(name) = value[kind].as_str() {
                let path = format!("{}/{name}", text(&layout[directory]));
                path.trim_end_matches('/').clone_into(&mut found);
            }
        }
        found
    };
    let listed = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut lines = Vec::new();
    let parts = listed(&plan["devices"]).into_iter();
    let parts = parts.flat_map(|part| listed(&part["intents"]));
    let mut has_proc = false;
    for intent in listed(&plan["common"]).into_iter().chain(parts) {
        let source = text(&intent["source"]);
        match intent["intent"].as_str().unwrap_or_default() {
            "device" => lines.push(format!("W {source} {}", text(&intent["at"]))),
            "mount" => {
                let access = if intent["class"] == "socket" {
                    'W'
                } else {
                    'R'
                };
                lines.push(format!("{access} {source} {}", place(&intent["place"])));
            }
            "link" => {
                let target = text(&intent["target"]);
                lines.push(format!("L {target} {}", place(&intent["at"])));
            }
            "driver-proc" => {
                let proc = "/proc/driver/nvidia";
                if !std::mem::replace(&mut has_proc, true) {
                    lines.push(format!("T {proc} -"));
                }
                for gpu in listed(&intent["gpus"]) {
                    let path = format!("{proc}/gpus/{}", text(&gpu));
                    lines.push(format!("R {path} {path}"));
                }
            }
            "library-path" => {
                let directories = listed(&intent["directories"]);
                lines.extend(directories.iter().map(|at| format!("P {} -", place(at))));
            }
            _ => {}
        }
    }
    lines.join("\n")
}
