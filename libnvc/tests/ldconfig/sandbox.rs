//! Examines a sandboxed program from outside, and lets it try everything that must be denied.
//!
//! The program, attempts.c, takes ldconfig's place. It tries its own executable, the host through /proc, /sys, `..`,
//! handles and inherited descriptors, other processes, mounts, namespaces, devices, sockets of every family, bpf, keys,
//! modules, clocks, owners, capabilities, and each system call by number; the list here says which may succeed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::time::Duration;

use libnvc::options::Ldconfig;
use libnvc::{ContainerPath, Error};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::Pid;
use nvc_testkit::files;

use super::support::{Root, Run, marked_probe, prepare, prepared_probe, probe, spinning};

/// Returns the errno of each of the program's attempts, 0 for success.
fn tried(root: &Root) -> BTreeMap<String, i32> {
    let text = fs::read_to_string(root.join("report")).unwrap();
    let lines = text.lines().map(|line| {
        let (what, errno) = line.rsplit_once(": ").unwrap();
        (what.to_owned(), errno.parse().unwrap())
    });
    lines.collect()
}

/// The system calls that may succeed; every other one is denied. By number, because the program tries numbers.
#[cfg(target_arch = "x86_64")]
pub(crate) const ALLOWED: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_brk,
    libc::SYS_chdir,
    libc::SYS_chmod,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_execveat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_fstat,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents,
    libc::SYS_getdents64,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpgrp,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getrlimit,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_lseek,
    libc::SYS_lstat,
    libc::SYS_madvise,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_newfstatat,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pread64,
    libc::SYS_prlimit64,
    libc::SYS_read,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_stat,
    libc::SYS_statx,
    libc::SYS_symlink,
    libc::SYS_symlinkat,
    libc::SYS_sysinfo,
    libc::SYS_tgkill,
    libc::SYS_time,
    libc::SYS_uname,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
];

pub(crate) fn denied_calls() {
    let before = fs::read(probe()).unwrap();
    let usual = Run::default();
    let old_kernel = Run {
        old_kernel: true,
        ..usual
    };
    let no_mount = Run {
        no_mount: true,
        ..usual
    };
    for no_pivot in [false, true] {
        deny(usual, no_pivot);
        deny(old_kernel, no_pivot);
        deny(no_mount, no_pivot);
    }
    if !in_user_namespace() {
        deny(
            Run {
                owner: 1000,
                ..usual
            },
            false,
        );
    }
    assert!(
        fs::read(probe()).unwrap() == before,
        "the program was written to"
    );
}

/// Returns true if this test runs in a user namespace, which has neither other owners nor device nodes.
fn in_user_namespace() -> bool {
    !fs::read_to_string("/proc/self/uid_map")
        .unwrap()
        .contains("4294967295")
}

