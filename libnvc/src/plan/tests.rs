//! Tests plans against golden texts: requests and hosts in, the text of the plan out.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::container::{self, ImageFacts, Layout};
use crate::error::{Error, ErrorKind};
use crate::host::{
    Abi, DeviceInfo, DeviceNode, DeviceRole, DriverFile, DriverInfo, DriverVersions, FileClass,
    FileLink, Gpu, MigAccess, MigDevice, NamedLibrary, SharedDevice, WslDriver, catalogue,
};
use crate::options::{CudaCompatMode, Ldconfig};
use crate::path::{ContainerPath, HostPath};
use crate::render;
use crate::request::{Capabilities, Capability, Placement, Policy};
use crate::require::Requirement;
use crate::survey::{Chosen, GlobalGrant};

fn library(path: &str, abi: Abi) -> DriverFile {
    let path = HostPath::new(path);
    let pattern = catalogue::library_of(path.file_name()).unwrap();
    DriverFile {
        abi,
        ..pattern.file(path)
    }
}

fn program(path: &str) -> DriverFile {
    let path = HostPath::new(path);
    catalogue::program_of(path.file_name()).unwrap().file(path)
}

fn socket(path: &str, capability: Capability) -> DriverFile {
    DriverFile::new(HostPath::new(path), FileClass::Socket).of(Some(capability))
}

fn shared(role: DeviceRole, major: u32, minor: u32) -> SharedDevice {
    SharedDevice {
        node: DeviceNode::new(role.path(), major, minor),
        role,
    }
}

fn driver() -> DriverInfo {
    let native = |name: &str| library(&format!("/usr/lib/x86_64-linux-gnu/{name}"), Abi::Native);
    let firmware = HostPath::new("/lib/firmware/nvidia/535.1/gsp_tu10x.bin");
    DriverInfo {
        versions: DriverVersions {
            driver: "535.1".into(),
            cuda: "12.2".into(),
        },
        files: vec![
            program("/usr/bin/nvidia-smi"),
            program("/usr/bin/nvidia-cuda-mps-control"),
            native("libnvidia-ml.so.535.1"),
            native("libcuda.so.535.1"),
            native("libGLX_nvidia.so.535.1"),
            library("/usr/lib/i386-linux-gnu/libcuda.so.535.1", Abi::Compat32),
            DriverFile::new(firmware, FileClass::Firmware),
            socket("/run/nvidia-persistenced/socket", Capability::Utility),
            socket("/tmp/nvidia-mps", Capability::Compute),
        ],
        devices: vec![
            shared(DeviceRole::Control, 195, 255),
            shared(DeviceRole::Uvm, 510, 0),
            shared(DeviceRole::UvmTools, 510, 1),
            shared(DeviceRole::Modeset, 195, 254),
        ],
        ..DriverInfo::default()
    }
}

fn gpu(index: u32) -> Gpu {
    Gpu {
        index,
        uuid: format!("GPU-{index}"),
        arch: "8.6".into(),
        brand: "Nvidia".into(),
        minor: index + 3,
        node: Some(DeviceNode::new(
            format!("/dev/nvidia{}", index + 3),
            195,
            index + 3,
        )),
        proc_dir: Some(HostPath::new(format!(
            "/proc/driver/nvidia/gpus/0000:3{index}:00.0"
        ))),
        ..Gpu::default()
    }
}

fn host(chosen: &[Gpu]) -> Host {
    host_of(Chosen {
        gpus: chosen.to_vec(),
        ..Chosen::default()
    })
}

fn host_of(chosen: Chosen) -> Host {
    Host::new("/".into(), driver(), DeviceInfo::default(), chosen)
}

fn request(capabilities: Capabilities) -> Request {
    Request {
        capabilities,
        ..Request::default()
    }
}

fn without_rules(capabilities: Capabilities) -> Request {
    let mut request = request(capabilities);
    request.policy.device_rules = false;
    request
}

