//! Asks other programs: runs a command, with a deadline and a limit for its answer.
//!
//! A daemon that hangs must not keep its client, and so us, waiting. `timeout` of coreutils ends the client together with
//! its descendants, also if this program was ended before. The answer goes to a file in memory: a descendant that outlives
//! the client would keep a pipe open.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use libnvc::{Error, ErrorKind, Result};
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nvc_hostfile::{HandedPaths, check_program, programs};

/// How long a program may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer.
const MAX_SIZE: u64 = 4 << 20;

/// Returns a program of PATH or of the usual directories.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    programs::find(name, &directories())
}

/// Returns PATH's and the usual directories of programs.
pub(crate) fn directories() -> Vec<PathBuf> {
    programs::directories(std::env::var_os("PATH").as_deref())
}

/// Returns the first program of these directories that passes a judgement: root would execute what others put there.
/// Warns about those before it.
pub(crate) fn judged(
    name: &str,
    directories: &[PathBuf],
    mut judge: impl FnMut(&Path) -> Result<()>,
) -> Option<PathBuf> {
    let mut found = directories.iter().map(|directory| directory.join(name));
    found.find(|path| {
        let judgement = programs::is_executable(path).then(|| judge(path));
        if let Some(Err(error)) = &judgement {
            log::warn!("passing over {}: {}", path.display(), error.message());
        }
        judgement.is_some_and(|judgement| judgement.is_ok())
    })
}

/// Returns the first program of these directories that no other user can exchange.
fn trusted(name: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    judged(name, directories, |path| check_program(path, None))
}

/// Asks a program in one of the usual directories, whatever the caller's PATH is.
pub(crate) fn ask_installed(name: &str, arguments: &[&str]) -> Result<String> {
    let found = trusted(name, &programs::directories(None));
    let found = found.as_deref().and_then(Path::to_str);
    ask(found.unwrap_or(name), arguments)
}

/// Returns what a program prints.
///
/// # Errors
/// It does not exist, fails, prints no text, or takes too long.
pub(crate) fn ask(program: &str, arguments: &[&str]) -> Result<String> {
    ask_within(program, arguments, TIMEOUT)
}

/// As [`ask`], with another deadline.
pub(crate) fn ask_within(program: &str, arguments: &[&str], timeout: Duration) -> Result<String> {
    let missing = |name: &str| Error::file("execution failed", name, Errno::ENOENT);
    let path = if program.contains('/') {
        program.into()
    } else {
        trusted(program, &directories()).ok_or_else(|| missing(program))?
    };
    let failed = |text: String| {
        let line = [&[program], arguments].concat().join(" ");
        Error::new(ErrorKind::System, format!("{line}: {text}"))
    };
    let started = Instant::now();
    // A small image may lack coreutils; then there is no deadline.
    let mut command = match trusted("timeout", &directories()) {
        Some(timer) => {
            let mut command = Command::new(timer);
            command.args(["-s", "KILL", &timeout.as_secs().to_string()]);
            command.arg(path);
            command
        }
        None => Command::new(path),
    };
    command.args(arguments).stdin(Stdio::null());
    // docker executes what lies there, and sudo can leave root those of another user; without them it takes root's.
    for name in ["HOME", "DOCKER_CONFIG"] {
        let given = std::env::var_os(name);
        if given.is_some_and(|path| HandedPaths::default().check(path.as_ref()).is_err()) {
            command.env_remove(name);
        }
    }
    let (status, out, err) = run(&mut command).map_err(|error| failed(error.to_string()))?;
    if status.success() {
        return String::from_utf8(out).map_err(|error| failed(error.to_string()));
    }
    if started.elapsed() >= timeout {
        return Err(failed(format!("no answer within {timeout:?}")));
    }
    let reason = String::from_utf8_lossy(&err).into_owned();
    let reason = reason.lines().next().unwrap_or_default();
    Err(failed(format!("{status}: {reason}")))
}

/// Runs a command; returns its status, its output and its errors.
fn run(command: &mut Command) -> std::io::Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    let file = || memfd_create(c"answer", MFdFlags::MFD_CLOEXEC).map(File::from);
    let (mut out, mut err) = (file()?, file()?);
    command.stdout(out.try_clone()?).stderr(err.try_clone()?);
    // A program that prints without end is ended.
    let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE)?;
    setrlimit(Resource::RLIMIT_FSIZE, soft.min(MAX_SIZE), hard)?;
    let child = command.spawn();
    setrlimit(Resource::RLIMIT_FSIZE, soft, hard)?;
    let status = child?.wait()?;
    let text = |file: &mut File| {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.take(MAX_SIZE).read_to_end(&mut bytes).map(|_| bytes)
    };
    Ok((status, text(&mut out)?, text(&mut err)?))
}

/// Returns the first number of the form `1.2.3` in a text.
pub(crate) fn version_in(text: &str) -> Option<Vec<u32>> {
    let word = text
        .split([' ', '\n', ',', '-', '+', '~'])
        .map(|word| word.strip_prefix('v').unwrap_or(word))
        .find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))?;
    Some(
        word.split('.')
            .map_while(|part| part.parse().ok())
            .collect(),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn programs_answer() {
        assert_eq!(ask("sh", &["-c", "echo a; echo b"]).unwrap(), "a\nb\n");
        let error = ask("sh", &["-c", "echo out; echo why >&2; exit 3"]).unwrap_err();
        let text = error.message();
        assert!(text.ends_with("exit status: 3: why"), "{text}");
        for missing in ["/no/such/program", "no-such-program"] {
            let text = ask(missing, &[]).unwrap_err().message();
            assert!(text.contains(missing), "{text}");
        }
        let long = ask(
            "sh",
            &["-c", "yes | head -c 300000; yes | head -c 300000 >&2"],
        )
        .unwrap();
        assert_eq!(long.len(), 300_000);
        assert!(ask("yes", &[]).is_err(), "an answer without end");
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_descendants() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("pid");
        let words = ["-c", "sleep 100 & echo $! > $0; wait"];
        let words = [&words[..], &[file.to_str().unwrap()]].concat();
        let error = ask_within("sh", &words, Duration::from_secs(1)).unwrap_err();
        assert!(error.message().contains("no answer within 1s"), "{error:?}");
        let pid = std::fs::read_to_string(&file).unwrap();
        let gone = || {
            let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            status.map_or(true, |text| {
                text.contains(") Z ") || !text.contains("sleep")
            })
        };
        while !gone() {
            std::thread::sleep(Duration::from_millis(5)); // a kill takes effect later
        }
    }

    /// A wrapper may leave a process that keeps its output open.
    #[test]
    fn a_descendant_that_stays_delays_nothing() {
        let started = Instant::now();
        let answer = ask("sh", &["-c", "echo a; sleep 9 &"]).unwrap();
        assert_eq!(answer, "a\n");
        assert!(started.elapsed() < Duration::from_secs(9));
    }

    #[test]
    fn versions_are_found() {
        assert_eq!(version_in("runc version 1.1.5+ds1\n"), Some(vec![1, 1, 5]));
        assert_eq!(version_in("podman version 4.3.1"), Some(vec![4, 3, 1]));
        let containerd = "containerd containerd.io v1.6.33 d2d58213f83a";
        assert_eq!(version_in(containerd), Some(vec![1, 6, 33]));
        assert_eq!(version_in("none"), None);
    }
}
