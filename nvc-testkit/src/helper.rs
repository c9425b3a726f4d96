//! Runs programs beside a test that do something until it is done with them.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A process that has said that it is ready; it ends with the value.
#[derive(Debug)]
pub struct Helper {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts it and waits for its first line, which says that it is ready. It may end when its input does.
    ///
    /// # Errors
    /// It cannot be started, or says something else.
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

    /// The process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Ends its input, waits for its end and gives its last line.
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
        // It may have ended; it is reaped in any case.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
