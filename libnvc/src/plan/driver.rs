//! Plans what every GPU container gets: procfs, libraries, programs, firmware, sockets and the common devices.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::{BindKind, PROC_DRIVER, Plan, Source, Step, TmpfsFile, device_steps, profile};
use crate::container::ContainerFacts;
use crate::host::{DriverInfo, NVIDIA_MAJOR, catalogue};
use crate::options::{ContainerOptions, CudaCompatMode};
use crate::path::{ContainerPath, HostPath};

/// Minor number of /dev/nvidia-modeset.
const MODESET_MINOR: u32 = 254;

/// Plans the driver's part; `visible` are the minor numbers of the GPUs that EGL may show from the start.
pub fn driver(driver: &DriverInfo, container: &ContainerFacts, visible: &[u32]) -> Plan {
    let mut plan = Plan::default();
    let options = container.options;
    if driver.wsl.is_none() {
        plan.steps.push(procfs(driver));
        if options.contains(ContainerOptions::GRAPHICS) {
            plan.steps.push(profile::directory(visible));
        }
    }
    binaries(driver, container, &mut plan);
    libraries(driver, container, &mut plan);
    for firmware in &driver.firmwares {
        plan.steps.push(bind(
            firmware,
            ContainerPath::from(firmware),
            BindKind::File,
        ));
    }
    for ipc in driver.ipcs.iter().filter(|ipc| ipc_wanted(ipc, options)) {
        plan.steps
            .push(bind(ipc, ContainerPath::from(ipc), BindKind::Ipc));
    }
    for device in &driver.devices {
        let wanted = match (
            driver.wsl.is_some(),
            device.number.major,
            device.number.minor,
        ) {
            (true, ..) => true,
            (_, NVIDIA_MAJOR, MODESET_MINOR) => options.contains(ContainerOptions::DISPLAY),
            (_, NVIDIA_MAJOR, _) => true,
            _ => options.contains(ContainerOptions::COMPUTE),
        };
        if wanted {
            device_steps(device, options, &mut plan);
        }
    }
    plan
}

/// The tmpfs over /proc/driver/nvidia: what a container may know of the driver, and none of the host's GPUs.
fn procfs(driver: &DriverInfo) -> Step {
    let file = |file: &crate::host::ProcFile| TmpfsFile {
        name: file.name.clone(),
        mode: file.mode,
        content: file.content.clone(),
    };
    Step::MountTmpfs {
        at: ContainerPath::new(PROC_DRIVER),
        mode: 0o555,
        create: false,
        files: driver.proc_files.iter().map(file).collect(),
    }
}

fn binaries(driver: &DriverInfo, container: &ContainerFacts, plan: &mut Plan) {
    for binary in &driver.binaries {
        if catalogue::binary_wanted(binary.file_name(), container.options) {
            let at = container.layout.bins_dir.join(binary.file_name());
            plan.steps.push(bind(binary, at, BindKind::File));
        }
    }
}

fn libraries(driver: &DriverInfo, container: &ContainerFacts, plan: &mut Plan) {
    let options = container.options;
    let layout = &container.layout;
    library_group(&driver.libraries, &layout.libs_dir, options, plan);
    if options.contains(ContainerOptions::COMPAT32) {
        library_group(&driver.libraries32, &layout.libs32_dir, options, plan);
    }
    if container.compat_mode == CudaCompatMode::Mount {
        for library in compat_libraries(driver, container) {
            plan.steps.push(Step::Bind {
                at: layout.libs_dir.join(library.file_name()),
                source: Source::Image(library),
                kind: BindKind::File,
            });
        }
    }
}

/// Mounts of one library directory, then the links that ldconfig does not make.
fn library_group(
    libraries: &[HostPath],
    dir: &ContainerPath,
    options: ContainerOptions,
    plan: &mut Plan,
) {
    let wanted = |library: &&HostPath| catalogue::library_wanted(library.file_name(), options);
    let mut links = Vec::new();
    for library in libraries.iter().filter(wanted) {
        plan.steps
            .push(bind(library, dir.join(library.file_name()), BindKind::File));
        links.extend(development_link(library.file_name(), dir));
    }
    plan.steps.extend(links);
}

