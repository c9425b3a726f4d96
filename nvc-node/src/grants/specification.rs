//! Makes the specification of a claim of what the driver says now, and the driver's nodes if one is missing.

use std::path::Path;
use std::time::{Duration, Instant};

use libnvc::host::DriverConfig;
use libnvc::options::LibraryOptions;
use libnvc::{Error, ErrorKind, Result, kmods};
use nvc_cdi::transform::{Side, Transform};
use nvc_cdi::{Spec, version};
use nvc_generate::{
    Find, GeneratedSpecs, Hooks, Mode, Names, Naming, Options, Rendering, generate,
};

use super::{CLASS, Grant, Grants, VENDOR};

/// A query that takes longer waits for a GPU.
const SLOW: Duration = Duration::from_secs(5);
/// What every container with a GPU needs. Without one of them a pod would run, and have no GPU.
const NEEDED_NODES: [&str; 2] = ["/dev/nvidiactl", "/dev/nvidia-uvm"];
const NEEDED_LIBRARIES: [&str; 2] = ["libcuda.so.", "libnvidia-ml.so."];

impl Grants {
    /// Makes the driver's nodes, and loads its modules, if a node that every container needs is missing: later there is
    /// no right to load a module.
    pub(crate) fn load_modules(&self) {
        let dev = |path: &&str| self.source.dev_root.join(path.trim_start_matches('/'));
        if self.source.is_loaded() && !NEEDED_NODES.iter().map(dev).all(|node| node.exists()) {
            self.make_nodes();
        }
    }

    fn make_nodes(&self) -> Option<String> {
        let config = DriverConfig {
            root: self.source.dev_root.clone(),
            options: LibraryOptions::LOAD_KMODS,
            ..DriverConfig::default()
        };
        let warning = kmods::prepare(&config);
        if let Some(warning) = &warning {
            log::warn!("{warning}");
        }
        warning
    }

    /// Asks the driver about devices, and makes the specification of a claim.
    pub(super) fn make(&self, uid: &str, grants: &[Grant]) -> Result<Spec> {
        let started = Instant::now();
        let made = self.generated(grants).or_else(|error| {
            // Nodes are not the reason, and there is no time for another.
            if started.elapsed() > SLOW {
                return Err(error);
            }
            log::info!("Making the driver's nodes: {}", error.message());
            let warning = self.make_nodes();
            // The second error says what is still missing.
            self.generated(grants).map_err(|error| match warning {
                Some(why) if why.contains("kernel module") => error.hint(format!(
                    "{why}; the driver's pod loads modules when it starts"
                )),
                _ => error,
            })
        })?;
        for warning in &made.warnings {
            log::debug!("claim {uid}: {warning}");
        }
        let mut spec = made.spec;
        for device in &mut spec.devices {
            let grant = grants.iter().find(|grant| grant.uuid == device.name);
            let text = format!("{} is not asked for", device.name);
            let grant = grant.ok_or_else(|| Error::new(ErrorKind::Malformed, text))?;
            device.name = format!("{uid}-{}", grant.name);
        }
        let as_seen = self.source.driver_root.to_string_lossy();
        Transform::new(&as_seen, &self.host_driver_root, Side::Host).apply(&mut spec)?;
        spec.cdi_version = version::minimum(&spec).0.into();
        nvc_cdi::validate::spec(&spec)?;
        Ok(spec)
    }

    fn generated(&self, grants: &[Grant]) -> Result<GeneratedSpecs> {
        let options = Options {
            find: Find {
                driver_root: self.source.driver_root.clone(),
                dev_root: self.source.dev_root.clone(),
                ids: grants.iter().map(Grant::id).collect(),
                query: self.source.query.clone(),
                ..Find::new(Mode::Nvml)
            },
            names: Names {
                naming: vec![Naming::Uuid],
                no_all: true,
                vendor: VENDOR.into(),
                class: CLASS.into(),
            },
            rendering: Rendering {
                hooks: Hooks {
                    program: self.hook.clone(),
                    disabled: [].into(),
                    enabled: [].into(),
                    // A plan has paths of this container, where the driver root is another one than on the host.
                    merged: false,
                    is_ours: self.is_hook_ours,
                },
                ldconfig: None,
                gids: false,
                additional_gids: false,
            },
        };
        let made = generate(&options)?;
        check_whole(&made, grants)?;
        Ok(made)
    }
}

/// Checks that a specification has what every container with a GPU needs.
fn check_whole(made: &GeneratedSpecs, grants: &[Grant]) -> Result<()> {
    let common = &made.spec.container_edits;
    let lacks_node = |path: &&&str| !common.device_nodes.iter().any(|node| node.path == **path);
    let lacks_library = |name: &&&str| {
        let mut files = common
            .mounts
            .iter()
            .map(|mount| Path::new(&mount.container_path));
        !files.any(|path| {
            let file = path.file_name().and_then(|file| file.to_str());
            file.is_some_and(|file| file.starts_with(**name))
        })
    };
    let lacks_device = |grant: &&Grant| made.spec.device(&grant.uuid).is_none();
    let mut missing: Vec<&str> = NEEDED_NODES.iter().filter(lacks_node).copied().collect();
    missing.extend(NEEDED_LIBRARIES.iter().filter(lacks_library));
    let lacking = grants.iter().filter(lacks_device);
    missing.extend(lacking.map(|grant| grant.uuid.as_str()));
    if missing.is_empty() {
        return Ok(());
    }
    let warnings = made.warnings.iter().map(String::as_str);
    let is_about = |warning: &&str| missing.iter().any(|name| warning.contains(name));
    let why: Vec<&str> = warnings.filter(is_about).collect();
    let text = format!("a container would lack {}", missing.join(", "));
    Err(Error::new(ErrorKind::NotFound, text).with_cause(why.join("; ")))
}
