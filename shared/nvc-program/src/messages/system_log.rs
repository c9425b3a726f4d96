//! Sends lines to the system's log, for programs whose standard error engines drop.

use std::os::unix::net::UnixDatagram;

use libnvc::printable_up_to;

/// The socket of the system's log.
const SOCKET: &str = "/dev/log";

/// Number of the log's facility for daemons.
const DAEMON: u8 = 3;

/// Length limit of a message.
const MAX_LEN: usize = 1 << 10;

/// Severity of a line, with its number in the log's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Severity {
    Error = 3,
    Warning = 4,
}

/// Sends a line, if there is a system's log and it accepts it without blocking.
pub fn to_system_log(program: &str, severity: Severity, text: &str) {
    let Ok(socket) = UnixDatagram::unbound() else {
        return;
    };
    if socket.set_nonblocking(true).is_ok() {
        let _ = socket.send_to(line(program, severity, text).as_bytes(), SOCKET);
    }
}

fn line(program: &str, severity: Severity, text: &str) -> String {
    let number = DAEMON * 8 + severity as u8;
    format!("<{number}>{program}: {}", printable_up_to(MAX_LEN, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_cannot_forge_lines() {
        let text = line("hook", Severity::Warning, "a\n<0>kernel: b\u{1b}[m");
        assert_eq!(text, "<28>hook: a\\x0a<0>kernel: b\\x1b[m");
        assert!(line("hook", Severity::Error, &"\0".repeat(9999)).len() < 2 * MAX_LEN);
    }
}
