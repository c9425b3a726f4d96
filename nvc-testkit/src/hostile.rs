//! Generates container roots that mean harm, for proptest: at any component of any path that `configure` touches, links that
//! lead out, loop or dangle, things that are no files, things that cannot be changed, mounts and overlays.
//!
//! A root is plain data, so that proptest can shrink and print it, and is built inside a mount namespace of its own. Building
//! follows the links that were made before, within the root: that is how one trap comes to stand behind another.

mod build;

use std::path::Path;

use proptest::prelude::*;
use proptest::sample::select;

pub use build::{Place, build, canary};

/// A root.
#[derive(Clone, Debug)]
pub struct Root {
    /// How its libraries are laid out.
    pub layout: Layout,
    /// What it is mounted as.
    pub mounted: Mounted,
    /// What is wrong with it, one after the other.
    pub spots: Vec<Spot>,
}

/// Where libraries go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Multiarch directories.
    Debian,
    /// /usr/lib64.
    Rhel,
    /// Mount points and nothing else.
    Bare,
}

/// What the root directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounted {
    /// A bind mount.
    Bind,
    /// A bind mount whose mounts show at its peers.
    Shared,
    /// An overlay.
    Overlay,
    /// A read-only bind mount.
    ReadOnly,
}

/// Something wrong in a root.
#[derive(Clone, Debug)]
pub struct Spot {
    /// Where, without a leading slash; `LIB`, `LIB32` and `VER` stand for the driver's words.
    pub path: &'static str,
    /// What.
    pub thing: Thing,
}

