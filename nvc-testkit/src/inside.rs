//! Gives tests a mount namespace with a process in it, to work there with ordinary calls: a container without a cost.
//!
//! [`container`](crate::container) makes containers as runtimes do, in some twenty commands each; tests of thousands of
//! roots make them here, one after the other in the same namespace.

use std::process::Command;
use std::{fs, io, thread};

use nix::sched::{CloneFlags, setns, unshare};

use crate::helper::Helper;

/// A process in a mount namespace of its own, which began as a copy of this one's; both end with the value.
#[derive(Debug)]
pub struct Inside(Helper);

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
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", propagation, "--"]);
        command.args(["sh", "-c", "echo ready; exec sleep 1000000"]);
        Helper::start(&mut command, "ready").map(Self)
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
