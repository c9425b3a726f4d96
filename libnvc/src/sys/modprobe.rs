//! Runs a driver root's modprobe, chrooted into that root.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use log::debug;
use nix::unistd::Pid;

use super::capabilities::{Capabilities, DAC_OVERRIDE, SYS_MODULE, keep_bounding, only};
use super::process::wait_for_end;

/// Runs `program <module>` in a root, or in the caller's own if there is none, without output, and waits for it as long
/// as `patience`.
pub(crate) fn run(
    root: Option<BorrowedFd<'_>>,
    program: &Path,
    module: &str,
    patience: Duration,
) -> io::Result<ExitStatus> {
    let mut command = Command::new(program);
    command
        .arg(module)
        .env_clear()
        .env("PATH", "/sbin")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let root = root.map(|root| root.as_raw_fd());
    let enter = move || root.map_or(Ok(()), change_root);
    // SAFETY: `pre_exec` requires a closure that is async-signal-safe after fork in a process with threads; this one
    // makes two raw system calls, allocates nothing and takes no lock.
    unsafe { command.pre_exec(enter) };
    // Capabilities are per thread, so a separate thread changes them and the caller's stay as they are.
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // The program may load modules, and read them regardless of ownership.
            keep_bounding(only(DAC_OVERRIDE) | only(SYS_MODULE));
            let mut own = Capabilities::read()?;
            // If the bounding set lacks it, exec takes it from the inheritable set.
            own.inheritable |= only(SYS_MODULE);
            if let Err(errno) = own.set() {
                debug!("cannot pass CAP_SYS_MODULE on: {errno}");
            }
            // Without it the program could load nothing, and containers that see the host's processes could trace it:
            // it would have no capability that they lack, but the host's root directory.
            if !Capabilities::read()?.pass_on(SYS_MODULE) {
                let text = "CAP_SYS_MODULE is missing";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
            let mut child = command.spawn()?;
            let id = i32::try_from(child.id()).map(Pid::from_raw);
            // Kernels that cannot wait so wait for the end.
            if id.is_ok_and(|id| wait_for_end(id, patience).is_ok()) && child.try_wait()?.is_none()
            {
                child.kill()?;
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not end"));
            }
            child.wait()
        });
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("its thread failed")))
    })
}

/// Changes the root and the working directory of a new process to an open directory.
fn change_root(directory: RawFd) -> io::Result<()> {
    // SAFETY: `fchdir` takes any number and fails if it is not an open directory.
    check(unsafe { libc::fchdir(directory) })?;
    // SAFETY: `chroot` requires a C string, which the literal is.
    check(unsafe { libc::chroot(c".".as_ptr()) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;
    use crate::sys::capabilities::drop_bounding;

    const LONG: Duration = Duration::from_secs(100);

    #[test]
    #[ignore = "needs root"]
    fn runs_in_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = File::open(dir.path()).unwrap();
        let root = Some(root.as_fd());
        let error = run(root, Path::new("/proc/self/exe"), "nvidia", LONG).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        // Static, so that it runs in an empty root.
        let source = dir.path().join("p.c");
        let text = "#include <linux/capability.h>\n#include <stdlib.h>\n#include <string.h>\n\
            #include <sys/prctl.h>\n#include <unistd.h>\n\
            static int may(int c) { return prctl(PR_CAPBSET_READ, c); }\n\
            extern char **environ;\n\
            int main(int c, char **v) { if (c == 2 && !strcmp(v[1], \"hangs\")) pause(); return !(c == 2 && !strcmp(v[1], \"nvidia\") \
            && !access(\"/p.c\", F_OK) && !access(\"p.c\", F_OK) \
            && !strcmp(environ[0], \"PATH=/sbin\") && !environ[1] \
            && may(CAP_SYS_MODULE) && may(CAP_DAC_OVERRIDE) \
            && !may(CAP_SYS_ADMIN) && !may(CAP_CHOWN)); }\n";
        std::fs::write(&source, text).unwrap();
        let mut compiler = Command::new("cc");
        compiler.arg("-static").arg("-o").arg(dir.path().join("p"));
        assert!(compiler.arg(source).status().unwrap().success());
        assert!(
            run(root, Path::new("/p"), "nvidia", LONG)
                .unwrap()
                .success()
        );
        assert!(!run(root, Path::new("/p"), "other", LONG).unwrap().success());
        let error = run(root, Path::new("/p"), "hangs", Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    /// Such a program would have no capability that a container's root lacks, but the host's root directory.
    #[test]
    #[ignore = "needs root"]
    fn no_program_runs_without_the_capability() {
        let dir = tempfile::tempdir().unwrap();
        let root = File::open(dir.path()).unwrap();
        let root = Some(root.as_fd());
        // Capabilities are per thread, and each test runs on its own thread.
        drop_bounding(SYS_MODULE).unwrap();
        let mut own = Capabilities::read().unwrap();
        own.effective &= !only(SYS_MODULE);
        own.permitted &= !only(SYS_MODULE);
        own.inheritable = 0;
        own.set().unwrap();
        let error = run(root, Path::new("/missing"), "nvidia", LONG).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(error.to_string(), "CAP_SYS_MODULE is missing");
    }
}
