//! The two processes of the driver: what each can do, what they say to each other, and that they end together.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvc_testkit::cli::PATH;
use serde_json::json;

use crate::node::{Daemon, Node, uid, wait};

const TOKEN: &str = "run/secrets/kubernetes.io/serviceaccount/token";
/// CHOWN, KILL, SETGID, SETUID, SYS_CHROOT, MKNOD, WAKE_ALARM.
const OF_MACHINE_SIDE: u64 = 1 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 18 | 1 << 27 | 1 << 35;

/// Returns the process that speaks with the driver.
fn machine_side(daemon: &Daemon) -> Pid {
    let pid = daemon.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let [child] = *children.split_whitespace().collect::<Vec<_>>() else {
        panic!("{children}")
    };
    Pid::from_raw(child.parse().unwrap())
}

/// Returns what each thread has: its capabilities, no_new_privs, and 2 if its system calls are filtered.
fn rights(pid: Pid) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        for line in status.lines() {
            let (name, value) = line.split_once(":\t").unwrap_or_default();
            if name.starts_with("Cap") || ["NoNewPrivs", "Seccomp"].contains(&name) {
                all.push((name.to_owned(), u64::from_str_radix(value, 16).unwrap()));
            }
        }
    }
    all
}

fn command(node: &mut Node, wrapper: &[&str]) -> Command {
    let inner = node.command(&["-v", "6"]);
    let (program, words) = wrapper.split_first().unwrap();
    let mut command = Command::new(program);
    command.env_clear().env("PATH", PATH).args(words);
    command.arg(inner.get_program()).args(inner.get_args());
    command
}

pub(crate) fn started(node: &mut Node, wrapper: &[&str]) -> Daemon {
    let command = command(node, wrapper);
    let mut daemon = node.spawn(command);
    node.register(&mut daemon);
    node.published();
    daemon
}

