//! Tests what specifications get.

use super::*;

#[test]
fn libraries_of_the_version_with_their_links() {
    let tree = Tree::new();
    let at = |name: &str| format!("/usr/lib64/{name}");
    for (name, soname) in [
        ("libcuda.so.550.1", "libcuda.so.1"),
        ("libnvidia-new.so.550.1", "libnvidia-new.so.1"),
        ("vdpau/libvdpau_nvidia.so.550.1", "libvdpau_nvidia.so.1"),
        ("libcuda.so.470.2", "libcuda.so.1"),
    ] {
        tree.library(&at(name), &object().soname(soname));
    }
    tree.file(&at("libnvidia-nvvm70.so.4"), "");
    tree.link("libcuda.so.550.1", &at("libcuda.so.1"));
    // A second name for the same directory.
    tree.link("usr/lib64", "/lib64");
    assert_eq!(
        lines(tree.all().of_class(FileClass::Library)),
        [
            "/usr/lib64/libcuda.so.550.1 libcuda.so->libcuda.so.1 libcuda.so.1->libcuda.so.550.1",
            "/usr/lib64/libnvidia-new.so.550.1 libnvidia-new.so.1->libnvidia-new.so.550.1",
            "/usr/lib64/vdpau/libvdpau_nvidia.so.550.1 libvdpau_nvidia.so.1->libvdpau_nvidia.so.550.1",
            "/usr/lib64/libnvidia-nvvm70.so.4",
        ]
    );
    let error = find(&tree.root(), Some("535.9"), &FileSearch::new(Contents::All)).unwrap_err();
    assert_eq!(
        error.message(),
        "there are no libraries of driver 535.9: the libraries are of driver 550.1"
    );
    // The hook finds the libraries of such a container, or fails.
    let graphics = FileSearch::new(Contents::Graphics);
    assert!(find(&tree.root(), Some("535.9"), &graphics).is_ok());
}

#[test]
fn other_libraries_are_found_by_name() {
    let tree = Tree::new();
    tree.libraries("/usr/lib64", &["libcuda"]);
    tree.file("/usr/lib64/libibmad.so.5.3.2", "");
    tree.link("libibmad.so.5.3.2", "/usr/lib64/libibmad.so.5");
    tree.file("/opt/libEGL.so", "");
    tree.cache(&[(X64, "libEGL.so", "/opt/libEGL.so")]);
    let wanted = FileSearch {
        further: vec!["libibumad.so.3", "libibmad.so.5"],
        explicit: true,
        ..FileSearch::new(Contents::All)
    };
    assert_eq!(
        tree.requested(&wanted, FileClass::Library),
        [
            "/usr/lib64/libcuda.so.550.1 libcuda.so->libcuda.so.1",
            "/opt/libEGL.so",
            "/usr/lib64/libibmad.so.5.3.2"
        ]
    );
}

#[test]
fn graphics_files_go_to_their_standard_places() {
    let tree = Tree::new();
    tree.libraries("/usr/lib64", &["libcuda", "libnvidia-allocator"]);
    tree.file("/usr/lib64/libnvidia-egl-gbm.so.1.1.0", "");
    tree.link(
        "libnvidia-egl-gbm.so.1.1.0",
        "/usr/lib64/libnvidia-egl-gbm.so.1",
    );
    // A package of the distribution's own.
    tree.file("/usr/lib/libnvidia-egl-wayland.so.1.1.9", "");
    tree.link(
        "libnvidia-egl-wayland.so.1.1.9",
        "/usr/lib/libnvidia-egl-wayland.so.1",
    );
    tree.file("/usr/lib64/nvidia/xorg/libglxserver_nvidia.so.550.1", "");
    tree.file("/usr/lib/xorg/modules/drivers/nvidia_drv.so", "");
    tree.file("/etc/glvnd/egl_vendor.d/10_nvidia.json", "{}");
    tree.file("/usr/share/nvidia/nvoptix.bin", "");
    tree.file("/usr/share/nvidia/nvidia-application-profiles-550.1-rc", "");
    tree.file("/usr/share/nvidia/nvidia-application-profiles-535.9-rc", "");
    tree.file("/vulkan/icd.d/nvidia_icd.json", "{}");
    let info = tree.all();
    assert_eq!(
        lines(info.graphics.iter()),
        [
            "/usr/lib64/libnvidia-egl-gbm.so.1.1.0",
            "/usr/lib/libnvidia-egl-wayland.so.1.1.9",
            "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
            "/usr/lib64/nvidia/xorg/libglxserver_nvidia.so.550.1 libglxserver_nvidia.so->libglxserver_nvidia.so.550.1",
            "/etc/glvnd/egl_vendor.d/10_nvidia.json at /usr/share/glvnd/egl_vendor.d/10_nvidia.json",
            "/usr/share/nvidia/nvoptix.bin",
            "/usr/share/nvidia/nvidia-application-profiles-550.1-rc",
            "/vulkan/icd.d/nvidia_icd.json at /etc/vulkan/icd.d/nvidia_icd.json",
        ]
    );
}

