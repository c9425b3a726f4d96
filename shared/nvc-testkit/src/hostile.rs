//! Generates hostile container roots for proptest. At any component of any path that `configure` touches there may be
//! links that escape, loop or dangle, special files, immutable files, mounts and overlays.
//!
//! A root is plain data, so that proptest can shrink and print it, and is built inside its own mount namespace.
//! Building follows links that were created earlier, within the root; this puts one trap behind another.

mod build;

use std::path::Path;

use proptest::prelude::*;
use proptest::sample::select;

pub use build::{Place, build, canary};

#[derive(Clone, Debug)]
pub struct Root {
    /// Layout of its libraries.
    pub layout: Layout,
    /// Mount type of the root.
    pub mounted: Mounted,
    /// Its traps, in order of creation.
    pub spots: Vec<Spot>,
}

/// Directories for libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Multiarch directories.
    Debian,
    /// /usr/lib64.
    Rhel,
    /// Mount points and nothing else.
    Bare,
}

/// Mount type of the root directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounted {
    /// A bind mount.
    Bind,
    /// A shared bind mount.
    Shared,
    Overlay,
    /// A read-only bind mount.
    ReadOnly,
}

/// A trap in a root.
#[derive(Clone, Debug)]
pub struct Spot {
    /// Path without a leading slash; `LIB`, `LIB32` and `VER` are placeholders for the driver's directories and
    /// version.
    pub path: &'static str,
    /// The object.
    pub thing: Thing,
}

/// The object at a path.
#[derive(Clone, Debug)]
pub enum Thing {
    Nothing,
    /// A symbolic link.
    Link(Link),
    /// A file with foreign content.
    File(u32),
    /// An empty file, as a mount point for files.
    Empty,
    /// A directory with permission bits.
    Directory(u32),
    Fifo,
    Socket,
    /// A device: character or not, major and minor number.
    Device(bool, u64, u64),
    /// The existing object, made immutable.
    Immutable,
    /// The existing object, mounted read-only.
    ReadOnly,
    /// The existing object, as the lower layer of an overlay.
    Overlay,
    /// A tmpfs; with true, one that looks like a mount of an earlier run.
    Tmpfs(bool),
    /// A procfs.
    Proc,
    /// A bind mount of another path of the root.
    Bind(&'static str),
}

/// Target of a link.
#[derive(Clone, Debug)]
pub enum Link {
    /// The same path in the canary, by its absolute name.
    Canary,
    /// The same, by `..`.
    Climbing,
    /// The same, through a procfs link to some process's root.
    Magic(&'static str),
    /// An open directory of the process that follows it.
    Descriptor(u32),
    /// The canary's directory itself, whatever the link's depth.
    CanaryTop,
    /// Itself.
    Loop,
    /// More links than the kernel follows.
    Chain,
    /// A missing file.
    Dangling,
    /// A path inside the root, absolute.
    Absolute(&'static str),
    /// A path inside the root, through many `..`.
    Relative(&'static str),
    /// A path inside the root, through a directory that a mount below the link's path would hide, and back by `..`.
    Detour(&'static str),
}

/// The paths that `configure` touches, with every path to them.
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
    "dev/nvidia-caps-imex-channels",
    "dev/nvidia-caps-imex-channels/channel7",
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

/// Returns true if one of the paths should be a file.
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
        || of_device && !name.starts_with("nvidia-caps")
        || name == "channel7"
        || name.starts_with("nvidia-cap1")
        || name == "params"
        || name == "debian_version"
        || name == "ldconfig" && path.parent().is_some_and(|parent| parent.ends_with("sbin"))
}

/// Returns the deepest directory of [`PATHS`] below one of them, relative to it.
pub(crate) fn deepest_below(path: &Path) -> &'static Path {
    let below = |known: &'static &str| Path::new(*known).strip_prefix(path).ok();
    let directories = PATHS.iter().filter(|known| !is_file(Path::new(known)));
    let deepest = directories
        .filter_map(below)
        .max_by_key(|below| below.components().count());
    deepest.unwrap_or(Path::new(""))
}

/// Generates roots with up to six traps.
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
        2 => select(PATHS).prop_map(Link::Detour),
    ]
}
