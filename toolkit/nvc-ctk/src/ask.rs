//! Asks other programs: runs a command, with a deadline and a limit for its answer.
//!
//! A daemon that hangs must not keep its client, and so us, waiting.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use libnvc::{Error, ErrorKind, Result};
use nix::errno::Errno;

/// How long a program may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two looks at a running program.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest answer.
const MAX_SIZE: u64 = 4 << 20;

/// Returns what a program prints.
///
/// # Errors
/// It does not exist, fails, prints no text, or takes too long.
pub(crate) fn ask(program: &str, arguments: &[&str]) -> Result<String> {
    ask_within(program, arguments, TIMEOUT)
}

fn ask_within(program: &str, arguments: &[&str], timeout: Duration) -> Result<String> {
    let failed = |text: String| {
        let line = [&[program], arguments].concat().join(" ");
        Error::new(ErrorKind::System, format!("{line}: {text}"))
    };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
            Error::file("execution failed", program, errno)
        })?;
    let (out, err) = (answer(child.stdout.take()), answer(child.stderr.take()));
    let end = Instant::now() + timeout;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < end => thread::sleep(PAUSE),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(format!("no answer within {timeout:?}")));
            }
            Err(error) => return Err(failed(error.to_string())),
        }
    };
    // A descendant may still have the pipes.
    let receive = |from: mpsc::Receiver<Vec<u8>>| {
        let rest = end.saturating_duration_since(Instant::now());
        from.recv_timeout(rest).ok()
    };
    let out = receive(out).ok_or_else(|| failed(format!("no answer within {timeout:?}")))?;
    if !status.success() {
        let reason = receive(err).unwrap_or_default();
        let reason = String::from_utf8_lossy(&reason);
        let reason = reason.lines().next().unwrap_or_default();
        return Err(failed(format!("{status}: {reason}")));
    }
    String::from_utf8(out).map_err(|error| failed(error.to_string()))
}

/// Reads a pipe to its end, in a thread.
fn answer(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // More than the limit is not read, and the program then fails to write it.
            let _ = pipe.by_ref().take(MAX_SIZE).read_to_end(&mut bytes);
        }
        let _ = sender.send(bytes);
    });
    receiver
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
        let missing = ask("/no/such/program", &[]).unwrap_err().message();
        assert!(missing.contains("/no/such/program"), "{missing}");
        // A pipe that is full does not block the program's end.
        let long = ask(
            "sh",
            &["-c", "yes | head -c 300000; yes | head -c 300000 >&2"],
        )
        .unwrap();
        assert_eq!(long.len(), 300_000);
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let short = Duration::from_millis(50);
        for command in ["exec sleep 100", "sleep 100 & echo a"] {
            let error = ask_within("sh", &["-c", command], short).unwrap_err();
            assert!(error.message().contains("no answer within 50ms"));
        }
    }
}
