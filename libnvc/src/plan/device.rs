//! Plans what one GPU, one MIG device or one IMEX channel adds to a container.

use super::{BindKind, PROC_DRIVER, Plan, Source, Step, device_steps, profile};
use crate::container::ContainerFacts;
use crate::host::{DeviceNode, DriverInfo, Gpu, MigAccess};
use crate::options::ContainerOptions;
use crate::path::{ContainerPath, HostPath};

/// Plans a GPU: its node, its entry in /proc/driver/nvidia/gpus, its bit in the application profile.
///
/// Under WSL2 there is no node; the driver store is mounted instead, as often as this is called, once.
pub fn device(gpu: &Gpu, driver: &DriverInfo, container: &ContainerFacts) -> Plan {
    let mut plan = Plan::default();
    if let Some(wsl) = &driver.wsl {
        for component in &wsl.components {
            plan.steps
                .push(same_place(&wsl.store.join(component), BindKind::File));
        }
        return plan;
    }
    if let Some(node) = &gpu.node {
        device_steps(node, container.options, &mut plan);
    }
    if let Some(directory) = &gpu.proc_dir {
        plan.steps.push(same_place(directory, BindKind::Proc));
    }
    profile::show(gpu, container.options, &mut plan);
    plan
}

/// Plans access to one MIG device: the access files of its GPU instance and compute instance, and their nodes.
pub fn mig_access(access: &[MigAccess], container: &ContainerFacts) -> Plan {
    let mut plan = Plan::default();
    for instance in access {
        plan.steps.push(same_place(&instance.file, BindKind::Proc));
        if let Some(node) = &instance.node {
            device_steps(node, container.options, &mut plan);
        }
    }
    plan
}

/// Plans the right to configure or monitor MIG: all capabilities, and the nodes `nodes` of the granted ones.
///
/// `nodes` is none where the driver has no nvidia-caps devices.
pub fn mig_global(nodes: Option<&[DeviceNode]>, container: &ContainerFacts) -> Plan {
    let mut plan = Plan::default();
    plan.steps.push(same_place(
        &HostPath::new(PROC_DRIVER).join("capabilities"),
        BindKind::Proc,
    ));
    if let Some(nodes) = nodes {
        plan.steps.push(same_place(
            &HostPath::new("/dev/nvidia-caps"),
            BindKind::DeviceDirectory,
        ));
        plan.append(mig_caps(nodes, container));
    }
    plan
}

/// Plans the right to open capability devices whose nodes are in the container already, such as all those of a GPU.
pub fn mig_caps(nodes: &[DeviceNode], container: &ContainerFacts) -> Plan {
    let mut plan = Plan::default();
    if !container.options.contains(ContainerOptions::NO_CGROUPS) {
        plan.steps
            .extend(nodes.iter().map(|node| Step::AllowDevice {
                number: node.number,
            }));
    }
    plan
}

/// Plans an IMEX channel.
pub fn imex_channel(node: &DeviceNode, container: &ContainerFacts) -> Plan {
    let mut plan = Plan::default();
    device_steps(node, container.options, &mut plan);
    plan
}

fn same_place(path: &HostPath, kind: BindKind) -> Step {
    Step::Bind {
        source: Source::Host(path.clone()),
        at: ContainerPath::from(path),
        kind,
    }
}
