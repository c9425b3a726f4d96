//! Lists the commands that are measured, with upstream's recorded figures and the goals.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use nvc_testkit::cli::PATH;
use nvc_testkit::container::Container;
use nvc_testkit::machine::cgroup_hierarchy;
use nvc_testkit::userland;

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

/// Recorded figures of upstream, and our goal.
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
    Baseline {
        program: PathBuf,
        configures: bool,
    },
    Info,
    List,
    Configure {
        arguments: Vec<String>,
        cgroup: Cgroup,
        ldconfig: Ldconfig,
    },
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
    pub(crate) has_builtin: bool,
}

impl Program {
    /// Detects a program's features.
    ///
    /// # Errors
    /// It cannot be run.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize().map_err(|error| {
            let text = format!("{}: {error}", path.display());
            io::Error::new(error.kind(), text)
        })?;
        let help = Command::new(&path).args(["configure", "--help"]).output()?;
        let text = [help.stdout, help.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        // The option value was renamed.
        let has_builtin = text.contains("`auto'") || text.contains("`builtin'");
        Ok(Self { path, has_builtin })
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
    /// Runs `/bin/true`: the cost of starting any program.
    pub(crate) fn start() -> Self {
        Self::new("/bin/true", Kind::True)
    }

    /// Runs the host's ldconfig alone on the same root, without a sandbox.
    pub(crate) fn bare_ldconfig() -> Self {
        Self::new("ldconfig alone", Kind::Ldconfig)
    }

    /// Runs minimal programs for `info` and `configure` that do nothing else (scripts/bench/baseline.c).
    fn baselines(program: &Path) -> [Self; 2] {
        let case = |name, configures| {
            let program = program.to_owned();
            Self::new(
                name,
                Kind::Baseline {
                    program,
                    configures,
                },
            )
        };
        [case(BASELINE_INFO, false), case(BASELINE_CONFIGURE, true)]
    }

    /// Runs `info`.
    pub(crate) fn info() -> Self {
        Self::new("info", Kind::Info).upstream(6.5, 2450, 0.25)
    }

    /// Runs `list`.
    pub(crate) fn list() -> Self {
        Self::new("list", Kind::List).upstream(6.5, 2500, 0.25)
    }

    /// Runs `configure`.
    pub(crate) fn configure(name: &str, arguments: &[&str], ldconfig: Ldconfig) -> Self {
        Self::in_cgroup(name, arguments, ldconfig, Cgroup::None)
    }

    fn in_cgroup(name: &str, arguments: &[&str], ldconfig: Ldconfig, cgroup: Cgroup) -> Self {
        let kind = Kind::Configure {
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            cgroup,
            ldconfig,
        };
        Self::new(name, kind)
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

    /// Returns the commands of the main table.
    pub(crate) fn all(baseline: Option<&Path>) -> Vec<Self> {
        use Ldconfig::{Builtin, Host};
        let mut cases = vec![Self::start(), Self::bare_ldconfig()];
        cases.extend(baseline.into_iter().flat_map(Self::baselines));
        cases.extend([
            Self::info().against(BASELINE_INFO),
            Self::list(),
            Self::configure("configure", USUAL, Host)
                .upstream(9.3, 3970, 0.38)
                .against(BASELINE_CONFIGURE),
            Self::configure("configure, builtin", USUAL, Builtin).upstream(9.3, 3970, 0.30),
            Self::configure("everything", EVERYTHING, Host).upstream(12.6, 6480, 0.40),
            Self::configure("everything, builtin", EVERYTHING, Builtin).upstream(12.6, 6480, 0.33),
        ]);
        let cgroups = [
            (1, "configure, cgroup v1", Cgroup::V1, 11.6, 4300),
            (2, "configure, cgroup v2", Cgroup::V2, 13.0, 4360),
        ];
        for (version, name, cgroup, time, calls) in cgroups {
            if cgroup_hierarchy(version).is_some() {
                let case = Self::in_cgroup(name, USUAL, Host, cgroup);
                cases.push(case.upstream(time, calls, 0.35));
            }
        }
        cases
    }

    /// Returns true for commands of nvidia-container-cli.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.kind, Kind::Info | Kind::List | Kind::Configure { .. })
    }

    /// Returns true if it uses a device cgroup.
    pub(crate) fn has_cgroup(&self) -> bool {
        matches!(self.kind, Kind::Configure { cgroup, .. } if cgroup != Cgroup::None)
    }

    /// Returns true if a program supports it.
    pub(crate) fn suits(&self, program: &Program) -> bool {
        match &self.kind {
            Kind::Configure { ldconfig, .. } => *ldconfig == Ldconfig::Host || program.has_builtin,
            _ => true,
        }
    }

    /// Prepares one run.
    ///
    /// # Errors
    /// A container cannot be made.
    pub(crate) fn prepare(&self, program: &Program, bed: &Bed) -> io::Result<Ready> {
        let (mut root, mut container) = (None, None);
        let ldconfig = userland::host_ldconfig();
        let mut command = match &self.kind {
            Kind::True => Command::new("/bin/true"),
            Kind::Ldconfig => {
                let root = root.insert(bed.root()?);
                let mut command = Command::new(ldconfig);
                command.arg("-r").arg(&root.path);
                command
            }
            Kind::Baseline {
                program: baseline,
                configures: false,
            } => {
                let mut command = Command::new(baseline);
                command.arg("info").arg(bed.driver());
                command
            }
            Kind::Baseline {
                program: baseline,
                configures: true,
            } => {
                let root = root.insert(bed.root()?);
                let container = container.insert(bed::start(&root.path, Cgroup::None)?);
                let pid = container.pid().to_string();
                let mut dry = cli(program, bed, "configure");
                dry.arg("--dry-run").arg(format!("--pid={pid}"));
                dry.arg(format!("--ldconfig=@{}", ldconfig.display()));
                dry.arg("--no-cgroups").args(USUAL).arg(&root.path);
                let plan = root.beside("plan");
                fs::write(&plan, dry.output()?.stdout)?;
                let mut command = Command::new(baseline);
                command.arg("configure").arg(bed.driver()).arg(pid);
                command.args([&root.path, &ldconfig, &plan]);
                command
            }
            Kind::Info => cli(program, bed, "info"),
            Kind::List => cli(program, bed, "list"),
            Kind::Configure {
                arguments,
                cgroup,
                ldconfig: who,
            } => {
                let root = root.insert(bed.root()?);
                let container = container.insert(bed::start(&root.path, *cgroup)?);
                let mut command = cli(program, bed, "configure");
                command.arg(format!("--pid={}", container.pid()));
                command.arg(match who {
                    Ldconfig::Host => format!("--ldconfig=@{}", ldconfig.display()),
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
        command.current_dir(Path::new("/"));
        Ok(Ready {
            command,
            _container: container,
            _root: root,
        })
    }
}

fn cli(program: &Program, bed: &Bed, word: &str) -> Command {
    let mut command = Command::new(&program.path);
    command
        .arg(format!("--root={}", bed.driver().display()))
        .arg(word);
    command
}
