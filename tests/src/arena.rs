//! Runs `configure` on hostile roots, and checks for escapes, leftovers and omissions.
//!
//! An arena has a canary, the target of escaping links; a mount namespace for the containers; and a snapshot of the
//! host. Failures are returned as text, so that the generator can shrink the root.

mod verdict;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, umount2};
use nix::sys::stat::makedev;
use nvc_testkit::cli::{Outcome, Run, check_messages};
use nvc_testkit::driver::{Builder, Driver};
use nvc_testkit::hostile::{self, Place, Root};
use nvc_testkit::inside::Inside;
use nvc_testkit::machine::{self, Scratch, scratch_base};
use nvc_testkit::mounts::{self, Mount};
use nvc_testkit::tree::Tree;
use serde_json::Value;

use crate::{command_line, host_ldconfig};

/// The way `configure` addresses the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// From the host, by a process.
    Supervised,
    /// From inside, by a child of the container's process.
    Standalone,
}

/// The result of a `configure`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Everything was done.
    Done,
    /// Nothing was done; the kind of error.
    Refused(String),
}

/// A canary, a namespace for containers, and the host around them.
#[derive(Debug)]
pub struct Arena {
    inside: Inside,
    scratch: Scratch,
    /// A driver of its own, if `configure` makes its nodes.
    loading: Option<Loading>,
    canary: Tree,
    host: Vec<(u64, Mount)>,
    namespaces: Vec<PathBuf>,
    /// Device number of the scratch filesystem, which holds the driver's files and the canary.
    device: String,
    /// The namespace's mounts without a container.
    empty: Vec<(u64, Mount)>,
}

impl Arena {
    /// Sets everything up.
    ///
    /// # Errors
    /// A file or mount cannot be created.
    pub fn new() -> io::Result<Self> {
        Self::with(Scratch::new()?, None)
    }

    /// Does the same with `--load-kmods`, and an IMEX channel whose node each `configure` must make.
    ///
    /// # Errors
    /// A file or mount cannot be created.
    pub fn loading() -> io::Result<Self> {
        let scratch = Scratch::new()?;
        let loading = Loading::new(&scratch.join("driver"))?;
        Self::with(scratch, Some(loading))
    }

    fn with(scratch: Scratch, loading: Option<Loading>) -> io::Result<Self> {
        fs::create_dir(scratch.join("base"))?;
        hostile::canary(&scratch.join("canary"), machine::driver())?;
        let inside = Inside::new()?;
        let table = mounts::of("self")?;
        let base = scratch_base();
        let own = table.iter().rfind(|mount| mount.point == base);
        let device = own.map(|mount| mount.device.clone());
        Ok(Self {
            canary: Tree::with_traces(&scratch.join("canary"))?,
            host: mounts::numbered("self")?,
            namespaces: own_namespaces()?,
            device: device.ok_or_else(|| io::Error::other("no file system of the tests' own"))?,
            empty: mounts::numbered(inside.pid())?,
            inside,
            scratch,
            loading,
        })
    }

    fn driver(&self) -> &Driver {
        match &self.loading {
            Some(own) => &own.driver,
            None => machine::driver(),
        }
    }

    /// Returns the canary.
    pub fn canary(&self) -> PathBuf {
        self.scratch.join("canary")
    }

    /// Returns the containers' namespace.
    pub fn inside(&self) -> &Inside {
        &self.inside
    }

    /// Builds a root; returns its path, which is the same for all.
    ///
    /// # Errors
    /// A description of the failure.
    pub fn build(&self, root: &Root) -> Result<PathBuf, String> {
        let (base, canary) = (self.scratch.join("base"), self.canary());
        let place = Place {
            base: &base,
            canary: &canary,
            pid: self.inside.pid(),
            driver: self.driver(),
        };
        let built = self.inside.run(|| hostile::build(root, &place));
        let built = built.and_then(|built| built);
        built.map_err(|error| {
            // Otherwise the mounts made so far would be found and reported after the next root.
            let cleared = self.clear().err().unwrap_or_default();
            format!("building: {error} {cleared}")
        })
    }

    /// Unmounts the root; fails if anything else is mounted in the namespace.
    ///
    /// # Errors
    /// A description of the remaining mounts.
    pub fn clear(&self) -> Result<(), String> {
        let base = self.scratch.join("base");
        let cleared = self.inside.run(|| umount2(&base, MntFlags::MNT_DETACH));
        told(cleared)?.map_err(|errno| format!("clearing: {errno}"))?;
        let left = told(mounts::numbered(self.inside.pid()))?;
        let root = PathBuf::from(format!("/proc/{}/root", self.inside.pid()));
        let empty = without_removed(&self.empty, &left, &root);
        if left == empty {
            return Ok(());
        }
        Err(format!(
            "mounted outside the root: {}",
            difference(&empty, &left)
        ))
    }