fn deny(run: Run, no_pivot: bool) {
    let root = Root::new();
    files::copy_program(probe(), &root.join("program")).unwrap();
    fs::set_permissions(&root.path, Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(root.join("others")).unwrap();
    if !in_user_namespace() {
        let null = makedev(1, 3);
        let mode = Mode::from_bits_truncate(0o666);
        for name in ["device", "dev/device"] {
            mknod(&root.join(name), SFlag::S_IFCHR, mode, null).unwrap();
        }
        chown(root.join("others"), Some(12345), Some(12345)).unwrap();
    }
    fs::set_permissions(root.join("others"), Permissions::from_mode(0o700)).unwrap();
    let program = Ldconfig::Host(probe().to_owned());
    let mode = [ContainerPath::new("/report")];
    let prepared = prepare(&program, &mode, no_pivot).unwrap();
    let result = run.prepared(&root, &prepared);
    let tried = tried(&root);
    result.unwrap_or_else(|error| panic!("{error:?}: {tried:#?}"));

    let (statements, tried): (BTreeMap<_, _>, BTreeMap<_, _>) = tried
        .into_iter()
        .partition(|(what, _)| what.starts_with("is "));
    all_are_true(statements);
    let (numbers, tried): (BTreeMap<_, _>, BTreeMap<_, _>) = tried
        .into_iter()
        .partition(|(what, _)| what.starts_with("number "));
    only_listed_calls_succeed(numbers);
    only_writing_directories_succeeds(run, &tried);
}

/// Checks the program's statements about its environment, and that it ran to the end.
fn all_are_true(statements: BTreeMap<String, i32>) {
    assert!(statements.contains_key("is at the end"));
    for (what, errno) in statements {
        assert_eq!(errno, 0, "it is not {}", &what[3..]);
    }
}

/// Checks the system calls by number.
fn only_listed_calls_succeed(numbers: BTreeMap<String, i32>) {
    assert!(numbers.len() > 1000, "{}", numbers.len());
    #[cfg(target_arch = "x86_64")]
    for (what, errno) in numbers {
        let number: libc::c_long = what["number ".len()..].parse().unwrap();
        let refused = [libc::EPERM, libc::ENOSYS].contains(&errno);
        assert!(
            refused || ALLOWED.contains(&number),
            "system call {number} is let through: error {errno}"
        );
    }
}

/// Checks all other attempts: ldconfig must write directories that their owner cannot, and nothing else succeeds.
fn only_writing_directories_succeeds(run: Run, tried: &BTreeMap<String, i32>) {
    let allowed: Vec<_> = tried.iter().filter(|(_, errno)| **errno == 0).collect();
    let names: Vec<_> = allowed.into_iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!(
        names,
        ["open(\"/others/file\", O_WRONLY | O_CREAT, 0600)"],
        "{run:?} {tried:#?}"
    );
    assert!(tried.len() > 140, "{} attempts", tried.len());
    // With the expected errno, so that nothing fails for another reason.
    for (what, errno) in [
        ("socket(AF_INET, SOCK_DGRAM, 0)", libc::EPERM),
        ("fork()", libc::EPERM),
        ("x32_getpid(0)", libc::ENOSYS),
        ("10000(0)", libc::ENOSYS),
        (
            "execveat(AT_FDCWD, \"/program\", none, none, 0)",
            libc::EACCES,
        ),
        ("open(\"/proc/self/exe\", O_RDONLY)", libc::ENOENT),
        ("open(\"/proc/x\", O_WRONLY | O_CREAT, 0600)", libc::EROFS),
        ("open(\"/sys/x\", O_WRONLY | O_CREAT, 0600)", libc::EROFS),
        ("open(\"/../../../../canary\", O_RDONLY)", libc::ENOENT),
        ("setrlimit(RLIMIT_CPU, &endless)", libc::EPERM),
    ] {
        assert_eq!(tried[what], errno, "{what}");
    }
    if !in_user_namespace() {
        assert_eq!(tried["open(\"/device\", O_RDONLY)"], libc::EACCES);
        // Hidden by the mask.
        assert_eq!(tried["open(\"/dev/device\", O_RDONLY)"], libc::ENOENT);
    }
}

/// A 64-bit program can make 32-bit calls, which have other numbers: the filter kills it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn calls_of_another_architecture_end_it() {
    let root = Root::new();
    let error = Run::default()
        .prepared(&root, &prepared_probe("/int80"))
        .unwrap_err();
    let text = format!("process {} terminated with signal 31", probe().display());
    assert_eq!(error.message(), text);
    let hint = error.advice().unwrap();
    assert!(hint.contains("another architecture"), "{hint}");
}

