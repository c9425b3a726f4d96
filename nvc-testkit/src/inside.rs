//! Gives tests a mount namespace with a process in it, to work there with ordinary calls: a container without a cost.
//!
//! [`container`](crate::container) makes containers as runtimes do, in some twenty commands each; tests of thousands of
//! roots make them here, one after the other in the same namespace.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::{fs, thread};

use nix::sched::{CloneFlags, setns, unshare};

/// A process in a mount namespace of its own, which began as a copy of this one's; both end with the value.
#[derive(Debug)]
pub struct Inside(Child);

impl Inside {
    /// Starts the process; its mounts have no peers.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn new() -> io::Result<Self> {
        Self::with_propagation("private")
    }

    /// The same with `private`, `slave`, `shared` or `unchanged` mounts.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn with_propagation(propagation: &str) -> io::Result<Self> {
        let mut process = Command::new("unshare")
            .args(["--mount", "--propagation", propagation, "--"])
            .args(["sh", "-c", "echo ready; exec sleep 1000000"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take();
        let inside = Self(process);
        let mut line = String::new();
        BufReader::new(output.ok_or(io::ErrorKind::BrokenPipe)?).read_line(&mut line)?;
        match line.as_str() {
            "ready\n" => Ok(inside),
            _ => Err(io::Error::other("no process in a namespace of its own")),
        }
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Does something in the namespace, on a thread that may change its root too.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    ///
    /// # Panics
    /// As what is done.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let namespace = fs::File::open(format!("/proc/{}/ns/mnt", self.pid()))?;
        let entered = move || -> io::Result<T> {
            unshare(CloneFlags::CLONE_FS)?;
            setns(namespace, CloneFlags::CLONE_NEWNS)?;
            Ok(work())
        };
        thread::scope(|scope| {
            let thread = scope.spawn(entered);
            let done = thread.join();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // It may have ended by itself; it is reaped in any case.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