    /// Prepares `configure` with additional arguments.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn configure(&self, mode: Mode, root: &Path, words: &[&str]) -> io::Result<Outcome> {
        let ldconfig = host_ldconfig();
        let pid = format!("--pid={}", self.inside.pid());
        let mut all = vec!["configure", &ldconfig, "--no-cgroups"];
        if mode == Mode::Supervised {
            all.push(&pid);
        }
        all.extend(words);
        let channel = format!("--imex-channel={CHANNEL}");
        if self.loading.is_some() {
            all.push(&channel);
        }
        let mut line = command_line(self.driver(), &all);
        line.push(root.into());
        if self.loading.is_some() {
            line.insert(0, LOAD.into());
        }
        match mode {
            Mode::Supervised => {
                let log = self.scratch.join("debug.log");
                let outcome = Run::cli(line).env("NVC_DEBUG_FILE", &log).outcome()?;
                // Absent if the command line is refused.
                let text = fs::read(&log).unwrap_or_default();
                let _ = fs::remove_file(&log);
                check_messages(&text).map_err(io::Error::other)?;
                Ok(outcome)
            }
            Mode::Standalone => {
                // The caller is a process of the container: a shell in its namespace.
                let mut shell = Command::new("sh");
                shell.args(["-c", "\"$@\"; exit $?", "sh"]);
                self.inside.run(|| Run::within(shell, line).outcome())?
            }
        }
    }

    /// Builds a root, configures it, and checks the result.
    ///
    /// # Errors
    /// A description of the violation.
    pub fn try_root(&self, mode: Mode, root: &Root, words: &[&str]) -> Result<Ending, String> {
        let path = self.build(root)?;
        let tried = self.try_built(mode, &path, words);
        let cleared = self.clear();
        let ending = tried?;
        cleared?;
        self.host_is_unchanged()?;
        Ok(ending)
    }

    fn try_built(&self, mode: Mode, root: &Path, words: &[&str]) -> Result<Ending, String> {
        let before = self.look(root)?;
        if let Some(loading) = &self.loading {
            // A plan names only nodes that exist.
            loading.make_channel();
        }
        let dry = [&["--dry-run", "--format=json"], words].concat();
        let dry = told(self.configure(mode, root, &dry))?;
        let plan = match ending(&dry)? {
            Ending::Done => {
                let plan: Value = told(serde_json::from_str(&dry.stdout))?;
                Some(plan)
            }
            Ending::Refused(_) => None,
        };
        let without = self.loading.as_ref().map(Loading::remove_channel);
        let without = without.transpose().map_err(|error| error.to_string())?;
        let outcome = told(self.configure(mode, root, words))?;
        let ending = ending(&outcome)?;
        match (&ending, plan) {
            (Ending::Refused(_), _) => {
                let after = self.look(root)?;
                let text = |problem| format!("{problem}\nafter: {}", outcome.stderr);
                verdict::nothing_changed(&before, &after).map_err(text)?;
            }
            (Ending::Done, None) => {
                return Err(format!("done, without a plan: {}", dry.stderr));
            }
            (Ending::Done, Some(plan)) => {
                let after = told(mounts::numbered(self.inside.pid()))?;
                self.plan_was_carried_out(mode, root, &plan, &before, &after)?;
            }
        }
        if let (Some(loading), Some(without)) = (&self.loading, without) {
            loading.only_made_channel(&without, &ending)?;
        }
        Ok(ending)
    }

    fn look(&self, root: &Path) -> Result<Seen, String> {
        let files = self.inside.run(|| Tree::of(root));
        Ok(Seen {
            mounts: told(mounts::numbered(self.inside.pid()))?,
            files: told(told(files)?)?,
        })
    }

    /// Fails if the canary, the host's mounts or this process's namespaces changed.
    ///
    /// # Errors
    /// A description of the change.
    pub fn host_is_unchanged(&self) -> Result<(), String> {
        let canary = told(Tree::with_traces(&self.canary()))?;
        let changes = canary.changes_since(&self.canary);
        if !changes.is_empty() {
            return Err(format!("the canary: {changes:#?}"));
        }
        let host = told(mounts::numbered("self"))?;
        let expected = without_removed(&self.host, &host, Path::new("/"));
        if host != expected {
            return Err(format!(
                "the host's mounts: {}",
                difference(&expected, &host)
            ));
        }
        let first = told(fs::read_to_string("/proc/1/mountinfo"))?;
        let scratch = scratch_base();
        if first.contains(&*scratch.to_string_lossy()) {
            return Err(format!(
                "mounts of the tests in the first namespace:\n{first}"
            ));
        }
        if told(own_namespaces())? != self.namespaces {
            return Err("the caller's namespaces changed".into());
        }
        Ok(())
    }

    /// Returns the device number of the filesystem with the driver's files and the canary.
    pub fn device(&self) -> &str {
        &self.device
    }
}

/// The global option, and the channel whose node it makes.
const LOAD: &str = "--load-kmods";
const CHANNEL: u32 = 7;

/// A driver with loaded modules, whose nodes are made on request.
#[derive(Debug)]
struct Loading {
    driver: Driver,
}

