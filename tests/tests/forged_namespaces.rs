//! Tests containers that forge the files by which root finds their namespaces: in standalone mode, `configure` enters
//! the namespace of the process it was given, or none.
//!
//! Each forgery leads to a decoy: a process in a mount namespace copied from the container's, in which everything would
//! work, and mounts would be visible.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode as Bits;
use nvc_testkit::cli;
use nvc_testkit::harness::Need::Root as NeedRoot;
use nvc_testkit::harness::{self, Test, test};
use nvc_testkit::helper::Helper;
use nvc_testkit::hostile::{Layout, Mounted, Root};
use nvc_testkit::inside::Inside;
use nvc_testkit::machine;
use nvc_testkit::mounts::{self, Mount};
use nvc_tests::arena::Arena;
use nvc_tests::{command_line, host_ldconfig};

const NONE: Option<&str> = None;

/// Changes a container's /proc; runs in the container's mount namespace.
type Forge = fn(&Forgery<'_>) -> Result<(), Errno>;

/// The parts of a forgery.
struct Forgery<'a> {
    /// /proc in the container's root.
    proc: &'a Path,
    /// The process given to `configure`.
    pid: u32,
    /// A process of the container in another namespace.
    decoy: u32,
    /// The first process of another pid namespace.
    other: Mutex<Option<Helper>>,
}

/// Forgeries, each with the end of its error message.
const FORGERIES: &[(&str, Forge, &str)] = &[
    (
        "proc_is_missing",
        |f| f.unmounted(),
        "no such file or directory",
    ),
    (
        "proc_is_a_link_to_a_tree",
        |f| {
            f.unmounted()?;
            f.tree(&f.proc.with_file_name("fake"))?;
            fs::remove_dir(f.proc).unwrap();
            symlink("/fake", f.proc).unwrap();
            Ok(())
        },
        "no such file or directory",
    ),
    (
        "proc_is_a_link_to_the_hosts",
        |f| {
            f.unmounted()?;
            fs::remove_dir(f.proc).unwrap();
            symlink("../../../../../../../../proc", f.proc).unwrap();
            Ok(())
        },
        "too many levels of symbolic links",
    ),
    (
        "proc_is_a_magic_link",
        |f| {
            f.unmounted()?;
            fs::rename(f.proc, f.proc.with_file_name("other")).unwrap();
            mount(
                Some("proc"),
                &f.proc.with_file_name("other"),
                Some("proc"),
                MsFlags::empty(),
                NONE,
            )?;
            symlink(format!("/other/{}/root/proc", f.decoy), f.proc).unwrap();
            Ok(())
        },
        "too many levels of symbolic links",
    ),
    (
        "proc_is_a_file",
        |f| {
            f.unmounted()?;
            fs::remove_dir(f.proc).unwrap();
            fs::write(f.proc, "").unwrap();
            Ok(())
        },
        "no such file or directory",
    ),
    (
        "proc_is_a_tmpfs",
        |f| {
            f.unmounted()?;
            mount(Some("tmpfs"), f.proc, Some("tmpfs"), MsFlags::empty(), NONE)?;
            f.tree(f.proc)
        },
        "no such file or directory",
    ),
    (
        "proc_is_an_overlay",
        |f| {
            f.unmounted()?;
            let lower = f.proc.with_file_name("fake");
            f.tree(&lower)?;
            let data = format!("lowerdir={}:{}", lower.display(), f.proc.display());
            mount(
                Some("overlay"),
                f.proc,
                Some("overlay"),
                MsFlags::empty(),
                Some(data.as_str()),
            )
        },
        "no such file or directory",
    ),
    (
        "proc_is_a_part_of_a_procfs",
        |f| {
            f.unmounted()?;
            f.bind(&f.of_decoy("task"), f.proc)
        },
        "no such file or directory",
    ),
    (
        "proc_is_of_another_pid_namespace",
        |f| f.other_pid_namespace(),
        "belongs to another pid namespace",
    ),
    (
        "proc_is_of_another_pid_namespace_and_self_is_covered",
        |f| {
            f.other_pid_namespace()?;
            let own = f.proc.with_file_name("own");
            fs::write(&own, "").unwrap();
            f.cover_link(&own, &f.proc.join("self"))
        },
        "belongs to another pid namespace",
    ),
    (
        "process_is_another",
        |f| f.bind(&f.of_decoy(""), &f.of_process("")),
        "invalid cross-device link",
    ),
    (
        "process_is_a_tree",
        |f| {
            mount(
                Some("tmpfs"),
                &f.of_process(""),
                Some("tmpfs"),
                MsFlags::empty(),
                NONE,
            )?;
            f.tree(f.proc)
        },
        "invalid cross-device link",
    ),
    (
        "ns_is_anothers",
        |f| f.bind(&f.of_decoy("ns"), &f.of_process("ns")),
        "invalid cross-device link",
    ),
    (
        "ns_is_a_tree",
        |f| {
            mount(
                Some("tmpfs"),
                &f.of_process("ns"),
                Some("tmpfs"),
                MsFlags::empty(),
                NONE,
            )?;
            f.tree(f.proc)
        },
        "invalid cross-device link",
    ),
    (
        "mnt_is_a_namespace_file",
        |f| f.cover_link(&f.of_decoy("ns/mnt"), &f.of_process("ns/mnt")),
        "invalid cross-device link",
    ),
    (
        "mnt_is_the_hosts_own",
        |f| f.cover_link(&of(std::process::id(), "ns/mnt"), &f.of_process("ns/mnt")),
        "invalid cross-device link",
    ),
    (
        "mnt_is_of_another_type",
        |f| f.cover_link(&f.of_decoy("ns/uts"), &f.of_process("ns/mnt")),
        "invalid cross-device link",
    ),
    (
        "mnt_is_a_file",
        |f| {
            let file = f.proc.with_file_name("file");
            fs::write(&file, "").unwrap();
            f.cover_link(&file, &f.of_process("ns/mnt"))
        },
        "invalid cross-device link",
    ),
    (
        "mnt_is_a_fifo",
        |f| {
            let fifo = f.proc.with_file_name("fifo");
            nix::unistd::mkfifo(&fifo, Bits::S_IRUSR)?;
            f.cover_link(&fifo, &f.of_process("ns/mnt"))
        },
        "invalid cross-device link",
    ),
    (
        "mnt_is_anothers_link",
        |f| f.cover_link_with_link("ns/mnt"),
        "invalid cross-device link",
    ),
];

