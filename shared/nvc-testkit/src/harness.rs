//! Runs tests that have requirements on the machine; a test that cannot run is shown as skipped, with the reason.
//!
//! A skip must not look like a pass: the test is listed as ignored, and a line `skipped NAME: REASON` follows. If skips
//! are not expected (`CI=1` or `NVC_TEST_NO_SKIPS=1`) the test fails, unless `NVC_TEST_ALLOWED_SKIPS`, a
//! comma-separated list of test names and needs, contains it.
//!
//! A test that hangs must not look like a slow machine: after [`LONGEST`] its program ends and names it.

use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitCode};
use std::sync::mpsc;
use std::time::Duration;
use std::{env, fmt, thread};

use libtest_mimic::{Arguments, Failed, Trial};
use nix::unistd::geteuid;

use crate::cgroup::{Attach, DeviceCgroup};
use crate::machine::{Machine, cgroup_hierarchy};
use crate::profile::layout::Layout;

/// No test of the short form takes as long, on a busy machine either.
const LONGEST: Duration = Duration::from_secs(30 * 60);
/// How many tests that wait run at a time.
const WAITING: usize = 6;

/// A requirement of a test on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// User 0 with its privileges: mounts and device nodes.
    Root,
    /// User namespaces, created by the user who runs the tests.
    UserNamespaces,
    /// The devices hierarchy of cgroup version 1.
    CgroupV1,
    /// Device programs in the cgroup version 2 hierarchy.
    CgroupV2,
    /// Permission to trace another process and change its system calls.
    Tracing,
    /// A program that [`cli::find`](crate::cli::find) finds.
    Command(&'static str),
    /// A debug build of the C library, which checks more than the released one.
    DebugLibrary,
    /// The images made by scripts/test/real-images.sh.
    Images,
    /// A C compiler's address sanitizer.
    Sanitizers(&'static str),
    /// The kubelet's protocols, and a Python that speaks gRPC.
    Kubelet,
}

impl fmt::Display for Need {
    /// Formats the word for `NVC_TEST_ALLOWED_SKIPS`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("root"),
            Self::UserNamespaces => f.write_str("user-namespaces"),
            Self::CgroupV1 => f.write_str("cgroup-v1"),
            Self::CgroupV2 => f.write_str("cgroup-v2"),
            Self::Tracing => f.write_str("tracing"),
            Self::Command(name) => write!(f, "command-{name}"),
            Self::DebugLibrary => f.write_str("debug-library"),
            Self::Images => f.write_str("images"),
            Self::Sanitizers(compiler) => write!(f, "sanitizers-{compiler}"),
            Self::Kubelet => f.write_str("kubelet"),
        }
    }
}

impl Need {
    /// Returns the reason why the machine does not meet it, if so.
    pub fn unmet(self) -> Option<String> {
        let root = geteuid().is_root();
        match self {
            Self::Root => (!root).then(|| "needs root".into()),
            Self::UserNamespaces => {
                let output = Command::new("unshare").args(["-Urmpf", "true"]).output();
                let fine = output.is_ok_and(|output| output.status.success());
                (!fine).then(|| "needs user namespaces (unshare -Urmpf fails)".into())
            }
            Self::CgroupV1 if !root || cgroup_hierarchy(1).is_none() => {
                Some("needs a writable devices hierarchy of cgroup v1".into())
            }
            Self::CgroupV1 => None,
            Self::CgroupV2 if !root || cgroup_hierarchy(2).is_none() => {
                Some("needs a writable cgroup v2 hierarchy".into())
            }
            Self::CgroupV2 => {
                let cgroup = DeviceCgroup::v2();
                let attached = cgroup.and_then(|cgroup| cgroup.attach(Attach::Multi, &["1:3"]));
                attached
                    .err()
                    .map(|error| format!("needs device programs in cgroup v2: {error}"))
            }
            Self::Tracing => {
                let command = crate::faults::command(None, Path::new("/dev/null"));
                let status = command.and_then(|mut command| command.arg("true").status());
                let fine = cfg!(target_arch = "x86_64") && status.is_ok_and(|s| s.success());
                (!fine).then(|| "needs ptrace, on x86-64".into())
            }
            Self::DebugLibrary => {
                let other =
                    env::var_os("NVC_LIB_DIR").filter(|dir| !Path::new(dir).ends_with("debug"));
                other.map(|_| "needs a debug build of the C library".into())
            }
            Self::Images => {
                let complete = images().join("complete").exists();
                (!complete).then(|| "needs the images of scripts/test/real-images.sh".into())
            }
            Self::Sanitizers(compiler) => {
                let script = "echo 'int main(void) { return 0; }' | \"$0\" -fsanitize=address,undefined -xc - -o /dev/null";
                let output = Command::new("sh").args(["-c", script, compiler]).output();
                let fine = output.is_ok_and(|output| output.status.success());
                (!fine).then(|| format!("needs the sanitizers of {compiler}"))
            }
            Self::Kubelet => {
                let program = "import cryptography, grpc, google.protobuf";
                let output = Command::new(PYTHON).args(["-c", program]).output();
                let fine = output.is_ok_and(|output| output.status.success());
                let fine = fine && kubelet_protocols().exists();
                (!fine).then(|| {
                    "needs grpcio, cryptography and protocols: scripts/setup.sh tests".into()
                })
            }
            Self::Command(name) => {
                let found = crate::cli::find(name);
                found.is_none().then(|| format!("needs the program {name}"))
            }
        }
    }
}

