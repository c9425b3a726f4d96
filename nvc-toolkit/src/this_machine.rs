//! Finds out which GPUs of this machine a name denotes: NVML knows indices and UUIDs, the nodes of a specification the
//! GPUs of any other name. Only programs that can load NVML may ask: the query is a fork.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use libnvc::host::DeviceInfo;
use libnvc::host::query::QueryProgram;
use libnvc::select::select_devices;

use crate::cdi::{DeviceNode, Registry};
use crate::config::Config;
use crate::image::{Machine, qualified};
use crate::session;

/// This machine. Its driver is queried once, and only for an answer.
#[derive(Debug)]
pub struct ThisMachine {
    root: PathBuf,
    specifications: Vec<String>,
    devices: OnceCell<Result<DeviceInfo, String>>,
    registry: OnceCell<Registry>,
}

impl ThisMachine {
    /// Returns the machine with the driver of a configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            root: match config.cli.root.as_str() {
                "" => "/".into(),
                root => root.into(),
            },
            specifications: config.runtime.cdi_spec_dirs.clone(),
            devices: OnceCell::new(),
            registry: OnceCell::new(),
        }
    }

    fn devices(&self) -> Result<&DeviceInfo, String> {
        let devices = self.devices.get_or_init(|| {
            let ask = || {
                let mut session = session::open(self.root.clone(), &QueryProgram::ThisProcess)?;
                session.ready()?;
                session.devices()
            };
            ask().map_err(|error: libnvc::Error| error.message().to_owned())
        });
        devices.as_ref().map_err(Clone::clone)
    }

    fn registry(&self) -> &Registry {
        self.registry
            .get_or_init(|| Registry::load(&self.specifications))
    }

    /// Returns the GPUs whose nodes a specification's device has.
    ///
    /// Nodes of MIG devices are ignored: such a device counts as its whole GPU, so that too little is allowed rather
    /// than too much.
    fn by_nodes(&self, name: &str) -> Result<Vec<String>, String> {
        let Some((file, device)) = self.registry().device(name) else {
            return Ok(Vec::new());
        };
        let common = &file.spec.container_edits.device_nodes;
        let nodes = common.iter().chain(&device.container_edits.device_nodes);
        let minors: Vec<u32> = nodes.filter_map(minor).collect();
        let mut uuids = Vec::new();
        for minor in minors {
            let gpus = self.devices()?.gpus.iter();
            match gpus.clone().find(|gpu| gpu.minor == minor) {
                Some(gpu) => uuids.push(gpu.uuid.clone()),
                // An unknown GPU is allowed by nothing.
                None => return Ok(Vec::new()),
            }
        }
        Ok(uuids)
    }
}

impl Machine for ThisMachine {
    fn uuids(&self, name: &str) -> Result<Vec<String>, String> {
        let parsed = qualified::parse(name);
        let id = match parsed {
            Some(parsed) => specified(parsed.device),
            None => name,
        };
        let devices = self.devices()?;
        // A name with a comma is no list.
        if id.contains(',') {
            return Ok(Vec::new());
        }
        let Ok(chosen) = select_devices(&devices.gpus, &devices.failed, id) else {
            return match parsed {
                Some(_) => self.by_nodes(name),
                None => Ok(Vec::new()),
            };
        };
        let mut uuids: Vec<String> = chosen
            .migs
            .iter()
            .map(|(_, mig)| mig.uuid.clone())
            .collect();
        // The GPU of a MIG device is chosen with it, but is not the one that the name denotes.
        if chosen.all || uuids.is_empty() {
            uuids.extend(chosen.gpus.iter().map(|gpu| gpu.uuid.clone()));
        }
        Ok(uuids)
    }

    fn names(&self, kind: &str) -> Vec<String> {
        let names = self.registry().device_names();
        let is_one = |name: &&str| qualified::parse(name).is_some_and(|name| name.kind == kind);
        names.filter(is_one).map(str::to_owned).collect()
    }
}

/// Returns the index in a name like `gpu0` or `mig0:1`, or the name itself.
fn specified(device: &str) -> &str {
    let index = device.strip_prefix("gpu").or(device.strip_prefix("mig"));
    index
        .filter(|index| index.starts_with(|c: char| c.is_ascii_digit()))
        .unwrap_or(device)
}

/// Returns the minor number of a GPU's node.
fn minor(node: &DeviceNode) -> Option<u32> {
    let path = match node.host_path.as_str() {
        "" => &node.path,
        path => path,
    };
    let name = Path::new(path).file_name()?.to_str()?;
    name.strip_prefix("nvidia")?.parse().ok()
}
