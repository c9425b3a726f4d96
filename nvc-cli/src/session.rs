//! Talks to libnvc: everything the commands want of the library goes through here.
//!
//! A session is one driver root, one NVML query and one moment: `info`, `list` and `configure` open one, discover, and
//! then print or apply.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use libnvc::apply::{Ahead, ApplyOptions, apply_prepared};
use libnvc::container::Container;
use libnvc::host::nvcaps::CAPABILITIES;
use libnvc::host::query::QueryProcess;
use libnvc::host::{
    DeviceInfo, DeviceNode, DriverConfig, DriverInfo, DriverSession, DriverVersions, Gpu, Identity,
};
use libnvc::options::{DriverOptions, LibraryOptions};
use libnvc::plan::{self, Plan};
use libnvc::{HostPath, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::choice::Choice;
use crate::listing::CapabilityNodes;

/// Plans up to this length need fewer descriptors than the usual soft limit of 1024 allows.
const STEPS_WITHIN_LIMITS: usize = 400;

/// How the driver is reached.
#[derive(Debug)]
pub(crate) struct Settings<'a> {
    pub(crate) root: &'a Path,
    /// Below the driver root; none if the caller named none.
    pub(crate) ldcache: Option<&'a Path>,
    /// As whom NVML runs.
    pub(crate) identity: Identity,
    pub(crate) options: LibraryOptions,
    /// Channels for which `load-kmods` creates nodes.
    pub(crate) imex_channels: &'a [u32],
}

/// An open driver root with its NVML query.
#[derive(Debug)]
pub(crate) struct Session(DriverSession);

impl Session {
    /// Loads kernel modules if asked to, opens the driver root and asks NVML.
    pub(crate) fn open(settings: &Settings<'_>, query: Result<QueryProcess>) -> Result<Self> {
        let standard = DriverConfig::default();
        let config = DriverConfig {
            root: settings.root.to_owned(),
            ldcache: settings.ldcache.map(HostPath::new),
            uid: settings.identity.uid,
            gid: settings.identity.gid,
            options: settings.options,
            imex_channels: settings.imex_channels.to_vec(),
            program: standard.program,
            deadline: deadline(standard.deadline),
        };
        let mut session = DriverSession::open_with(&config, query)?;
        if std::io::stderr().is_terminal() {
            session.when_slow(|elapsed| {
                let line = format!(
                    "still waiting for the driver after {} s ...\n",
                    elapsed.as_secs()
                );
                // Progress is a courtesy: there is nobody to tell if it cannot be shown.
                let _ = std::io::stderr().write_all(line.as_bytes());
            });
        }
        Ok(Self(session))
    }

    /// Reads the driver's files while NVML is busy.
    pub(crate) fn look_ahead(&mut self, options: DriverOptions) {
        self.0.look_ahead(options);
    }

    /// Waits until NVML is initialised.
    pub(crate) fn ready(&mut self) -> Result<()> {
        self.0.ready()
    }

    /// The driver's versions.
    pub(crate) fn versions(&mut self) -> Result<DriverVersions> {
        self.0.versions()
    }

    /// The driver's files.
    pub(crate) fn driver_info(&mut self, options: DriverOptions) -> Result<DriverInfo> {
        self.0.info(options)
    }

    /// The GPUs.
    pub(crate) fn devices(&mut self) -> Result<DeviceInfo> {
        self.0.devices()
    }

    /// Decides what the container gets, in upstream's order.
    ///
    /// # Errors
    /// For a capability or an IMEX channel that is not there.
    pub(crate) fn plan(&self, facts: &Facts<'_>) -> Result<Plan> {
        let Facts {
            container,
            driver,
            devices,
            choice,
            imex_channels,
        } = facts;
        let container = &container.facts;
        let gpus = |positions: &[usize]| -> Vec<&Gpu> {
            positions
                .iter()
                .filter_map(|&gpu| devices.gpus.get(gpu))
                .collect()
        };
        let chosen = gpus(&choice.selection.gpus);
        let minors: Vec<u32> = chosen.iter().map(|gpu| gpu.minor).collect();
        let mut plans = vec![plan::driver(driver, container, &minors)];
        plans.extend(
            chosen
                .iter()
                .map(|gpu| plan::device(gpu, driver, container)),
        );
        if choice.wants_single_migs() {
            for &(gpu, mig) in &choice.selection.migs {
                if let Some(mig) = devices
                    .gpus
                    .get(gpu)
                    .and_then(|gpu| gpu.mig_devices.get(mig))
                {
                    plans.push(plan::mig_access(&self.0.mig_access(mig)?, container));
                }
            }
        }
        for (name, selection) in [
            ("config", &choice.mig_config),
            ("monitor", &choice.mig_monitor),
        ] {
            let gpus = gpus(&selection.gpus);
            if !gpus.is_empty() {
                plans.push(plan::mig_global(
                    self.global_nodes(name, &gpus)?.as_deref(),
                    container,
                ));
            }
        }
        for &channel in *imex_channels {
            plans.push(plan::imex_channel(
                &self.0.imex_channel(channel)?,
                container,
            ));
        }
        plans.push(plan::ldcache(driver, container));
        Ok(plans.into_iter().collect())
    }

