//! Creates container roots and runs ldconfig in them as the library does: on a thread in its own mount namespace.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use libnvc::options::Ldconfig;
use libnvc::testing::{PreparedLdconfig, Snapshot};
use libnvc::{ContainerPath, Error};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nvc_testkit::elf::{Machine, SharedObject};
use nvc_testkit::machine::Scratch;
use nvc_testkit::rootfs::{Builder, Layout};
use nvc_testkit::userland;

/// A Debian root with one library that ldconfig has not yet listed.
pub(crate) struct Root {
    pub(crate) scratch: Scratch,
    pub(crate) path: PathBuf,
}

pub(crate) const LIBRARY_DIR: &str = "/usr/lib/x86_64-linux-gnu";

impl Root {
    pub(crate) fn new() -> Self {
        let scratch = Scratch::new().unwrap();
        fs::write(scratch.join("canary"), "host").unwrap();
        let builder = Builder::new(Layout::Debian)
            .no_programs()
            .directory(LIBRARY_DIR)
            .directory("/etc/ld.so.conf.d");
        let path = builder.build(scratch.join("root")).unwrap();
        let root = Self { scratch, path };
        root.add_library("libnew.so.1.0", "libnew.so.1");
        root
    }

    /// Wraps an existing root.
    pub(crate) fn at(path: PathBuf) -> Self {
        let scratch = Scratch::new().unwrap();
        Self { scratch, path }
    }

    pub(crate) fn join(&self, path: &str) -> PathBuf {
        self.path.join(path.trim_start_matches('/'))
    }

    pub(crate) fn add_library(&self, file: &str, soname: &str) {
        let bytes = SharedObject::new(Machine::X86_64).soname(soname).bytes();
        fs::write(self.join(LIBRARY_DIR).join(file), bytes).unwrap();
    }

    /// Returns the lines of `ldconfig -p` for the root's cache.
    pub(crate) fn cached(&self) -> String {
        let output = Command::new(userland::host_ldconfig())
            .args(["-p", "-C"])
            .arg(self.join("/etc/ld.so.cache"))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn has_new_library(&self) -> bool {
        let link = fs::read_link(self.join(LIBRARY_DIR).join("libnew.so.1"));
        self.cached().contains("libnew.so.1 ")
            && link.is_ok_and(|target| target == Path::new("libnew.so.1.0"))
    }
}

pub(crate) fn host_ldconfig() -> Ldconfig {
    Ldconfig::Host(userland::host_ldconfig())
}

pub(crate) fn library_directories() -> Vec<ContainerPath> {
    vec![
        ContainerPath::new(LIBRARY_DIR),
        ContainerPath::new("/usr/lib/i386-linux-gnu"),
    ]
}

/// Returns the static program that runs in place of ldconfig.
pub(crate) fn probe() -> &'static Path {
    static PROBE: OnceLock<(Scratch, PathBuf)> = OnceLock::new();
    let (_, path) = PROBE.get_or_init(|| {
        let directory = Scratch::new().unwrap();
        let path = directory.join("probe");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ldconfig");
        let done = Command::new("cc")
            .args(["-static", "-O1", "-o"])
            .arg(&path)
            .args(["probe.c", "attempts.c"].map(|name| sources.join(name)))
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        (directory, path)
    });
    path
}

/// Prepares a program to run.
pub(crate) fn prepare(
    program: &Ldconfig,
    directories: &[ContainerPath],
    no_pivot: bool,
) -> Result<PreparedLdconfig, Error> {
    PreparedLdconfig::open(program, directories, no_pivot)
}

pub(crate) fn prepared_probe(mode: &str) -> PreparedLdconfig {
    marked_probe(mode, "/")
}

/// Prepares the probe with one more directory, which distinguishes it from those of other tests.
pub(crate) fn marked_probe(mode: &str, mark: &str) -> PreparedLdconfig {
    let program = Ldconfig::Host(probe().to_owned());
    let directories = [mode, mark].map(ContainerPath::new);
    prepare(&program, &directories, false).unwrap()
}

/// Deviations of a test's run from the default.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    pub(crate) owner: u32,
    pub(crate) read_only: bool,
    /// Emulate a kernel without the newer mount calls.
    pub(crate) old_kernel: bool,
    /// The root is an ordinary directory, as in manual experiments.
    pub(crate) no_mount: bool,
}

