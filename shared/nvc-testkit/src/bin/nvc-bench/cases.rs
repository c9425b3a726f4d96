//! Lists the commands that are measured.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use nvc_testkit::cgroup::{Attach, DeviceCgroup};
use nvc_testkit::cli::PATH;
use nvc_testkit::container::{Builder, Container};
use nvc_testkit::machine::{Scratch, cgroup_hierarchy};
use nvc_testkit::userland;

use crate::bed::Bed;

/// A runtime's usual options.
pub(crate) const USUAL: &str = "--compute --utility --device=0";
const EVERYTHING: &str =
    "--compute --utility --graphics --video --display --ngx --compat32 --device=all";

/// Updaters of the container's ld.so.cache: the host's program, and nvidia-container-cli itself.
pub(crate) const HOST: &str = "@LDCONFIG";
pub(crate) const BUILTIN: &str = "builtin";

/// A command to be measured.
#[derive(Clone)]
pub(crate) struct Case {
    /// Name in tables.
    pub(crate) name: String,
    /// The command line. In its words CLI, BASELINE, DRIVER, LDCONFIG, ROOT, PID and PLAN stand for this run's.
    line: String,
    /// The version of the container's device cgroup.
    cgroup: Option<u32>,
}

/// An nvidia-container-cli binary.
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// True if it can work without ldconfig.
    has_builtin: bool,
}

impl Program {
    pub(crate) fn new(path: &PathBuf) -> io::Result<Self> {
        let failed = |error| io::Error::other(format!("{}: {error}", path.display()));
        let path = fs::canonicalize(path).map_err(failed)?;
        let help = Command::new(&path).args(["configure", "--help"]).output()?;
        let text = String::from_utf8_lossy(&help.stdout);
        // Older programs, used for comparisons, have the second word.
        let has_builtin = text.contains("`auto'") || text.contains("`builtin'");
        Ok(Self { path, has_builtin })
    }
}

/// A command ready for one run, with its container.
pub(crate) struct Ready {
    pub(crate) command: Command,
    // Dropped in this order: the process, then its root.
    _container: Option<Container>,
    _root: Option<Scratch>,
}

impl Case {
    fn new(name: &str, line: &str) -> Self {
        Self {
            name: name.to_owned(),
            line: line.to_owned(),
            cgroup: None,
        }
    }

    /// Runs the host's ldconfig alone on the same root, without a sandbox.
    pub(crate) fn bare_ldconfig() -> Self {
        Self::new("ldconfig alone", "LDCONFIG -r ROOT")
    }

    /// Runs `info` and `list`.
    pub(crate) fn shows() -> Vec<Self> {
        vec![
            Self::new("info", "CLI --root=DRIVER info"),
            Self::list("list", ""),
        ]
    }

    /// Runs `list`.
    pub(crate) fn list(name: &str, options: &str) -> Self {
        Self::new(name, format!("CLI --root=DRIVER list {options}").trim_end())
    }

    /// Runs `configure` without a device cgroup.
    pub(crate) fn configure(name: &str, ldconfig: &str, options: &str) -> Self {
        let line = format!("--ldconfig={ldconfig} --no-cgroups {options} ROOT");
        Self::new(
            name,
            &format!("CLI --root=DRIVER configure --pid=PID {line}"),
        )
    }

    /// Runs `configure` in each kind of device cgroup on this machine.
    pub(crate) fn cgroups() -> impl Iterator<Item = Self> {
        let versions = [1, 2].into_iter();
        let here = versions.filter(|version| cgroup_hierarchy(*version).is_some());
        here.map(|version| {
            let case = Self::configure(&format!("configure, cgroup v{version}"), HOST, USUAL);
            Self {
                line: case.line.replace("--no-cgroups ", ""),
                cgroup: Some(version),
                ..case
            }
        })
    }

    /// Returns the commands of the main table; the baselines make the minimum of calls for `info` and `configure`.
    pub(crate) fn all() -> Vec<Self> {
        let configure = |name, ldconfig| Self::configure(name, ldconfig, USUAL);
        let everything = |name, ldconfig| Self::configure(name, ldconfig, EVERYTHING);
        let baseline = "BASELINE configure DRIVER PID ROOT LDCONFIG PLAN";
        let mut cases = vec![
            Self::new("/bin/true", "/bin/true"),
            Self::bare_ldconfig(),
            Self::new("baseline of info", "BASELINE info DRIVER"),
            Self::new("baseline of configure", baseline),
        ];
        cases.extend(Self::shows());
        cases.extend([
            configure("configure", HOST),
            configure("configure, builtin", BUILTIN),
            everything("everything", HOST),
            everything("everything, builtin", BUILTIN),
        ]);
        cases.extend(Self::cgroups());
        cases
    }