fn main() -> ExitCode {
    let forged = |(name, forge, end): &(&'static str, Forge, &'static str)| -> Test {
        let (forge, end) = (*forge, *end);
        test(*name, &[NeedRoot], move || refused(forge, end))
    };
    let mut tests: Vec<Test> = FORGERIES.iter().map(forged).collect();
    tests.extend(nvc_testkit::tests![&[NeedRoot];
        honest_ones_are_taken,
        a_covered_cgroup_file,
    ]);
    harness::main(tests)
}

fn refused(forge: Forge, end: &str) {
    let stage = Stage::new();
    let decoy = stage.decoy();

    let mut caller = stage.caller(&["--no-cgroups"]);
    let proc = stage.root.join("proc");
    let forgery = Forgery {
        proc: &proc,
        pid: caller.id(),
        decoy: decoy.pid(),
        other: Mutex::default(),
    };
    let forged = stage.arena.inside().run(|| forge(&forgery)).unwrap();
    // Renaming or removing files moves the decoy's mounts too, which are on the same directories.
    let own = mounts::of(decoy.pid()).unwrap();
    let before = mounts::of(stage.arena.inside().pid()).unwrap();
    let (status, message) = finish(&mut caller);
    match forged {
        Ok(()) => {
            assert_eq!(status, Some(1), "{message}");
            let start = "nvidia-container-cli: container error: ";
            // A hint may follow.
            let mut errors = message.lines().filter(|line| line.starts_with(start));
            assert!(errors.any(|line| line.ends_with(end)), "{message}");
        }
        // The kernel forbids it, even to a process with all of the host's privileges.
        Err(errno @ (Errno::EINVAL | Errno::ENOENT)) => {
            println!("that cannot be forged here: {errno}");
            assert_eq!(status, Some(0), "{message}");
        }
        Err(errno) => panic!("cannot be forged: {errno}"),
    }
    assert_eq!(new_mounts(decoy.pid(), &own), [], "the decoy was entered");
    if forged.is_ok() {
        assert_eq!(new_mounts(stage.arena.inside().pid(), &before), []);
    }
    stage.end(forgery);
}

