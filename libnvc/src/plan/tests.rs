//! Golden plans: facts in, the text of the plan out.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::container::Layout;
use crate::host::{DriverVersions, Gpu, MigAccess, ProcFile, WslDriver};
use crate::options::CudaCompatMode;

fn node(path: &str, major: u32, minor: u32) -> DeviceNode {
    DeviceNode {
        path: HostPath::new(path),
        number: DeviceNumber { major, minor },
    }
}

fn paths(prefix: &str, names: &[&str]) -> Vec<HostPath> {
    names
        .iter()
        .map(|name| HostPath::new(prefix).join(name))
        .collect()
}

fn facts() -> DriverInfo {
    DriverInfo {
        versions: DriverVersions {
            driver: "535.1".into(),
            cuda: "12.2".into(),
        },
        binaries: paths("/usr/bin", &["nvidia-smi", "nvidia-cuda-mps-control"]),
        libraries: paths(
            "/usr/lib/x86_64-linux-gnu",
            &[
                "libnvidia-ml.so.535.1",
                "libcuda.so.535.1",
                "libGLX_nvidia.so.535.1",
            ],
        ),
        libraries32: paths("/usr/lib/i386-linux-gnu", &["libcuda.so.535.1"]),
        ipcs: paths("/", &["run/nvidia-persistenced/socket", "tmp/nvidia-mps"]),
        devices: vec![
            node("/dev/nvidiactl", 195, 255),
            node("/dev/nvidia-uvm", 510, 0),
            node("/dev/nvidia-modeset", 195, 254),
        ],
        firmwares: paths("/lib/firmware/nvidia/535.1", &["gsp_tu10x.bin"]),
        proc_files: vec![ProcFile {
            name: "params".into(),
            mode: 0o444,
            content: "ModifyDeviceFiles: 0\n".into(),
        }],
        wsl: None,
    }
}

fn container(words: &str) -> ContainerFacts {
    ContainerFacts {
        options: ContainerOptions::parse(words).unwrap(),
        layout: Layout {
            bins_dir: ContainerPath::new("/usr/bin"),
            libs_dir: ContainerPath::new("/usr/lib64"),
            libs32_dir: ContainerPath::new("/usr/lib"),
            cudart_dir: ContainerPath::new("/usr/local/cuda"),
        },
        compat_libraries: Vec::new(),
        compat_mode: ContainerOptions::parse(words)
            .unwrap()
            .checked_cuda_compat()
            .unwrap(),
        ldconfig: Ldconfig::Host("/sbin/ldconfig".into()),
    }
}

fn gpu() -> Gpu {
    Gpu {
        index: 0,
        model: "NVIDIA A10".into(),
        uuid: "GPU-1".into(),
        busid: "00000000:3b:00.0".into(),
        arch: "8.6".into(),
        brand: "Nvidia".into(),
        minor: 3,
        node: Some(node("/dev/nvidia3", 195, 3)),
        proc_dir: Some(HostPath::new("/proc/driver/nvidia/gpus/0000:3b:00.0")),
        mig_capable: false,
        mig_caps_path: None,
        mig_devices: Vec::new(),
    }
}

#[test]
fn utility_without_cgroups() {
    let container = container("supervised no-cgroups utility");
    let plan: Plan = [
        driver(&facts(), &container, &[3]),
        device(&gpu(), &facts(), &container),
        ldcache(&facts(), &container),
    ]
    .into_iter()
    .collect();
    assert_eq!(
        plan.to_string(),
        "\
mount tmpfs (mode 555) at /proc/driver/nvidia with params
bind file /usr/bin/nvidia-smi at /usr/bin/nvidia-smi
bind file /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.1 at /usr/lib64/libnvidia-ml.so.535.1
bind file /lib/firmware/nvidia/535.1/gsp_tu10x.bin at /lib/firmware/nvidia/535.1/gsp_tu10x.bin
bind socket /run/nvidia-persistenced/socket at /run/nvidia-persistenced/socket
bind device /dev/nvidiactl (195:255) at /dev/nvidiactl
bind device /dev/nvidia3 (195:3) at /dev/nvidia3
bind procfs /proc/driver/nvidia/gpus/0000:3b:00.0 at /proc/driver/nvidia/gpus/0000:3b:00.0
run ldconfig /sbin/ldconfig (of the host) for /usr/lib64 /usr/lib
"
    );
}

