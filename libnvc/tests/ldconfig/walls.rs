//! Looks at a caged program from outside, and lets it try what it must not be able to do.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::Pid;

use super::support::{Root, Run, marked_probe, prepared_probe, probe, spinning};

/// What the program could do, by what it tried.
fn tried(root: &Root) -> BTreeMap<String, Errno> {
    let text = fs::read_to_string(root.join("report")).unwrap();
    text.lines()
        .map(|line| {
            let (what, errno) = line.rsplit_once(": ").unwrap();
            (what.to_owned(), Errno::from_raw(errno.parse().unwrap()))
        })
        .collect()
}

pub(crate) fn what_is_denied() {
    let root = Root::new();
    fs::copy(probe(), root.join("program")).unwrap();
    mknod(
        &root.join("device"),
        SFlag::S_IFCHR,
        Mode::from_bits_truncate(0o666),
        makedev(1, 5),
    )
    .unwrap_or_else(|errno| assert_eq!(errno, Errno::EPERM)); // in a user namespace
    fs::create_dir(root.join("others")).unwrap();
    let own_user_namespace = chown(root.join("others"), Some(12345), Some(12345)).is_err();
    fs::set_permissions(root.join("others"), Permissions::from_mode(0o700)).unwrap();
    let run = Run::default();
    run.prepared(&root, &prepared_probe("/report")).unwrap();
    let tried = tried(&root);

    let mut allowed: Vec<_> = tried
        .iter()
        .filter(|(_, errno)| **errno as i32 == 0)
        .collect();
    allowed.retain(|(what, _)| !what.contains(" is ") && !what.starts_with("is "));
    let names: Vec<_> = allowed.into_iter().map(|(what, _)| what.as_str()).collect();
    // Of all it tried, only this is allowed: ldconfig must write directories that their owner cannot.
    assert_eq!(
        names,
        ["open(\"/others/file\", O_WRONLY | O_CREAT, 0600)"],
        "{tried:#?}"
    );
    for (what, errno) in [
        ("environment is empty", 0),
        ("is the first process", 0),
        ("socket(AF_INET, SOCK_DGRAM, 0)", libc::EPERM),
        ("fork()", libc::EPERM),
        ("syscall(10000)", libc::ENOSYS),
        (
            "execveat(AT_FDCWD, \"/program\", none, none, 0)",
            libc::EACCES,
        ),
        ("open(\"/proc/self/exe\", O_RDONLY)", libc::ENOENT),
        ("open(\"/proc/x\", O_WRONLY | O_CREAT, 0600)", libc::EROFS),
        ("open(\"/sys/x\", O_WRONLY | O_CREAT, 0600)", libc::EROFS),
        ("open(\"/../../../../canary\", O_RDONLY)", libc::ENOENT),
    ] {
        assert_eq!(tried[what], Errno::from_raw(errno), "{what}");
    }
    if !own_user_namespace {
        assert_eq!(tried["open(\"/device\", O_RDONLY)"], Errno::EACCES);
    }
}

pub(crate) fn what_is_seen_from_outside() {
    for (owner, old_kernel) in [(0, false), (1000, false), (0, true)] {
        look_at(owner, old_kernel);
    }
}

