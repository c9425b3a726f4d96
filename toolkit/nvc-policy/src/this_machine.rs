//! Finds out which GPUs of this machine a name denotes: what a container with this name would be given.
//!
//! NVML knows the names without a kind and those of generated specifications; any other CDI name denotes what the nodes
//! of its specification are. Only programs that can load NVML may ask: the query is a fork.

mod denoted;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::path::PathBuf;

use libnvc::host::nvcaps::MigMinors;
use libnvc::host::query::QueryProgram;
use libnvc::host::{DeviceInfo, Gpu, GpusAsked, MigDevice};
use libnvc::select::select_devices;
use libnvc::{ErrorKind, Result};
use nvc_cdi::names::{self, QualifiedName};
use nvc_cdi::registry::SpecFile;
use nvc_cdi::{Device, Registry};

use crate::config::Config;
use crate::image::qualified::AUTOMATIC;
use crate::image::{Denoted, Machine};
use crate::mode::Mode;
use crate::session;

/// This machine. Its driver is queried once, and only for an answer.
#[derive(Debug)]
pub struct ThisMachine {
    root: PathBuf,
    specifications: Vec<String>,
    /// The kind of names without one, in mode cdi.
    kind: Option<String>,
    devices: OnceCell<Result<DeviceInfo>>,
    registry: OnceCell<Registry>,
    minors: OnceCell<Option<MigMinors>>,
}

impl ThisMachine {
    /// Returns the machine with the driver of a configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            root: config.driver_root().into(),
            specifications: config.runtime.cdi_spec_dirs.clone(),
            kind: (config.runtime.mode == Mode::Cdi.to_string())
                .then(|| config.runtime.cdi_default_kind.clone()),
            devices: OnceCell::new(),
            registry: OnceCell::new(),
            minors: OnceCell::new(),
        }
    }

    fn devices(&self) -> Result<&DeviceInfo> {
        let devices = self.devices.get_or_init(|| {
            let ask = || {
                let mut session = session::open(
                    self.root.clone(),
                    None,
                    Vec::new(),
                    &QueryProgram::ThisProcess,
                    GpusAsked::All,
                )?;
                session.ready()?;
                session::devices(&mut session)
            };
            ask()
        });
        devices.as_ref().map_err(Clone::clone)
    }

    /// Returns the name of a device in the specifications: its own, or, of NVIDIA's kinds, that of the device which NVML
    /// knows by this name.
    ///
    /// # Errors
    /// It is the start of several UUIDs.
    pub fn specified(&self, name: &str) -> Result<String> {
        let unchanged = || name.to_owned();
        let (kind, device) = name.split_once('=').unwrap_or_default();
        let is_nvidias =
            (kind.split_once('/')).is_some_and(|(vendor, _)| names::is_nvidias(vendor));
        if self.registry().device(name).is_some() || !is_nvidias || self.devices().is_err() {
            return Ok(unchanged());
        }
        let wanted = Denoted::Gpus(self.by_nvml(device)?);
        let is_it = |name: &String| {
            let (file, device) = self.registry().device(name)?;
            let denoted = self.by_nodes(file, device).ok()?;
            Some(matches!(&denoted, Denoted::Gpus(uuids) if uuids.len() == 1) && denoted == wanted)
        };
        let found = self
            .names(kind)
            .into_iter()
            .find(|name| is_it(name) == Some(true));
        Ok(found.unwrap_or_else(unchanged))
    }

    /// Returns the specifications.
    pub fn registry(&self) -> &Registry {
        self.registry
            .get_or_init(|| Registry::load(&self.specifications))
    }

    /// Returns what a device of a specification denotes.
    fn by_nodes(&self, file: &SpecFile, device: &Device) -> Result<Denoted> {
        let common = &file.spec.container_edits.device_nodes;
        let nodes = common.iter().chain(&device.container_edits.device_nodes);
        let access = |gpu: &Gpu, mig: &MigDevice| {
            let minors = self.minors.get_or_init(|| MigMinors::read().ok());
            minors.as_ref()?.numbers(gpu.minor, mig)
        };
        Ok(denoted::denoted(nodes, &self.devices()?.gpus, access))
    }

    /// Returns the UUIDs of the devices that NVML knows by a name without a kind.
    fn by_nvml(&self, name: &str) -> Result<Vec<String>> {
        let devices = self.devices()?;
        let chosen = match select_devices(&devices.gpus, &devices.failed, &[name]) {
            Ok(chosen) => chosen,
            // It is the start of several UUIDs.
            Err(error) if error.kind() == ErrorKind::InvalidArgument => return Err(error),
            Err(_) => return Ok(Vec::new()),
        };
        let migs = chosen.migs.iter();
        let mut uuids: Vec<String> = migs.map(|(_, mig)| mig.uuid.clone()).collect();
        // The GPU of a MIG device is chosen with it, but is not the one that the name denotes.
        if chosen.all || uuids.is_empty() {
            uuids.extend(chosen.gpus.iter().map(|gpu| gpu.uuid.clone()));
        }
        Ok(uuids)
    }
}

impl Machine for ThisMachine {
    fn denoted(&self, name: &str) -> Result<Denoted> {
        let (kind, device) = match (names::parse(name), &self.kind) {
            (Some(QualifiedName { kind, device, .. }), _) => (kind, device),
            (None, Some(kind)) => (kind.as_str(), name),
            (None, None) => return self.by_nvml(name).map(Denoted::gpus),
        };
        if kind == AUTOMATIC {
            return self.by_nvml(device).map(Denoted::gpus);
        }
        let specified = self.specified(&format!("{kind}={device}"))?;
        if let Some((file, specified)) = self.registry().device(&specified) {
            return self.by_nodes(file, specified);
        }
        // A UUID is one in every kind; other names mean what their specification says.
        let uuids = self.by_nvml(device)?;
        Ok(match &uuids[..] {
            [uuid] if uuid.eq_ignore_ascii_case(device) => Denoted::Gpus(uuids),
            _ => Denoted::Unknown,
        })
    }

    fn names(&self, kind: &str) -> Vec<String> {
        let names = self.registry().device_names();
        let is_one = |name: &&str| names::parse(name).is_some_and(|name| name.kind == kind);
        names.filter(is_one).map(str::to_owned).collect()
    }
}