#[test]
fn everything_with_cgroups() {
    let container = container("supervised utility compute graphics display compat32");
    let plan: Plan = [
        driver(&facts(), &container, &[3]),
        device(&gpu(), &facts(), &container),
    ]
    .into_iter()
    .collect();
    assert_eq!(
        plan.to_string(),
        "\
mount tmpfs (mode 555) at /proc/driver/nvidia with params
mount tmpfs (mode 555) at /etc/nvidia/nvidia-application-profiles-rc.d with 10-container.conf
bind file /usr/bin/nvidia-smi at /usr/bin/nvidia-smi
bind file /usr/bin/nvidia-cuda-mps-control at /usr/bin/nvidia-cuda-mps-control
bind file /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.1 at /usr/lib64/libnvidia-ml.so.535.1
bind file /usr/lib/x86_64-linux-gnu/libcuda.so.535.1 at /usr/lib64/libcuda.so.535.1
bind file /usr/lib/x86_64-linux-gnu/libGLX_nvidia.so.535.1 at /usr/lib64/libGLX_nvidia.so.535.1
link /usr/lib64/libcuda.so to libcuda.so.1
link /usr/lib64/libGLX_indirect.so.0 to libGLX_nvidia.so.535.1
bind file /usr/lib/i386-linux-gnu/libcuda.so.535.1 at /usr/lib/libcuda.so.535.1
link /usr/lib/libcuda.so to libcuda.so.1
bind file /lib/firmware/nvidia/535.1/gsp_tu10x.bin at /lib/firmware/nvidia/535.1/gsp_tu10x.bin
bind socket /run/nvidia-persistenced/socket at /run/nvidia-persistenced/socket
bind socket /tmp/nvidia-mps at /tmp/nvidia-mps
bind device /dev/nvidiactl (195:255) at /dev/nvidiactl
allow device c 195:255 rw
bind device /dev/nvidia-uvm (510:0) at /dev/nvidia-uvm
allow device c 510:0 rw
bind device /dev/nvidia-modeset (195:254) at /dev/nvidia-modeset
allow device c 195:254 rw
bind device /dev/nvidia3 (195:3) at /dev/nvidia3
allow device c 195:3 rw
bind procfs /proc/driver/nvidia/gpus/0000:3b:00.0 at /proc/driver/nvidia/gpus/0000:3b:00.0
show GPU minor 3 in /etc/nvidia/nvidia-application-profiles-rc.d
"
    );
}

#[test]
fn no_capability_means_procfs_firmware_and_the_control_device() {
    let plan = driver(&facts(), &container("standalone no-devbind"), &[]);
    assert_eq!(
        plan.to_string(),
        "\
mount tmpfs (mode 555) at /proc/driver/nvidia with params
bind file /lib/firmware/nvidia/535.1/gsp_tu10x.bin at /lib/firmware/nvidia/535.1/gsp_tu10x.bin
allow device c 195:255 rw
"
    );
}