/// Returns an image whose directories can be told from the host's.
fn image() -> ImageFacts {
    ImageFacts {
        layout: Layout {
            bins_dir: ContainerPath::new("<programs>"),
            libs_dir: ContainerPath::new("<libraries>"),
            libs32_dir: ContainerPath::new("<libraries32>"),
            cudart_dir: ContainerPath::new("<cuda>"),
        },
        compat_libraries: Vec::new(),
        ldconfig: Ldconfig::Auto,
    }
}

fn planned(request: &Request, host: &Host) -> String {
    render::text(&plan(request, host).unwrap(), &image())
}

#[test]
fn utility_without_rules() {
    assert_eq!(
        planned(&without_rules(Capabilities::UTILITY), &host(&[gpu(0)])),
        "\
driver proc   /proc/driver/nvidia
program       /usr/bin/nvidia-smi -> /<programs>/nvidia-smi ?
library       /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.1 -> /<libraries>/libnvidia-ml.so.535.1
firmware      /lib/firmware/nvidia/535.1/gsp_tu10x.bin ?
socket        /run/nvidia-persistenced/socket ?
device        /dev/nvidiactl (195:255) node only
device        /dev/nvidia3 (195:3) node only
driver proc   /proc/driver/nvidia with gpus/0000:30:00.0
library path  /<libraries>, /<libraries32> by the builtin ldconfig
"
    );
}

#[test]
fn everything_with_rules() {
    let mut request = request(
        Capabilities::UTILITY
            | Capabilities::COMPUTE
            | Capabilities::GRAPHICS
            | Capabilities::DISPLAY,
    );
    request.capabilities |= Capabilities::COMPAT32;
    assert_eq!(
        planned(&request, &host(&[gpu(0), gpu(1)])),
        "\
driver proc   /proc/driver/nvidia
egl profile   shows /dev/nvidia3, /dev/nvidia4 ?
program       /usr/bin/nvidia-smi -> /<programs>/nvidia-smi ?
program       /usr/bin/nvidia-cuda-mps-control -> /<programs>/nvidia-cuda-mps-control ?
library       /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.1 -> /<libraries>/libnvidia-ml.so.535.1
library       /usr/lib/x86_64-linux-gnu/libcuda.so.535.1 -> /<libraries>/libcuda.so.535.1
library       /usr/lib/x86_64-linux-gnu/libGLX_nvidia.so.535.1 -> /<libraries>/libGLX_nvidia.so.535.1
link          /<libraries>/libcuda.so -> libcuda.so.1 ?
link          /<libraries>/libGLX_indirect.so.0 -> libGLX_nvidia.so.535.1 ?
library       /usr/lib/i386-linux-gnu/libcuda.so.535.1 -> /<libraries32>/libcuda.so.535.1
link          /<libraries32>/libcuda.so -> libcuda.so.1 ?
firmware      /lib/firmware/nvidia/535.1/gsp_tu10x.bin ?
socket        /run/nvidia-persistenced/socket ?
socket        /tmp/nvidia-mps ?
device        /dev/nvidiactl (195:255)
device        /dev/nvidia-uvm (510:0)
device        /dev/nvidia-uvm-tools (510:1) ?
device        /dev/nvidia-modeset (195:254) ?
device        /dev/nvidia3 (195:3)
driver proc   /proc/driver/nvidia with gpus/0000:30:00.0
device        /dev/nvidia4 (195:4)
driver proc   /proc/driver/nvidia with gpus/0000:31:00.0
library path  /<libraries>, /<libraries32> by the builtin ldconfig
"
    );
}

