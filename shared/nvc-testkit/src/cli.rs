//! Runs the built nvidia-container-cli and reports its results: exit code, output, leftover processes.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use nix::unistd::{AccessFlags, access};

use crate::files;
use crate::machine::Scratch;

/// The search path of every command.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Longer than any run takes, including those with hanging drivers.
const TIMEOUT: Duration = Duration::from_secs(180);

/// A command line to run.
#[derive(Debug)]
pub struct Run {
    command: Command,
    /// The program is ours, so what it prints is checked.
    is_ours: bool,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Exit code; negative: the signal that ended it; `None`: it was killed after three minutes.
    pub status: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Names of processes it left behind.
    pub orphans: Vec<String>,
}

impl Outcome {
    /// Returns the message of a failure: the first line of standard error that is not a hint.
    pub fn message(&self) -> &str {
        let mut lines = self.stderr.lines();
        lines
            .find(|line| !line.starts_with("hint: "))
            .unwrap_or_default()
    }
}

/// Returns the program: `$NVC_CLI`, or the one built beside the running test.
///
/// # Errors
/// It is not there.
pub fn program() -> io::Result<PathBuf> {
    let name = "nvidia-container-cli";
    let path = match env::var_os("NVC_CLI") {
        Some(path) => PathBuf::from(path),
        None => beside(name)?,
    };
    path.canonicalize().map_err(|error| {
        let text = format!(
            "{}: {error}; build it with `cargo build -p nvc-cli`",
            path.display()
        );
        io::Error::new(error.kind(), text)
    })
}

/// Returns the features that every program runs without, from `NVC_TEST_WITHOUT` (scripts/test/kernels.sh): words of
/// `nvc-without`, separated by commas.
pub fn lacks() -> Vec<String> {
    let words = env::var("NVC_TEST_WITHOUT").unwrap_or_default();
    let words = words.split(',').filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

/// Returns the command prefix that hides those kernel features.
fn without() -> Vec<OsString> {
    let lacks = lacks();
    if lacks.is_empty() {
        return Vec::new();
    }
    let shim = beside("nvc-without").unwrap_or_else(|error| panic!("{error}"));
    let words = lacks.into_iter().map(OsString::from);
    [shim.into()]
        .into_iter()
        .chain(words)
        .chain(["--".into()])
        .collect()
}

/// Returns how many times slower than usual this machine is, from `NVC_TEST_SLOW`, for emulators.
fn slowness() -> u32 {
    let text = env::var("NVC_TEST_SLOW").unwrap_or_default();
    text.parse().unwrap_or(1)
}

/// Returns the path of another program of this workspace, built beside the running test.
///
/// # Errors
/// The test's own path is unknown.
pub fn beside(name: &str) -> io::Result<PathBuf> {
    let test = env::current_exe()?;
    // target/debug/deps/test-0123 → target/debug
    let directory = test.parent().and_then(Path::parent);
    Ok(directory.unwrap_or(Path::new(".")).join(name))
}

/// Finds a program of the machine: in the caller's search path, then in the usual directories. A toolchain is often
/// in a directory of its own (/usr/local/go/bin), which only the caller's path names.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain(env::split_paths(PATH));
    let mut candidates = directories.map(|directory| directory.join(name));
    candidates.find(|path| {
        path.is_absolute() && path.is_file() && access(path, AccessFlags::X_OK).is_ok()
    })
}

/// Copies the programs that give GPUs to containers into a directory, as an installation has them.
///
/// # Errors
/// As of [`files::copy_program`].
pub fn copy_programs(directory: &Path) -> io::Result<()> {
    let programs = [
        "nvidia-container-cli",
        "nvidia-container-runtime",
        "nvidia-container-runtime-hook",
        "nvidia-cdi-hook",
        "nvidia-ctk",
        "nvc-query",
    ];
    for name in programs {
        files::copy_program(&beside(name)?, &directory.join(name))?;
    }
    Ok(())
}