/// A test: it passes if it returns.
pub struct Test {
    name: String,
    needs: Vec<Need>,
    run: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Test")
            .field("name", &self.name)
            .field("needs", &self.needs)
            .finish_non_exhaustive()
    }
}

/// Describes a test with its requirements.
pub fn test(name: impl Into<String>, needs: &[Need], run: impl FnOnce() + Send + 'static) -> Test {
    Test {
        name: name.into(),
        needs: needs.to_vec(),
        run: Box::new(run),
    }
}

/// Converts functions to tests of the same names, all with the same needs: `tests![&[Need::Root]; one, another]`.
#[macro_export]
macro_rules! tests {
    ($needs:expr; $($function:ident),* $(,)?) => {
        vec![$($crate::harness::test(stringify!($function), $needs, $function)),*]
    };
}

/// Returns the number of cases of a repeated test: `short`, or `long` with `NVC_TEST_LONG=1` (`make test-long`).
pub fn cases(short: usize, long: usize) -> usize {
    if set("NVC_TEST_LONG") { long } else { short }
}

/// Returns the image directory of scripts/test/real-images.sh.
pub fn images() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let repository = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    repository
        .join(target.unwrap_or_else(|| "target".into()))
        .join("images")
}

/// The Python that the system's packages are for.
pub const PYTHON: &str = "/usr/bin/python3";

/// Returns the folder of the protocols that Kubernetes publishes (scripts/setup.sh).
pub fn kubelet_protocols() -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cache");
    cache.unwrap_or_else(home).join("nvc-kubernetes/protocols")
}

/// Returns true if an environment variable is switched on.
fn set(name: &str) -> bool {
    env::var(name).is_ok_and(|value| !value.is_empty() && value != "0" && value != "false")
}

/// Ends this program with a failure, unless the returned value is dropped in time.
#[allow(clippy::exit, reason = "a thread cannot be ended from outside")]
fn ends_in_time(name: String) -> mpsc::Sender<()> {
    let (ended, watched) = mpsc::channel();
    thread::spawn(move || {
        let waited = watched.recv_timeout(LONGEST);
        if waited == Err(mpsc::RecvTimeoutError::Timeout) && !set("NVC_TEST_LONG") {
            println!("test {name} ... FAILED\nIt has not ended after {LONGEST:?}.");
            process::exit(101);
        }
    });
    ended
}

/// Gives the simulated drivers of this program an ordinary package's files and nodes, instead of a real machine's.
pub fn on_debian() {
    Layout::use_debian();
}

/// Runs the tests in a private mount namespace; the body of a test program's `main`.
pub fn main(tests: Vec<Test>) -> ExitCode {
    run(&Arguments::from_args(), tests)
}

/// Runs tests that wait for most of their time: more of them side by side.
pub fn main_of_waiting(tests: Vec<Test>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(WAITING);
    run(&arguments, tests)
}

