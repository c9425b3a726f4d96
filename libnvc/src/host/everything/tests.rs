//! Tests the search for all driver files on a synthetic host.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::symlink;

use super::*;
use crate::elf;

const LIB: &str = "/usr/lib64";

struct Tree(tempfile::TempDir);

impl Tree {
    fn file(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = HostPath::new(path).below(self.0.path());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn program(&self, path: &str) {
        use std::os::unix::fs::PermissionsExt;
        self.file(path, "");
        let path = HostPath::new(path).below(self.0.path());
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn link(&self, target: &str, path: &str) {
        symlink(target, HostPath::new(path).below(self.0.path())).unwrap();
    }

    fn find(&self) -> DriverInfo {
        let root = DriverRoot::open(self.0.path()).unwrap();
        let wanted = FileSearch {
            programs: vec![HostPath::new("/opt/bin")],
            ..FileSearch::default()
        };
        find(&root, Some("535.1"), &wanted).unwrap()
    }
}

fn lines<'a>(files: impl Iterator<Item = &'a DriverFile>) -> Vec<String> {
    let line = |file: &DriverFile| {
        let mut line = file.path.to_string();
        if let Some(at) = &file.at {
            line += &format!(" at {at}");
        }
        for link in &file.links {
            line += &format!(" {}->{}", link.name.display(), link.target.display());
        }
        line
    };
    files.map(line).collect()
}

#[test]
fn libraries_of_the_version_with_their_links() {
    let tree = Tree(tempfile::tempdir().unwrap());
    let at = |name: &str| format!("{LIB}/{name}");
    for name in [
        "libcuda.so.535.1",
        "libnvidia-new.so.535.1",
        "vdpau/libvdpau_nvidia.so.535.1",
    ] {
        tree.file(&at(name), elf::tests::build(None, None));
    }
    tree.file(&at("libcuda.so.470.2"), "");
    tree.file(&at("libnvidia-nvvm70.so.4"), "");
    tree.link("libcuda.so.535.1", &at("libcuda.so.1"));
    // A second name for the same directory.
    tree.link("usr/lib64", "/lib64");
    assert_eq!(
        lines(tree.find().of_class(FileClass::Library)),
        [
            "/usr/lib64/libcuda.so.535.1 libcuda.so->libcuda.so.1",
            "/usr/lib64/libnvidia-new.so.535.1",
            "/usr/lib64/vdpau/libvdpau_nvidia.so.535.1",
            "/usr/lib64/libnvidia-nvvm70.so.4",
        ]
    );
}

#[test]
fn graphics_files_go_to_their_standard_places() {
    let tree = Tree(tempfile::tempdir().unwrap());
    tree.file("/usr/lib64/libcuda.so.535.1", "");
    tree.file("/usr/lib64/libnvidia-allocator.so.535.1", "");
    tree.file("/usr/lib64/libnvidia-egl-gbm.so.1.1.0", "");
    tree.link(
        "libnvidia-egl-gbm.so.1.1.0",
        "/usr/lib64/libnvidia-egl-gbm.so.1",
    );
    tree.file("/usr/lib64/nvidia/xorg/libglxserver_nvidia.so.535.1", "");
    tree.file("/usr/lib/xorg/modules/drivers/nvidia_drv.so", "");
    tree.file("/etc/glvnd/egl_vendor.d/10_nvidia.json", "{}");
    tree.file("/usr/share/nvidia/nvoptix.bin", "");
    tree.file("/vulkan/icd.d/nvidia_icd.json", "{}");
    let info = tree.find();
    assert_eq!(
        lines(info.graphics.iter()),
        [
            "/usr/lib64/libnvidia-egl-gbm.so.1.1.0",
            "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
            "/usr/lib64/nvidia/xorg/libglxserver_nvidia.so.535.1 libglxserver_nvidia.so->libglxserver_nvidia.so.535.1",
            "/etc/glvnd/egl_vendor.d/10_nvidia.json at /usr/share/glvnd/egl_vendor.d/10_nvidia.json",
            "/usr/share/nvidia/nvoptix.bin",
            "/vulkan/icd.d/nvidia_icd.json at /etc/vulkan/icd.d/nvidia_icd.json",
        ]
    );
    let [gbm] = info.graphics_links.as_slice() else {
        panic!("{info:?}");
    };
    assert_eq!(gbm.at, HostPath::new("/usr/lib64/gbm/nvidia-drm_gbm.so"));
}

#[test]
fn programs_and_firmware() {
    let tree = Tree(tempfile::tempdir().unwrap());
    tree.file("/usr/lib64/libcuda.so.535.1", "");
    tree.program("/usr/lib/nvidia/current/nvidia-smi");
    tree.program("/opt/bin/nvidia-imex");
    tree.file("/usr/bin/nvidia-debugdump", "not executable");
    tree.program("/usr/bin/nv-fabricmanager");
    std::fs::create_dir_all(tree.0.path().join("usr/bin")).unwrap();
    tree.link("/usr/lib/nvidia/current/nvidia-smi", "/usr/bin/nvidia-smi");
    tree.file("/lib/firmware/updates/nvidia/535.1/gsp_x.bin", "");
    tree.file("/lib/firmware/nvidia/535.1/gsp_y.bin", "");
    tree.file("/lib/firmware/nvidia/535.1/other.bin", "");
    tree.file("/var/run/nvidia-persistenced/socket", "");
    let info = tree.find();
    assert_eq!(
        lines(info.of_class(FileClass::Program)),
        [
            "/usr/lib/nvidia/current/nvidia-smi at /usr/bin/nvidia-smi",
            "/opt/bin/nvidia-imex",
        ]
    );
    assert_eq!(
        lines(info.of_class(FileClass::Firmware)),
        [
            "/lib/firmware/updates/nvidia/535.1/gsp_x.bin",
            "/lib/firmware/nvidia/535.1/gsp_y.bin",
        ]
    );
    assert_eq!(info.daemons, Daemon::ALL);
    assert_eq!(info.of_class(FileClass::Socket).count(), 0);
}

#[test]
fn a_program_has_the_name_under_which_it_was_found() {
    let tree = Tree(tempfile::tempdir().unwrap());
    tree.file("/usr/lib64/libcuda.so.535.1", "");
    let current = "/usr/lib/nvidia/current";
    for name in ["nvidia-smi", "nvidia-debugdump", "nvidia-persistenced"] {
        tree.program(&format!("{current}/{name}"));
    }
    tree.file("/usr/bin/other", "");
    tree.file("/etc/alternatives/other", "");
    // Two links in a row, as Debian's packages have them.
    tree.link(
        "/etc/alternatives/nvidia--nvidia-smi",
        "/usr/bin/nvidia-smi",
    );
    tree.link(
        &format!("{current}/nvidia-smi"),
        "/etc/alternatives/nvidia--nvidia-smi",
    );
    tree.link("usr/bin", "/bin");
    tree.link(
        "../lib/nvidia/current/nvidia-debugdump",
        "/usr/bin/nvidia-debugdump",
    );
    let root = DriverRoot::open(tree.0.path()).unwrap();
    let found = |programs: &[&str]| {
        let wanted = FileSearch {
            programs: programs.iter().map(HostPath::new).collect(),
            ..FileSearch::default()
        };
        let info = find(&root, Some("535.1"), &wanted).unwrap();
        lines(info.of_class(FileClass::Program))
    };
    let usual = [
        "/usr/lib/nvidia/current/nvidia-smi at /usr/bin/nvidia-smi",
        "/usr/lib/nvidia/current/nvidia-debugdump at /usr/bin/nvidia-debugdump",
    ];
    assert_eq!(found(&[]), usual);
    let by_link = usual.map(|line| line.replace("at /usr/bin", "at /bin"));
    assert_eq!(found(&["/bin"]), by_link);
    assert_eq!(found(&["/bin/../lib/../bin/./"]), usual);
    assert_eq!(found(&["/usr//bin/"]), usual);
    let direct = found(&[current]);
    assert_eq!(direct[0], "/usr/lib/nvidia/current/nvidia-smi");
    assert_eq!(direct[2], "/usr/lib/nvidia/current/nvidia-persistenced");
}

#[test]
fn an_unknown_version_is_that_of_the_libraries() {
    let tree = Tree(tempfile::tempdir().unwrap());
    std::fs::create_dir_all(tree.0.path().join("usr/lib64")).unwrap();
    let root = DriverRoot::open(tree.0.path()).unwrap();
    let wanted = FileSearch::default();
    let error = find(&root, None, &wanted).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("version is unknown"), "{error:?}");
    tree.file("/usr/lib64/libcuda.so.535.1", "");
    tree.file("/usr/lib64/libnvidia-new.so.535.1", "");
    let guessed = find(&root, None, &wanted).unwrap();
    assert_eq!(guessed.versions.driver, "535.1");
    let known = find(&root, Some("535.1"), &wanted).unwrap();
    assert_eq!(
        lines(guessed.files.iter()),
        lines(known.files.iter()),
        "whoever knows the version"
    );
    assert!(find(&root, Some("470.2"), &wanted).is_err());
}