/// Mounts that a runtime makes there, in all variants, are accepted.
fn honest_ones_are_taken() {
    let again: &[Forge] = &[
        |_| Ok(()),
        |f| {
            f.unmounted()?;
            f.bind(Path::new("/proc"), f.proc)
        },
        |f| f.proc_with("subset=pid"),
        |f| f.proc_with("hidepid=2"),
    ];
    for (number, forge) in again.iter().enumerate() {
        let stage = Stage::new();
        let mut caller = stage.caller(&["--no-cgroups"]);
        let proc = stage.root.join("proc");
        let forgery = Forgery {
            proc: &proc,
            pid: caller.id(),
            decoy: 0,
            other: Mutex::default(),
        };
        stage
            .arena
            .inside()
            .run(|| forge(&forgery))
            .unwrap()
            .unwrap();
        // The driver's directory vanished with the old procfs; any will do.
        let driver = stage.root.join("proc/driver");
        let made = stage.arena.inside().run(|| {
            if driver.join("nvidia").exists() {
                return Ok(());
            }
            mount(
                Some("tmpfs"),
                &driver,
                Some("tmpfs"),
                MsFlags::empty(),
                NONE,
            )?;
            fs::create_dir(driver.join("nvidia")).unwrap();
            Ok::<_, Errno>(())
        });
        let made = made.unwrap();
        let (status, message) = finish(&mut caller);
        if made.is_err() {
            // subset=pid has no such directory, and it cannot be created.
            assert!(
                message.contains("/proc/driver/nvidia: no such file"),
                "{message}"
            );
        } else {
            assert_eq!(status, Some(0), "{number}: {message}");
        }
        stage.end(forgery);
    }
}

/// The cgroup's path is read from the container's /proc too.
fn a_covered_cgroup_file() {
    let stage = Stage::new();
    let mut caller = stage.caller(&[]);
    let proc = stage.root.join("proc");
    let forgery = Forgery {
        proc: &proc,
        pid: caller.id(),
        decoy: 0,
        other: Mutex::default(),
    };
    let fifo = stage.root.join("fifo");
    let covered = stage.arena.inside().run(|| {
        nix::unistd::mkfifo(&fifo, Bits::S_IRUSR)?;
        forgery.bind(&fifo, &forgery.of_process("cgroup"))
    });
    covered.unwrap().unwrap();
    let (status, message) = finish(&mut caller);
    assert_eq!(status, Some(1), "{message}");
    let first = message.lines().next().unwrap_or_default();
    assert!(
        first.ends_with("/cgroup: invalid cross-device link"),
        "{message}"
    );
    stage.end(forgery);
}