/// The unversioned link that programs open, for the libraries that need one.
fn development_link(library: &OsStr, dir: &ContainerPath) -> Option<Step> {
    let name = library.as_bytes();
    let (link, target) = if name.starts_with(b"libcuda.so") {
        ("libcuda.so", OsStr::new("libcuda.so.1"))
    } else if name.starts_with(b"libGLX_nvidia.so") {
        // GLVND's fallback for indirect rendering must be the vendor's library.
        ("libGLX_indirect.so.0", library)
    } else if name.starts_with(b"libnvidia-opticalflow.so") {
        (
            "libnvidia-opticalflow.so",
            OsStr::new("libnvidia-opticalflow.so.1"),
        )
    } else {
        return None;
    };
    Some(Step::Symlink {
        at: dir.join(link),
        target: target.into(),
    })
}

/// The image's CUDA compatibility libraries that are mounted: of another driver generation, and of a kind we know.
fn compat_libraries(driver: &DriverInfo, container: &ContainerFacts) -> Vec<ContainerPath> {
    let ours = leading_number(driver.versions.driver.as_bytes());
    let other = |library: &&ContainerPath| {
        let theirs = library_generation(library.file_name());
        theirs.is_some()
            && theirs != ours
            && catalogue::library_wanted(library.file_name(), container.options)
    };
    container
        .compat_libraries
        .iter()
        .filter(other)
        .cloned()
        .collect()
}

/// The directories of compatibility libraries that are newer than the driver, for ldconfig's command line.
pub(super) fn compat_directories(
    driver: &DriverInfo,
    container: &ContainerFacts,
) -> Vec<ContainerPath> {
    if container.compat_mode != CudaCompatMode::Ldconfig {
        return Vec::new();
    }
    let ours = leading_number(driver.versions.driver.as_bytes());
    let newer = |library: &&ContainerPath| library_generation(library.file_name()) > ours;
    let mut directories: Vec<_> = container
        .compat_libraries
        .iter()
        .filter(newer)
        .map(ContainerPath::parent)
        .collect();
    directories.dedup();
    directories
}

/// The driver generation in a library's name: 550 of `libcuda.so.550.54.14`.
fn library_generation(name: &OsStr) -> Option<u64> {
    let name = name.as_bytes();
    let at = name.windows(4).position(|part| part == b".so.")?;
    leading_number(name.get(at + 4..)?)
}

fn leading_number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(text.get(..digits)?).ok()?.parse().ok()
}

/// The daemons' sockets are for monitoring; anything else, the MPS directory, is for computing.
fn ipc_wanted(ipc: &HostPath, options: ContainerOptions) -> bool {
    let daemon = ["nvidia-persistenced/socket", "nvidia-fabricmanager/socket"];
    let needs = if daemon.iter().any(|tail| ipc.as_path().ends_with(tail)) {
        ContainerOptions::UTILITY
    } else {
        ContainerOptions::COMPUTE
    };
    options.contains(needs)
}

fn bind(source: &HostPath, at: ContainerPath, kind: BindKind) -> Step {
    Step::Bind {
        source: Source::Host(source.clone()),
        at,
        kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_compare_as_numbers() {
        let generation = |name: &str| library_generation(OsStr::new(name));
        assert_eq!(generation("libcuda.so.550.54.14"), Some(550));
        assert_eq!(generation("libcuda.so.1000.1"), Some(1000));
        assert_eq!(generation("libcuda.so.x"), None);
        assert_eq!(generation("libcuda.so"), None);
        assert!(generation("libcuda.so.1000.1") > generation("libcuda.so.999.1"));
    }

    #[test]
    fn sockets_belong_to_capabilities() {
        let wanted = |path: &str, options| ipc_wanted(&HostPath::new(path), options);
        assert!(wanted(
            "/run/nvidia-persistenced/socket",
            ContainerOptions::UTILITY
        ));
        assert!(!wanted(
            "/private/run/nvidia-fabricmanager/socket",
            ContainerOptions::COMPUTE
        ));
        assert!(wanted("/tmp/nvidia-mps", ContainerOptions::COMPUTE));
        assert!(!wanted("/tmp/nvidia-mps", ContainerOptions::UTILITY));
    }
}