    /// The nodes that a global MIG capability grants: its own and all of the GPUs'.
    fn global_nodes(&self, capability: &str, gpus: &[&Gpu]) -> Result<Option<Vec<DeviceNode>>> {
        let file = HostPath::new(CAPABILITIES).join("mig").join(capability);
        let Some(node) = self.0.capability_node(&file)? else {
            return Ok(None);
        };
        let mut nodes = vec![node];
        let minors: Vec<u32> = gpus.iter().map(|gpu| gpu.minor).collect();
        let of_gpus = self.0.capabilities().of_gpus(&minors)?;
        nodes.extend(of_gpus.into_iter().flatten());
        Ok(Some(nodes))
    }

    /// Gives the container what `plan` says, or nothing, with what was prepared ahead.
    ///
    /// # Errors
    /// Of kind `LdCache` where ldconfig is the reason.
    pub(crate) fn apply(
        &self,
        container: &Container,
        plan: &Plan,
        options: ApplyOptions,
        ahead: Ahead,
    ) -> Result<()> {
        if plan.steps.len() > STEPS_WITHIN_LIMITS {
            raise_descriptor_limit();
        }
        // Whoever interrupts this gets all or nothing too: the signal arrives when the work is done or undone. What it
        // does is bounded, by ldconfig's deadline above all.
        let waiting = SigSet::from_iter(INTERRUPTIONS).thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let result = apply_prepared(plan, self.0.root(), container, options, ahead);
        if let Ok(before) = waiting {
            // Cannot fail for a mask that was in force.
            let _ = before.thread_set_mask();
        }
        result
    }
}

/// With what people and supervisors stop a program that may still clean up.
const INTERRUPTIONS: [Signal; 4] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
];

/// What a plan is made from.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) container: &'a Container,
    pub(crate) driver: &'a DriverInfo,
    pub(crate) devices: &'a DeviceInfo,
    pub(crate) choice: &'a Choice,
    pub(crate) imex_channels: &'a [u32],
}

impl CapabilityNodes for Session {
    fn node(&self, access: &HostPath) -> Option<HostPath> {
        // Upstream leaves out what it cannot determine, without a word.
        self.0
            .capability_node(access)
            .ok()
            .flatten()
            .map(|node| node.path)
    }

    fn nodes_of_gpus(&self, minors: &[u32]) -> Result<Option<Vec<Vec<HostPath>>>> {
        let capabilities = self.0.capabilities();
        if !capabilities.has_devices() {
            return Ok(None);
        }
        let paths = |nodes: Vec<DeviceNode>| nodes.into_iter().map(|node| node.path).collect();
        let of_gpus = capabilities.of_gpus(minors)?;
        Ok(Some(of_gpus.into_iter().map(paths).collect()))
    }
}

/// Takes as many descriptors as the hard limit allows: machines with many GPUs in MIG mode need thousands.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(errno) = limit {
        log::info!("keeping the limit of descriptors: {errno}");
    }
}

/// `NVC_DRIVER_TIMEOUT` in seconds, or what is usual.
fn deadline(usual: Duration) -> Duration {
    let Some(text) = std::env::var_os("NVC_DRIVER_TIMEOUT") else {
        return usual;
    };
    match text.to_str().and_then(|text| text.parse::<u64>().ok()) {
        Some(seconds @ 1..=86400) => Duration::from_secs(seconds),
        _ => {
            log::warn!(
                "NVC_DRIVER_TIMEOUT={}: not a number of seconds from 1 to 86400, using {}",
                text.display(),
                usual.as_secs()
            );
            usual
        }
    }
}
