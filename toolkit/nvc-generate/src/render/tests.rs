//! Tests what is rendered of each kind of intent.

#![allow(clippy::unwrap_used)]

use libnvc::host::{Daemon, DeviceRole};
use libnvc::plan::{DriverProc, EglDevices, EglProfile, FileMode, Link, Need};
use libnvc::testing::{device, mount, proc_with};

use super::*;

fn rendering() -> Rendering {
    let mut rendering = crate::tests::options(false).rendering;
    rendering.ldconfig = Some("/sbin/ldconfig".into());
    rendering
}

fn link(at: &str, target: &str) -> Intent {
    Intent::best_effort(What::Link(Link {
        at: Place::At(ContainerPath::new(at)),
        target: target.into(),
        replaces: false,
    }))
}

fn common() -> Vec<Intent> {
    vec![
        proc_with(ProcDevices::Own),
        Intent::best_effort(What::EglProfile(EglProfile {
            devices: EglDevices::Own,
        })),
        mount("/usr/bin/nvidia-smi", FileClass::Program),
        mount("/usr/lib64/libcuda.so.535.1", FileClass::Library),
        link("/usr/lib64/libcuda.so.1", "libcuda.so.535.1"),
        link("/usr/lib64/libcuda.so", "libcuda.so.1"),
        Intent::best_effort(What::CudaCompat(CudaCompat {
            host_driver: "535.1".into(),
            host_cuda: Some("12.2".into()),
            root: None,
            how: CompatUse::Search,
            capabilities: libnvc::request::Capabilities::COMPUTE,
        })),
        Intent::best_effort(What::Sockets(Sockets {
            root: HostPath::new("/"),
            daemons: Daemon::ALL.to_vec(),
        })),
        device(DeviceRole::Control.path(), 195, 255),
        Intent::required(What::LibraryPath(LibraryPath {
            directories: vec![Place::At(ContainerPath::new("/usr/lib64"))],
            after_hooks: false,
        })),
        Intent::void(),
    ]
}

fn gpu() -> Vec<Intent> {
    vec![
        device("/dev/nvidia0", 195, 0),
        Intent {
            need: Need::BestEffort,
            ..device("/dev/dri/card1", 226, 1)
        },
        link("/dev/dri/by-path/pci-0000:3b:00.0-card", "../card1"),
        Intent::best_effort(What::Mode(FileMode {
            at: ContainerPath::new("/dev/dri"),
            mode: 0o755,
        })),
    ]
}

fn lines(edits: &Edits) -> Vec<String> {
    let mut lines: Vec<String> = edits
        .env
        .iter()
        .map(|entry| format!("env {entry}"))
        .collect();
    for node in &edits.device_nodes {
        let from = match node.host_path.as_str() {
            "" => String::new(),
            path => format!(" from {path}"),
        };
        lines.push(format!("node {}{from} {}", node.path, node.permissions));
    }
    for hook in &edits.hooks {
        lines.push(format!("hook {}", hook.args[1..].join(" ")));
    }
    for mount in &edits.mounts {
        let options = mount.options.join(",");
        lines.push(format!(
            "mount {} {} {options}",
            mount.host_path, mount.container_path
        ));
    }
    lines
}

fn specification(intents: &[Intent], rendering: &Rendering) -> Vec<String> {
    lines(&of_specification(intents, &[], rendering).unwrap())
}

#[test]
fn separate_hooks() {
    let mut rendering = rendering();
    assert_eq!(
        specification(&common(), &rendering),
        [
            "env NVIDIA_VISIBLE_DEVICES=void",
            "node /dev/nvidiactl rwm",
            "hook create-symlinks --link libcuda.so.535.1::/usr/lib64/libcuda.so.1 --link libcuda.so.1::/usr/lib64/libcuda.so",
            "hook enable-cuda-compat --host-driver-version=535.1",
            "hook update-ldcache --ldconfig-path /sbin/ldconfig --folder /usr/lib64",
            "hook disable-device-node-modification",
            "hook filter-driver-proc",
            "hook update-application-profile",
            "hook mount-sockets --daemon persistenced --daemon fabricmanager",
            "mount /usr/bin/nvidia-smi /usr/bin/nvidia-smi ro,nosuid,nodev,rbind,rprivate",
            "mount /usr/lib64/libcuda.so.535.1 /usr/lib64/libcuda.so.535.1 ro,nosuid,nodev,rbind,rprivate",
        ]
    );
    let mut expected = vec![
        "node /dev/nvidia0 rwm",
        "node /dev/dri/card1 rwm",
        "hook create-symlinks --link ../card1::/dev/dri/by-path/pci-0000:3b:00.0-card",
    ];
    assert_eq!(specification(&gpu(), &rendering), expected);
    rendering.hooks.enabled.insert(CHMOD.into());
    expected.push("hook chmod --mode 755 --path /dev/dri");
    assert_eq!(specification(&gpu(), &rendering), expected);
    rendering.hooks.disabled.insert("all".into());
    expected.remove(2);
    assert_eq!(specification(&gpu(), &rendering), expected);
}

