//! Finds the driver's programs, firmware and sockets.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::driver::mount;
use super::tree::Tree;
use crate::cdi::{Edits, Mount};

/// Programs.
const PROGRAMS: [&str; 8] = [
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-xconfig",
];

/// Where programs are besides PATH.
const DIRECTORIES: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// Sockets of daemons, below /run or /var/run; a directory of the MPS daemon.
const SOCKETS: [&str; 2] = ["nvidia-persistenced/socket", "nvidia-fabricmanager/socket"];
const MPS: &str = "/tmp/nvidia-mps";

/// Sockets stay writable, and nothing in them is run.
const OPTIONS: [&str; 5] = ["nosuid", "nodev", "rbind", "rprivate", "noexec"];

pub(super) fn programs(tree: &Tree, path: &str, edits: &mut Edits) {
    let directories: Vec<PathBuf> = path
        .split(':')
        .filter(|directory| directory.starts_with('/'))
        .chain(DIRECTORIES)
        .map(PathBuf::from)
        .collect();
    for name in PROGRAMS {
        let is_program = |path: &str| {
            let facts = std::fs::metadata(path);
            facts.is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
        };
        let found = directories
            .iter()
            .filter_map(|directory| tree.real_file(&directory.join(name)))
            .find(|file| is_program(&tree.on_host(file)));
        if let Some(file) = found {
            mount(tree, &file, edits);
        }
    }
}

pub(super) fn firmware(tree: &Tree, version: &str, edits: &mut Edits) {
    let custom =
        std::fs::read_to_string("/sys/module/firmware_class/parameters/path").unwrap_or_default();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let custom = Some(custom.trim().to_string()).filter(|path| !path.is_empty());
    let usual = [
        format!("/lib/firmware/updates/{release}"),
        "/lib/firmware/updates".into(),
        format!("/lib/firmware/{release}"),
        "/lib/firmware".into(),
    ];
    for directory in custom.into_iter().chain(usual) {
        let directory = Path::new(&directory).join("nvidia").join(version);
        // Not resolved: the kernel looks for it by this name, also where /lib is a link.
        for name in tree.names(&directory, "gsp*.bin") {
            let file = libnvc::HostPath::new(directory.join(name));
            mount(tree, &file, edits);
        }
    }
}

pub(super) fn sockets(tree: &Tree, edits: &mut Edits) {
    let sockets = SOCKETS.iter().filter_map(|socket| {
        let places = ["/run", "/var/run"]
            .iter()
            .map(|run| Path::new(run).join(socket));
        places.filter_map(|path| tree.real_file(&path)).next()
    });
    // Any user may create this name. A link there would put a file of that user's choice into the
    // specification.
    let mps = tree
        .real_file(Path::new(MPS))
        .filter(|real| real.as_path() == Path::new(MPS));
    for socket in sockets.chain(mps) {
        edits.mounts.push(Mount {
            host_path: tree.on_host(&socket),
            container_path: socket.to_string(),
            options: OPTIONS.map(String::from).to_vec(),
            kind: String::new(),
        });
    }
}