/// Returns a driver in a directory of its own, with what programs open by paths of their own.
fn driver_in_opt() -> DriverInfo {
    let opened = |name: &str| library(&format!("/opt/nv/lib/{name}"), Abi::Native);
    let module = |name: &str| {
        let path = HostPath::new(format!("/opt/nv/lib/xorg/modules/{name}"));
        DriverFile::new(path, FileClass::XModule).of(Some(Capability::Graphics))
    };
    let mut glx = opened("libGLX_nvidia.so.535.1");
    glx.links = vec![FileLink {
        name: "libGLX_nvidia.so.0".into(),
        target: "libGLX_nvidia.so.535.1".into(),
    }];
    let icd = HostPath::new("/usr/share/vulkan/icd.d/nvidia_icd.json");
    let named = |at: &str, library: &str| NamedLibrary {
        at: ContainerPath::new(at),
        library: HostPath::new(library),
    };
    let manifest = DriverFile {
        at: Some(ContainerPath::new("/etc/vulkan/icd.d/nvidia_icd.json")),
        names: vec![
            named(
                "/opt/nv/lib/libGLX_nvidia.so.0",
                "/opt/nv/lib/libGLX_nvidia.so.535.1",
            ),
            named(
                "/run/gl/libGLX_nvidia.so.0",
                "/opt/nv/lib/libGLX_nvidia.so.535.1",
            ),
            named("/opt/nv/lib/libother.so.1", "/opt/nv/lib/libother.so.1"),
        ],
        ..DriverFile::new(icd, FileClass::Config).of(Some(Capability::Graphics))
    };
    DriverInfo {
        files: vec![
            program("/opt/nv/bin/nvidia-smi"),
            opened("libnvidia-allocator.so.535.1"),
            library("/opt/nv/lib/vdpau/libvdpau_nvidia.so.535.1", Abi::Native),
            glx,
        ],
        graphics: vec![
            module("drivers/nvidia_drv.so"),
            module("extensions/libglxserver_nvidia.so.535.1"),
            manifest,
        ],
        ..driver()
    }
}

/// Returns the lines of a plan that say where files and links are.
fn placed(request: &Request) -> Vec<String> {
    let host = Host {
        driver: driver_in_opt(),
        ..host(&[])
    };
    let text = planned(request, &host);
    let kinds = ["program", "library ", "link", "X module", "configuration"];
    let lines = text.lines();
    let lines = lines.filter(|line| kinds.iter().any(|kind| line.starts_with(kind)));
    let lines = lines.map(|line| line.trim_end_matches(" ?").replace("/opt/nv/lib", "LIB"));
    lines
        .filter(|line| !line.starts_with("library path"))
        .collect()
}

#[test]
fn what_programs_open_by_a_path_of_their_own_is_where_the_images_look() {
    let capabilities = Capabilities::GRAPHICS | Capabilities::VIDEO | Capabilities::UTILITY;
    assert_eq!(
        placed(&request(capabilities)),
        [
            "X module      LIB/xorg/modules/drivers/nvidia_drv.so -> /<libraries>/xorg/modules/drivers/nvidia_drv.so",
            "X module      LIB/xorg/modules/extensions/libglxserver_nvidia.so.535.1 -> /<libraries>/xorg/modules/extensions/libglxserver_nvidia.so",
            "configuration /usr/share/vulkan/icd.d/nvidia_icd.json -> /etc/vulkan/icd.d/nvidia_icd.json",
            "link          LIB/libGLX_nvidia.so.0 -> /<libraries>/libGLX_nvidia.so.535.1",
            "link          /run/gl/libGLX_nvidia.so.0 -> /<libraries>/libGLX_nvidia.so.535.1",
            "program       /opt/nv/bin/nvidia-smi -> /<programs>/nvidia-smi",
            "library       LIB/libnvidia-allocator.so.535.1 -> /<libraries>/libnvidia-allocator.so.535.1",
            "library       LIB/vdpau/libvdpau_nvidia.so.535.1 -> /<libraries>/libvdpau_nvidia.so.535.1",
            "library       LIB/libGLX_nvidia.so.535.1 -> /<libraries>/libGLX_nvidia.so.535.1",
            "link          /<libraries>/gbm/nvidia-drm_gbm.so -> ../libnvidia-allocator.so.1",
            "link          /<libraries>/vdpau/libvdpau_nvidia.so.1 -> ../libvdpau_nvidia.so.1",
            "link          /<libraries>/libGLX_nvidia.so.0 -> libGLX_nvidia.so.535.1",
        ]
    );
}

