//! Runs closures in a process's mount namespace: a cheap container for tests.
//!
//! [`container`](crate::container) creates containers as runtimes do, with some twenty commands each; tests of
//! thousands of roots create them here, one after the other in the same namespace.

use std::process::Command;
use std::{fs, io, thread};

use nix::sched::{CloneFlags, setns, unshare};

use crate::helper::Helper;

/// A process in its own mount namespace, copied from this one's; both end on drop.
#[derive(Debug)]
pub struct Inside(Helper);

impl Inside {
    /// Starts the process with private mounts.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn new() -> io::Result<Self> {
        Self::with_propagation("private")
    }

    /// Starts the process with `private`, `slave`, `shared` or `unchanged` mounts.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn with_propagation(propagation: &str) -> io::Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", propagation, "--"]);
        command.args(["sh", "-c", "echo ready; exec sleep 1000000"]);
        Helper::start(&mut command, "ready").map(Self)
    }

    /// Returns its pid.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Runs a closure in the namespace, on a thread that may also change its root.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    ///
    /// # Panics
    /// If the closure panics.
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
