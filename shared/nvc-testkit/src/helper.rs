//! Runs helper programs beside a test until the test no longer needs them.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A process that has reported that it is ready; killed on drop.
#[derive(Debug)]
pub struct Helper {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts it and waits for its first line, which reports that it is ready. It may end at the end of its input.
    ///
    /// # Errors
    /// It cannot be started, or prints another line.
    pub fn start(command: &mut Command, ready: &str) -> io::Result<Self> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut helper = Self {
            process,
            output: BufReader::new(output),
        };
        match helper.line()? {
            line if line == ready => Ok(helper),
            line => Err(io::Error::other(format!("{command:?}: {line:?}"))),
        }
    }

    /// Returns its pid.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Closes its input, waits for it and returns its last line.
    ///
    /// # Errors
    /// It fails.
    pub fn end(mut self) -> io::Result<String> {
        drop(self.process.stdin.take());
        let line = self.line()?;
        match self.process.wait()? {
            status if status.success() => Ok(line),
            status => Err(io::Error::other(format!("{status}"))),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It may have ended; it is reaped either way.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
