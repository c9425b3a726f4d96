//! Tests what requests can have.

use super::*;

#[test]
fn a_library_must_be_one_of_the_version() {
    let tree = Tree::new();
    for name in ["libnvidia-cfg.so.550.1", "libnvidia-fbc.so.550.1"] {
        tree.file(&format!("{MULTIARCH}/{name}"), "text");
    }
    tree.library(&format!("{MULTIARCH}/libnvidia-ml.so.550.1"), &narrow());
    tree.library(&format!("{MULTIARCH}/libnvidia-ml.so.1"), &object());
    fs::create_dir(
        HostPath::new(MULTIARCH)
            .below(tree.0.path())
            .join("libcuda.so.550.1"),
    )
    .unwrap();
    assert!(tree.catalogue().is_empty());
    // A sound one elsewhere counts.
    tree.libraries("/usr/lib", &["libnvidia-cfg"]);
    assert_eq!(tree.catalogue(), ["/usr/lib/libnvidia-cfg.so.550.1"]);
    // The version must match as a whole.
    for other in ["50.1", "550", "550.1.1"] {
        let info = find(&tree.root(), Some(other), &request()).unwrap();
        assert!(info.files.is_empty(), "{other}");
    }
}

#[test]
fn the_thread_variant_must_be_todays() {
    let tree = Tree::new();
    let path = "/usr/lib64/libnvidia-tls.so.550.1";
    tree.library(path, &object());
    assert_eq!(tree.catalogue(), [path]);
    let object = || SharedObject::new(Machine::X86_64);
    for object in [object().abi_tag([0, 2, 2, 5]), object()] {
        tree.library(path, &object);
        assert!(tree.catalogue().is_empty());
    }
}

#[test]
fn mesa_is_not_taken_for_legacy_gl() {
    let tree = Tree::new();
    tree.libraries("/usr/lib64", &["libGL"]);
    let mesas = SharedObject::new(Machine::X86_64).needed("libc.so.6");
    tree.library("/usr/lib64/libEGL.so.550.1", &mesas);
    let wanted = FileSearch::new(Contents::Catalogue(DriverOptions::NO_GLVND));
    let found = tree.requested(&wanted, FileClass::Library);
    assert_eq!(found, ["/usr/lib64/libGL.so.550.1"]);
    assert!(tree.catalogue().is_empty());
}

#[test]
fn under_wsl_libraries_have_no_version() {
    let tree = Tree::new();
    for path in [
        "/usr/lib/wsl/lib/libcuda.so.1",
        "/opt/libcuda.so.1",
        "/opt/libdxcore.so",
    ] {
        tree.library(path, &object());
    }
    tree.cache(&[
        (X64, "libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"),
        (X64, "libcuda.so.1", "/opt/libcuda.so.1"),
        (X64, "libdxcore.so", "/opt/libdxcore.so"),
    ]);
    tree.program("/store/nvidia-smi", b"\x7fELF");
    tree.program("/usr/bin/nvidia-smi", b"\x7fELF");
    let store = WslDriver {
        store: HostPath::new("/store"),
        components: Vec::new(),
    };
    let found = find_wsl(&tree.root(), DriverOptions::empty(), &request(), &[store]).unwrap();
    assert_eq!(
        lines(found.files.iter()),
        [
            "/store/nvidia-smi at /usr/bin/nvidia-smi",
            "/usr/lib/wsl/lib/libcuda.so.1 libcuda.so->libcuda.so.1",
            "/opt/libdxcore.so",
        ]
    );
}

#[test]
fn a_library_brings_what_it_needs() {
    let tree = Tree::new();
    let needing = |needed: &str| {
        SharedObject::new(Machine::X86_64)
            .needed("libc.so.6")
            .needed(needed)
    };
    let at = |stem: &str| format!("/usr/lib64/{stem}.so.{V}");
    tree.library(&at("libGLX_nvidia"), &needing("libnvidia-glcore.so.550.1"));
    tree.library(
        &at("libnvidia-glcore"),
        &needing("libnvidia-gpucomp.so.550.1"),
    );
    tree.library(&at("libnvidia-gpucomp"), &needing("libm.so.6"));
    // By a SONAME without the version.
    tree.library(&at("libnvidia-encode"), &needing("libnvcuvid.so.1"));
    tree.library(
        &at("libnvcuvid"),
        &needing("libc.so.6").soname("libnvcuvid.so.1"),
    );
    let info = find(&tree.root(), Some(V), &request()).unwrap();
    let needs = |stem: &str| {
        let mut files = info.files.iter();
        let file = files.find(|file| file.path.file_name().to_string_lossy().starts_with(stem));
        file.unwrap().needs.join(" ")
    };
    assert_eq!(needs("libGLX_nvidia"), "libnvidia-glcore.so.550.1");
    assert_eq!(needs("libnvidia-glcore"), "libnvidia-gpucomp.so.550.1");
    assert_eq!(needs("libnvidia-gpucomp"), "");
    assert_eq!(needs("libnvidia-encode"), "libnvcuvid.so.550.1");
    assert_eq!(
        tree.all()
            .missing_libraries(crate::capability::Capabilities::all())
            .len(),
        2
    );
}

