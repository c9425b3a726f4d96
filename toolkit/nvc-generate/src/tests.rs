//! Compares specifications of a fixed plan with golden files, which `scripts/test/cdi.sh` gives to the reference
//! library.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use libnvc::host::{Daemon, DeviceRole, FileClass};
use libnvc::plan::{
    CompatUse, CudaCompat, EglDevices, EglProfile, Intent, LibraryPath, Link, Part, PartKind,
    Place, Plan, ProcDevices, Sockets, What,
};
use libnvc::testing::{device, mount, proc_with};
use libnvc::{ContainerPath, HostPath};
use nvc_cdi::emit::{self, Format};

use super::*;
use crate::content::Content;

pub(crate) fn options(merged: bool) -> Options {
    let path = "/usr/bin/nvidia-cdi-hook".into();
    Options {
        find: Find::new(Mode::Nvml),
        names: Names {
            naming: vec![Naming::Index, Naming::Uuid],
            no_all: false,
            vendor: "nvidia.com".into(),
            class: "gpu".into(),
        },
        rendering: Rendering {
            hooks: Hooks {
                program: HookProgram { path },
                disabled: BTreeSet::new(),
                enabled: BTreeSet::new(),
                merged,
                is_ours: true,
            },
            ldconfig: None,
            gids: false,
            additional_gids: true,
        },
    }
}

fn gpu(index: u32) -> Part {
    Part {
        kind: PartKind::Gpu,
        names: vec![index.to_string(), format!("GPU-{index}")],
        intents: vec![device(&format!("/dev/nvidia{index}"), 195, index)],
    }
}

/// Engines look a node up again when a container starts: a container with /tmp as a volume can make another one there.
#[test]
fn no_mode_names_nodes_that_others_can_exchange() {
    use std::os::unix::fs::PermissionsExt as _;
    let modes = [
        Mode::Auto,
        Mode::Csv,
        Mode::Gdrcopy,
        Mode::Gds,
        Mode::Imex,
        Mode::Management,
        Mode::MigCaps,
        Mode::Mofed,
        Mode::Nvml,
        Mode::Nvswitch,
        Mode::Wsl,
    ];
    let dir = scratch();
    fs::create_dir(dir.path().join("dev")).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    for mode in modes {
        let mut options = options(false);
        options.find = Find {
            dev_root: dir.path().into(),
            ids: vec!["all".into()],
            ..Find::new(mode)
        };
        let error = generate(&options).unwrap_err().message();
        let why = format!("every user may write to {}", dir.path().display());
        assert!(error.contains(&why), "{mode:?}: {error}");
    }
    // A root that is missing names no node, wherever it would be.
    let mut options = options(false);
    let missing = dir.path().join("missing");
    options.find = Find {
        dev_root: missing.clone(),
        driver_root: missing.clone(),
        ..Find::new(Mode::Nvml)
    };
    let error = generate(&options).unwrap_err().message();
    assert!(error.starts_with("no device nodes"), "{error}");
    assert!(error.contains(&*missing.to_string_lossy()), "{error}");
}

/// Contains every kind of intent.
fn plan() -> Plan {
    Plan {
        common: vec![
            proc_with(ProcDevices::Own),
            Intent::best_effort(What::EglProfile(EglProfile {
                devices: EglDevices::Own,
            })),
            mount("/usr/bin/nvidia-smi", FileClass::Program),
            mount("/usr/lib64/libcuda.so.535.1", FileClass::Library),
            Intent::best_effort(What::Link(Link {
                at: Place::At(ContainerPath::new("/usr/lib64/libcuda.so.1")),
                target: "libcuda.so.535.1".into(),
                replaces: false,
            })),
            Intent::best_effort(What::CudaCompat(CudaCompat {
                host_driver: "535.1".into(),
                host_cuda: None,
                root: None,
                how: CompatUse::Search,
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
        ],
        devices: vec![gpu(0), gpu(1)],
    }
}

/// Compares a specification with its golden file; writes that file instead if `NVC_WRITE_GOLDEN` is set.
fn compare(name: &str, merged: bool) {
    let options = options(merged);
    let Plan { common, devices } = plan();
    let found = Content {
        devices: devices.into_iter().map(devices::found).collect(),
        common,
        ..Content::default()
    };
    let spec = document::spec(&options, "gpu", &found.devices, &found).unwrap();
    let format = Format::named(name.rsplit('.').next().unwrap()).unwrap();
    let text = emit::text(&spec, format, None);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/golden");
    let file = file.join(name);
    if std::env::var_os("NVC_WRITE_GOLDEN").is_some() {
        fs::write(&file, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(file).unwrap(), text);
}

#[test]
fn separate_hooks() {
    compare("separate.yaml", false);
}

#[test]
fn one_hook() {
    compare("merged.json", true);
}