/// What is in a place.
#[derive(Clone, Debug)]
pub enum Thing {
    /// Nothing.
    Nothing,
    /// A symbolic link.
    Link(Link),
    /// A file with content that is none of ours.
    File(u32),
    /// An empty file, as a mount point for files.
    Empty,
    /// A directory with permission bits.
    Directory(u32),
    /// A fifo.
    Fifo,
    /// A socket.
    Socket,
    /// A device: character or not, major and minor number.
    Device(bool, u64, u64),
    /// What is there, made immutable.
    Immutable,
    /// What is there, mounted read-only.
    ReadOnly,
    /// What is there, as the lower layer of an overlay.
    Overlay,
    /// A tmpfs; perhaps one that looks as if an earlier run had mounted it.
    Tmpfs(bool),
    /// A procfs.
    Proc,
    /// Another place of the root, mounted.
    Bind(&'static str),
}

/// Where a link leads.
#[derive(Clone, Debug)]
pub enum Link {
    /// To the same path in the canary, by its absolute name.
    Canary,
    /// The same, climbing.
    Climbing,
    /// The same, by way of a link of procfs that means some process's root.
    Magic(&'static str),
    /// To an open directory of whoever follows it.
    Descriptor(u32),
    /// To the canary's directory itself, however deep the link is.
    CanaryTop,
    /// To itself.
    Loop,
    /// Through more links than any kernel follows.
    Chain,
    /// To nothing.
    Dangling,
    /// Inside the root, by an absolute name.
    Absolute(&'static str),
    /// Inside the root, by way of many parents.
    Relative(&'static str),
}

/// The paths that `configure` touches, with every way to them.
pub const PATHS: &[&str] = &[
    "usr",
    "usr/bin",
    "usr/bin/nvidia-smi",
    "usr/bin/nvidia-debugdump",
    "bin",
    "sbin",
    "sbin/ldconfig",
    "lib",
    "lib64",
    "usr/lib",
    "LIB",
    "LIB/libcuda.so.VER",
    "LIB/libcuda.so.1",
    "LIB/libcuda.so",
    "LIB/libnvidia-ml.so.VER",
    "LIB/libnvidia-ml.so.1",
    "LIB/libGLX_indirect.so.0",
    "LIB32",
    "LIB32/libcuda.so.VER",
    "LIB32/libnvidia-ml.so.VER",
    "usr/lib64",
    "usr/lib64/libcuda.so.VER",
    "usr/lib32",
    "lib/firmware",
    "lib/firmware/nvidia",
    "lib/firmware/nvidia/VER",
    "lib/firmware/nvidia/VER/gsp_ga10x.bin",
    "var",
    "var/run",
    "run",
    "var/run/nvidia-persistenced",
    "var/run/nvidia-persistenced/socket",
    "run/nvidia-fabricmanager",
    "run/nvidia-fabricmanager/socket",
    "tmp",
    "tmp/nvidia-mps",
    "dev",
    "dev/nvidiactl",
    "dev/nvidia0",
    "dev/nvidia-uvm",
    "dev/nvidia-caps",
    "dev/nvidia-caps/nvidia-cap147",
    "proc",
    "proc/driver",
    "proc/driver/nvidia",
    "proc/driver/nvidia/params",
    "proc/driver/nvidia/gpus",
    "proc/driver/nvidia/gpus/0000:3b:00.0",
    "proc/driver/nvidia/capabilities",
    "proc/self",
    "etc",
    "etc/debian_version",
    "etc/ld.so.conf",
    "etc/ld.so.conf.d",
    "etc/ld.so.conf.d/image.conf",
    "etc/ld.so.cache",
    "etc/ld.so.cache~",
    "var/cache",
    "var/cache/ldconfig",
    "var/cache/ldconfig/aux-cache",
    "var/cache/ldconfig/aux-cache~",
    "etc/nvidia",
    "etc/nvidia/nvidia-application-profiles-rc.d",
    "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf",
    "usr/local",
    "usr/local/cuda",
    "usr/local/cuda/compat",
    "usr/local/cuda/compat/libcuda.so.999.1",
    "usr/local/cuda/compat/libcuda.so.1",
    "usr/local/cuda/compat/libnvidia-ptxjitcompiler.so.999.1",
    "sys",
];

/// Whether what belongs at one of the paths is a file.
pub fn is_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ends = [
        "cache",
        "~",
        ".bin",
        "socket",
        ".conf",
        "nvidia-smi",
        "nvidia-debugdump",
        "sbin/ldconfig",
    ];
    let of_device = path.parent().is_some_and(|parent| parent.ends_with("dev"));
    let by_name = name.contains(".so.") && !name.ends_with(".d") || name.ends_with(".so");
    by_name
        || ends
            .iter()
            .any(|end| name.ends_with(end) && name != "cache")
        || of_device && name != "nvidia-caps"
        || name.starts_with("nvidia-cap1")
        || name == "params"
        || name == "debian_version"
        || name == "ldconfig" && path.parent().is_some_and(|parent| parent.ends_with("sbin"))
}

/// Roots with up to six things wrong.
pub fn roots() -> impl Strategy<Value = Root> {
    let layout = select(&[Layout::Debian, Layout::Debian, Layout::Rhel, Layout::Bare][..]);
    let mounted = prop_oneof![
        6 => Just(Mounted::Bind),
        1 => Just(Mounted::Shared),
        2 => Just(Mounted::Overlay),
        1 => Just(Mounted::ReadOnly),
    ];
    let spots = prop::collection::vec(spot(), 1..=6);
    (layout, mounted, spots).prop_map(|(layout, mounted, spots)| Root {
        layout,
        mounted,
        spots,
    })
}

fn spot() -> impl Strategy<Value = Spot> {
    (select(PATHS), thing()).prop_map(|(path, thing)| Spot { path, thing })
}

fn thing() -> impl Strategy<Value = Thing> {
    let mode = select(&[0o000_u32, 0o444, 0o555, 0o755, 0o1777, 0o4755][..]);
    let device = select(
        &[
            (true, 1, 3),
            (true, 4000, 0),
            (false, 4000, 0),
            (true, 1, 5),
        ][..],
    );
    prop_oneof![
        12 => link().prop_map(Thing::Link),
        2 => Just(Thing::Nothing),
        1 => mode.clone().prop_map(Thing::File),
        1 => Just(Thing::Empty),
        2 => mode.prop_map(Thing::Directory),
        1 => Just(Thing::Fifo),
        1 => Just(Thing::Socket),
        1 => device.prop_map(|(character, major, minor)| Thing::Device(character, major, minor)),
        2 => Just(Thing::Immutable),
        1 => Just(Thing::ReadOnly),
        2 => Just(Thing::Overlay),
        1 => any::<bool>().prop_map(Thing::Tmpfs),
        1 => Just(Thing::Proc),
        2 => select(PATHS).prop_map(Thing::Bind),
    ]
}

fn link() -> impl Strategy<Value = Link> {
    let magic: &[_] = &[
        "/proc/self/root",
        "/proc/thread-self/root",
        "/proc/1/root",
        "/proc/PID/root",
        "/proc/self/cwd",
        "/proc/self/task/../root",
    ];
    prop_oneof![
        2 => Just(Link::Canary),
        2 => Just(Link::Climbing),
        2 => select(magic).prop_map(Link::Magic),
        1 => (0_u32..20).prop_map(Link::Descriptor),
        1 => Just(Link::CanaryTop),
        1 => Just(Link::Loop),
        1 => Just(Link::Chain),
        1 => Just(Link::Dangling),
        2 => select(PATHS).prop_map(Link::Absolute),
        2 => select(PATHS).prop_map(Link::Relative),
    ]
}