#[test]
fn programs_of_the_usual_directories_come_first() {
    let tree = Tree::new();
    const PROGRAM: &[u8] = b"\x7fELF";
    tree.libraries("/usr/local/nvidia/lib64", &["libcuda"]);
    tree.cache(&[(
        X64,
        "libcuda.so.1",
        "/usr/local/nvidia/lib64/libcuda.so.550.1",
    )]);
    // A script calls the program beside the libraries.
    tree.program(
        "/usr/bin/nvidia-smi",
        b"#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi\n",
    );
    tree.program("/usr/local/nvidia/bin/nvidia-smi", PROGRAM);
    tree.program("/opt/bin/nvidia-smi", PROGRAM);
    tree.program("/opt/bin/nvidia-cuda-mps-server", PROGRAM);
    // Debian's alternatives, a program that is not executable, a directory.
    tree.program("/usr/lib/nvidia/current/nvidia-persistenced", PROGRAM);
    tree.link("/etc/alternatives/x", "/usr/bin/nvidia-persistenced");
    tree.link(
        "/usr/lib/nvidia/current/nvidia-persistenced",
        "/etc/alternatives/x",
    );
    tree.file("/usr/bin/nvidia-debugdump", PROGRAM);
    tree.file("/usr/bin/nv-fabricmanager/x", "");
    let wanted = FileSearch {
        programs: paths(&["/opt/bin", "/opt/bin/nvidia-smi"]),
        ..request()
    };
    let info = find(&tree.root(), Some(V), &wanted).unwrap();
    assert_eq!(
        lines(info.of_class(FileClass::Program)),
        [
            "/usr/local/nvidia/bin/nvidia-smi at /usr/bin/nvidia-smi",
            "/usr/lib/nvidia/current/nvidia-persistenced at /usr/bin/nvidia-persistenced",
            "/opt/bin/nvidia-cuda-mps-server at /usr/bin/nvidia-cuda-mps-server",
        ]
    );
    assert_eq!(info.by_path, paths(&["/opt/bin/nvidia-cuda-mps-server"]));
    assert_eq!(info.found_by_path().len(), 1);
}

#[test]
fn path_must_be_set() {
    let error = path_of(None).unwrap_err();
    assert_eq!(error.message(), "environment variable PATH not found");
    let found = path_of(Some("/bin::usr/bin".as_ref())).unwrap();
    assert_eq!(found, paths(&["/bin", "/", "/usr/bin"]));
}

#[test]
fn firmware_of_the_kernels_directories() {
    let tree = Tree::new();
    tree.file("/usr/lib/firmware/updates/nvidia/550.1/gsp_x.bin", "");
    let at = |name: &str| format!("/usr/lib/firmware/nvidia/550.1/{name}");
    for name in [
        "ucodes_x.bin",
        "ucodes.txt",
        "gsp_tu10x.bin",
        "gsp_ga10x.bin",
        "other.bin",
    ] {
        tree.file(&at(name), "");
    }
    tree.file(&at("gsp_directory.bin/x"), "");
    tree.link("/nowhere", &at("gsp_dangling.bin"));
    tree.link("usr/lib", "/lib");
    let found = tree.requested(&request(), FileClass::Firmware);
    let names = [
        "updates/nvidia/550.1/gsp_x",
        "nvidia/550.1/gsp_ga10x",
        "nvidia/550.1/gsp_tu10x",
        "nvidia/550.1/ucodes_x",
    ];
    assert_eq!(found, names.map(|name| format!("/lib/firmware/{name}.bin")));
    let without = FileSearch::new(Contents::Catalogue(DriverOptions::NO_GSP_FIRMWARE));
    assert!(tree.requested(&without, FileClass::Firmware).is_empty());
}