fn look_at(owner: u32, old_kernel: bool) {
    let root = Root::new();
    let host = File::open("/etc/hostname")
        .or_else(|_| File::open("/etc/passwd"))
        .unwrap();
    // A descriptor that the caller forgot to mark.
    let leaked = host.try_clone().unwrap();
    fcntl(&leaked, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let run = Run {
        owner,
        old_kernel,
        ..Run::default()
    };
    let mark = root.path.to_str().unwrap();
    let prepared = marked_probe("/spin", mark).with_deadline(Duration::from_millis(1500));
    std::thread::scope(|scope| {
        let caged = scope.spawn(|| run.prepared(&root, &prepared));
        let pid = spinning("self", mark);
        let of = |what: &str| format!("/proc/{pid}/{what}");
        let status = fs::read_to_string(of("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            line.unwrap_or_else(|| panic!("{name}"))
                .split_once(":\t")
                .unwrap()
                .1
                .trim()
                .to_owned()
        };
        let dac_override = format!("{:016x}", 1 << 1);
        assert_eq!(field("CapEff"), dac_override);
        assert_eq!(field("CapPrm"), dac_override);
        assert_eq!(field("CapBnd"), dac_override);
        assert_eq!(field("CapInh"), dac_override);
        let ambient = u64::from(owner != 0) << 1;
        assert_eq!(field("CapAmb"), format!("{ambient:016x}"));
        assert_eq!(field("NoNewPrivs"), "1");
        assert_eq!(field("Seccomp"), "2");
        assert_eq!(field("Umask"), "0022");
        assert_eq!(field("Uid"), [owner.to_string().as_str(); 4].join("\t"));
        assert_eq!(field("Gid"), [owner.to_string().as_str(); 4].join("\t"));
        if owner != 0 {
            assert_eq!(field("Groups"), owner.to_string());
        }

        let mut descriptors: Vec<String> = fs::read_dir(of("fd"))
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
        assert_eq!(
            fs::read_link(of("fd/0")).unwrap(),
            std::path::Path::new("/dev/null")
        );
        assert_eq!(fs::read(of("environ")).unwrap(), b"");
        for kind in ["mnt", "pid", "ipc", "uts"] {
            let theirs = fs::read_link(of(&format!("ns/{kind}"))).unwrap();
            assert_ne!(
                theirs,
                fs::read_link(format!("/proc/self/ns/{kind}")).unwrap()
            );
        }
        let limits = fs::read_to_string(of("limits")).unwrap();
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

        // The root, with what was mounted in it, and the two masks: nothing of the host.
        let mounts = fs::read_to_string(of("mountinfo")).unwrap();
        let fields = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        let points: Vec<(&str, &str)> = fields.map(|fields| (fields[4], fields[5])).collect();
        assert!(
            points.iter().all(|(at, _)| {
                ["/", "/proc", "/sys"].contains(at)
                    || at.starts_with("/proc/")
                    || at.starts_with("/sys/")
            }),
            "{mounts}"
        );
        assert!(points[0].1.contains("nosuid,nodev,noexec"), "{mounts}");
        for mask in ["/proc", "/sys"] {
            let last = mounts
                .lines()
                .rfind(|line| line.split(' ').nth(4) == Some(mask))
                .unwrap();
            assert!(
                last.contains(" ro,nosuid,nodev,noexec") && last.contains(" tmpfs "),
                "{last}"
            );
            assert_eq!(fs::read_dir(of(&format!("root{mask}"))).unwrap().count(), 0);
        }

        // CVE-2024-0135: what the container finds as the program is not the host's, and nobody can write it.
        let program = OpenOptions::new().write(true).open(of("exe"));
        if let Ok(program) = program {
            use std::os::unix::fs::FileExt;
            assert_eq!(
                program.write_at(b"x", 0).unwrap_err().raw_os_error(),
                Some(libc::EPERM)
            );
        }
        let name = fs::read_link(of("exe")).unwrap();
        assert!(
            name.to_str().unwrap().starts_with("/memfd:"),
            "{}",
            name.display()
        );

        let error = caged.join().unwrap().unwrap_err();
        let text = format!("process {} did not end within 1.5 s", probe().display());
        assert_eq!(error.message(), text);
        assert!(!std::path::Path::new(&of("")).exists());
    });
}

/// Runs this test program again, as what `what` says (see `other_lives` in the main file).
pub(crate) fn again(what: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("NVC_TEST_LIFE", what);
    // What a killed one leaves goes with this program's own scratch space.
    command.env("TMPDIR", probe().parent().unwrap());
    command
}

pub(crate) fn the_program_dies_with_its_caller() {
    let mut caller = again("spin").spawn().unwrap();
    let id = caller.id();
    let child = spinning(&id.to_string(), "/");
    kill(Pid::from_raw(id.cast_signed()), Signal::SIGKILL).unwrap();
    caller.wait().unwrap();
    for _ in 0..200 {
        let state = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        if state.is_empty() || state.contains(") Z ") {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{child} lives on");
}
