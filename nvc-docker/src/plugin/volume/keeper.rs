//! Manages the volumes in one thread, the only one that may mount, which executes requests one by one.
//!
//! The rest of the program has no capabilities. Network requests are never handled by a thread with capabilities.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use libnvc::{Error, ErrorKind, Result};
use nvc_program::privileges::{self, Capability};
use tokio::sync::oneshot;

use super::store::Store;
use crate::log_line::log_text;

/// A request for the volume of a driver version.
#[derive(Debug)]
pub(crate) enum StoreRequest {
    Create(String),
    Remove(String),
    Find(String),
    Mount(String),
    List,
}

/// The result of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The volume's path; None if there is no such volume.
    Path(Option<String>),
    /// Versions and paths of their volumes.
    Versions(Vec<(String, String)>),
}

type Job = (StoreRequest, oneshot::Sender<Result<Outcome>>);

/// Sends requests to the thread.
#[derive(Clone, Debug)]
pub(crate) struct Keeper {
    requests: Sender<Job>,
}

impl Keeper {
    /// Starts the thread for a directory of volumes. It keeps the capability to mount; the caller may drop its own.
    ///
    /// # Errors
    /// If no thread can be created, or another plugin uses the same directory.
    pub(crate) fn start(root: &Path) -> Result<Self> {
        let mut store = Store::open(root)?;
        let (requests, inbox) = channel();
        thread::Builder::new()
            .name("volumes".into())
            .stack_size(512 << 10)
            .spawn(move || {
                keep_only_mounting();
                work(&mut store, &inbox);
            })
            .map_err(|error| {
                Error::new(
                    ErrorKind::System,
                    format!("thread creation failed: {error}"),
                )
            })?;
        Ok(Self { requests })
    }

    /// Passes a request to the thread and waits for the result.
    ///
    /// # Errors
    /// A failure on this machine.
    pub(crate) async fn carry_out(&self, request: StoreRequest) -> Result<Outcome> {
        let gone = || {
            Error::new(
                ErrorKind::System,
                "the thread that keeps the volumes has ended",
            )
        };
        let (reply, answer) = oneshot::channel();
        self.requests.send((request, reply)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

fn work(store: &mut Store, inbox: &Receiver<Job>) {
    for (request, reply) in inbox {
        let outcome = match request {
            StoreRequest::Create(version) => store.create(&version).map(|()| Outcome::Done),
            StoreRequest::Remove(version) => store.remove(&version).map(|()| Outcome::Done),
            StoreRequest::Find(version) => Ok(Outcome::Path(store.find(&version))),
            StoreRequest::Mount(version) => store.mount(&version).map(Outcome::Path),
            StoreRequest::List => store.list().map(Outcome::Versions),
        };
        // The client may be gone.
        let _ = reply.send(outcome);
    }
}

/// Drops all capabilities but those needed for mounting; as root also keeps CAP_DAC_OVERRIDE.
fn keep_only_mounting() {
    keep_only(&[
        Capability::CAP_SYS_ADMIN,
        Capability::CAP_DAC_OVERRIDE,
        Capability::CAP_DAC_READ_SEARCH,
    ]);
}

/// Drops all capabilities of the calling thread, and of threads it starts later.
pub(crate) fn give_up_capabilities() {
    keep_only(&[]);
}

fn keep_only(kept: &[Capability]) {
    if let Err(error) = privileges::keep_only(kept) {
        log_text(&format!("Warning: {}", error.message()));
    }
}
