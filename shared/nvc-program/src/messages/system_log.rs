//! Sends lines to the system's log, for programs whose standard error engines drop.

use std::cell::OnceCell;
use std::os::unix::net::UnixDatagram;

use libnvc::printable_up_to;

/// The socket of the system's log: journald's, or another daemon's.
const SOCKET: &str = "/dev/log";

/// The variable by which nvidia-container-runtime-hook makes our nvidia-container-cli, which it executes in its place,
/// write to the system's log as the hook would: `PID:ID`, the number of this process and the container's id.
///
/// The number, because LXC's hook gives nvidia-container-cli the variables of an image: its messages must not be those
/// of another program or container.
pub const SYSTEM_LOG: &str = "NVC_SYSTEM_LOG";

/// Returns [`SYSTEM_LOG`]'s value for a program that is executed in this process.
pub fn asks_for_log(id: &str) -> String {
    format!("{}:{id}", std::process::id())
}

/// Returns the container's id, if this process has set the value.
pub fn asked_for_log(value: &str) -> Option<&str> {
    let (pid, id) = value.split_once(':')?;
    (pid == std::process::id().to_string()).then_some(id)
}

/// Number of the log's facility for daemons.
const DAEMON: u8 = 3;

/// Length limit of a message.
const MAX_LEN: usize = 2 << 10;

/// Length limit of a container's id; engines' have 64 characters.
const MAX_ID_LEN: usize = 128;

/// Limit of warnings of one process, and of its errors: an image must not fill the log, nor keep the reason of a failure
/// out of it by many warnings.
const MAX_LINES: u32 = 32;

/// Severity of a line, with its number in the log's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Severity {
    Error = 3,
    Warning = 4,
}

/// The lines of one program in the system's log.
#[derive(Debug)]
pub struct SystemLog {
    program: &'static str,
    /// Empty if unknown.
    container: String,
    /// None if there is no log.
    socket: OnceCell<Option<UnixDatagram>>,
    warnings: u32,
    errors: u32,
}

impl SystemLog {
    /// Creates the log of a program; nothing is opened yet.
    pub fn new(program: &'static str) -> Self {
        Self {
            program,
            container: String::new(),
            socket: OnceCell::new(),
            warnings: 0,
            errors: 0,
        }
    }

    /// Connects to the log, if the first line has not done that.
    ///
    /// For a process that is about to enter a container: there, the socket's path leads to a file of the image.
    pub fn connect(&self) {
        self.socket();
    }

    fn socket(&self) -> Option<&UnixDatagram> {
        let connected = || {
            let socket = UnixDatagram::unbound().ok()?;
            socket.set_nonblocking(true).ok()?;
            socket.connect(SOCKET).ok()?;
            Some(socket)
        };
        self.socket.get_or_init(connected).as_ref()
    }

    /// Names the container in all later lines.
    pub fn of_container(&mut self, id: &str) {
        self.container = printable_up_to(MAX_ID_LEN, id).into_owned();
    }

    /// Sends a line, if there is a system's log and it accepts it without blocking.
    pub fn write(&mut self, severity: Severity, text: &str) {
        let sent = match severity {
            Severity::Warning => &mut self.warnings,
            Severity::Error => &mut self.errors,
        };
        if *sent == MAX_LINES {
            return;
        }
        *sent += 1;
        if let Some(socket) = self.socket() {
            let _ = socket.send(self.line(severity, text).as_bytes());
        }
    }

    fn line(&self, severity: Severity, text: &str) -> String {
        let number = DAEMON * 8 + severity as u8;
        let (program, text) = (self.program, printable_up_to(MAX_LEN, text));
        match self.container.as_str() {
            "" => format!("<{number}>{program}: {text}"),
            id => format!("<{number}>{program}: container {id}: {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A variable of an image's choice names no container.
    #[test]
    fn only_the_same_process_asks_for_a_log() {
        assert_eq!(asked_for_log(&asks_for_log("a:b")), Some("a:b"));
        for value in ["", "1:a", "sshd:a", "nvidia-container-runtime-hook:a", ":a"] {
            assert_eq!(asked_for_log(value), None, "{value}");
        }
    }

    #[test]
    fn names_of_files_cannot_forge_lines() {
        let mut log = SystemLog::new("hook");
        let text = log.line(Severity::Warning, "a\n<0>kernel: b\u{1b}[m");
        assert_eq!(text, "<28>hook: a\\x0a<0>kernel: b\\x1b[m");
        assert!(log.line(Severity::Error, &"\0".repeat(9999)).len() < 2 * MAX_LEN);
        log.of_container("c\n1");
        assert_eq!(
            log.line(Severity::Error, "x"),
            "<27>hook: container c\\x0a1: x"
        );
        log.of_container(&"\0".repeat(9999));
        assert!(log.line(Severity::Error, "").len() < 3 * MAX_ID_LEN);
    }

    #[test]
    fn a_process_has_a_limit() {
        let mut log = SystemLog::new("hook");
        for _ in 0..100 {
            log.write(Severity::Warning, "x");
        }
        assert_eq!((log.warnings, log.errors), (MAX_LINES, 0));
        // The reason of a failure comes after the warnings.
        for _ in 0..100 {
            log.write(Severity::Error, "x");
        }
        assert_eq!((log.warnings, log.errors), (MAX_LINES, MAX_LINES));
    }
}
