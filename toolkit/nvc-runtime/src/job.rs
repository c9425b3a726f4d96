//! Defines the work for one container, and the functions that the modes share.

use libnvc::options::Ldconfig;
use nvc_cdi::Edits;
use nvc_generate::nodes::Nodes;
use nvc_generate::{Files, Flags, Naming, Options, gated};
use nvc_oci::spec::Spec;
use nvc_policy::config::Config;
use nvc_policy::config::ldconfig;
use nvc_policy::image::{Container, DeviceChoice, Devices, Policy, features};
use nvc_program::messages::Level;

use crate::error::{Result, refused};
use crate::hook_program::HookPrograms;
use crate::log::Log;
use crate::place::Place;

/// What a container asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuRequest<'a> {
    pub(crate) choice: &'a DeviceChoice,
    pub(crate) container: &'a Container,
    pub(crate) policy: &'a Policy,
}

/// The work for one container.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) spec: &'a mut Spec,
    pub(crate) request: GpuRequest<'a>,
    pub(crate) config: &'a Config,
    pub(crate) log: &'a mut Log,
    pub(crate) place: &'a Place,
    /// The container's files, if the prestart hook needs their paths.
    pub(crate) told: Option<&'a Place>,
    pub(crate) hooks: HookPrograms,
}

/// The feature flag for one GPU in mode csv.
pub(crate) const SINGLE_CSV_DEVICE: &str = "disable-multiple-csv-devices";

impl Job<'_> {
    pub(crate) fn warn(&mut self, text: &str) {
        self.log.write(Level::Warning, text);
    }

    /// Returns the ids of the requested devices.
    pub(crate) fn ids(&self) -> Result<Vec<String>> {
        match &self.request.choice.devices {
            Devices::None => Ok(Vec::new()),
            some => nvc_generate::ids(&some.names()),
        }
    }

    /// Returns the devices with their own variables.
    ///
    /// Unlike a specification of all devices, they do not replace the hook, which still adds the GPUs.
    pub(crate) fn gated_features(&mut self) -> Vec<Edits> {
        let nodes = nodes(self.config);
        let GpuRequest {
            choice,
            container,
            policy,
        } = self.request;
        let (requested, ignored) = features::of(container, policy, &choice.origin);
        if let Some(warning) = ignored {
            self.warn(&warning);
        }
        let mut all = Vec::new();
        for feature in requested {
            let (edits, refused) = gated::edits(feature, &nodes, &nodes.root);
            for why in refused {
                let variable = feature.variable();
                self.warn(&format!("{variable}: left out: {why}"));
            }
            all.push(edits);
        }
        all
    }
}

/// Returns the root of the device nodes.
pub(crate) fn nodes(config: &Config) -> Nodes {
    let root = match config.cli.root.as_str() {
        "" => "/",
        root => root,
    };
    let groups = !config.features.no_additional_gids_for_device_nodes;
    Nodes::new(root.into(), groups)
}

/// Returns the options for finding this machine's devices and files.
pub(crate) fn options(mode: nvc_generate::Mode, job: &Job<'_>) -> Options {
    let config = job.config;
    let nodes = nodes(config);
    let runtime = &config.runtime;
    let flag = |name: &str| runtime.jit_feature_flags.iter().any(|flag| flag == name);
    let variable = |name: &str| {
        let value = std::env::var_os(name).unwrap_or_default();
        value.to_string_lossy().into_owned()
    };
    let mut options = Options {
        driver_root: nodes.root.clone(),
        dev_root: nodes.root,
        naming: vec![Naming::Index],
        files: Files::Listed,
        all_may_be_none: true,
        gids: true,
        flags: Flags {
            explicit_driver_libraries: flag("enable-explicit-driver-libraries"),
            coherent_annotations: false,
            no_additional_gids: !nodes.groups || flag("no-additional-gids-for-device-nodes"),
            no_ipc: flag("disable-ipc-discoverer"),
            no_compat32: false,
            single_csv_device: flag(SINGLE_CSV_DEVICE),
        },
        path: variable("PATH"),
        data_dirs: variable("XDG_DATA_DIRS"),
        ..Options::new(mode, job.hooks.chosen().path)
    };
    options.ldconfig = ldconfig(config);
    options.hooks.is_ours = job.hooks.is_ours();
    options.hooks.disabled = runtime.jit_disable_hooks.iter().cloned().collect();
    options
}

/// Returns the host's ldconfig if the configuration chooses one.
pub(crate) fn ldconfig(config: &Config) -> Option<String> {
    match ldconfig::for_library(config) {
        Ldconfig::Host(path) => Some(path.to_string_lossy().into_owned()),
        // The image's own is nvidia-container-cli's alone.
        Ldconfig::Auto | Ldconfig::Image(_) => None,
    }
}

/// Returns a key's value if it is one of `words`.
pub(crate) fn one_of<'a>(
    config: &Config,
    key: &str,
    value: &str,
    words: &[&'a str],
) -> Result<&'a str> {
    let known = words.iter().find(|word| **word == value);
    known.copied().ok_or_else(|| {
        let origin = config.origin(key);
        let (last, others) = words.split_last().unwrap_or((&"", &[]));
        let known = format!("{} or {last}", others.join(", "));
        refused(format!("{key} ({origin}): \"{value}\" must be {known}"))
    })
}
