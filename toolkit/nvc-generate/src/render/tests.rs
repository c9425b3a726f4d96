//! Tests what is rendered of each kind of intent.

#![allow(clippy::unwrap_used)]

use libnvc::HostPath;
use libnvc::host::{Daemon, DeviceRole};
use libnvc::plan::{EglProfile, Link, Need};
use libnvc::testing::{device, mount, proc_with};

use super::*;
use crate::Mode;

fn options() -> Options {
    let mut options = Options::new(Mode::Nvml, "/usr/bin/nvidia-cdi-hook".into());
    options.hooks.is_ours = true;
    options.ldconfig = Some("/sbin/ldconfig".into());
    options
}

fn link(at: &str, target: &str) -> Intent {
    Intent::best_effort(What::Link(Link {
        at: Place::At(ContainerPath::new(at)),
        target: target.into(),
        replaces: false,
    }))
}

fn fixed() -> Plan {
    Plan {
        common: vec![
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
                host_cuda: None,
                root: None,
                how: libnvc::plan::CompatUse::Search,
                capabilities: libnvc::request::Capabilities::all(),
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
        ],
        devices: vec![Part {
            kind: PartKind::Gpu,
            names: vec!["0".into(), "GPU-1".into()],
            intents: vec![
                device("/dev/nvidia0", 195, 0),
                Intent {
                    need: Need::BestEffort,
                    ..device("/dev/dri/card1", 226, 1)
                },
                link("/dev/dri/by-path/pci-0000:3b:00.0-card", "../card1"),
            ],
        }],
    }
}

fn lines(draft: &Draft) -> Vec<String> {
    let edits = &draft.edits;
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
    for hook in &draft.hooks {
        let words = [&[hook.name.to_owned()], &hook.arguments[..]].concat();
        lines.push(format!("hook {}", words.join(" ")));
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

#[test]
fn separate_hooks() {
    let content = plan(&fixed(), &options());
    assert_eq!(
        lines(&content.common),
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
    let [gpu] = content.devices.as_slice() else {
        panic!("{content:?}");
    };
    assert_eq!(gpu.names, ["0", "GPU-1"]);
    assert_eq!(
        lines(&gpu.draft),
        [
            "node /dev/nvidia0 rwm",
            "node /dev/dri/card1 rwm",
            "hook create-symlinks --link ../card1::/dev/dri/by-path/pci-0000:3b:00.0-card",
        ]
    );
}

#[test]
fn host_paths_include_the_root() {
    let options = Options {
        driver_root: "/run/nvidia/driver".into(),
        dev_root: "/run/nvidia/driver".into(),
        ..options()
    };
    let common = lines(&plan(&fixed(), &options).common);
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
    let plan = Plan {
        common: vec![
            alias("/usr/lib/xorg/a.so", "/usr/lib64/xorg/a.so"),
            alias("/usr/lib/gbm/b.so", "/usr/lib64/c.so.1"),
        ],
        ..Plan::default()
    };
    let mut options = options();
    let hooks = |options: &Options| lines(&super::plan(&plan, options).common).join("");
    let other = "--link /usr/lib64/c.so.1::/usr/lib/gbm/b.so";
    let both = format!("--link /usr/lib64/xorg/a.so::/usr/lib/xorg/a.so {other}");
    assert_eq!(hooks(&options), format!("hook create-symlinks {both}"));
    options.hooks.is_ours = false;
    assert_eq!(hooks(&options), format!("hook create-symlinks {other}"));
}

/// Older programs of upstream fail if they do not know a hook.
#[test]
fn only_our_program_mounts_sockets() {
    let mut options = options();
    let has_sockets = |options: &Options| {
        let common = lines(&plan(&fixed(), options).common);
        common.iter().any(|line| line.contains("socket"))
    };
    assert!(has_sockets(&options));
    options.hooks.is_ours = false;
    assert!(!has_sockets(&options));
}
