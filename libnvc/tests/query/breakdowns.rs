//! Tests queries whose process crashes, hangs, sends too much or loses its library.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use libnvc::ErrorKind;
use libnvc::host::query::QueryRequest;

use crate::Outcome;
use crate::driver_root::{
    HANG_AT_GPU_1, HANG_IN_INIT, PROFILE, RPC_FAILED, Root, ensure, ensure_error, finish, start,
};

pub(crate) fn crash_in_init() -> Outcome {
    let hint = "while it was being initialised: it was killed by SIGABRT";
    ensure_error(
        Root::new(&["crash-at=nvmlInit_v2"]).ask(),
        ErrorKind::DriverUnavailable,
        RPC_FAILED,
        hint,
    )
}

pub(crate) fn crash_later() -> Outcome {
    let root = Root::new(&["crash-at=nvmlDeviceGetBrand:1"]);
    let mut query = start(&root.request());
    ensure(query.versions()?.driver == "535.261.03", "driver version")?;
    let hint = "while it was asked about GPU 1: it was killed by SIGABRT";
    for _ in 0..2 {
        ensure_error(query.devices(), ErrorKind::DriverFailed, RPC_FAILED, hint)?;
    }
    Ok(())
}

pub(crate) fn exit_later() -> Outcome {
    let hint = "while it was asked about GPU 0: it ended with status 3";
    ensure_error(
        Root::new(&["exit-at=nvmlDeviceGetBrand:3"]).ask(),
        ErrorKind::DriverFailed,
        RPC_FAILED,
        hint,
    )
}

/// Queries with a short deadline and checks that it is kept and that the process is gone.
fn ask_in_vain(macros: &[&str], kind: ErrorKind, hint: &str) -> Outcome {
    let root = Root::new(macros);
    let reached = || root.path().join("pid").exists();
    // A slow machine may take longer to get there.
    for seconds in [0.7, 20.0] {
        let request = QueryRequest {
            deadline: Duration::from_secs_f32(seconds),
            ..root.request()
        };
        let start = Instant::now();
        let result = finish(&request);
        let elapsed = start.elapsed().as_secs_f32();
        if !reached() {
            continue;
        }
        let hint = hint.replace("SECONDS", &seconds.to_string());
        ensure_error(result, kind, "driver rpc error: timed out", &hint)?;
        ensure(
            (seconds..seconds + 30.0).contains(&elapsed),
            format!("took {elapsed} s"),
        )?;
        break;
    }
    ensure(
        !Path::new(&format!("/proc/{}", root.pid())).exists(),
        "not reaped",
    )
}

pub(crate) fn hang_in_init() -> Outcome {
    let hint = "within SECONDS s while it was being initialised; if it is only slow, raise NVC_DRIVER_TIMEOUT";
    ask_in_vain(&[HANG_IN_INIT], ErrorKind::DriverUnavailable, hint)
}

pub(crate) fn hang_later() -> Outcome {
    ask_in_vain(
        &[HANG_AT_GPU_1],
        ErrorKind::TimedOut,
        "while it was asked about GPU 1",
    )
}

/// A flood of data into the socket ends with the deadline, or when it is recognised as invalid.
pub(crate) fn floods_end() -> Outcome {
    for (flood, text, hint) in [
        (1, "driver rpc error: timed out", "asked about GPU 1"),
        (2, "driver rpc error: timed out", "asked about GPU 0"),
        (3, RPC_FAILED, "returned invalid data"),
    ] {
        let root = Root::with(PROFILE.as_bytes(), &[format!("-DFLOOD={flood}")]);
        let kind = match flood {
            3 => ErrorKind::DriverFailed,
            _ => ErrorKind::TimedOut,
        };
        let ask = |deadline| {
            let request = QueryRequest {
                deadline: Duration::from_millis(deadline),
                ..root.request()
            };
            ensure_error(start(&request).devices(), kind, text, hint)
        };
        // A slow machine may take longer to get there.
        ask(500).or_else(|_| ask(20_000))?;
    }
    Ok(())
}

/// Truncating a library file that is in use removes its pages: SIGBUS at the next instruction.
pub(crate) fn a_library_that_shrinks() -> Outcome {
    let root = Root::new(&[HANG_AT_GPU_1]);
    let mut query = start(&root.request());
    let pid = nix::unistd::Pid::from_raw(root.pid());
    fs::write(root.path().join("usr/lib/libnvidia-ml.so.1"), "")?;
    // Wakes it up: the process has a handler for this signal, and returns from it to the same place.
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGIO)?;
    let hint = "while it was asked about GPU 1: it was killed by SIGBUS";
    ensure_error(query.devices(), ErrorKind::DriverFailed, RPC_FAILED, hint)
}
