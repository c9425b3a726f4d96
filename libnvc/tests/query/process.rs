//! Tests the privileges of the query process, and when it ends.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use libnvc::Error;
use libtest_mimic::Failed;
use nvc_testkit::files;

use crate::driver_root::{
    HANG_AT_GPU_1, HANG_IN_INIT, Root, ensure, finish, lives, report, request, start, wait_for,
};
use crate::{ASK, GID, Outcome, UID, is_copied};

pub(crate) fn the_process_is_confined() -> Outcome {
    let root = Root::new(&["INSPECT"]);
    // Without close-on-exec, like a careless caller's.
    let leaked = nix::unistd::dup(std::io::stderr())?;
    let result = root.ask();
    drop(leaked);
    // The library fails to initialise with the number of the failed check.
    let failed = |error: Error| Failed::from(error.message());
    result.map_err(failed)?;
    for dumpable in [None, Some("DUMPABLE")] {
        let macros: Vec<_> = ["INSPECT", "AS_ROOT"].into_iter().chain(dumpable).collect();
        let root = Root::new(&macros);
        finish(&request(root.path(), 0, 0)).map_err(failed)?;
    }
    Ok(())
}

/// Programs that NVML executes are dumpable, and must not have fewer capabilities than a container's root.
pub(crate) fn programs_of_nvml_have_the_shield() -> Outcome {
    for (macros, uid, gid) in [
        (&["INSPECT", "HELPER"][..], UID, GID),
        (&["INSPECT", "HELPER", "AS_ROOT"], 0, 0),
    ] {
        let root = Root::new(macros);
        let source = root.path().join("helper.c");
        fs::write(
            &source,
            "#include <linux/capability.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
            int main(void) {\n\
            struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};\n\
            struct __user_cap_data_struct sets[2];\n\
            return syscall(SYS_capget, &header, sets) ? 50 : sets[0].permitted ? 51 :\n\
            sets[1].permitted != 1u << (CAP_WAKE_ALARM - 32) ? 52 : 0; }\n",
        )?;
        let status = Command::new("cc")
            .args(["-static", "-o"])
            .arg(root.path().join("helper"))
            .arg(source)
            .status()?;
        ensure(status.success(), "cannot compile the helper")?;
        let reply = finish(&request(root.path(), uid, gid));
        reply.map_err(|error| Failed::from(error.message()))?;
    }
    Ok(())
}

/// A caller without a shield: a program would be dumpable, with the driver root as its root.
pub(crate) fn nothing_is_executed_without_a_shield() -> Outcome {
    let root = Root::new(&["HELPER"]);
    let source = root.path().join("helper.c");
    fs::write(&source, "int main(void) { return 0; }\n")?;
    let status = Command::new("cc")
        .args(["-static", "-o"])
        .arg(root.path().join("helper"))
        .arg(source)
        .status()?;
    ensure(status.success(), "cannot compile the helper")?;
    for uid in ["0", "65534"] {
        for (caps, succeeds) in [("+wake_alarm", true), ("-wake_alarm,-block_suspend", false)] {
            let output = Command::new("setpriv")
                .args(["--inh-caps", caps, "--bounding-set", caps])
                .arg(std::env::current_exe()?)
                .args([OsStr::new(ASK), root.path().as_os_str(), OsStr::new(uid)])
                .output()?;
            let text = String::from_utf8(output.stdout)?;
            let is_right = !text.is_empty() && text.contains("3 gpus") == succeeds;
            ensure(is_right, format!("{uid} {caps}: {text}"))?;
        }
    }
    Ok(())
}

pub(crate) fn host_libraries_win() -> Outcome {
    let root = Root::new(&["NEEDS"]);
    let trap = root.path().join("trap.c");
    fs::write(
        &trap,
        "#include <unistd.h>\n__attribute__((constructor)) static void trap(void) { _exit(66); }\n",
    )?;
    for name in [
        "libc.so.6",
        "libm.so.6",
        "librt.so.1",
        "libpthread.so.0",
        "libdl.so.2",
        "libgcc_s.so.1",
    ] {
        root.compile(name, &trap, &["-nostdlib", "-lc"]);
    }
    ensure(report(&root.ask()) == "3 gpus", report(&root.ask()))
}