impl Run {
    /// Prepares a run of the program with arguments.
    ///
    /// # Panics
    /// The program does not exist.
    pub fn cli<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        Self::within(Command::new("env"), arguments)
    }

    /// Prepares a run of the program by another command, to which it and the arguments are appended.
    ///
    /// # Panics
    /// The program does not exist.
    pub fn within<S: AsRef<OsStr>>(
        mut command: Command,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        let program = program().unwrap_or_else(|error| panic!("{error}"));
        command.args(without()).arg(program).args(arguments);
        command.env_clear().env("PATH", PATH).env("LANG", "C");
        if slowness() > 1 {
            command.env("NVC_DRIVER_TIMEOUT", (30 * slowness()).to_string());
        }
        command.current_dir("/").stdin(Stdio::null());
        let is_ours = true;
        Self { command, is_ours }
    }

    /// Prepares a run of another program in the same environment.
    pub fn other(program: impl AsRef<Path>) -> Self {
        let mut words = without().into_iter();
        let mut command = match words.next() {
            Some(shim) => Command::new(shim),
            None => Command::new(program.as_ref()),
        };
        if words.len() > 0 {
            command.args(words).arg(program.as_ref());
        }
        command.env_clear().env("PATH", PATH).env("LANG", "C");
        // crun gives a container's streams to the container's user, and /dev/null is the machine's.
        let (nothing, _) = std::io::pipe().unwrap_or_else(|error| panic!("{error}"));
        command.current_dir("/").stdin(nothing);
        let name = program.as_ref().file_name().unwrap_or_default();
        let is_ours = name.to_string_lossy().starts_with("nvidia-");
        Self { command, is_ours }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: impl Into<OsString>) -> Self {
        self.command.env(key, value.into());
        self
    }

    /// Runs it to its end. What a program of ours prints to standard error must be bounded lines of printable ASCII,
    /// whatever an image contains.
    ///
    /// # Errors
    /// It cannot be started.
    ///
    /// # Panics
    /// It prints something else.
    pub fn outcome(mut self) -> io::Result<Outcome> {
        // Files rather than pipes, because a leftover process would keep a pipe open.
        let scratch = Scratch::new()?;
        let (out, err) = (scratch.join("stdout"), scratch.join("stderr"));
        self.command.stdout(fs::File::create(&out)?);
        self.command.stderr(fs::File::create(&err)?);
        let mut child = self.command.process_group(0).spawn()?;
        let deadline = Instant::now() + TIMEOUT * slowness();
        let mut status = child.try_wait()?;
        while status.is_none() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
            status = child.try_wait()?;
        }
        let orphans = end_group(child.id());
        if status.is_none() {
            child.wait()?;
        }
        if self.is_ours {
            let printed = check_messages(&fs::read(&err)?);
            printed.unwrap_or_else(|fault| panic!("{:?}: {fault}", self.command));
        }
        let text = |path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(Outcome {
            status: status.map(|status| status.code().unwrap_or(-status.signal().unwrap_or(0))),
            stdout: text(out)?,
            stderr: text(err)?,
            orphans,
        })
    }

    /// Runs it; it must succeed, print nothing to standard error and leave no process behind. Returns its output.
    ///
    /// # Panics
    /// It does not.
    #[track_caller]
    pub fn succeeds(self) -> String {
        let command = format!("{:?}", self.command);
        let outcome = self
            .outcome()
            .unwrap_or_else(|error| panic!("{command}: {error}"));
        let quiet = outcome.stderr.is_empty() && outcome.orphans.is_empty();
        assert!(
            outcome.status == Some(0) && quiet,
            "{command}: {outcome:#?}"
        );
        outcome.stdout
    }

    /// Runs it; it must fail with exit code 1, print nothing but errors and leave no process behind. Returns its
    /// message.
    ///
    /// # Panics
    /// It does not.
    #[track_caller]
    pub fn fails(self) -> String {
        let command = format!("{:?}", self.command);
        let outcome = self
            .outcome()
            .unwrap_or_else(|error| panic!("{command}: {error}"));
        let quiet = outcome.stdout.is_empty() && outcome.orphans.is_empty();
        assert!(
            outcome.status == Some(1) && quiet,
            "{command}: {outcome:#?}"
        );
        outcome.message().to_owned()
    }
}

/// Checks that messages, of a program or in a log, are bounded lines of printable ASCII.
///
/// # Errors
/// A description of the first line that is not.
pub fn check_messages(text: &[u8]) -> Result<(), String> {
    /// The longest message, with the frame of a log and quotes.
    const MAX_LINE_LEN: usize = 2 * 4096 + 256;
    const MAX_LEN: usize = 1 << 20;
    if text.len() > MAX_LEN {
        return Err(format!("{} bytes of messages", text.len()));
    }
    for line in text.split(|&byte| byte == b'\n') {
        let is_plain = line.iter().all(|byte| matches!(byte, b' '..=b'~'));
        if !is_plain || line.len() > MAX_LINE_LEN {
            let shown = String::from_utf8_lossy(line);
            return Err(format!("a line of {} bytes: {shown:?}", line.len()));
        }
    }
    Ok(())
}

/// Kills the processes of a process group and returns their names. An ending helper gets six seconds: a busy machine
/// takes long to tear down the namespaces of a killed ldconfig. Those of the tests that survive live longer.
fn end_group(group: u32) -> Vec<String> {
    let mut members = Vec::new();
    for _ in 0..600 {
        members = group_members(group);
        if members.is_empty() {
            return Vec::new();
        }
        thread::sleep(Duration::from_millis(10));
    }
    let kill = format!("-{group}");
    // They may have ended by now.
    let _ = Command::new("kill").args(["-KILL", "--", &kill]).output();
    members
}

fn group_members(group: u32) -> Vec<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let (name, rest) = stat.rsplit_once(") ")?;
            let mut fields = rest.split(' ');
            let (state, _, of_group) = (fields.next()?, fields.next()?, fields.next()?);
            let alive = state != "Z" && of_group.parse() == Ok(group);
            alive.then(|| {
                name.split_once('(')
                    .map_or(name, |(_, name)| name)
                    .to_owned()
            })
        })
        .collect()
}
