//! Describes failures of ldconfig, with hints.

use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;

use super::watch::Termination;
use crate::error::{Error, ErrorKind};
use crate::hint::Setting;
use crate::sys::sandbox::{SandboxFailure, Step};

/// Describes a failure before the program was executed.
pub(super) fn sandbox(failure: SandboxFailure, path: &Path, from_image: bool) -> Error {
    let SandboxFailure { step, errno } = failure;
    let error = match step {
        Step::Execute => Error::file("execution failed", path, errno).context("ldconfig's sandbox"),
        _ => Error::system(step.words(), errno).context("ldconfig's sandbox"),
    };
    let error = error.with_kind(ErrorKind::LdCache);
    let hint = match (step, errno) {
        // The kernel's error for an interpreter, of a script or of a dynamic program, that does not exist.
        (Step::Execute, Errno::ENOENT | Errno::ENOEXEC) if from_image => {
            return error.hint(Setting::Ldconfig.between(
                "a script, or a program whose loader is not in the image, cannot run confined; ",
                " runs the host's program instead",
            ));
        }
        (Step::Execute, Errno::ENOEXEC) => "it is a program for another architecture",
        (Step::Namespaces | Step::Private, Errno::EPERM) => {
            "CAP_SYS_ADMIN is needed in the user namespace of the container's mounts"
        }
        (Step::Private, Errno::EINVAL) => "the caller's root directory must be a mount point",
        (Step::Pivot, Errno::EINVAL) => {
            return error.hint(Setting::NoPivot.between("", " is for a root on a ramdisk"));
        }
        (Step::Volumes, Errno::EBUSY) => {
            "a mount of the container is hidden below another, and this kernel, older than Linux 5.12, cannot make it \
             read-only there"
        }
        (Step::UserNamespace, Errno::EPERM) => {
            "CAP_SYS_ADMIN is needed in the container's user namespace"
        }
        (Step::User, Errno::EPERM) => "CAP_SETUID and CAP_SETGID are needed",
        (Step::User, Errno::EINVAL) => {
            "the owner of the container's root is not mapped in this user namespace"
        }
        _ => return error,
    };
    error.hint(hint)
}

/// Describes the end of a program that was executed; `said` is its last line.
pub(super) fn end(
    ended: Termination,
    path: &Path,
    said: Option<&str>,
    deadline: Duration,
) -> Error {
    let path = path.display();
    let (text, reason) = match ended {
        Termination::Exited(code) => (
            format!("process {path} failed with error code: {code}"),
            said.and_then(reason),
        ),
        Termination::Signalled(signal) => (
            format!("process {path} terminated with signal {signal}"),
            signal_reason(signal),
        ),
        Termination::TimedOut => (
            format!(
                "process {path} did not end within {} s",
                deadline.as_secs_f32()
            ),
            Some("the container's root may be on storage that does not answer"),
        ),
        Termination::Lost(errno) => {
            return Error::system(format!("waiting for process {path} failed"), errno)
                .with_kind(ErrorKind::LdCache)
                .hint("the caller must neither ignore SIGCHLD nor wait for children not its own");
        }
    };
    let error = Error::new(ErrorKind::LdCache, text);
    match (said, reason) {
        (Some(said), Some(reason)) => error.hint(format!("ldconfig printed \"{said}\": {reason}")),
        (Some(said), None) => error.hint(format!("ldconfig printed \"{said}\"")),
        (None, Some(reason)) => error.hint(reason),
        (None, None) => error,
    }
}

/// Translates a system error in ldconfig's output.
fn reason(said: &str) -> Option<&'static str> {
    const REASONS: [(&str, &str); 5] = [
        (
            "read-only file system",
            "the container's root is read-only, and its /etc/ld.so.cache must be written",
        ),
        (
            "file too large",
            "the cache is limited to 64 MiB, and by the caller's limit (ulimit -f)",
        ),
        (
            "permission denied",
            "the owner of the container's root must be able to write its /etc",
        ),
        (
            "no space left",
            "the file system of the container's root is full",
        ),
        (
            "quota exceeded",
            "the file system of the container's root is full",
        ),
    ];
    let said = said.to_ascii_lowercase();
    let mut known = REASONS.into_iter();
    Some(known.find(|(words, _)| said.contains(words))?.1)
}

fn signal_reason(signal: i32) -> Option<&'static str> {
    match signal {
        libc::SIGXFSZ => Some("the cache is limited to 64 MiB"),
        libc::SIGXCPU => Some("it used more than 10 s of processor time"),
        // The filter's answer to calls of an architecture other than this program's.
        libc::SIGSYS => Some("it is a program for another architecture, which cannot run confined"),
        libc::SIGKILL => Some(
            "it used more than 10 s of processor time, or was killed from outside (out of memory?)",
        ),
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGABRT | libc::SIGFPE => {
            Some("a library of the image may be damaged; ldconfig -v in the image names it")
        }
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_texts_with_a_way_out() {
        let path = Path::new("/sbin/ldconfig");
        let second = Duration::from_secs(1);
        let said = "Can't create temporary cache file /etc/ld.so.cache~: Read-only file system";
        let error = end(Termination::Exited(1), path, Some(said), second);
        assert_eq!(
            error.message(),
            "process /sbin/ldconfig failed with error code: 1"
        );
        let hint = error.advice().unwrap();
        assert!(
            hint.contains(said) && hint.contains("root is read-only"),
            "{hint}"
        );
        let error = end(Termination::Signalled(9), path, None, second);
        assert_eq!(
            error.message(),
            "process /sbin/ldconfig terminated with signal 9"
        );
        assert_eq!(error.kind(), ErrorKind::LdCache);
        assert_eq!(
            end(Termination::Exited(3), path, None, second).advice(),
            None
        );
        let error = end(
            Termination::TimedOut,
            path,
            None,
            Duration::from_millis(300),
        );
        assert_eq!(
            error.message(),
            "process /sbin/ldconfig did not end within 0.3 s"
        );
    }

    #[test]
    fn a_sandbox_that_cannot_be_built_says_where() {
        let path = Path::new("/sbin/ldconfig");
        let failure = |step, errno| SandboxFailure { step, errno };
        let error = sandbox(failure(Step::Private, Errno::EPERM), path, false);
        assert_eq!(
            error.message(),
            "ldconfig's sandbox: making its mounts private: operation not permitted"
        );
        assert_eq!(error.kind(), ErrorKind::LdCache);
        let error = sandbox(failure(Step::Execute, Errno::ENOENT), path, true);
        assert_eq!(
            error.message(),
            "ldconfig's sandbox: execution failed: /sbin/ldconfig: no such file or directory"
        );
        assert!(error.advice().unwrap().contains("ldconfig=@PATH"));
    }
}
