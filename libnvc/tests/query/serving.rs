//! Tests programs that do not serve a query when they are executed for it.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use libnvc::ErrorKind;
use libnvc::host::query::QueryProgram;
use libnvc::testing::Query;

use crate::driver_root::{RPC_FAILED, ensure, ensure_error, request};
use crate::{ASK, FORGETFUL, GID, Outcome, UID};

pub(crate) fn programs_that_do_not_serve() -> Outcome {
    let unavailable = ErrorKind::DriverUnavailable;
    let request = request(Path::new("/"), UID, GID);
    let ask = |program: &str| Query::start(&QueryProgram::Path(Ok(program.into())), &request);
    let text = "process creation failed: no such file or directory";
    ensure_error(ask("/nonexistent"), unavailable, text, "/nonexistent")?;
    ensure_error(
        ask("/bin/true")?.finish(),
        unavailable,
        RPC_FAILED,
        "it ended with status 0",
    )
}

/// Does what a program does whose author does not know that it is executed again.
pub(crate) fn forget_to_serve(way: &str) {
    let is_again = std::env::args().nth(1).is_some_and(|word| word != ASK);
    if is_again && way == "ends" {
        return;
    }
    let (uid, gid) = (
        nix::unistd::geteuid().as_raw(),
        nix::unistd::getegid().as_raw(),
    );
    let asked = Query::start(
        &QueryProgram::ThisExecutable,
        &request(Path::new("/"), uid, gid),
    );
    let error = asked.and_then(Query::finish).expect_err("an answer");
    println!(
        "{}; {}",
        error.message(),
        error.advice().unwrap_or_default()
    );
    if is_again && way == "goes on" {
        std::thread::sleep(Duration::from_secs(600));
    }
}

pub(crate) fn a_forgotten_call_is_named() -> Outcome {
    for way in ["asks", "ends", "goes on"] {
        let start = Instant::now();
        let output = Command::new(std::env::current_exe()?)
            .arg(ASK)
            .env(FORGETFUL, way)
            .output()?;
        let text = String::from_utf8(output.stdout)?;
        ensure(
            text.contains("::serve_if_asked()"),
            format!("{way}: {text}"),
        )?;
        let is_fast = start.elapsed() < Duration::from_secs(10);
        ensure(is_fast, format!("{way}: it waited for the deadline"))?;
    }
    Ok(())
}
