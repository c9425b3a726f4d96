//! Compares specifications of a fixed plan with golden files, which `scripts/test-cdi.sh` gives to the reference library.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use libnvc::host::{DeviceRole, FileClass};
use libnvc::plan::{
    CapabilityFiles, CompatUse, CudaCompat, DriverProc, EglProfile, Intent, LibraryPath, Link,
    Part, PartKind, Place, Plan, What,
};
use libnvc::render::cdi as rendered;
use libnvc::{ContainerPath, HostPath};

use super::*;
use crate::cdi::emit::{self, Format};

fn options(merged: bool) -> Options {
    Options {
        mode: Mode::Nvml,
        driver_root: "/".into(),
        dev_root: "/".into(),
        naming: vec![Naming::Index, Naming::Uuid],
        ids: Vec::new(),
        no_all: false,
        vendor: "nvidia.com".into(),
        class: "gpu".into(),
        hooks: Hooks {
            program: HookProgram {
                path: "/usr/bin/nvidia-cdi-hook".into(),
            },
            disabled: Default::default(),
            enabled: Default::default(),
            merged,
        },
        ldconfig: None,
        files: Files::Listed,
        config_search: Vec::new(),
        library_search: Vec::new(),
        csv_files: Vec::new(),
        csv_ignore: Vec::new(),
        gids: false,
        flags: Flags::default(),
        path: String::new(),
        data_dirs: String::new(),
    }
}

fn node(path: &str, minor: u32) -> Intent {
    let node = libnvc::host::DeviceNode::new(path, 195, minor);
    Intent::required(What::Device(libnvc::plan::Device {
        at: ContainerPath::from(&node.path),
        source: node.path,
        number: node.number,
        owner: None,
        bind: true,
        allow: true,
    }))
}

fn file(path: &str, class: FileClass) -> Intent {
    let path = HostPath::new(path);
    let place = Place::same(&path);
    Intent::mount(path, place, class)
}

fn proc_of(gpus: &[&str]) -> Intent {
    Intent::required(What::DriverProc(DriverProc {
        gpus: gpus.iter().map(ToString::to_string).collect(),
        capabilities: CapabilityFiles::None,
    }))
}

fn gpu(index: u32) -> Part {
    Part {
        kind: PartKind::Gpu,
        names: vec![index.to_string(), format!("GPU-{index}")],
        intents: vec![
            node(&format!("/dev/nvidia{index}"), index),
            proc_of(&[&format!("0000:0{index}:00.0")]),
        ],
    }
}

/// Contains every kind of intent.
fn plan() -> Plan {
    Plan {
        common: vec![
            proc_of(&[]),
            Intent::best_effort(What::EglProfile(EglProfile { minors: vec![] })),
            file("/usr/bin/nvidia-smi", FileClass::Program),
            file("/usr/lib64/libcuda.so.535.1", FileClass::Library),
            Intent::best_effort(What::Link(Link {
                at: Place::At(ContainerPath::new("/usr/lib64/libcuda.so.1")),
                target: "libcuda.so.535.1".into(),
            })),
            Intent::best_effort(What::CudaCompat(CudaCompat {
                host_driver: "535.1".into(),
                host_cuda: None,
                root: None,
                how: CompatUse::Search,
                capabilities: libnvc::request::Capabilities::all(),
            })),
            file("/run/nvidia-persistenced/socket", FileClass::Socket),
            node(DeviceRole::Control.path(), 255),
            Intent::required(What::LibraryPath(LibraryPath {
                directories: vec![Place::At(ContainerPath::new("/usr/lib64"))],
            })),
        ],
        devices: vec![gpu(0), gpu(1)],
    }
}

/// With `NVC_WRITE_GOLDEN` set, writes the file instead.
fn compare(name: &str, merged: bool) {
    let options = options(merged);
    let content = rendered::content(&plan(), &rendered::Options::default());
    let devices = content.devices.into_iter();
    let found = Found {
        devices: devices
            .flat_map(|device| devices::named(&options, device))
            .collect(),
        common: driver::written(content.common, &options),
        ..Found::default()
    };
    let spec = spec(&options, "gpu", found.devices.clone(), &found).unwrap();
    let format = Format::named(name.rsplit('.').next().unwrap()).unwrap();
    let text = emit::text(&spec, format, None);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generate/golden");
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
