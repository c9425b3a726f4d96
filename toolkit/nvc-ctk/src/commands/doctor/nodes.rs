//! Checks the driver's device nodes.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use libnvc::trust::name;
use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use libnvc::host::{DriverRoot, major_of, procfs};

use super::Finding;
use super::driver::VERSION;
use super::place::{Kind, Place};
use crate::ask::find;
use crate::commands::repair::{command, step, word};

/// A device node that the driver needs.
struct RequiredNode {
    path: String,
    /// None if no driver has it in /proc/devices.
    major: Option<u32>,
    minor: u32,
    /// Symptom without it.
    symptom: &'static str,
    /// The command that creates it if it is missing.
    make: String,
}

pub(super) fn all(place: &Place) -> Vec<Finding> {
    if place.kind != Kind::Usual || !Path::new(VERSION).exists() {
        return Vec::new(); // already reported
    }
    let major = |driver| major_of(driver).ok().flatten();
    let (nvidia, uvm) = (major("nvidia"), major("nvidia-uvm"));
    let control = control_nodes(place, nvidia, uvm);
    let mut findings = Vec::from_iter(missing(&control));
    for (driver, major) in [("nvidia", nvidia), ("nvidia-uvm", uvm)] {
        if major.is_none() {
            findings.push(Finding::wrong(
                format!("the module {driver} is not loaded: /proc/devices does not list {driver}"),
                "nvidia-smi may work, and cuInit returns 999",
                command(format!("modprobe {driver}")),
            ));
        }
    }
    let gpus = gpu_nodes(place, nvidia);
    findings.extend(missing(&gpus));
    let nodes: Vec<_> = control.into_iter().chain(gpus).collect();
    findings.extend(nodes.iter().filter_map(RequiredNode::finding));
    if findings.is_empty() {
        findings.extend(refused(&nodes));
    }
    findings
}

/// Returns the nodes that all GPUs share.
fn control_nodes(place: &Place, nvidia: Option<u32>, uvm: Option<u32>) -> Vec<RequiredNode> {
    let dev = place.dev();
    let make = make_control_nodes(&dev, uvm.is_some());
    let of = |name, major, minor, symptom| RequiredNode {
        path: dev.join(name).display().to_string(),
        major,
        minor,
        symptom,
        make: make.clone(),
    };
    vec![
        of("nvidiactl", nvidia, 255, "nvidia-smi and CUDA fail"),
        of(
            "nvidia-uvm",
            uvm,
            0,
            "nvidia-smi works, and cuInit returns 999",
        ),
        of("nvidia-uvm-tools", uvm, 1, "profilers fail in containers"),
    ]
}

/// Returns the command that creates the control nodes where they are missing. It needs both drivers.
fn make_control_nodes(dev: &Path, has_uvm: bool) -> String {
    let load = if has_uvm {
        ""
    } else {
        "modprobe nvidia-uvm && "
    };
    let root = dev.parent().filter(|root| *root != Path::new("/"));
    let root = root.map(|root| format!(" --root={}", word(&root.display())));
    format!(
        "{load}nvidia-ctk system create-device-nodes --control-devices{}",
        root.unwrap_or_default()
    )
}

/// Returns the nodes of the GPUs that the module drives.
fn gpu_nodes(place: &Place, nvidia: Option<u32>) -> Vec<RequiredNode> {
    let gpus = DriverRoot::open(Path::new("/")).map(|root| procfs::gpus(&root));
    let gpus = gpus.into_iter().flatten();
    let dev = place.dev();
    let has_tool = dev == Path::new("/dev") && find("nvidia-modprobe").is_some();
    let node = |minor| {
        let path = dev.join(format!("nvidia{minor}")).display().to_string();
        RequiredNode {
            make: match nvidia {
                Some(major) if !has_tool => {
                    format!("mknod -m 666 {} c {major} {minor}", word(&path))
                }
                // It also knows the module's options for modes and owners.
                _ => format!("nvidia-modprobe -c {minor}"),
            },
            path,
            major: nvidia,
            minor,
            symptom: "this GPU is missing in containers",
        }
    };
    gpus.filter_map(|gpu| gpu.minor).map(node).collect()
}