/// A program that was replaced after the check is not run.
pub(crate) fn a_replaced_program_is_not_run() {
    let root = Root::new();
    let path = root.scratch.join("ldconfig");
    files::copy_program(probe(), &path).unwrap();
    let program = Ldconfig::Host(path.clone());
    let for_mode = |mode| prepare(&program, &[ContainerPath::new(mode)], false).unwrap();
    let run = |prepared| Run::default().prepared(&root, &prepared);
    let ends_with_7 = |result: Result<(), Error>| {
        let text = format!("process {} failed with error code: 7", path.display());
        assert_eq!(result.unwrap_err().message(), text);
    };
    // Another file of the same name.
    let prepared = for_mode("/exit");
    fs::copy("/bin/true", root.scratch.join("other")).unwrap();
    fs::rename(root.scratch.join("other"), &path).unwrap();
    ends_with_7(run(prepared));
    // A missing file.
    files::copy_program(probe(), &path).unwrap();
    let prepared = for_mode("/exit");
    fs::remove_file(&path).unwrap();
    ends_with_7(run(prepared));
    // The same file gets new content, which no package manager does: the copy runs, or the start fails.
    files::copy_program(probe(), &path).unwrap();
    let prepared = for_mode("/exit");
    fs::write(&path, vec![0xcc; 1 << 20]).unwrap();
    let message = run(prepared).unwrap_err().message();
    assert!(
        message.ends_with(": exec format error") || message.ends_with("error code: 7"),
        "{message}"
    );
    // While it runs.
    files::copy_program(probe(), &path).unwrap();
    let mark = root.path.to_str().unwrap();
    let directories = ["/spin", mark].map(ContainerPath::new);
    let prepared = prepare(&program, &directories, false).unwrap();
    std::thread::scope(|scope| {
        let sandboxed = scope.spawn(|| run(prepared));
        let pid = spinning("self", mark);
        fs::copy("/bin/true", root.scratch.join("other")).unwrap();
        fs::rename(root.scratch.join("other"), &path).unwrap();
        end(pid);
        let error = sandboxed.join().unwrap().unwrap_err();
        assert!(error.message().ends_with("terminated with signal 9"));
    });
}

pub(crate) fn view_from_outside() {
    for (owner, old_kernel, no_mount) in [
        (0, false, false),
        (1000, false, false),
        (0, true, false),
        (0, false, true),
        (0, true, true),
    ] {
        look_at(Run {
            owner,
            old_kernel,
            no_mount,
            ..Run::default()
        });
    }
}