/// In mode legacy nvidia-container-cli adds the library.
#[test]
fn a_manifest_may_name_a_library_that_another_plan_has() {
    let driver = DriverInfo {
        files: Vec::new(),
        ..driver_in_opt()
    };
    let plan = |placement| {
        let mut request = request(Capabilities::GRAPHICS);
        request.policy.placement = placement;
        let common = Item::Graphics(&driver).plan(&request);
        let text = render::text(
            &Plan {
                common,
                ..Plan::default()
            },
            &image(),
        );
        let named = |line: &&str| line.contains("/run/gl/");
        text.lines().find(named).map(str::to_owned)
    };
    let link = "link          /run/gl/libGLX_nvidia.so.0 -> /<libraries>/libGLX_nvidia.so.535.1 ?";
    assert_eq!(plan(Placement::AsImage).as_deref(), Some(link));
    assert_eq!(plan(Placement::AsHost), None);
}

/// The links serve images of each family.
#[test]
fn in_an_unknown_image_links_lead_to_files_at_the_hosts_paths() {
    let capabilities = Capabilities::GRAPHICS | Capabilities::VIDEO | Capabilities::UTILITY;
    let mut request = request(capabilities);
    request.policy.placement = Placement::AsHost;
    let multiarch = container::FAMILIES[0];
    let lines = placed(&request).into_iter();
    let lines: Vec<_> = lines
        .map(|line| line.replace(multiarch, "MULTIARCH"))
        .collect();
    assert_eq!(
        lines,
        [
            "X module      LIB/xorg/modules/drivers/nvidia_drv.so",
            "X module      LIB/xorg/modules/extensions/libglxserver_nvidia.so.535.1",
            "configuration /usr/share/vulkan/icd.d/nvidia_icd.json -> /etc/vulkan/icd.d/nvidia_icd.json",
            "link          /usr/lib/xorg/modules/drivers/nvidia_drv.so -> LIB/xorg/modules/drivers/nvidia_drv.so",
            "link          /usr/lib64/xorg/modules/drivers/nvidia_drv.so -> LIB/xorg/modules/drivers/nvidia_drv.so",
            "link          /usr/lib/xorg/modules/extensions/libglxserver_nvidia.so -> LIB/xorg/modules/extensions/libglxserver_nvidia.so.535.1",
            "link          /usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so -> LIB/xorg/modules/extensions/libglxserver_nvidia.so.535.1",
            "link          /run/gl/libGLX_nvidia.so.0 -> LIB/libGLX_nvidia.so.535.1",
            "program       /opt/nv/bin/nvidia-smi -> /usr/bin/nvidia-smi",
            "library       LIB/libnvidia-allocator.so.535.1",
            "library       LIB/vdpau/libvdpau_nvidia.so.535.1",
            "library       LIB/libGLX_nvidia.so.535.1",
            "link          LIB/gbm/nvidia-drm_gbm.so -> ../libnvidia-allocator.so.1",
            "link          MULTIARCH/gbm/nvidia-drm_gbm.so -> LIB/libnvidia-allocator.so.535.1",
            "link          /usr/lib64/gbm/nvidia-drm_gbm.so -> LIB/libnvidia-allocator.so.535.1",
            "link          MULTIARCH/vdpau/libvdpau_nvidia.so.1 -> LIB/vdpau/libvdpau_nvidia.so.535.1",
            "link          /usr/lib64/vdpau/libvdpau_nvidia.so.1 -> LIB/vdpau/libvdpau_nvidia.so.535.1",
            "link          LIB/libGLX_nvidia.so.0 -> libGLX_nvidia.so.535.1",
        ]
    );
}

