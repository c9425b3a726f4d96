//! Starts queries that an image's labels will make necessary, while docker still answers: of the driver, and of docker
//! for the driver's volume.
//!
//! Both take about as long as docker's own answer. A wrong guess costs CPU time only: the query is dropped, and the
//! caller repeats it if necessary.

use std::path::Path;

use libnvc::Result;
use libnvc::host::{DriverRoot, procfs};

use super::docker::{Docker, DockerCall};
use super::local::{Local, LocalQuery};
use crate::driver_volume;

/// The running queries; dropping it ends them.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    local: Option<Result<LocalQuery>>,
    volume: Option<(String, DockerCall)>,
}

impl Ahead {
    pub(super) fn ask_driver(&mut self) {
        self.local = Some(Local::start());
    }

    /// Asks docker for the volume of the loaded driver: libraries of another version do not work with it.
    pub(super) fn ask_for_volume(&mut self, docker: &Docker) {
        let root = DriverRoot::open(Path::new("/")).ok();
        let version = root.and_then(|root| procfs::module_version(&root));
        self.volume = version.and_then(|version| {
            let name = driver_volume::name(&version);
            let call = ask_for(docker, &name).ok()?;
            Some((name, call))
        });
    }

    /// Returns this machine's driver; asks now if that was not done ahead.
    pub(super) fn local(&mut self) -> Result<Local> {
        match self.local.take() {
            Some(query) => query?.finish(),
            None => Local::start()?.finish(),
        }
    }

    /// Returns true if docker has a driver version's volume; asks now if that was not done ahead.
    pub(super) fn has_volume(&mut self, docker: &Docker, version: &str) -> Result<bool> {
        let wanted = driver_volume::name(version);
        let call = match self.volume.take() {
            Some((name, call)) if name == wanted => call,
            _ => ask_for(docker, &wanted)?,
        };
        Ok(call.answer().is_ok())
    }
}

fn ask_for(docker: &Docker, volume: &str) -> Result<DockerCall> {
    docker.ask(&["volume", "inspect", volume])
}