fn look_at(run: Run) {
    let root = Root::new();
    let host = File::open("/etc/hostname")
        .or_else(|_| File::open("/etc/passwd"))
        .unwrap();
    // A descriptor that the caller failed to mark close-on-exec.
    let leaked = host.try_clone().unwrap();
    fcntl(&leaked, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let mark = root.path.to_str().unwrap();
    let prepared = marked_probe("/spin", mark);
    std::thread::scope(|scope| {
        let sandboxed = scope.spawn(|| run.prepared(&root, &prepared));
        let pid = spinning("self", mark);
        let seen = Seen(format!("/proc/{pid}"));
        seen.has_few_privileges(run.owner);
        seen.has_no_foreign_descriptor(&leaked);
        seen.has_own_namespaces();
        seen.has_limits();
        seen.has_only_the_roots_mounts();
        seen.cannot_change_its_program();

        end(pid);
        let error = sandboxed.join().unwrap().unwrap_err();
        let text = format!("process {} terminated with signal 9", probe().display());
        assert_eq!(error.message(), text);
        assert!(!std::path::Path::new(&seen.file("")).exists());
    });
}

/// The directory of a sandboxed process in /proc.
struct Seen(String);

impl Seen {
    fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap()
    }

    fn has_few_privileges(&self, owner: u32) {
        let status = self.text("status");
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            line.unwrap_or_else(|| panic!("{name}"))
                .split_once(":\t")
                .unwrap()
                .1
                .trim()
                .to_owned()
        };
        // CAP_DAC_OVERRIDE to write with, and CAP_WAKE_ALARM against tracers.
        let kept = format!("{:016x}", 1u64 << 1 | 1 << 35);
        for set in ["CapEff", "CapPrm", "CapBnd", "CapInh"] {
            assert_eq!(field(set), kept, "{set}");
        }
        let none = format!("{:016x}", 0);
        let ambient = if owner != 0 { kept } else { none };
        assert_eq!(field("CapAmb"), ambient);
        assert_eq!(field("NoNewPrivs"), "1");
        assert_eq!(field("Seccomp"), "2");
        assert_eq!(field("Umask"), "0022");
        assert_eq!(field("Uid"), [owner.to_string().as_str(); 4].join("\t"));
        assert_eq!(field("Gid"), [owner.to_string().as_str(); 4].join("\t"));
        if owner != 0 {
            assert_eq!(field("Groups"), owner.to_string());
        }
    }

    fn has_no_foreign_descriptor(&self, leaked: &File) {
        let mut descriptors: Vec<String> = fs::read_dir(self.file("fd"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        descriptors.sort();
        assert_eq!(
            descriptors,
            ["0", "1", "2"],
            "leaked {}",
            leaked.as_raw_fd()
        );
        for descriptor in descriptors {
            // Not a file of the host, because a process with a descriptor of it could change its mode.
            let target = fs::read_link(self.file(&format!("fd/{descriptor}"))).unwrap();
            assert!(
                target.to_str().unwrap().starts_with("pipe:"),
                "{descriptor}: {}",
                target.display()
            );
        }
        assert_eq!(fs::read(self.file("environ")).unwrap(), b"");
    }

    fn has_own_namespaces(&self) {
        for kind in ["mnt", "pid", "ipc", "uts"] {
            let theirs = fs::read_link(self.file(&format!("ns/{kind}"))).unwrap();
            let ours = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
            assert_ne!(theirs, ours);
        }
    }

    fn has_limits(&self) {
        let limits = self.text("limits");
        for (name, limit) in [
            ("Max cpu time", "10"),
            ("Max address space", "2147483648"),
            ("Max open files", "64"),
            ("Max file size", "67108864"),
            ("Max core file size", "1"),
        ] {
            let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
            let values = line.strip_prefix(name).unwrap().split_whitespace();
            assert_eq!(values.take(2).collect::<Vec<_>>(), [limit, limit], "{line}");
        }
    }

    /// Checks for the root with its mounts, the three masks, and no mount of the host.
    fn has_only_the_roots_mounts(&self) {
        let mounts = self.text("mountinfo");
        let fields = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        let points: Vec<(&str, &str)> = fields.map(|fields| (fields[4], fields[5])).collect();
        assert!(
            points.iter().all(|(at, _)| {
                ["/", "/proc", "/sys", "/dev"].contains(at)
                    || at.starts_with("/proc/")
                    || at.starts_with("/sys/")
            }),
            "{mounts}"
        );
        assert!(points[0].1.contains("nosuid,nodev,noexec"), "{mounts}");
        for mask in ["/proc", "/sys", "/dev"] {
            let last = mounts
                .lines()
                .rfind(|line| line.split(' ').nth(4) == Some(mask))
                .unwrap();
            assert!(
                last.contains(" ro,nosuid,nodev,noexec") && last.contains(" tmpfs "),
                "{last}"
            );
            // /dev contains the program's own name, which TOMOYO looks up.
            let names = usize::from(mask == "/dev");
            let masked = self.file(&format!("root{mask}"));
            assert_eq!(fs::read_dir(&masked).unwrap().count(), names);
            if mask == "/dev" {
                let names = fs::read_dir(format!("{masked}/fd")).unwrap();
                let files = names
                    .flatten()
                    .filter(|name| name.file_type().unwrap().is_file());
                assert_eq!(files.count(), 1);
            }
        }
    }

    /// CVE-2024-0135: the program's file, as the container finds it, is not the host's, and cannot be written.
    fn cannot_change_its_program(&self) {
        let name = fs::read_link(self.file("exe")).unwrap();
        let name = name.to_str().unwrap();
        let program = OpenOptions::new().write(true).open(self.file("exe"));
        if name.starts_with("/memfd:") {
            use std::os::unix::fs::FileExt;
            let error = program.unwrap().write_at(b"x", 0).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        } else {
            assert_eq!(name, "/probe"); // of an overlay that is attached nowhere
            assert_eq!(program.unwrap_err().raw_os_error(), Some(libc::EROFS));
        }
    }
}

/// Runs this test program again in the role `what` (see `other_lives` in the main file).
pub(crate) fn again(what: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("NVC_TEST_LIFE", what);
    // Leftovers of a killed run vanish with this program's own scratch space.
    command.env("TMPDIR", probe().parent().unwrap());
    command
}

fn end(pid: u32) {
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).unwrap();
}

pub(crate) fn the_program_dies_with_its_caller() {
    let mut caller = again("spin").spawn().unwrap();
    let id = caller.id();
    let child = spinning(&id.to_string(), "/");
    kill(Pid::from_raw(id.cast_signed()), Signal::SIGKILL).unwrap();
    caller.wait().unwrap();
    for _ in 0..4000 {
        let state = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        if state.is_empty() || state.contains(") Z ") {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{child} lives on");
}