/// Writes a loader cache of 64-bit and of 32-bit libraries, by their paths.
fn cache(native: &[&str], narrow: &[&str]) -> Vec<u8> {
    const NATIVE: i32 = if cfg!(target_arch = "aarch64") {
        0x0a03
    } else {
        0x0303
    };
    const NAME: &str = "libcuda.so.1";
    let native = native.iter().map(|path| (NATIVE, NAME, *path));
    let narrow = narrow.iter().map(|path| (0x0003, NAME, *path));
    crate::ldcache::format::tests::build(&native.chain(narrow).collect::<Vec<_>>())
}

/// A driver that only the cache knows, with 32-bit libraries.
#[test]
fn the_cache_gives_libraries_of_this_width() {
    let tree = Tree(tempfile::tempdir().unwrap());
    tree.file("/srv/driver/libcuda.so.535.1", "");
    for name in ["libcuda.so.535.1", "libnvidia-allocator.so.535.1"] {
        tree.file(&format!("/usr/lib/{name}"), "");
    }
    let bytes = cache(&["/srv/driver/libcuda.so.1"], &["/usr/lib/libcuda.so.1"]);
    tree.file("/etc/ld.so.cache", bytes);
    let info = tree.find();
    assert_eq!(info.directories, [HostPath::new("/srv/driver")]);
    assert_eq!(
        lines(info.of_class(FileClass::Library)),
        ["/srv/driver/libcuda.so.535.1 libcuda.so->libcuda.so.1"]
    );
    assert!(info.graphics_links.is_empty(), "{info:?}");
}

#[test]
fn other_libraries_are_found_by_name() {
    let tree = Tree(tempfile::tempdir().unwrap());
    let at = |name: &str| format!("{LIB}/{name}");
    tree.file(&at("libcuda.so.535.1"), "");
    tree.file(&at("libibmad.so.5.3.2"), "");
    tree.link("libibmad.so.5.3.2", &at("libibmad.so.5"));
    let root = DriverRoot::open(tree.0.path()).unwrap();
    let wanted = FileSearch {
        further: vec!["libibumad.so.3", "libibmad.so.5"],
        ..FileSearch::default()
    };
    let found = find(&root, Some("535.1"), &wanted).unwrap();
    let libraries = lines(found.of_class(FileClass::Library));
    assert_eq!(
        libraries,
        [
            "/usr/lib64/libcuda.so.535.1 libcuda.so->libcuda.so.1",
            "/usr/lib64/libibmad.so.5.3.2"
        ]
    );
}
