//! Holds the devices that were chosen on the command line, checked against those that exist.

use libnvc::host::DeviceInfo;
use libnvc::select::{
    MigCapability, MigSelection, Selection, select_devices, select_mig_capability,
};

use crate::failure::{Categorise, Failure, category};
use crate::request;

/// Chosen devices, and what of MIG is wanted for them.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    pub(crate) selection: Selection,
    pub(crate) mig_config: MigSelection,
    pub(crate) mig_monitor: MigSelection,
}

impl Choice {
    /// The devices that `wanted` names.
    pub(crate) fn make(devices: &DeviceInfo, wanted: &request::Devices) -> Result<Self, Failure> {
        let gpus = &devices.gpus;
        let ids = wanted.ids.as_deref().unwrap_or_default();
        let selection = select_devices(gpus, &devices.failed, ids).category(category::DEVICE)?;
        let mig = |capability, list| select_mig_capability(gpus, &selection, capability, list);
        Ok(Self {
            mig_config: mig(MigCapability::Config, &wanted.mig_config)
                .category(category::MIG_CONFIG)?,
            mig_monitor: mig(MigCapability::Monitor, &wanted.mig_monitor)
                .category(category::MIG_MONITOR)?,
            selection,
        })
    }

    /// Whether single MIG devices get their own files; a global capability stands for all of them.
    pub(crate) fn wants_single_migs(&self) -> bool {
        !self.mig_config.all && !self.mig_monitor.all
    }
}