pub(crate) fn each_side_has_few_rights() {
    let mut node = Node::new();
    // As in a pod, with the host's files as the driver's.
    let pods = node.scratch.join("pods/a");
    let pods = node.driver.path(pods.to_str().unwrap());
    fs::create_dir_all(&pods).unwrap();
    fs::write(pods.join("token"), "secret").unwrap();
    let script = format!(
        "mount -t tmpfs tmpfs /run && mkdir -p $(dirname /{TOKEN}) && echo secret > /{TOKEN} && exec \"$@\""
    );
    let wrapper = ["unshare", "-m", "sh", "-c", &script, "sh"];
    // As in /etc/kubernetes, of the authority itself.
    let key = node.scratch.join("ca.key");
    fs::write(&key, "secret").unwrap();
    let daemon = started(&mut node, &wrapper);
    let (cluster, machine) = (daemon.pid(), machine_side(&daemon));
    for (name, has) in rights(cluster) {
        let expected = match &*name {
            "Seccomp" => 2,
            "NoNewPrivs" => 1,
            _ => 0,
        };
        assert_eq!(has, expected, "{name}");
    }
    for (name, has) in rights(machine) {
        let expected = match &*name {
            "CapInh" | "CapAmb" | "Seccomp" => 0,
            "NoNewPrivs" => 1,
            _ => OF_MACHINE_SIDE,
        };
        assert_eq!(has, expected, "{name}");
    }
    let root = |pid: Pid, path: &Path| {
        let path = path.strip_prefix("/").unwrap_or(path);
        PathBuf::from(format!("/proc/{pid}/root")).join(path)
    };
    // The token is that of one side, the network too.
    let read = |pid, path: &str| fs::read_to_string(root(pid, path.as_ref())).ok();
    let secret = Some("secret\n".to_owned());
    assert_eq!(read(cluster, &format!("var/{TOKEN}")), secret);
    assert_eq!(read(machine, TOKEN), None);
    assert!(root(machine, Path::new("run/secrets")).exists());
    assert!(root(cluster, &node.scratch.join("kubeconfig")).exists());
    assert!(!root(cluster, &key).exists());
    let at_machine = root(machine, &pods);
    assert!(pods.join("token").exists() && !at_machine.exists());
    let interfaces = fs::read_to_string(format!("/proc/{machine}/net/dev")).unwrap();
    assert_eq!(interfaces.lines().count(), 3, "{interfaces}");
    // Nothing that the other side sees can be written, executed, or opened as a device.
    let mounts = fs::read_to_string(format!("/proc/{cluster}/mountinfo")).unwrap();
    for line in mounts.lines() {
        let options = line.split(' ').nth(5).unwrap();
        assert!(
            options.starts_with("ro,nosuid,nodev,noexec"),
            "{line}: {mounts}"
        );
    }
    // Nor is a file open for writing, but the log.
    for fd in fs::read_dir(format!("/proc/{cluster}/fd")).unwrap() {
        let fd = fd.unwrap().path();
        let is_file = fs::metadata(&fd).is_ok_and(|is| is.is_file());
        let is_log = fd.ends_with("1") || fd.ends_with("2");
        let info = fd.to_string_lossy().replace("/fd/", "/fdinfo/");
        let info = fs::read_to_string(info).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:\t"));
        let is_written = flags.is_some_and(|flags| !flags.ends_with('0'));
        assert!(!is_file || is_log || !is_written, "{info}");
    }
    // In a directory that it sees.
    let device = node.scratch.join("account/device");
    let mut mknod = Command::new("mknod");
    assert!(
        mknod
            .arg(&device)
            .args(["c", "1", "3"])
            .status()
            .unwrap()
            .success()
    );
    assert_ne!(
        File::open(&device).map_err(errno).err(),
        Some(Errno::EACCES)
    );
    let of_cluster = File::open(format!("/proc/{cluster}/ns/mnt")).unwrap();
    let scratch = node.scratch.join("account/x");
    thread::spawn(move || {
        unshare(CloneFlags::CLONE_FS).unwrap();
        setns(of_cluster, CloneFlags::CLONE_NEWNS).unwrap();
        assert_eq!(
            File::open(&device).map_err(errno).err(),
            Some(Errno::EACCES)
        );
        assert_eq!(
            File::create(&scratch).map_err(errno).err(),
            Some(Errno::EROFS)
        );
        for gone in ["/dev", "/proc", "/bin", "/run"] {
            assert!(!Path::new(gone).exists(), "{gone}");
        }
    })
    .join()
    .unwrap();
    node.claim("a", &["gpu-0"]);
    node.prepared("a");
    node.unprepared("a");
}