pub(crate) fn noise_goes_nowhere() -> Outcome {
    let root = Root::new(&["NOISE"]);
    let output = Command::new(std::env::current_exe()?)
        .args([
            OsStr::new(ASK),
            root.path().as_os_str(),
            OsStr::new("65534"),
        ])
        .stdin(Stdio::null())
        .output()?;
    ensure(
        output.stdout == b"3 gpus\n" && output.stderr.is_empty(),
        format!("{output:?}"),
    )
}

pub(crate) fn without_privileges() -> Outcome {
    let root = Root::new(&[]);
    // A copy, because the build directory may not be accessible to others.
    let program = root.path().join("program");
    files::copy_program(&std::env::current_exe()?, &program)?;
    let ask = |root: &Path, uid: &str| -> Result<String, Failed> {
        let output = Command::new(&program)
            .args([OsStr::new(ASK), root.as_os_str(), OsStr::new(uid)])
            .uid(UID)
            .gid(UID)
            .output()?;
        Ok(String::from_utf8(output.stdout)?)
    };
    let text = ask(root.path(), "65534")?;
    ensure(
        text == "change root failed: operation not permitted\n",
        text,
    )?;
    let text = ask(Path::new("/"), "0")?;
    ensure(
        text == "privilege change failed: operation not permitted\n",
        text,
    )
}

pub(crate) fn dropping_ends_the_process() -> Outcome {
    let root = Root::new(&[HANG_IN_INIT]);
    let query = start(&root.request());
    let pid = root.pid();
    ensure(lives(pid), "hangs")?;
    let line = |pid: &str| fs::read(format!("/proc/{pid}/cmdline"));
    let is_copy = line(&pid.to_string())? == line("self")?;
    ensure(is_copy == is_copied(), format!("a copy: {is_copy}"))?;
    drop(query);
    ensure(!Path::new(&format!("/proc/{pid}")).exists(), "not reaped")
}

/// A fork starts on another CPU, and keeps its caller's affinity.
pub(crate) fn processors_stay_as_they_are() -> Outcome {
    let root = Root::new(&[HANG_IN_INIT]);
    let query = start(&root.request());
    let allowed = |process: &str| {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let line = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed:"));
        line.map(str::to_owned).ok_or("no such line".into())
    };
    let (theirs, ours): (Result<String, Failed>, _) =
        (allowed(&root.pid().to_string()), allowed("self"));
    let (theirs, ours) = (theirs?, ours?);
    ensure(theirs == ours, format!("{theirs}, and not {ours}"))?;
    drop(query);
    Ok(())
}

pub(crate) fn killing_the_caller_ends_the_process() -> Outcome {
    // Each guard alone as well.
    for guards in [
        &[HANG_AT_GPU_1][..],
        &[HANG_AT_GPU_1, "NO_DEATH_SIGNAL"],
        &[HANG_AT_GPU_1, "NO_SOCKET_SIGNAL"],
    ] {
        let root = Root::new(guards);
        let mut caller = Command::new(std::env::current_exe()?)
            .args([
                OsStr::new(ASK),
                root.path().as_os_str(),
                OsStr::new("65534"),
            ])
            .stdout(Stdio::null())
            .spawn()?;
        let pid = root.pid();
        ensure(lives(pid), "hangs")?;
        caller.kill()?;
        caller.wait()?;
        let start = Instant::now();
        wait_for("the query process to end", || (!lives(pid)).then_some(()));
        let elapsed = start.elapsed();
        ensure(
            elapsed < request(Path::new("/"), UID, GID).deadline / 2,
            format!("{guards:?}: {elapsed:?}"),
        )?;
    }
    Ok(())
}