/// In a container, a hook does what is no node and no variable.
#[test]
fn a_hook_gets_the_rest_of_a_plan() {
    let mut rendering = rendering();
    rendering.hooks.disabled.insert(FILTER_DRIVER_PROC.into());
    let all = [gpu(), common()].concat();
    let edits = nodes_and_variables(&all, &rendering);
    assert_eq!(edits.device_nodes.len(), 3);
    assert!(edits.mounts.is_empty() && edits.hooks.is_empty());
    let intents = rendering.hooks.intents(&all);
    let procfs = What::DriverProc(DriverProc {
        no_new_nodes: true,
        devices: ProcDevices::All,
    });
    assert!(intents.iter().any(|intent| intent.what == procfs));
    // Three links, two mounts, procfs, sockets, profile, compatibility libraries, the loader's path.
    assert_eq!(intents.len(), 10);
    let hook = apply_hook(&intents, &[], &rendering).unwrap();
    let plan = hook.args.last().unwrap().strip_prefix("--plan=").unwrap();
    assert_eq!(handover::decode(plan).unwrap(), intents);
    let start = [
        "nvidia-cdi-hook",
        "apply",
        "--ldconfig-path",
        "/sbin/ldconfig",
    ];
    assert_eq!(hook.args[..4], start);
}

#[test]
fn sources_are_paths_of_the_host() {
    let find = crate::Find {
        driver_root: "/run/nvidia/driver".into(),
        dev_root: "/run/nvidia/driver".into(),
        ..crate::Find::new(crate::Mode::Nvml)
    };
    let mut intents = common();
    let warnings = crate::driver::on_host(&mut intents, &find).unwrap();
    assert_eq!(warnings, [""; 0]);
    let common = specification(&intents, &rendering());
    assert!(
        common.contains(&"node /dev/nvidiactl from /run/nvidia/driver/dev/nvidiactl rwm".into())
    );
    let program = "mount /run/nvidia/driver/usr/bin/nvidia-smi /usr/bin/nvidia-smi ro,nosuid,nodev,rbind,rprivate";
    assert!(common.contains(&program.into()), "{common:#?}");
    let sockets = "hook mount-sockets --driver-root /run/nvidia/driver --daemon persistenced --daemon fabricmanager";
    assert!(common.contains(&sockets.into()), "{common:#?}");
}

#[test]
fn another_program_replaces_no_file_by_a_link_to_itself() {
    let alias = |at: &str, of: &str| {
        Intent::best_effort(What::Alias(Alias {
            at: ContainerPath::new(at),
            of: Place::At(ContainerPath::new(of)),
        }))
    };
    let plan = [
        alias("/usr/lib/xorg/a.so", "/usr/lib64/xorg/a.so"),
        alias("/usr/lib/gbm/b.so", "/usr/lib64/c.so.1"),
    ];
    let mut rendering = rendering();
    let hooks = |rendering: &Rendering| specification(&plan, rendering).join("");
    let other = "--link /usr/lib64/c.so.1::/usr/lib/gbm/b.so";
    let both = format!("--link /usr/lib64/xorg/a.so::/usr/lib/xorg/a.so {other}");
    assert_eq!(hooks(&rendering), format!("hook create-symlinks {both}"));
    rendering.hooks.is_ours = false;
    assert_eq!(hooks(&rendering), format!("hook create-symlinks {other}"));
}

/// Older programs of upstream fail if they do not know a hook.
#[test]
fn only_our_program_mounts_sockets() {
    let mut rendering = rendering();
    let has_sockets = |rendering: &Rendering| {
        let common = specification(&common(), rendering);
        common.iter().any(|line| line.contains("socket"))
    };
    assert!(has_sockets(&rendering));
    rendering.hooks.is_ours = false;
    assert!(!has_sockets(&rendering));
}