/// Returns one finding for all nodes that are missing and whose driver is there.
fn missing(nodes: &[RequiredNode]) -> Option<Finding> {
    let is_missing = |node: &&RequiredNode| {
        node.major.is_some() && Path::new(&node.path).symlink_metadata().is_err()
    };
    let missing: Vec<_> = nodes.iter().filter(is_missing).collect();
    let paths: Vec<_> = missing.iter().map(|node| node.path.as_str()).collect();
    let what = match paths.split_last()? {
        (last, []) => format!("{last} is missing"),
        (last, others) => format!("{} and {last} are missing", others.join(", ")),
    };
    let mut commands: Vec<&str> = missing.iter().map(|node| node.make.as_str()).collect();
    commands.dedup();
    let symptom = missing.first()?.symptom;
    let repair = command(commands.join(" && "));
    Some(if paths.iter().any(|path| path.ends_with("/nvidiactl")) {
        Finding::fatal(what, symptom, repair)
    } else {
        Finding::wrong(what, symptom, repair)
    })
}

impl RequiredNode {
    /// Returns the commands that let every user open it, each after `before`. chmod would follow a link that a container
    /// with /dev as a volume puts there meanwhile.
    fn made_again(&self, before: &str) -> Option<String> {
        let (path, major, minor) = (word(&self.path), self.major?, self.minor);
        Some(format!(
            "{before}rm {path} && {before}mknod -m 666 {path} c {major} {minor}"
        ))
    }

    /// Checks a node that exists.
    fn finding(&self) -> Option<Finding> {
        let Self {
            path, minor, make, ..
        } = self;
        let symptom = self.symptom;
        let major = self.major?;
        let facts = std::fs::symlink_metadata(path).ok()?;
        let quoted = word(path);
        if !facts.file_type().is_char_device() {
            let what = format!("{path} is not a device");
            let repair = command(format!("rm -r {quoted} && {make}"));
            return Some(Finding::wrong(what, symptom, repair));
        }
        let number = facts.rdev();
        let found = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
        if found != (u64::from(major), u64::from(*minor)) {
            let what = format!(
                "{path} is device {}:{}, the driver's is {major}:{minor}",
                found.0, found.1
            );
            let repair = command(format!("rm {quoted} && {make}"));
            return Some(Finding::wrong(what, symptom, repair));
        }
        let is_for_root = facts.permissions().mode() & 0o006 != 0o006 && facts.gid() == 0;
        let repair = self.made_again("").filter(|_| is_for_root)?;
        let finding = Finding::wrong(
            format!("only root may use {path}"),
            "users other than root have no GPU, also in rootless containers",
            command(repair),
        );
        Some(finding.note("at each boot the module's option NVreg_DeviceFileMode decides"))
    }
}

/// Checks that the caller, who need not be root, may open the nodes: the first one that he may not.
fn refused(nodes: &[RequiredNode]) -> Option<Finding> {
    let both = AccessFlags::R_OK | AccessFlags::W_OK;
    let mut nodes = nodes.iter();
    let node = nodes.find(|node| access(&*node.path, both) == Err(Errno::EACCES))?;
    let path = &node.path;
    let facts = std::fs::metadata(path).ok()?;
    let group = name("/etc/group", facts.gid()).unwrap_or_else(|| facts.gid().to_string());
    let repair = match (facts.permissions().mode() & 0o060, facts.gid()) {
        (0o060, 1..) => format!("sudo usermod --append --groups={group} $USER, and log in again"),
        _ => node.made_again("sudo ")?,
    };
    Some(Finding::wrong(
        format!("you may not open {path}, which is for root and the group {group}"),
        "nvidia-smi: No devices were found; your rootless containers have no GPU",
        step(repair),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_made_in_their_place() {
        let make = make_control_nodes(Path::new("/dev"), true);
        let plain = "nvidia-ctk system create-device-nodes --control-devices";
        assert_eq!(make, plain);
        let make = make_control_nodes(Path::new("/run/nvidia/driver/dev"), false);
        let loads = format!("modprobe nvidia-uvm && {plain} --root=/run/nvidia/driver");
        assert_eq!(make, loads);
    }
}
