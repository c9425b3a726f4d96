//! Defines the work for one container, and the functions that the modes share.

use std::collections::BTreeSet;

use libnvc::plan::Intent;
use nvc_generate::nodes::Nodes;
use nvc_generate::{Csv, Find, HookProgram, Hooks, Rendering, gated};
use nvc_oci::spec::Spec;
use nvc_policy::config::Config;
use nvc_policy::config::{keys, ldconfig};
use nvc_policy::image::{Container, DeviceChoice, Devices, Policy, features};
use nvc_program::messages::Level;

use crate::error::{Result, refused};
use crate::hook_program;
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
    pub(crate) fn gated_features(&mut self) -> Vec<Intent> {
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
            let (intents, refused) = gated::intents(feature, &nodes, &nodes.root);
            for why in refused {
                let variable = feature.variable();
                self.warn(&format!("{variable}: left out: {why}"));
            }
            all.extend(intents);
        }
        all
    }

    /// Returns our hook program.
    ///
    /// # Errors
    /// It is missing.
    pub(crate) fn hook_program(&mut self) -> Result<HookProgram> {
        let (program, warning) = hook_program::find(self.config)?;
        if let Some(warning) = warning {
            self.warn(&warning);
        }
        Ok(program)
    }

    /// Returns how a plan becomes config.json. The hook program is looked up only if there is something for it.
    pub(crate) fn rendering(&self) -> Rendering {
        let config = self.config;
        let no_groups = config.features.no_additional_gids_for_device_nodes
            || has_flag(config, "no-additional-gids-for-device-nodes");
        Rendering {
            hooks: Hooks {
                program: HookProgram::default(),
                disabled: config.runtime.jit_disable_hooks.iter().cloned().collect(),
                enabled: BTreeSet::new(),
                merged: true,
                is_ours: true,
            },
            ldconfig: ldconfig::for_hooks(config),
            gids: true,
            additional_gids: !no_groups,
        }
    }
}

/// Returns the root of the device nodes.
pub(crate) fn nodes(config: &Config) -> Nodes {
    Nodes::new(config.driver_root().into())
}

fn has_flag(config: &Config, name: &str) -> bool {
    let flags = &config.runtime.jit_feature_flags;
    flags.iter().any(|flag| flag == name)
}

/// Returns what to find of this machine's devices and files.
pub(crate) fn find(mode: nvc_generate::Mode, config: &Config) -> Find {
    let root = nodes(config).root;
    let variable = |name: &str| {
        let value = std::env::var_os(name).unwrap_or_default();
        value.to_string_lossy().into_owned()
    };
    Find {
        driver_root: root.clone(),
        dev_root: root,
        all_may_be_none: true,
        explicit_driver_libraries: has_flag(config, "enable-explicit-driver-libraries"),
        no_ipc: has_flag(config, "disable-ipc-discoverer"),
        csv: Csv {
            single_device: has_flag(config, SINGLE_CSV_DEVICE),
            ..Csv::default()
        },
        path: variable("PATH"),
        data_dirs: variable("XDG_DATA_DIRS"),
        ..Find::new(mode)
    }
}

/// Returns a key's value if it is one of those that the key can have.
pub(crate) fn one_of(config: &Config, key: &str, value: &str) -> Result<&'static str> {
    let words = keys::find(key).map_or(&[][..], |key| key.words);
    let known = words.iter().find(|word| **word == value);
    known.copied().ok_or_else(|| {
        let origin = config.origin(key);
        let (last, others) = words.split_last().unwrap_or((&"", &[]));
        let known = format!("{} or {last}", others.join(", "));
        refused(format!("{key} ({origin}): \"{value}\" must be {known}"))
    })
}
