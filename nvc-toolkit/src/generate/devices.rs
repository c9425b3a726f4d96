//! Makes the edits of GPUs and MIG devices.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use libnvc::host::{DeviceInfo, Gpu};
use libnvc::{Error, ErrorKind, Result};

use super::driver::nodes;
use super::ids::{Id, Wanted, parse};
use super::{Naming, Options};
use crate::cdi::{Device, Edits};

/// MIG capabilities and their minor numbers.
const MINORS: &str = "/proc/driver/nvidia-caps/mig-minors";

/// The devices that are wanted, each once for every way of naming.
pub(super) fn devices(
    options: &Options,
    info: &DeviceInfo,
    warnings: &mut Vec<String>,
) -> Result<Vec<Device>> {
    let mut maker = Maker {
        options,
        warnings,
        minors: None,
    };
    let mut found = Vec::new();
    match parse(&options.ids)? {
        Wanted::None => return Ok(vec![empty_device()]),
        Wanted::All => {
            for gpu in &info.gpus {
                if !info.divided.contains(&gpu.index) {
                    found.extend(maker.gpu(gpu));
                }
                for slot in 0..gpu.mig_devices.len() {
                    found.extend(maker.mig(gpu, slot)?);
                }
            }
        }
        Wanted::These(ids) => {
            for id in ids {
                let (gpu, slot) = find(info, &id)?;
                match slot {
                    None => found.extend(maker.gpu(gpu)),
                    Some(slot) => found.extend(maker.mig(gpu, slot)?),
                }
            }
        }
    }
    Ok(found)
}

/// The whole GPUs among some devices, parted by whether they address memory coherently: the coherent ones first.
pub(super) fn by_coherence(
    options: &Options,
    info: &DeviceInfo,
    devices: &[Device],
) -> [Vec<Device>; 2] {
    [true, false].map(|wanted| {
        let gpus = info.gpus.iter().filter(|gpu| {
            let known = info.coherent.iter().find(|(index, _)| *index == gpu.index);
            known.is_some_and(|(_, coherent)| *coherent == wanted)
        });
        let names: Vec<String> = gpus
            .flat_map(|gpu| options.naming.iter().map(|naming| gpu_name(gpu, *naming)))
            .collect();
        let is_one = |device: &&Device| names.contains(&device.name);
        devices.iter().filter(is_one).cloned().collect()
    })
}

fn gpu_name(gpu: &Gpu, naming: Naming) -> String {
    match naming {
        Naming::Index => gpu.index.to_string(),
        Naming::TypeIndex => format!("gpu{}", gpu.index),
        Naming::Uuid => gpu.uuid.clone(),
    }
}

/// The device `none`: it says that no GPU was asked for.
fn empty_device() -> Device {
    Device {
        name: "none".into(),
        container_edits: Edits {
            env: vec!["NVCT_EMPTY_DEVICE=".into()],
            ..Edits::default()
        },
        ..Device::default()
    }
}

fn find<'a>(info: &'a DeviceInfo, id: &Id) -> Result<(&'a Gpu, Option<usize>)> {
    let slot = |gpu: &Gpu, fits: &dyn Fn(&libnvc::host::MigDevice) -> bool| {
        gpu.mig_devices.iter().position(fits)
    };
    let found = info.gpus.iter().find_map(|gpu| match id {
        Id::Gpu(index) => (gpu.index == *index).then_some((gpu, None)),
        Id::Mig(index, mig) if gpu.index == *index => {
            slot(gpu, &|device| device.index == *mig).map(|slot| (gpu, Some(slot)))
        }
        Id::Mig(..) => None,
        Id::Uuid(uuid) if gpu.uuid == *uuid => Some((gpu, None)),
        Id::Uuid(uuid) => slot(gpu, &|device| device.uuid == *uuid).map(|slot| (gpu, Some(slot))),
    });
    found.ok_or_else(|| {
        let name = match id {
            Id::Gpu(index) => index.to_string(),
            Id::Mig(gpu, mig) => format!("{gpu}:{mig}"),
            Id::Uuid(uuid) => uuid.clone(),
        };
        let there = info.gpus.iter().flat_map(|gpu| {
            let migs = gpu
                .mig_devices
                .iter()
                .map(move |mig| format!("{}:{}", gpu.index, mig.index));
            std::iter::once(gpu.index.to_string()).chain(migs)
        });
        let there: Vec<String> = there.collect();
        let error = Error::new(
            ErrorKind::InvalidArgument,
            format!("there is no device {name}"),
        );
        error.hint(format!("there are {}", there.join(", ")))
    })
}

struct Maker<'a> {
    options: &'a Options,
    warnings: &'a mut Vec<String>,
    minors: Option<HashMap<String, u32>>,
}

