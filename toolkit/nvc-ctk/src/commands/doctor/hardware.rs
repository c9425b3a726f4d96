//! Checks what the kernel knows of the GPUs: PCI devices and their drivers, modules, NVSwitches.

use std::fs;
use std::path::Path;

use libnvc::kmods::pci;

use super::{Finding, NO_GPU, read};
use crate::commands::repair::{command, step};

/// Returns the reason why the module is not loaded.
pub(super) fn no_module() -> Finding {
    let gpus = pci::gpus();
    let sees_bus = || fs::read_dir(pci::DEVICES).is_ok_and(|mut devices| devices.next().is_some());
    if gpus.as_ref().is_some_and(Vec::is_empty) && sees_bus() {
        let what =
            "this machine has no NVIDIA GPU on its PCI bus, and the module nvidia is not loaded";
        return Finding::fatal(
            what,
            NO_GPU,
            step(
                "see the firmware's settings, or the hypervisor's passthrough, until lspci -d 10de: lists a GPU",
            ),
        );
    }
    let held = |names: &[&'static str]| {
        let mut gpus = gpus.iter().flatten();
        gpus.find_map(|gpu| {
            let driver = fs::read_link(gpu.join("driver")).ok()?;
            let name = names.iter().find(|name| driver.ends_with(name))?;
            Some((*name, gpu))
        })
    };
    let modules = read("/proc/modules").unwrap_or_default();
    let is_loaded = modules.lines().any(|line| line.starts_with("nouveau "));
    if is_loaded || held(&["nouveau"]).is_some() {
        let repair = "echo blacklist nouveau > /etc/modprobe.d/nouveau.conf, rebuild the initial ramdisk, and reboot";
        return Finding::fatal("the module nouveau has the GPUs", NO_GPU, step(repair));
    }
    if let Some((driver, gpu)) = held(&["vfio-pci", "pci-stub", "nova_core"]) {
        let bus = gpu.file_name().unwrap_or_default().display();
        let what = format!("{driver} has the GPU {bus}, and the module nvidia is not loaded");
        let unbind = format!("{}/driver/unbind", gpu.display());
        let repair = command(format!("echo {bus} > {unbind} && modprobe nvidia"));
        let note = "this takes the GPU from virtual machines; to keep it across a reboot, remove the driver's options \
                    from the kernel's command line and /etc/modprobe.d";
        return Finding::fatal(what, NO_GPU, repair).note(note);
    }
    not_loaded()
}

/// Describes a module that is not loaded, with what prevents it.
fn not_loaded() -> Finding {
    let kernel =
        nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned());
    let kernel = kernel.unwrap_or_default();
    let modules = read(&format!("/lib/modules/{kernel}/modules.dep"));
    let is_built = |text: &str| text.contains("/nvidia.ko") || text.contains("/nvidia-current.ko");
    if modules.as_deref().is_some_and(|text| !is_built(text)) {
        let what = format!("there is no module nvidia for this kernel, {kernel}");
        let repair = format!(
            "install the headers of {kernel} and run dkms autoinstall, or boot the kernel that has the module"
        );
        return Finding::fatal(what, NO_GPU, step(repair));
    }
    if is_secure_boot() {
        let what = "the module nvidia is not loaded, and Secure Boot admits signed modules only";
        let note = "if it says \"Key was rejected by service\": sign the module and enrol the key (mokutil --import), \
                    or switch Secure Boot off";
        return Finding::fatal(what, NO_GPU, command("modprobe nvidia")).note(note);
    }
    let what = "the module nvidia is not loaded";
    Finding::fatal(what, NO_GPU, command("modprobe nvidia"))
        .note("if that fails, install the driver")
}

fn is_secure_boot() -> bool {
    let variable = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
    // Four bytes of attributes, and the value.
    fs::read(variable).is_ok_and(|value| value.get(4) == Some(&1))
}

/// Machines with NVSwitches need the fabric manager.
pub(super) fn fabric() -> Option<Finding> {
    let has_switches = Path::new("/dev/nvidia-nvswitch0").exists()
        || fs::read_dir("/proc/driver/nvidia-nvswitch/devices")
            .is_ok_and(|mut devices| devices.next().is_some());
    let is_managed = || Path::new("/run/nvidia-fabricmanager/socket").exists() || is_managed();
    (has_switches && !is_managed()).then(|| {
        Finding::wrong(
            "this machine has NVSwitches, and nvidia-fabricmanager does not run",
            "nvidia-smi works, and cuInit returns 802: system not yet initialized",
            command("systemctl enable --now nvidia-fabricmanager"),
        )
        .note("its version must be the driver's")
    })
}

/// Returns true if a process is the fabric manager: without a socket for virtual machines it has only a port.
fn is_managed() -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let name =
        |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
    processes
        .map(name)
        .any(|name| name.starts_with("nv-fabric"))
}