#[test]
fn manifests_lie_beside_the_libraries_too() {
    const VENDOR: &str = "glvnd/egl_vendor.d/10_nvidia.json";
    for (home, share) in [
        ("/run/opengl-driver/lib", "/run/opengl-driver/share"),
        ("/opt/nvidia/lib64", "/opt/nvidia/share"),
        ("/opt/tree/lib/x86_64-linux-gnu", "/opt/tree/share"),
        ("/opt/nvidia/lib", "/opt/nvidia/etc"),
    ] {
        let tree = Tree::new();
        tree.libraries(home, &["libnvidia-ml"]);
        let file = format!("{home}/libnvidia-ml.so.550.1");
        tree.cache(&[(X64, "libnvidia-ml.so.1", &file)]);
        tree.file(&format!("{share}/{VENDOR}"), "{}");
        let at = format!("{share}/{VENDOR} at /usr/share/{VENDOR}");
        assert_eq!(lines(tree.all().graphics.iter()), [at], "{home}");
        // The usual directories come first, and the caller's before them.
        tree.file(&format!("/usr/share/{VENDOR}"), "{}");
        let usual = format!("/usr/share/{VENDOR}");
        assert_eq!(lines(tree.all().graphics.iter()), [usual], "{home}");
        tree.file(&format!("/srv/{VENDOR}"), "{}");
        let wanted = FileSearch {
            configuration: paths(&["/srv"]),
            ..FileSearch::new(Contents::All)
        };
        let info = find(&tree.root(), Some(V), &wanted).unwrap();
        assert_eq!(
            info.graphics[0].path,
            HostPath::new(format!("/srv/{VENDOR}"))
        );
    }
}

#[test]
fn a_library_that_a_manifest_names_is_the_drivers() {
    let tree = Tree::new();
    tree.libraries(
        "/usr/lib64",
        &["libcuda", "libGLX_nvidia", "libnvidia-present"],
    );
    tree.library("/opt/libodd.so.3", &object());
    tree.link("libGLX_nvidia.so.550.1", "/usr/lib64/libGLX_nvidia.so.0");
    let share = |name: &str| format!("/usr/share/{name}");
    tree.file(
        &share("vulkan/icd.d/nvidia_icd.json"),
        r#"{"ICD": {"library_path": "/usr/lib64/libGLX_nvidia.so.0"}}"#,
    );
    tree.file(
        &share("vulkan/implicit_layer.d/nvidia_layers.json"),
        r#"{"layers": [{"library_path": "libnvidia-present.so.550.1"}, {"library_path": "../x.so"}]}"#,
    );
    tree.file(&share("OpenCL/vendors/nvidia.icd"), "/opt/libodd.so.3\n");
    tree.file(&share("glvnd/egl_vendor.d/10_nvidia.json"), "no JSON");
    let libraries = |contents| {
        let info = find(&tree.root(), Some(V), &FileSearch::new(contents)).unwrap();
        let libraries = info
            .graphics
            .iter()
            .filter(|file| file.class == FileClass::Library);
        lines(libraries)
    };
    // A request has those of the catalogue; a specification lists all of the version anyway.
    assert_eq!(
        libraries(Contents::Graphics),
        ["/opt/libodd.so.3", "/usr/lib64/libnvidia-present.so.550.1"]
    );
    assert_eq!(libraries(Contents::All), ["/opt/libodd.so.3"]);
}

#[test]
fn a_library_without_its_manifest_is_told() {
    let tree = Tree::new();
    tree.libraries("/usr/lib64", &["libcuda", "libEGL_nvidia", "libGLX_nvidia"]);
    tree.file("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json", "{}");
    let warnings = tree.all().missing_manifests();
    assert_eq!(
        warnings,
        [
            "no program finds /usr/lib64/libEGL_nvidia.so.550.1: its manifest glvnd/egl_vendor.d/10_nvidia.json is missing"
        ]
    );
}
