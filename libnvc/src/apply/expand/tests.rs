//! Tests the conversion of intents to steps.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::path::{Path, PathBuf};

use super::*;
use crate::capability::Capabilities;
use crate::container::{Container, ContainerConfig, Layout, Target};
use crate::host::FileClass;
use crate::options::CudaCompatMode;
use crate::options::Ldconfig;
use crate::plan::{CompatUse, LibraryPath, Place};
use crate::request::ImageOptions;

fn image() -> ImageFacts {
    ImageFacts {
        layout: Layout {
            bins_dir: ContainerPath::new("/usr/bin"),
            libs_dir: ContainerPath::new("/usr/lib64"),
            libs32_dir: ContainerPath::new("/usr/lib"),
            cudart_dir: ContainerPath::new("/usr/local/cuda"),
        },
        compat_libraries: Vec::new(),
        ldconfig: Ldconfig::Auto,
    }
}

/// Returns a container with this root, as a hook finds it.
fn container(root: &Path) -> Container {
    let root = File::open(root).unwrap().into();
    Container::discover(ContainerConfig {
        target: Target::Here { root },
        image: ImageOptions::default(),
        compat: CudaCompatMode::Disabled,
        device_cgroup: false,
        loader: false,
        user: None,
    })
    .unwrap()
}

fn expanded(intents: &[What], image: &ImageFacts) -> Vec<Action> {
    let dir = tempfile::tempdir().unwrap();
    let nvidia = dir.path().join("proc/driver/nvidia");
    std::fs::create_dir_all(&nvidia).unwrap();
    std::fs::write(nvidia.join("params"), "ModifyDeviceFiles: 1\n").unwrap();
    let root = DriverRoot::open(dir.path()).unwrap();
    let container = container(dir.path());
    let look = ContainerView::new(&container, &root);
    let intents: Vec<_> = intents.iter().cloned().map(Intent::required).collect();
    let (steps, _) = expand(&intents, image, &root, look, None).unwrap();
    steps.into_iter().map(|step| step.action).collect()
}

fn compat(how: CompatUse) -> What {
    What::CudaCompat(CudaCompat {
        host_driver: "535.1".into(),
        host_cuda: None,
        root: None,
        how,
        capabilities: Capabilities::COMPUTE,
    })
}

fn library_path() -> What {
    What::LibraryPath(LibraryPath {
        directories: vec![
            Place::Library(PathBuf::new()),
            Place::Library32(PathBuf::new()),
        ],
        after_hooks: false,
    })
}

fn compat_image() -> ImageFacts {
    let directory = ContainerPath::new("/usr/local/cuda-12.4/compat");
    let names = [
        "libcuda.so.550.1",
        "libcuda.so.535.9",
        "libcuda.so.470.1",
        "libother.so.550.1",
    ];
    ImageFacts {
        compat_libraries: names.map(|name| directory.join(name)).to_vec(),
        ..image()
    }
}

#[test]
fn compatibility_libraries_are_bound_from_the_image() {
    let steps = expanded(&[compat(CompatUse::Mount)], &compat_image());
    let image = compat_image();
    let bind = |library: &ContainerPath| Action::Bind {
        source: Source::Image(library.clone()),
        at: ContainerPath::new("/usr/lib64").join(library.file_name()),
        kind: BindKind::Library,
    };
    let [newer, _, older, _] = image.compat_libraries.as_slice() else {
        panic!("{image:?}");
    };
    assert_eq!(steps, [bind(newer), bind(older)]);
}

#[test]
fn directories_of_newer_libraries_come_first() {
    let steps = expanded(
        &[library_path(), compat(CompatUse::Search)],
        &compat_image(),
    );
    let directories = ["/usr/local/cuda-12.4/compat", "/usr/lib64", "/usr/lib"];
    assert_eq!(
        steps,
        [Action::UpdateLdCache {
            directories: directories.map(ContainerPath::new).to_vec(),
            first: 1,
            folders: Vec::new(),
        }]
    );
}

#[test]
fn procfs_is_covered_once_before_anything_in_it() {
    let shown = |gpus: &[&str], capabilities| {
        What::DriverProc(DriverProc {
            no_new_nodes: true,
            devices: ProcDevices::Planned {
                gpus: gpus.iter().map(ToString::to_string).collect(),
                capabilities,
            },
        })
    };
    let file = HostPath::new("/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access");
    let steps = expanded(
        &[
            shown(&["0000:3b:00.0"], CapabilityFiles::None),
            shown(&[], CapabilityFiles::Some(vec![file.clone()])),
            library_path(),
            shown(&[], CapabilityFiles::All),
        ],
        &image(),
    );
    let params = TmpfsFile {
        name: "params".into(),
        mode: 0o644,
        content: "ModifyDeviceFiles: 0\n".into(),
    };
    assert_eq!(
        steps[..4],
        [
            Action::MountTmpfs {
                at: ContainerPath::new("/proc/driver/nvidia"),
                mode: 0o555,
                files: vec![params],
            },
            of_proc(&HostPath::new("/proc/driver/nvidia/gpus/0000:3b:00.0")),
            of_proc(&file),
            of_proc(&HostPath::new("/proc/driver/nvidia/capabilities")),
        ]
    );
    assert!(matches!(steps[4..], [Action::UpdateLdCache { .. }]));
}

#[test]
fn places_are_those_of_the_image() {
    let mount = |place, class| {
        let source = HostPath::new("/opt/x");
        Intent::mount(source, place, class).what
    };
    let steps = expanded(
        &[
            mount(Place::Program("x".into()), FileClass::Program),
            mount(Place::Library("vdpau/x".into()), FileClass::Library),
            mount(Place::Library32("x".into()), FileClass::Library),
            mount(Place::same(&HostPath::new("/run/x")), FileClass::Socket),
            What::EglProfile(EglProfile {
                devices: EglDevices::Planned(vec![3]),
            }),
        ],
        &image(),
    );
    let places: Vec<_> = steps
        .iter()
        .map(|step| match step {
            Action::Bind { at, kind, .. } => format!("{at} {kind:?}"),
            Action::ShowInProfile { at, minors } => format!("{at} {minors:?}"),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        places,
        [
            "/usr/bin/x Program",
            "/usr/lib64/vdpau/x Library",
            "/usr/lib/x Library",
            "/run/x Ipc",
            "/etc/nvidia/nvidia-application-profiles-rc.d [3]",
        ]
    );
}