fn run(arguments: &Arguments, tests: Vec<Test>) -> ExitCode {
    if arguments.list {
        let trials = tests
            .into_iter()
            .map(|test| Trial::test(test.name, || Ok(())));
        return libtest_mimic::run(arguments, trials.collect()).exit_code();
    }
    let machine = match Machine::enter() {
        Ok(machine) => machine,
        Err(error) => {
            eprintln!("cannot prepare the machine for the tests: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut policy = Policy::from_environment();
    let trials = tests.into_iter().map(|test| policy.trial(test)).collect();
    let conclusion = libtest_mimic::run(arguments, trials);
    for (name, reason) in &policy.skipped {
        println!("skipped {name}: {reason}");
    }
    if let Err(error) = machine.leave() {
        eprintln!("scratch space left behind: {error}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

/// The handling of tests that cannot run.
#[derive(Default)]
struct Policy {
    forbidden: bool,
    allowed: Vec<String>,
    known: Vec<(Need, Option<String>)>,
    skipped: Vec<(String, String)>,
}

impl Policy {
    fn from_environment() -> Self {
        let allowed = env::var("NVC_TEST_ALLOWED_SKIPS").unwrap_or_default();
        Self {
            forbidden: set("CI") || set("NVC_TEST_NO_SKIPS"),
            allowed: allowed
                .split(',')
                .map(|word| word.trim().to_owned())
                .collect(),
            ..Self::default()
        }
    }

    fn trial(&mut self, test: Test) -> Trial {
        let Test { name, needs, run } = test;
        let unmet = needs
            .into_iter()
            .find_map(|need| Some((need, self.unmet(need)?)));
        let Some((need, reason)) = unmet else {
            return Trial::test(name.clone(), move || {
                let _ended = ends_in_time(name);
                run();
                Ok(())
            });
        };
        let allowed = self.allows(&name, need);
        let failure = Failed::from(format!("cannot run: {reason}"));
        if !allowed {
            let hint = format!("{reason} (add {need} to NVC_TEST_ALLOWED_SKIPS to allow that)");
            let failure = Failed::from(format!("unexpected skip: {hint}"));
            return Trial::test(name, move || Err(failure));
        }
        self.skipped.push((name.clone(), reason));
        // If run anyway with --ignored, it reports why it cannot run.
        Trial::test(name, move || Err(failure))
            .with_kind(format!("skipped: needs {need}"))
            .with_ignored_flag(true)
    }

    fn allows(&self, name: &str, need: Need) -> bool {
        let need = need.to_string();
        !self.forbidden
            || self
                .allowed
                .iter()
                .any(|word| word == name || *word == need)
    }

    fn unmet(&mut self, need: Need) -> Option<String> {
        if let Some((_, reason)) = self.known.iter().find(|(known, _)| *known == need) {
            return reason.clone();
        }
        let reason = need.unmet();
        self.known.push((need, reason.clone()));
        reason
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_are_allowed_by_test_and_by_need() {
        let policy = |forbidden, allowed: &[&str]| Policy {
            forbidden,
            allowed: allowed.iter().map(|&word| word.to_owned()).collect(),
            ..Policy::default()
        };
        assert!(policy(false, &[]).allows("a", Need::Root));
        assert!(!policy(true, &["b", "cgroup-v2"]).allows("a", Need::CgroupV1));
        assert!(policy(true, &["a"]).allows("a", Need::Root));
        assert!(policy(true, &["command-gcc"]).allows("a", Need::Command("gcc")));
    }

    #[test]
    fn unmet_needs_become_ignored_tests_or_failures() {
        let need = Need::Command("no-such-program");
        let mut policy = Policy::default();
        let trial = policy.trial(test("a", &[need], || {}));
        assert!(trial.has_ignored_flag());
        assert_eq!(
            policy.skipped,
            [(
                "a".to_owned(),
                "needs the program no-such-program".to_owned()
            )]
        );

        policy = Policy {
            forbidden: true,
            ..Policy::default()
        };
        let trial = policy.trial(test("a", &[need], || {}));
        assert!(!trial.has_ignored_flag() && policy.skipped.is_empty());
    }
}
