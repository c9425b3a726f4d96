//! Replaces this process by another program, with execve(2).
//!
//! execvp(3), and so [`std::process::Command`], gives a file that the kernel does not recognise to a shell: an empty
//! file "succeeds", and a damaged program is read as a script, as root. Here that is an error.

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// The directories that execvp(3) searches if PATH is unset.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Replaces this process by a program; returns only on failure.
///
/// A name without a slash is sought in PATH. `words` are the arguments without the program's name; `environment` has
/// entries `NAME=VALUE`, and None keeps that of this process. The program does not inherit the ignored SIGPIPE of a Rust
/// program.
///
/// # Errors
/// The system's; for a name, that of the first file which exists but cannot be executed.
pub fn execute<W: AsRef<OsStr>>(
    program: &OsStr,
    words: impl IntoIterator<Item = W>,
    environment: Option<Vec<OsString>>,
) -> io::Result<Infallible> {
    let mut arguments = vec![terminated(program)?];
    for word in words {
        arguments.push(terminated(word.as_ref())?);
    }
    let environment: Option<Vec<CString>> = environment
        .map(|entries| entries.iter().map(|entry| terminated(entry)).collect())
        .transpose()?;
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let pipe = set_pipe_signal(SigHandler::SigDfl);
    let mut first = None;
    for file in files(program, &path) {
        let file = terminated(file.as_os_str())?;
        let Err(errno) = match &environment {
            Some(entries) => nix::unistd::execve(&file, &arguments, entries),
            None => nix::unistd::execv(&file, &arguments),
        };
        let is_missing = matches!(errno, Errno::ENOENT | Errno::ENOTDIR);
        if first.is_none() && !is_missing {
            first = Some(errno);
        }
        // The next directory may have a program of the name, unless this one is it.
        if !is_missing && errno != Errno::EACCES {
            break;
        }
    }
    // The caller reports the failure, perhaps to a reader that has gone.
    if let Some(handler) = pipe {
        set_pipe_signal(handler);
    }
    Err(first.unwrap_or(Errno::ENOENT).into())
}

fn terminated(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| {
        let text = format!("a zero byte in \"{}\"", text.to_string_lossy());
        io::Error::new(io::ErrorKind::InvalidInput, text)
    })
}

/// Returns the files that a program's name may mean.
fn files(program: &OsStr, path: &OsStr) -> Vec<PathBuf> {
    if program.is_empty() || program.as_bytes().contains(&b'/') {
        return vec![program.into()];
    }
    std::env::split_paths(path)
        .map(|directory| directory.join(program))
        .collect()
}

/// Changes what SIGPIPE does; returns what it did.
pub(super) fn set_pipe_signal(handler: SigHandler) -> Option<SigHandler> {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: only the default, ignoring, or the handler that was installed before is set.
    let before = unsafe { sigaction(Signal::SIGPIPE, &action) };
    // Fails only for invalid signal numbers.
    before.ok().map(|before| before.handler())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Where the name of a program leads that cannot be executed: the test survives.
    #[test]
    fn no_shell_is_run_for_what_is_no_program() {
        let dir = tempfile::tempdir().unwrap();
        for (text, mode, errno) in [
            ("", 0o755, Errno::ENOEXEC),
            ("exit 0\n", 0o755, Errno::ENOEXEC),
            ("exit 0\n", 0o644, Errno::EACCES),
        ] {
            let file = dir.path().join("program");
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            for environment in [None, Some(Vec::new())] {
                let error = execute(file.as_os_str(), ["x"], environment).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(errno as i32), "{text} {mode:o}");
            }
        }
        let missing = execute("no such program".as_ref(), ["x"], None).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let zero = execute("a\0b".as_ref(), ["x"], None).unwrap_err();
        assert_eq!(zero.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn only_plain_names_are_sought() {
        let path = OsStr::new("/a:/b");
        for (name, expected) in [
            ("docker", &["/a/docker", "/b/docker"][..]),
            ("./docker", &["./docker"]),
            ("/x/docker", &["/x/docker"]),
            ("", &[""]),
        ] {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(files(name.as_ref(), path), expected);
        }
    }
}
