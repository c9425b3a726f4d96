//! Checks the driver: its module, NVML, its daemon.

use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use libnvc::Result;
use libnvc::host::query::QueryProgram;
use libnvc::host::{DeviceInfo, Gpu, GpusAsked};
use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use nvc_generate::query_program;
use nvc_policy::session;
use nvc_program::hints::{Reader, advice};

use super::hardware;
use super::place::{Kind, Place};
use super::{Finding, NO_GPU, read};
use crate::ask::find;
use crate::commands::repair::{command, step};
use crate::engine::daemon::has_unit;

pub(super) const VERSION: &str = "/proc/driver/nvidia/version";

pub(super) fn module(place: &Place) -> Vec<Finding> {
    let is_missing = place.kind == Kind::Usual && !Path::new(VERSION).exists();
    Vec::from_iter(is_missing.then(hardware::no_module))
}

/// Asks NVML for the GPUs; also returns whether all are in persistence mode.
pub(super) fn nvml(place: &Place) -> (Vec<Finding>, bool) {
    // A Jetson need not have it.
    if place.kind == Kind::Tegra {
        return (Vec::new(), false);
    }
    if let QueryProgram::Path(Err(error)) = query_program() {
        let symptom =
            "nvidia-ctk cdi generate and the refresh of specifications fail; containers start";
        let repair = step("install libnvidia-container1, or the toolkit, again");
        return (
            vec![Finding::wrong(error.message(), symptom, repair)],
            false,
        );
    }
    let info = match gpus(place) {
        Ok(info) => info,
        Err(error) => {
            let repair = advice(&error, Reader::Doctor)
                .unwrap_or_else(|| "see nvidia-smi, and NVRM in the kernel's log (dmesg)".into());
            return (
                vec![Finding::fatal(error.message(), NO_GPU, step(&repair))],
                false,
            );
        }
    };
    let mut findings = Vec::new();
    for failed in &info.failed {
        let repair = advice(&failed.error, Reader::Doctor).unwrap_or_else(|| {
            "see Xid in the kernel's log (dmesg); reset the GPU, or reboot".into()
        });
        findings.push(Finding::wrong(
            format!("{failed}: {}", failed.error.message()),
            "no container gets this GPU",
            step(&repair),
        ));
    }
    for index in &info.divided {
        let mut gpus = info.gpus.iter();
        if !gpus.any(|gpu| gpu.index == *index && !gpu.mig_devices.is_empty()) {
            let what = format!("GPU {index} is in MIG mode and has no MIG devices");
            let repair = format!(
                "nvidia-smi mig -i {index} -cgi PROFILE -C, or nvidia-smi -i {index} -mig 0"
            );
            findings.push(Finding::advice(
                what,
                "no container can use this GPU",
                step(repair),
            ));
        }
    }
    if info.gpus.iter().any(|gpu| !gpu.mig_devices.is_empty()) {
        findings.extend(mig(place));
    }
    let persists = |gpu: &Gpu| info.persistent.contains(&gpu.index);
    (findings, info.gpus.iter().all(persists))
}

/// Asks NVML for the GPUs.
pub(super) fn gpus(place: &Place) -> Result<DeviceInfo> {
    let (root, program) = (place.root.clone(), query_program());
    let mut session = session::open(root, None, Vec::new(), &program, GpusAsked::All)?;
    session.ready()?;
    session.devices()
}

/// Checks the files and nodes of MIG devices' capabilities.
fn mig(place: &Place) -> Option<Finding> {
    let symptom = "no container gets a MIG device";
    if !Path::new(VERSION).exists() {
        return None; // already reported
    }
    if read("/proc/driver/nvidia-caps/mig-minors").is_none() {
        let what = "/proc/driver/nvidia-caps/mig-minors is missing";
        let repair = "unload the module nvidia, and load it again; dmesg says why it has no capability devices";
        return Some(Finding::wrong(what, symptom, step(repair)));
    }
    let nodes = place.dev().join("nvidia-caps");
    (!nodes.exists()).then(|| {
        let what = format!("there are MIG devices, and {} is missing", nodes.display());
        let make =
            "find /proc/driver/nvidia/capabilities -name access -exec nvidia-modprobe -f {} ';'";
        let repair = match find("nvidia-modprobe") {
            Some(_) => command(make),
            None => step("install nvidia-modprobe").and(make),
        };
        Finding::wrong(what, symptom, repair)
    })
}

/// Says which containers are clients of an MPS server.
pub(super) fn mps(place: &Place) -> Option<Finding> {
    let facts = place.path("/tmp/nvidia-mps/control").metadata().ok()?;
    facts.file_type().is_socket().then(|| {
        Finding::advice(
            "an MPS control daemon has /tmp/nvidia-mps",
            "containers of nvidia-container-cli and mode legacy are its clients, all others are not",
            step("for others bind it in: docker run -v /tmp/nvidia-mps:/tmp/nvidia-mps:ro ..."),
        )
    })
}

/// Connects to a socket, without waiting for its daemon.
fn connect(path: &Path) -> Result<(), Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let opened = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    socket::connect(opened.as_raw_fd(), &UnixAddr::new(path)?)
}

/// Looks for the daemon, which is not needed if persistence mode is on anyway.
pub(super) fn persistence(place: &Place, is_on: bool) -> Option<Finding> {
    if is_on {
        return None;
    }
    let programs = [
        "/usr/bin/nvidia-persistenced",
        "/usr/sbin/nvidia-persistenced",
    ];
    let socket = [
        "/run/nvidia-persistenced/socket",
        "/var/run/nvidia-persistenced/socket",
    ];
    let program = programs.iter().find(|path| place.path(path).exists())?;
    let mut paths = socket
        .iter()
        .flat_map(|path| [path.into(), place.path(path)]);
    let found = paths.find(|path| path.exists());
    // A daemon that was killed leaves its socket.
    let is_dead = |path: &PathBuf| {
        let is_socket = path
            .metadata()
            .is_ok_and(|facts| facts.file_type().is_socket());
        is_socket && connect(path) == Err(Errno::ECONNREFUSED)
    };
    let what = match found {
        Some(path) if is_dead(&path) => {
            format!(
                "nvidia-persistenced does not run, although {} exists",
                path.display()
            )
        }
        Some(_) => return None,
        None => "nvidia-persistenced is installed and does not run".into(),
    };
    let finding = |repair| Finding::advice(&*what, "each first use of a GPU takes seconds", repair);
    // Distributions' packages have a unit, NVIDIA's installer has none.
    Some(if has_unit("nvidia-persistenced.service") {
        finding(command("systemctl enable --now nvidia-persistenced"))
    } else if place.is_host() {
        finding(command(*program)).note("it has no systemd unit here: start it at each boot")
    } else {
        finding(step("start it where the driver is"))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_daemon_that_accepts_nobody_is_not_waited_for() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("socket");
        let daemon = UnixListener::bind(&path).unwrap();
        let full = std::iter::repeat_with(|| connect(&path)).find(Result::is_err);
        assert_eq!(full, Some(Err(Errno::EAGAIN)));
        drop(daemon);
        assert_eq!(connect(&path), Err(Errno::ECONNREFUSED));
    }
}