#[test]
fn what_a_program_needs_comes_with_the_capability_of_the_program() {
    let with = |capabilities| placed(&request(capabilities)).join("\n");
    let is_there = |text: &str| text.contains("/gbm/") && text.contains("libnvidia-allocator");
    assert!(is_there(&with(Capabilities::GRAPHICS)));
    assert!(!with(Capabilities::COMPUTE).contains("/gbm/"));
    assert!(!with(Capabilities::UTILITY).contains("link"));
}

#[test]
fn a_container_that_does_not_exist_yet_will_show_its_own_devices() {
    let mut request = request(Capabilities::GRAPHICS);
    request.policy.before_start = true;
    let text = planned(&request, &host(&[gpu(0), gpu(1)]));
    let shown: Vec<_> = text
        .lines()
        .filter(|line| line.contains("shows") || line.contains("proc"))
        .collect();
    assert_eq!(
        shown,
        [
            "driver proc   shows the container's own devices",
            "egl profile   shows the container's own devices ?",
        ]
    );
    assert!(
        text.contains("environment   NVIDIA_VISIBLE_DEVICES=void"),
        "{text}"
    );
}

#[test]
fn no_capability_means_procfs_firmware_and_the_control_device() {
    let mut request = request(Capabilities::empty());
    request.policy.device_nodes = false;
    assert_eq!(
        planned(&request, &host(&[])),
        "\
driver proc   /proc/driver/nvidia
firmware      /lib/firmware/nvidia/535.1/gsp_tu10x.bin ?
device        /dev/nvidiactl (195:255) rule only
library path  /<libraries>, /<libraries32> by the builtin ldconfig
"
    );
}

#[test]
fn unknown_images_get_host_paths() {
    let mut request = without_rules(Capabilities::COMPUTE);
    request.policy.placement = Placement::AsHost;
    request.capabilities |= Capabilities::COMPAT32;
    let text = planned(&request, &host(&[]));
    let libraries = text
        .lines()
        .filter(|line| line.starts_with("l"))
        .collect::<Vec<_>>();
    assert_eq!(
        libraries,
        [
            "library       /usr/lib/x86_64-linux-gnu/libcuda.so.535.1",
            "link          /usr/lib/x86_64-linux-gnu/libcuda.so -> libcuda.so.1 ?",
            "library       /usr/lib/i386-linux-gnu/libcuda.so.535.1",
            "link          /usr/lib/i386-linux-gnu/libcuda.so -> libcuda.so.1 ?",
            "library path  /usr/lib/i386-linux-gnu, /usr/lib/x86_64-linux-gnu by the builtin ldconfig",
        ]
    );
}

#[test]
fn folders_of_unknown_images_have_the_order_of_the_search() {
    let mut request = without_rules(Capabilities::COMPUTE | Capabilities::COMPAT32);
    request.policy.placement = Placement::AsHost;
    let mut driver = driver();
    let native = ["/usr/lib64", "/opt/a"].map(|home| format!("{home}/libcuda.so.1"));
    let native = native.iter().map(|path| library(path, Abi::Native));
    driver.files.extend(native);
    driver.directories = ["/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/opt/a"]
        .map(HostPath::new)
        .to_vec();
    let What::LibraryPath(path) = library_path(&driver, &request).what else {
        panic!("no path");
    };
    let expected = [
        "/usr/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/opt/a",
        "/usr/lib/i386-linux-gnu",
    ];
    assert_eq!(
        path.directories,
        expected.map(|path| Place::At(ContainerPath::new(path)))
    );
}