impl Maker<'_> {
    fn gpu(&mut self, gpu: &Gpu) -> Vec<Device> {
        let mut edits = Edits::default();
        self.node(&format!("/dev/nvidia{}", gpu.minor), &mut edits);
        self.display(gpu, &mut edits);
        self.permissions(&mut edits);
        self.named(&edits, |naming| gpu_name(gpu, naming))
    }

    fn mig(&mut self, gpu: &Gpu, slot: usize) -> Result<Vec<Device>> {
        let Some(mig) = gpu.mig_devices.get(slot) else {
            return Ok(Vec::new());
        };
        let mut edits = Edits::default();
        self.node(&format!("/dev/nvidia{}", gpu.minor), &mut edits);
        let (gi, ci) = (mig.gi, mig.ci);
        for name in [
            format!("gpu{}/gi{gi}/access", gpu.minor),
            format!("gpu{}/gi{gi}/ci{ci}/access", gpu.minor),
        ] {
            let minor = self.minor(&name)?;
            self.node(&format!("/dev/nvidia-caps/nvidia-cap{minor}"), &mut edits);
        }
        Ok(self.named(&edits, |naming| match naming {
            Naming::Index => format!("{}:{}", gpu.index, mig.index),
            Naming::TypeIndex => format!("mig{}:{}", gpu.index, mig.index),
            Naming::Uuid => mig.uuid.clone(),
        }))
    }

    fn named(&self, edits: &Edits, name: impl Fn(Naming) -> String) -> Vec<Device> {
        let device = |naming: &Naming| Device {
            name: name(*naming),
            container_edits: edits.clone(),
            ..Device::default()
        };
        self.options.naming.iter().map(device).collect()
    }

    fn node(&mut self, path: &str, edits: &mut Edits) {
        if nodes(self.options).add(path, edits).is_err() {
            self.warnings.push(format!("{path} is missing"));
        }
    }

    /// Nodes for displays and rendering, and the links to them by the GPU's place.
    fn display(&mut self, gpu: &Gpu, edits: &mut Edits) {
        let bus = short_busid(&gpu.busid);
        let directory = format!("/sys/bus/pci/devices/{bus}/drm");
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names.retain(|name| name.starts_with("card") || name.starts_with("renderD"));
        for name in &names {
            self.node(&format!("/dev/dri/{name}"), edits);
        }
        let mut links = Vec::new();
        for kind in ["card", "render"] {
            let link = format!("/dev/dri/by-path/pci-{bus}-{kind}");
            let on_host = self.options.dev_root.join(link.trim_start_matches('/'));
            let Ok(target) = fs::read_link(on_host) else {
                continue;
            };
            let leads_to = target
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            if leads_to.is_some_and(|name| names.contains(&name)) {
                links.push(format!("{}::{link}", target.display()));
            }
        }
        self.options.hooks.add_links(&links, edits);
    }

    /// The hook for old versions of crun, which made directories that only root could enter.
    fn permissions(&self, edits: &mut Edits) {
        let mut directories = Vec::new();
        for node in &edits.device_nodes {
            let directory = Path::new(&node.path)
                .parent()
                .map(|parent| parent.display().to_string());
            if let Some(directory) = directory.filter(|directory| directory != "/dev")
                && !directories.contains(&directory)
            {
                directories.push(directory);
            }
        }
        if directories.is_empty() {
            return;
        }
        let mode = ["--mode".to_string(), "755".to_string()];
        let arguments = mode
            .into_iter()
            .chain(super::hooks::repeated("--path", &directories));
        self.options.hooks.add("chmod", arguments.collect(), edits);
    }

    /// The minor number of a capability. It is the machine's, so the table is read from the caller's /proc.
    fn minor(&mut self, name: &str) -> Result<u32> {
        if self.minors.is_none() {
            let text = fs::read_to_string(MINORS).map_err(|error| {
                let errno = error
                    .raw_os_error()
                    .map_or(nix::errno::Errno::EIO, nix::errno::Errno::from_raw);
                Error::file("open failed", MINORS, errno)
                    .hint("MIG devices need the driver's capability devices")
            })?;
            let pairs = text.lines().filter_map(|line| {
                let (name, minor) = line.split_once(' ')?;
                Some((name.to_string(), minor.trim().parse().ok()?))
            });
            self.minors = Some(pairs.collect());
        }
        let known = self
            .minors
            .as_ref()
            .and_then(|minors| minors.get(name).copied());
        known.ok_or_else(|| Error::new(ErrorKind::Malformed, format!("{MINORS} has no {name}")))
    }
}

/// A PCI address with a domain of four digits, as sysfs writes it.
fn short_busid(busid: &str) -> String {
    let lower = busid.to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 && domain.starts_with("0000") => {
            format!("{}:{rest}", &domain[4..])
        }
        _ => lower,
    }
}
