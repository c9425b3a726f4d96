//! Provides a session's facts about the driver and its GPUs: from a query of NVML, or from another process's query.

use std::time::Duration;

use super::query::{Only, Query, QueryProcess, QueryProgram, QueryRequest};
use super::{DeviceInfo, DriverVersions, Inventory, ListedGpu, inventory};
use crate::error::Result;

/// A running query, or answers that another process has handed over.
#[derive(Debug)]
pub(super) enum Answers {
    Asked(Box<Query>),
    HandedOver(Inventory),
}

impl Answers {
    /// As [`Query::ask`].
    pub(super) fn ask(
        process: QueryProcess,
        request: &QueryRequest,
        only: Option<Only>,
    ) -> Result<Self> {
        let query = Query::ask(process, request, only)?;
        Ok(Self::Asked(Box::new(query)))
    }

    /// As [`Query::start`].
    pub(super) fn start(program: &QueryProgram, request: &QueryRequest) -> Result<Self> {
        let query = Query::start(program, request)?;
        Ok(Self::Asked(Box::new(query)))
    }

    /// Calls `notice` once if a query is slow.
    pub(super) fn when_slow(&mut self, notice: impl FnOnce(Duration) + Send + 'static) {
        if let Self::Asked(query) = self {
            query.when_slow(notice);
        }
    }

    /// As [`Query::ready`].
    pub(super) fn ready(&mut self) -> Result<()> {
        match self {
            Self::Asked(query) => query.ready(),
            Self::HandedOver(_) => Ok(()),
        }
    }

    /// As [`Query::settle`].
    pub(super) fn settle(&mut self) {
        if let Self::Asked(query) = self {
            query.settle();
        }
    }

    /// As [`Query::versions`].
    pub(super) fn versions(&mut self) -> Result<DriverVersions> {
        match self {
            Self::Asked(query) => query.versions(),
            Self::HandedOver(inventory) => Ok(inventory.versions().clone()),
        }
    }

    /// As [`Query::devices`].
    pub(super) fn devices(&mut self) -> Result<DeviceInfo> {
        match self {
            Self::Asked(query) => query.devices(),
            Self::HandedOver(inventory) => Ok(inventory.devices()),
        }
    }

    /// As [`Query::listed`]; an inventory has only granted GPUs.
    pub(super) fn listed(&mut self) -> Result<Vec<ListedGpu>> {
        match self {
            Self::Asked(query) => query.listed(),
            Self::HandedOver(_) => Err(inventory::refused("it does not list all GPUs")),
        }
    }
}