impl Forgery<'_> {
    fn of_process(&self, name: &str) -> PathBuf {
        self.proc.join(self.pid.to_string()).join(name)
    }

    /// Uses the host's own /proc, which the container's processes do not need: they can open their own files.
    fn of_decoy(&self, name: &str) -> PathBuf {
        of(self.decoy, name)
    }

    fn bind(&self, source: &Path, at: &Path) -> Result<(), Errno> {
        mount(Some(source), at, NONE, MsFlags::MS_BIND, NONE)
    }

    /// Unmounts the procfs, with the mounts in it.
    fn unmounted(&self) -> Result<(), Errno> {
        umount2(self.proc, MntFlags::MNT_DETACH)
    }

    fn proc_with(&self, options: &str) -> Result<(), Errno> {
        self.unmounted()?;
        mount(
            Some("proc"),
            self.proc,
            Some("proc"),
            MsFlags::empty(),
            Some(options),
        )
    }

    /// Builds an imitation of procfs: links with the right text, and a bind mount of the decoy's namespace if possible.
    fn tree(&self, at: &Path) -> Result<(), Errno> {
        let inode = fs::read_link(self.of_decoy("ns/mnt")).unwrap();
        for directory in [at.join(self.pid.to_string()).join("ns"), at.join("ns")] {
            if fs::create_dir_all(&directory).is_ok() {
                let _ = symlink(&inode, directory.join("mnt"));
            }
        }
        let file = at.join("mnt");
        let _ = fs::write(&file, "");
        let _ = self.bind(&self.of_decoy("ns/mnt"), &file);
        let _ = symlink(self.pid.to_string(), at.join("self"));
        Ok(())
    }

    /// Mounts a file over a link itself.
    fn cover_link(&self, source: &Path, link: &Path) -> Result<(), Errno> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let link = open(link, flags, Bits::empty())?;
        let at = format!("/proc/thread-self/fd/{}", link.as_raw_fd());
        self.bind(source, Path::new(&at))
    }

    /// Mounts another process's link over the process's.
    fn cover_link_with_link(&self, name: &str) -> Result<(), Errno> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let source = open(&self.of_decoy(name), flags, Bits::empty())?;
        let source = format!("/proc/thread-self/fd/{}", source.as_raw_fd());
        self.cover_link(Path::new(&source), &self.of_process(name))
    }

    /// Mounts a procfs of a crafted pid namespace, in which the pid belongs to a process of the container's choice.
    fn other_pid_namespace(&self) -> Result<(), Errno> {
        self.unmounted()?;
        // In the new namespace: its procfs, then a process with the wanted pid, in a separate mount namespace.
        let script = r#"
            mount -t proc proc "$1"
            echo $(($2 - 1)) > "$1/sys/kernel/ns_last_pid"
            unshare --mount --propagation private sh -c 'exec sleep 1000' &
            tries=0
            while [ "$(readlink "$1/$2/ns/mnt")" = "$(readlink "$1/1/ns/mnt")" ] && [ $tries -lt 6000 ]; do
                sleep 0.01
                tries=$((tries + 1))
            done
            echo ready
            exec sleep 1000
        "#;
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "sh", "-c", script, "sh"]);
        command.arg(self.proc).arg(self.pid.to_string());
        command.stderr(Stdio::null());
        let other = Helper::start(&mut command, "ready").unwrap();
        assert!(
            self.of_process("ns/mnt").is_symlink(),
            "no process of that number"
        );
        *self.other.lock().unwrap() = Some(other);
        Ok(())
    }
}

/// A container with an ordinary root.
struct Stage {
    arena: Arena,
    root: PathBuf,
}

impl Stage {
    fn new() -> Self {
        let arena = Arena::new().unwrap();
        let root = arena.build(&Root {
            layout: Layout::Debian,
            mounted: Mounted::Bind,
            spots: Vec::new(),
        });
        let root = root.unwrap();
        Self { arena, root }
    }

    /// Starts a process in a copy of the container's namespace.
    fn decoy(&self) -> Inside {
        self.arena.inside().run(Inside::new).unwrap().unwrap()
    }

    /// Starts a process of the container that runs `configure` on request.
    fn caller(&self, words: &[&str]) -> Child {
        let ldconfig = host_ldconfig();
        let words = [&["configure", &ldconfig, "--utility", "--device=0"], words].concat();
        let mut line = command_line(machine::driver(), &words);
        line.push(self.root.clone().into());
        let mut command = Command::new("sh");
        command.args(["-c", "read go; \"$@\"; exit $?", "sh"]);
        command.arg(cli::program().unwrap()).args(line);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.current_dir("/");
        let started = self.arena.inside().run(|| command.spawn());
        started.unwrap().unwrap()
    }

    fn end(self, forgery: Forgery<'_>) {
        drop(forgery);
        self.arena.clear().unwrap();
        self.arena.host_is_unchanged().unwrap();
    }
}

fn of(pid: u32, name: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(name)
}

/// Returns the new mounts. Old ones may be gone: a procfs takes the mounts on a process's files with it.
fn new_mounts(pid: u32, before: &[Mount]) -> Vec<Mount> {
    mounts::delta(before, &mounts::of(pid).unwrap()).0
}

/// Lets the caller continue, and waits for its end.
fn finish(caller: &mut Child) -> (Option<i32>, String) {
    caller.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let mut text = String::new();
    let mut errors = caller.stderr.take().unwrap();
    io::Read::read_to_string(&mut errors, &mut text).unwrap();
    (caller.wait().unwrap().code(), text)
}