#[test]
fn mig_and_imex() {
    let container = container("supervised utility");
    let access = |name: &str, minor| MigAccess {
        file: HostPath::new("/proc/driver/nvidia/capabilities/gpu1/mig")
            .join(name)
            .join("access"),
        node: Some(node(
            &format!("/dev/nvidia-caps/nvidia-cap{minor}"),
            234,
            minor,
        )),
    };
    let one = mig_access(&[access("gi1", 138), access("gi1/ci0", 139)], &container);
    let two = mig_access(&[access("gi1", 138)], &container);
    let nodes = [node("/dev/nvidia-caps/nvidia-cap1", 234, 1)];
    let plan: Plan = [
        one,
        two,
        mig_global(Some(&nodes), &container),
        mig_global(None, &container),
        imex_channel(
            &node("/dev/nvidia-caps-imex-channels/channel7", 235, 7),
            &container,
        ),
    ]
    .into_iter()
    .collect();
    // The GPU instance that two devices share, and the capabilities, come once.
    assert_eq!(
        plan.to_string(),
        "\
bind procfs /proc/driver/nvidia/capabilities/gpu1/mig/gi1/access at /proc/driver/nvidia/capabilities/gpu1/mig/gi1/access
bind device /dev/nvidia-caps/nvidia-cap138 (234:138) at /dev/nvidia-caps/nvidia-cap138
allow device c 234:138 rw
bind procfs /proc/driver/nvidia/capabilities/gpu1/mig/gi1/ci0/access at /proc/driver/nvidia/capabilities/gpu1/mig/gi1/ci0/access
bind device /dev/nvidia-caps/nvidia-cap139 (234:139) at /dev/nvidia-caps/nvidia-cap139
allow device c 234:139 rw
bind procfs /proc/driver/nvidia/capabilities at /proc/driver/nvidia/capabilities
bind devices /dev/nvidia-caps at /dev/nvidia-caps
allow device c 234:1 rw
bind device /dev/nvidia-caps-imex-channels/channel7 (235:7) at /dev/nvidia-caps-imex-channels/channel7
allow device c 235:7 rw
"
    );
}

#[test]
fn compatibility_libraries_by_mode() {
    let mut container = container("supervised compute no-cgroups");
    let compat = ContainerPath::new("/usr/local/cuda-12.4/compat");
    container.compat_libraries = [
        "libcuda.so.550.1",
        "libcuda.so.535.9",
        "libcuda.so.470.1",
        "libother.so.550.1",
    ]
    .map(|name| compat.join(name))
    .to_vec();
    let mounted = |container: &ContainerFacts| -> Vec<String> {
        let plan = driver(&facts(), container, &[]);
        let from_image = |step: &Step| {
            matches!(
                step,
                Step::Bind {
                    source: Source::Image(_),
                    ..
                }
            )
        };
        plan.steps
            .iter()
            .filter(|step| from_image(step))
            .map(ToString::to_string)
            .collect()
    };
    // Other generations of known libraries, older ones too.
    assert_eq!(
        mounted(&container),
        [
            "bind file /usr/local/cuda-12.4/compat/libcuda.so.550.1 (of the image) at /usr/lib64/libcuda.so.550.1",
            "bind file /usr/local/cuda-12.4/compat/libcuda.so.470.1 (of the image) at /usr/lib64/libcuda.so.470.1",
        ]
    );
    container.compat_mode = CudaCompatMode::Ldconfig;
    assert!(mounted(&container).is_empty());
    assert_eq!(
        ldcache(&facts(), &container).to_string(),
        "run ldconfig /sbin/ldconfig (of the host) for /usr/local/cuda-12.4/compat /usr/lib64 /usr/lib\n"
    );
}

#[test]
fn wsl_mounts_the_driver_store_once() {
    let mut driver_info = facts();
    driver_info.wsl = Some(WslDriver {
        store: HostPath::new("/usr/lib/wsl/drivers/x"),
        components: vec!["nvidia-smi".into()],
    });
    driver_info.devices = vec![node("/dev/dxg", 10, 125)];
    let container = container("supervised utility graphics no-cgroups");
    let mut plan = driver(&driver_info, &container, &[0]);
    plan.append(device(&gpu(), &driver_info, &container));
    plan.append(device(&gpu(), &driver_info, &container));
    let text = plan.to_string();
    assert!(!text.contains("tmpfs"), "{text}");
    let stored =
        "bind file /usr/lib/wsl/drivers/x/nvidia-smi at /usr/lib/wsl/drivers/x/nvidia-smi\n";
    assert_eq!(text.matches(stored).count(), 1, "{text}");
    assert!(
        text.contains("bind device /dev/dxg (10:125) at /dev/dxg\n"),
        "{text}"
    );
}

#[test]
fn plans_are_json() {
    let plan = imex_channel(&node("/dev/x", 235, 7), &container("supervised no-cgroups"));
    assert_eq!(
        serde_json::to_string(&plan).unwrap(),
        r#"[{"step":"bind-device","source":"/dev/x","number":{"major":235,"minor":7},"at":"/dev/x"}]"#
    );
}