    /// Returns true for commands of nvidia-container-cli.
    pub(crate) fn is_ours(&self) -> bool {
        self.line.starts_with("CLI")
    }

    /// Returns true if a program supports it.
    pub(crate) fn suits(&self, program: &Program) -> bool {
        program.has_builtin || !self.line.contains(BUILTIN)
    }

    /// Prepares one run.
    pub(crate) fn prepare(&self, program: &Program, bed: &Bed) -> io::Result<Ready> {
        let mut names = vec![
            ("CLI", program.path.clone()),
            ("BASELINE", bed.program("baseline")),
            ("DRIVER", bed.driver.clone()),
            ("LDCONFIG", userland::host_ldconfig()),
        ];
        let needs = |name| self.line.contains(name);
        let root = needs("ROOT").then(|| bed.root()).transpose()?;
        let mut container = None;
        if let Some(scratch) = &root {
            let root = scratch.join("root");
            names.push(("ROOT", root.clone()));
            if needs("PID") {
                let container = container.insert(start(&root, self.cgroup)?);
                names.push(("PID", container.pid().to_string().into()));
            }
            if needs("PLAN") {
                let dry = format!("{USUAL} --dry-run");
                let dry = Self::configure("", HOST, &dry).command(&names).output()?;
                let plan = scratch.join("plan");
                fs::write(
                    &plan,
                    steps(&String::from_utf8_lossy(&dry.stdout), &bed.driver),
                )?;
                names.push(("PLAN", plan));
            }
        }
        Ok(Ready {
            command: self.command(&names),
            _container: container,
            _root: root,
        })
    }

    fn command(&self, names: &[(&str, PathBuf)]) -> Command {
        let word = |word: &str| {
            let insert = |word: String, (name, path): &(&str, PathBuf)| {
                word.replace(name, &path.to_string_lossy())
            };
            names.iter().fold(word.to_owned(), insert)
        };
        let mut words = self.line.split(' ').map(word);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).current_dir("/");
        command.env_clear().env("PATH", PATH).env("LANG", "C");
        command
    }
}

/// Converts the text of a dry run into steps of the baseline, which c/baseline.c describes.
fn steps(plan: &str, driver: &Path) -> String {
    let step = |line: &str| {
        let (kind, rest) = line.split_at_checked(14)?;
        let words = rest.split([' ', ',']).filter(|word| !word.is_empty());
        let words: Vec<_> = words.map(|word| word.trim_start_matches('/')).collect();
        let (source, place) = match words[..] {
            [source, "->", place, ..] => (source.to_owned(), place.to_owned()),
            [source, "with", gpu, ..] => (format!("{source}/{gpu}"), format!("{source}/{gpu}")),
            [source, ..] => (source.to_owned(), source.to_owned()),
            [] => return None,
        };
        let kind = match (kind.trim_end(), driver.join(&source).is_dir()) {
            ("library path", _) => {
                let directories = words.iter().take_while(|word| **word != "by");
                return Some(directories.map(|at| format!("D - /{at}\n")).collect());
            }
            ("link", _) => return Some(format!("L {place} {source}\n")),
            ("driver proc", _) if words.len() == 1 => 't',
            ("device" | "socket", true) => 'w',
            ("device" | "socket", false) => 'W',
            (_, true) => 'r',
            (_, false) => 'R',
        };
        Some(format!("{kind} {source} {place}\n"))
    };
    plan.lines().filter_map(step).collect()
}

/// Starts a container on a root, in a device cgroup of this version.
fn start(root: &Path, cgroup: Option<u32>) -> io::Result<Container> {
    let mut container = Builder::on(root).start()?;
    match cgroup {
        None => {}
        Some(1) => container.join(DeviceCgroup::v1()?)?,
        Some(_) => container.join(DeviceCgroup::v2()?.attach(Attach::Multi, &["1:3"])?)?,
    }
    Ok(container)
}