/// Readers of the variable take it for one directory.
#[test]
fn the_variable_names_one_directory() {
    let mut request = without_rules(Capabilities::COMPUTE);
    request.policy.placement = Placement::AsHost;
    let mut driver = driver();
    driver.directories = ["/opt/driver", "/usr/lib/x86_64-linux-gnu"]
        .map(HostPath::new)
        .to_vec();
    let value = |driver: &DriverInfo| {
        let what = library_directories(driver, &request).unwrap().what;
        match what {
            What::Env(variable) => variable.value,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(value(&driver), "/usr/lib/x86_64-linux-gnu");
    driver.files.clear();
    assert_eq!(value(&driver), "/opt/driver");
}

fn access(name: &str, minor: u32) -> MigAccess {
    MigAccess {
        file: HostPath::new("/proc/driver/nvidia/capabilities/gpu1/mig")
            .join(name)
            .join("access"),
        node: Some(DeviceNode::new(
            format!("/dev/nvidia-caps/nvidia-cap{minor}"),
            234,
            minor,
        )),
    }
}

fn mig(index: u32) -> MigDevice {
    MigDevice {
        index,
        uuid: format!("MIG-{index}"),
        gi: 1,
        ci: index,
        gi_caps_path: HostPath::new("gi1"),
        ci_caps_path: HostPath::new("ci"),
        graphics: None,
    }
}

/// Makes a host with two MIG devices of one GPU instance.
fn mig_host() -> Host {
    let parent = Gpu {
        mig_devices: vec![mig(0), mig(1)],
        ..gpu(1)
    };
    let grant = |device: u32| MigGrant {
        access: vec![
            access("gi1", 138),
            access(&format!("gi1/ci{device}"), 139 + device),
        ],
        ..MigGrant::from((&parent, &mig(device)))
    };
    host_of(Chosen {
        migs: vec![grant(0), grant(1)],
        gpus: vec![parent.clone()],
        ..Chosen::default()
    })
}

#[test]
fn mig_devices_share_common_intents() {
    let plan = plan(&request(Capabilities::empty()), &mig_host()).unwrap();
    let names: Vec<_> = plan
        .devices
        .iter()
        .map(|part| part.names.join(" "))
        .collect();
    assert_eq!(names, ["1 GPU-1", "1:0 MIG-0", "1:1 MIG-1"]);
    let kinds: Vec<_> = plan.devices.iter().map(|part| part.kind).collect();
    assert_eq!(
        kinds,
        [
            PartKind::MigParent,
            PartKind::MigDevice,
            PartKind::MigDevice
        ]
    );
    let common = plan.common.len();
    let text = render::text(&plan, &image());
    let devices: Vec<_> = text.lines().skip(common - 1).collect();
    let devices = &devices[..devices.len() - 1];
    assert_eq!(
        devices,
        [
            "device        /dev/nvidia4 (195:4)",
            "driver proc   /proc/driver/nvidia with gpus/0000:31:00.0",
            "driver proc   /proc/driver/nvidia with /proc/driver/nvidia/capabilities/gpu1/mig/gi1/access",
            "device        /dev/nvidia-caps/nvidia-cap138 (234:138)",
            "driver proc   /proc/driver/nvidia with /proc/driver/nvidia/capabilities/gpu1/mig/gi1/ci0/access",
            "device        /dev/nvidia-caps/nvidia-cap139 (234:139)",
            "driver proc   /proc/driver/nvidia with /proc/driver/nvidia/capabilities/gpu1/mig/gi1/ci1/access",
            "device        /dev/nvidia-caps/nvidia-cap140 (234:140)",
        ]
    );
}

#[test]
fn display_nodes_are_for_containers_with_graphics() {
    let mut shown = gpu(0);
    shown.drm_nodes = vec![DeviceNode::new("/dev/dri/card1", 226, 1)];
    let host = host(&[shown]);
    let has_card = |capabilities| {
        let plan = plan(&request(capabilities), &host).unwrap();
        render::text(&plan, &image()).contains("/dev/dri/card1")
    };
    assert!(has_card(Capabilities::GRAPHICS) && has_card(Capabilities::DISPLAY));
    assert!(!has_card(Capabilities::COMPUTE | Capabilities::UTILITY));
}

#[test]
fn display_nodes_are_not_a_mig_devices() {
    let mut parent = gpu(0);
    parent.drm_nodes = vec![DeviceNode::new("/dev/dri/card1", 226, 1)];
    let host = host_of(Chosen {
        migs: vec![MigGrant::from((&parent, &mig(0)))],
        ..Chosen::default()
    });
    let plan = plan(&request(Capabilities::GRAPHICS), &host).unwrap();
    assert!(!render::text(&plan, &image()).contains("/dev/dri"));
}

#[test]
fn requirements_are_those_of_chosen_gpus_and_of_parents() {
    let mut host = host(&[gpu(0)]);
    let meets = |host: &Host, text: &str| {
        let requirements = vec![Requirement::new(text)];
        let request = Request {
            requirements,
            ..request(Capabilities::empty())
        };
        plan(&request, host).is_ok()
    };
    let parent = Gpu {
        arch: "9.0".into(),
        ..gpu(1)
    };
    host.devices.gpus = vec![gpu(0), parent.clone()];
    assert!(
        meets(&host, "arch<9.0"),
        "the GPU that is not chosen does not count"
    );
    host.chosen.migs = vec![MigGrant::from((&parent, &mig(0)))];
    assert!(!meets(&host, "arch<9.0"), "a MIG device is of its GPU");
}

#[test]
fn a_missing_node_is_an_error_if_policy_says_so() {
    let refusal = |change: &dyn Fn(&mut Host)| {
        let mut host = mig_host();
        change(&mut host);
        let mut request = request(Capabilities::empty());
        assert!(plan(&request, &host).is_ok());
        request.policy.demand_nodes = true;
        let error = plan(&request, &host).err()?;
        assert_eq!(error.phase(), Some(Phase::Device));
        let hint = error.advice().unwrap();
        Some(format!("{} ({hint})", error.message()))
    };
    assert_eq!(refusal(&|_| {}), None);
    let of_driver = refusal(&|host| {
        host.driver
            .devices
            .retain(|device| device.role != DeviceRole::Control);
    });
    let expected =
        "the driver's node /dev/nvidiactl is missing (nvidia-ctk system create-device-nodes ";
    assert!(of_driver.unwrap().starts_with(expected));
}

#[test]
fn rights_over_all_mig_devices_and_imex_channels() {
    let nodes = vec![DeviceNode::new("/dev/nvidia-caps/nvidia-cap1", 234, 1)];
    let host = host_of(Chosen {
        global: vec![
            GlobalGrant {
                name: "config",
                nodes: Some(nodes),
            },
            GlobalGrant {
                name: "monitor",
                nodes: None,
            },
        ],
        imex_channels: vec![DeviceNode::new(
            "/dev/nvidia-caps-imex-channels/channel7",
            235,
            7,
        )],
        ..Chosen::default()
    });
    let plan = plan(&request(Capabilities::empty()), &host).unwrap();
    let names: Vec<_> = plan.devices.iter().flat_map(|part| &part.names).collect();
    assert_eq!(names, ["config", "monitor", "channel7"]);
    let text = render::text(&plan, &image());
    let devices: Vec<_> = text.lines().skip(plan.common.len() - 1).collect();
    let devices = &devices[..devices.len() - 1];
    // Both make all capabilities visible, once.
    assert_eq!(
        devices,
        [
            "driver proc   /proc/driver/nvidia with all capabilities",
            "devices       /dev/nvidia-caps",
            "device        /dev/nvidia-caps/nvidia-cap1 (234:1) rule only",
            "device        /dev/nvidia-caps-imex-channels/channel7 (235:7)",
        ]
    );
}

#[test]
fn wsl_mounts_the_driver_store_once() {
    let mut host = host(&[gpu(0), gpu(1)]);
    host.driver.wsl = Some(WslDriver {
        store: HostPath::new("/usr/lib/wsl/drivers/x"),
        components: vec!["nvidia-smi".into()],
    });
    host.driver.devices = vec![shared(DeviceRole::Dxg, 10, 125)];
    let request = without_rules(Capabilities::UTILITY | Capabilities::GRAPHICS);
    let text = planned(&request, &host);
    assert!(
        !text.contains("driver proc") && !text.contains("egl"),
        "{text}"
    );
    let stored = "library       /usr/lib/wsl/drivers/x/nvidia-smi\n";
    assert_eq!(text.matches(stored).count(), 1, "{text}");
    assert!(
        text.contains("device        /dev/dxg (10:125) node only\n"),
        "{text}"
    );
}

#[test]
fn requirements_come_before_missing_grants() {
    let lost = || Error::new(ErrorKind::NotFound, "no such channel");
    let host = host_of(Chosen {
        gpus: vec![gpu(0)],
        refused: Some(lost()),
        ..Chosen::default()
    });
    let mut request = request(Capabilities::UTILITY);
    let error = plan(&request, &host).unwrap_err();
    assert_eq!(error.phase(), Some(Phase::Mount));
    request.requirements = vec![Requirement::new("cuda>=99")];
    let error = plan(&request, &host).unwrap_err();
    assert_eq!(error.phase(), Some(Phase::Requirement));
}

#[test]
fn compatibility_libraries_are_for_those_who_compute() {
    let compat = |capabilities, mode| {
        let request = Request {
            capabilities,
            policy: Policy {
                cuda_compat: mode,
                ..Policy::default()
            },
            ..Request::default()
        };
        cuda_compat(&driver(), &request)
    };
    assert!(compat(Capabilities::UTILITY, CudaCompatMode::Mount).is_none());
    assert!(compat(Capabilities::COMPUTE, CudaCompatMode::Disabled).is_none());
    let intent = compat(Capabilities::VIDEO, CudaCompatMode::Ldconfig).unwrap();
    let What::CudaCompat(compat) = &intent.what else {
        panic!("{intent:?}");
    };
    assert_eq!(compat.how, CompatUse::Search);
    assert_eq!(intent.need, Need::BestEffort);
}

#[test]
fn plans_are_json() {
    let request = Request {
        policy: Policy {
            device_rules: false,
            ..Policy::default()
        },
        ..Request::default()
    };
    let node = DeviceNode::new("/dev/x", 235, 7);
    let plan = Plan {
        common: vec![
            Intent::mount(
                HostPath::new("/usr/lib64/libcuda.so.535.1"),
                Place::Library("libcuda.so.535.1".into()),
                FileClass::Library,
            ),
            Intent::best_effort(What::Link(Link {
                at: Place::At(ContainerPath::new("/a")),
                target: "b".into(),
                replaces: false,
            })),
        ],
        devices: vec![Part {
            kind: PartKind::ImexChannel,
            names: vec!["channel7".into()],
            intents: imex_channel(&node, &request),
        }],
    };
    assert_eq!(
        render::json(&plan, &image()),
        serde_json::json!({
            "version": 1,
            "common": [
                { "need": "required", "intent": "mount", "source": "/usr/lib64/libcuda.so.535.1",
                  "place": { "library": "libcuda.so.535.1" }, "class": "library" },
                { "need": "best-effort", "intent": "link", "at": { "at": "/a" }, "target": "b" },
            ],
            "devices": [{
                "kind": "imex-channel",
                "names": ["channel7"],
                "intents": [
                    { "need": "required", "intent": "device", "source": "/dev/x",
                      "number": { "major": 235, "minor": 7 }, "at": "/dev/x", "bind": true, "allow": false },
                ],
            }],
            "image": {
                "layout": { "bins_dir": "/<programs>", "libs_dir": "/<libraries>", "libs32_dir": "/<libraries32>",
                            "cudart_dir": "/<cuda>" },
                "ldconfig": "builtin",
                "compat_mounted": [],
                "compat_searched": [],
            },
        })
    );
}