impl Loading {
    fn new(at: &Path) -> io::Result<Self> {
        fs::create_dir(at)?;
        let driver = Builder::default().build(at)?;
        let modules = ["nvidia", "nvidia_uvm", "nvidia_modeset"];
        let modules = modules.map(|name| format!("{name} 1 0 - Live 0x0\n"));
        fs::write(driver.path("/proc/modules"), modules.concat())?;
        fs::create_dir_all(driver.path("/dev/char"))?;
        Ok(Self { driver })
    }

    /// Makes all nodes.
    fn make_channel(&self) {
        let words = [&format!("--imex-channel={CHANNEL}"), "--ipcs"];
        let mut line = command_line(&self.driver, &["list", words[0], words[1]]);
        line.insert(0, LOAD.into());
        Run::cli(line).succeeds();
    }

    /// The channel's node and the link to it.
    fn channel(&self) -> [PathBuf; 2] {
        let major = self.driver.majors().imex;
        let node = format!("/dev/nvidia-caps-imex-channels/channel{CHANNEL}");
        [node, format!("/dev/char/{major}:{CHANNEL}")].map(|path| self.driver.path(path))
    }

    /// Removes the channel; returns what is left in the driver's /dev.
    fn remove_channel(&self) -> io::Result<Tree> {
        for path in self.channel() {
            if path.symlink_metadata().is_ok() {
                fs::remove_file(path)?;
            }
        }
        Tree::of(&self.driver.path("/dev"))
    }

    /// Fails unless the channel was made, if the container has it, and nothing else.
    fn only_made_channel(&self, without: &Tree, ending: &Ending) -> Result<(), String> {
        let [node, link] = self.channel();
        let number = fs::symlink_metadata(&node).map(|facts| facts.rdev());
        let expected = makedev(self.driver.majors().imex.into(), CHANNEL.into());
        let is_made = number.as_ref().is_ok_and(|number| *number == expected) && link.is_symlink();
        if *ending == Ending::Done && !is_made {
            return Err(format!("done, but the channel's node is {number:?}"));
        }
        let left = told(self.remove_channel())?;
        let changes = left.changes_since(without);
        if changes.is_empty() {
            Ok(())
        } else {
            Err(format!("the driver's nodes: {changes:#?}"))
        }
    }
}

/// A snapshot of a container.
#[derive(Debug)]
struct Seen {
    mounts: Vec<(u64, Mount)>,
    files: Tree,
}

/// Classifies how the program ended.
///
/// # Errors
/// It crashed, hung or misreported.
pub fn ending(outcome: &Outcome) -> Result<Ending, String> {
    let text = outcome.message().strip_prefix("nvidia-container-cli: ");
    match (outcome.status, text) {
        _ if !outcome.orphans.is_empty() => Err(format!("left behind: {outcome:#?}")),
        (Some(0), _) => Ok(Ending::Done),
        (Some(1), Some(text)) => {
            let (sort, rest) = text.split_once(':').unwrap_or((text, ""));
            // Paths differ between roots; the cause follows the last colon.
            let cause = rest.lines().next().unwrap_or_default().rsplit(": ").next();
            let cause = cause.and_then(|cause| cause.split(" for /").next());
            Ok(Ending::Refused(format!(
                "{sort}: {}",
                cause.unwrap_or_default()
            )))
        }
        _ => Err(format!("no orderly end: {outcome:#?}")),
    }
}

fn difference(before: &[(u64, Mount)], after: &[(u64, Mount)]) -> String {
    let lines = |of: &[(u64, Mount)], other: &[(u64, Mount)], sign: char| -> String {
        let missing = of.iter().filter(|mount| !other.contains(mount));
        missing
            .map(|(id, mount)| format!("\n{sign} {id} {mount}"))
            .collect()
    };
    lines(after, before, '+') + &lines(before, after, '-')
}

/// Returns the mounts of `before` without those that vanished together with their mount points.
///
/// Removing a mount point unmounts it in every namespace. The machine's services do that at any time, such as systemd
/// with each service's credentials.
fn without_removed(
    before: &[(u64, Mount)],
    after: &[(u64, Mount)],
    root: &Path,
) -> Vec<(u64, Mount)> {
    let is_there = |mount: &Mount| {
        let point = mount.point.strip_prefix("/").unwrap_or(&mount.point);
        root.join(point).symlink_metadata().is_ok()
    };
    let stays = |entry: &&(u64, Mount)| after.contains(entry) || is_there(&entry.1);
    before.iter().filter(stays).cloned().collect()
}

fn own_namespaces() -> io::Result<Vec<PathBuf>> {
    let names = ["mnt", "pid", "net", "ipc", "uts", "user", "cgroup"];
    let mut links: Vec<_> = names
        .map(|name| fs::read_link(format!("/proc/thread-self/ns/{name}")))
        .into();
    links.push(fs::read_link("/proc/thread-self/cwd"));
    links.push(fs::read_link("/proc/thread-self/root"));
    links.into_iter().collect()
}

fn told<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}
