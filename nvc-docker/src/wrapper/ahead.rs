//! Starts the query of the driver that an image's labels will make necessary, while docker still answers.
//!
//! It takes about as long as docker's own answer. A wrong guess costs CPU time only: the query is dropped, and the
//! caller repeats it if necessary.

use libnvc::Result;

use super::local::{Local, LocalQuery};

/// The running query; dropping it ends it.
#[derive(Debug, Default)]
pub(super) struct Ahead(Option<Result<LocalQuery>>);

impl Ahead {
    pub(super) fn ask_driver(&mut self) {
        self.0 = Some(Local::start());
    }

    /// Returns this machine's driver; asks now if that was not done ahead.
    pub(super) fn local(&mut self) -> Result<Local> {
        match self.0.take() {
            Some(query) => query?.finish(),
            None => Local::start()?.finish(),
        }
    }
}