#[allow(clippy::needless_pass_by_value)]
fn errno(error: std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

/// Who was given less does what it can with that.
pub(crate) fn an_unprivileged_container() {
    let mut node = Node::new();
    node.claim("a", &["gpu-0"]);
    for without in ["-sys_admin", "-sys_admin,-setpcap"] {
        let bounding = format!("--bounding-set={without}");
        let mut daemon = started(&mut node, &["setpriv", &bounding]);
        let said = "this container may make no namespaces";
        assert_eq!(daemon.log().matches(said).count(), 1, "{}", daemon.log());
        for (name, has) in rights(daemon.pid()) {
            let is_left =
                !name.starts_with("Cap") || name == "CapBnd" && without.contains("setpcap");
            assert_eq!(has != 0, is_left, "{name}");
        }
        node.prepared("a");
        node.unprepared("a");
        daemon.signal(Signal::SIGTERM);
        daemon.ended();
    }
}

pub(crate) fn the_sides_end_together() {
    let mut node = Node::new();
    node.claim("a", &["gpu-0"]);
    let mut daemon = node.started();
    node.prepared("a");
    kill(machine_side(&daemon), Signal::SIGKILL).unwrap();
    daemon.ended();
    let said = "the side that speaks with the driver: signal: 9 (SIGKILL)";
    assert!(daemon.log().contains(said), "{}", daemon.log());
    daemon = node.started();
    let machine = machine_side(&daemon);
    daemon.signal(Signal::SIGKILL);
    daemon.ended();
    wait("the end of the machine side", || {
        let status = fs::read_to_string(format!("/proc/{machine}/status"));
        status.is_ok_and(|status| status.contains("State:\tZ")) || kill(machine, None).is_err()
    });
    let mut daemon = node.started();
    node.prepared("a");
    node.unprepared("a");
    let machine = machine_side(&daemon);
    daemon.signal(Signal::SIGTERM);
    daemon.ended();
    assert_eq!((node.services().len(), node.registrations().len()), (0, 0));
    wait("its end", || kill(machine, None).is_err());
    assert!(!daemon.log().contains("level=error"), "{}", daemon.log());
}

/// What either side sends if others have taken it over.
pub(crate) fn hostile_words() {
    let mut node = Node::new();
    let outside = node.scratch.join("outside.json");
    fs::write(&outside, "x").unwrap();
    let grant = |name: &str, uuid: &str| json!({"name": name, "uuid": uuid, "gpu": uuid});
    let give = |uid: &str, grants: serde_json::Value| {
        let record = json!({"uid": uid, "namespace": "n", "name": "n", "grants": grants, "since": 1, "driver": "../x"});
        framed(json!({"Give": record}).to_string())
    };
    let whole = node.driver.profile().gpus[0].uuid.clone();
    let calls = [
        framed(r#"{"TakeBack":"../../../outside"}"#),
        give("../x", json!([grant("gpu-0", &whole)])),
        give(&uid("x"), json!([])),
        give(&uid("x"), json!([grant("../gpu-0", &whole)])),
        give(&uid("x"), json!([grant("gpu-0", "GPU-0")])),
        give(&uid("x"), json!([grant("gpu-0", "all")])),
    ];
    for words in calls {
        let mut daemon = node.started();
        // The answer is one that nobody asked for; a second one is too many.
        say(&daemon, 0, &[&*words, &*words, &*words].concat());
        daemon.ended();
        check(&daemon);
        assert_eq!(node.files(), [] as [String; 0]);
        assert!(outside.exists());
    }
    for words in [
        b"\xff\xff\xff\xff".to_vec(),
        framed(b"\xff\0"),
        framed(r#"{"Open":"/etc/shadow"}"#),
        framed(vec![b'['; 5 << 20]),
        framed([&b"{\"World\":{\"Ok\":"[..], &[b'['; 100 << 10]].concat()),
    ] {
        for pipe in [0, 1] {
            let mut daemon = node.started();
            say(&daemon, pipe, &words);
            daemon.ended();
            check(&daemon);
        }
    }
    // Records of more claims than a message takes are no reason to end.
    let daemon = node.started();
    node.claim("a", &["gpu-0"]);
    node.prepared("a");
    for name in ["p", "q", "r", "s", "t"] {
        let (uid, namespace) = (uid(name), "n".repeat(1 << 20));
        let grants = [grant("gpu-9", "GPU-9")];
        let record = json!({"uid": uid, "namespace": namespace, "name": name, "grants": grants, "since": 1, "driver": ""});
        let file = format!("plugins/gpu.nvidia.com/claims/{uid}.json");
        fs::write(node.scratch.join(file), record.to_string()).unwrap();
    }
    wait("its refusal", || {
        daemon.log().contains("the answer: it is too long")
    });
    node.prepared("a");
}

/// Returns a message as the sides send it.
fn framed(body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let length = u32::try_from(body.len()).unwrap();
    [&length.to_le_bytes()[..], body].concat()
}

fn check(daemon: &Daemon) {
    let log = daemon.log();
    assert!(!log.contains("panicked") && log.len() < 1 << 16, "{log}");
    assert!(log.contains("the side that speaks with the "), "{log}");
}

/// Writes into one of the two pipes, the one that the machine side reads or the one that it writes.
fn say(daemon: &Daemon, which: usize, words: &[u8]) {
    let fds = format!("/proc/{}/fd", machine_side(daemon));
    let mut pipes: Vec<PathBuf> = fs::read_dir(fds)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("pipe:"))
        })
        .collect();
    let is_written = |path: &PathBuf| {
        let info = path.to_string_lossy().replace("/fd/", "/fdinfo/");
        fs::read_to_string(info)
            .unwrap()
            .contains("flags:\t0100000")
    };
    pipes.sort_by_key(|path| !is_written(path));
    let mut pipe = File::options().write(true).open(&pipes[which]).unwrap();
    // It may hang up at any byte.
    let _ = pipe.write_all(words);
}