impl Run {
    pub(crate) fn prepared(self, root: &Root, prepared: &PreparedLdconfig) -> Result<(), Error> {
        self.in_namespace(root, |rootfs| {
            prepared.run(rootfs.as_fd(), self.owner, self.owner)
        })
    }

    pub(crate) fn host(self, root: &Root) -> Result<(), Error> {
        let prepared = prepare(&host_ldconfig(), &library_directories(), false)?;
        self.prepared(root, &prepared)
    }

    /// Takes a snapshot, changes the root, and restores everything.
    pub(crate) fn restoring(self, root: &Root, change: impl FnOnce() + Send) -> Result<(), Error> {
        self.in_namespace(root, |rootfs| {
            let descriptors = File::open("/proc/thread-self/fd").unwrap();
            let memory = Snapshot::of_root_alone(rootfs, descriptors, &library_directories())?;
            memory.clear_way()?;
            change();
            memory.restore()
        })
    }

    fn in_namespace<T: Send>(self, root: &Root, run: impl FnOnce(&File) -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
                let none = None::<&str>;
                let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
                mount(none, "/", none, private, none).unwrap();
                // As with runtimes: the root is a mount point, with its kernel filesystems mounted.
                let path = Some(&root.path);
                if !self.no_mount {
                    mount(path, &root.path, none, MsFlags::MS_BIND, none).unwrap();
                }
                for kernel in ["proc", "sys"] {
                    let at = root.join(kernel);
                    let kind = MsFlags::MS_BIND | MsFlags::MS_REC;
                    mount(Some(&Path::new("/").join(kernel)), &at, none, kind, none).unwrap();
                }
                if self.read_only {
                    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
                    mount(none, &root.path, none, flags, none).unwrap();
                }
                let rootfs = open_root(root);
                if self.old_kernel {
                    forget_new_calls();
                }
                run(&rootfs)
            });
            thread.join().unwrap()
        })
    }
}

fn open_root(root: &Root) -> File {
    use nix::fcntl::OFlag;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut options = File::options();
    let options = options.read(true).custom_flags(flags.bits());
    options.open(&root.path).unwrap()
}

/// Runs ldconfig on the calling thread in the mount namespace of a process.
pub(crate) fn run_in_container(
    pid: u32,
    root: &Root,
    prepared: &PreparedLdconfig,
    old_kernel: bool,
) -> Result<(), Error> {
    let namespace = File::open(format!("/proc/{pid}/ns/mnt")).unwrap();
    unshare(CloneFlags::CLONE_FS).unwrap();
    setns(namespace, CloneFlags::CLONE_NEWNS).unwrap();
    let rootfs = open_root(root);
    if old_kernel {
        forget_new_calls();
    }
    prepared.run(rootfs.as_fd(), 0, 0)
}

/// Makes the mount API and close_range(2) fail as on Linux 4.18, in this thread and its children.
fn forget_new_calls() {
    use seccompiler::{SeccompAction, SeccompFilter};
    let calls = [
        (libc::SYS_open_tree, vec![]),
        (libc::SYS_move_mount, vec![]),
        (libc::SYS_mount_setattr, vec![]),
        (libc::SYS_close_range, vec![]),
        (libc::SYS_clone3, vec![]),
    ];
    let filter = SeccompFilter::new(
        calls.into_iter().collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS.cast_unsigned()),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: seccompiler::BpfProgram = filter.unwrap().try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

/// Waits for the descendant of a process that spins in a sandbox with this mark, and returns its pid.
pub(crate) fn spinning(caller: &str, mark: &str) -> u32 {
    let ending = format!("\0/spin\0{mark}\0");
    for _ in 0..4000 {
        for thread in fs::read_dir(format!("/proc/{caller}/task")).unwrap() {
            let children = thread.unwrap().path().join("children");
            for pid in fs::read_to_string(children)
                .unwrap_or_default()
                .split_whitespace()
            {
                let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline"));
                if arguments.is_ok_and(|arguments| arguments.ends_with(&ending)) {
                    return pid.parse().unwrap();
                }
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it does not run");
}
