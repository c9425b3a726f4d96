//! What others send: an API server, a caller at the sockets, a stranger at the port of the probes.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use nvc_testkit::harness::PYTHON;
use serde_json::{Value, json};

use crate::node::{Daemon, Node, wait};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// More than the driver has when it serves, with the simulated driver.
const MOST_KIB: u64 = 64 << 10;

/// Answers that are no answers: the claim is refused, and the next one is served.
pub(crate) fn answers() {
    let mut node = Node::new();
    let mut daemon = node.started();
    node.claim("a", &["gpu-0"]);
    let claim = |uid: &Value, more: Value| json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "a", "uid": uid}, "spec": {}, "status": more});
    for text in [
        String::new(),
        "{".into(),
        "null".into(),
        "[]".into(),
        "\0".repeat(1000),
        "[".repeat(1 << 20),
        format!("\"{}\"", "a".repeat(8 << 20)),
        json!({"kind": "Status", "status": "Success"}).to_string(),
        claim(&json!(1), Value::Null).to_string(),
        claim(&json!("x\u{1b}[2J"), Value::Null).to_string(),
        claim(&json!(crate::node::uid("a")), json!({"allocation": {"devices": {"results": 7}}})).to_string(),
        claim(&json!(crate::node::uid("a")), json!({"allocation": {"devices": {"results": [{"driver": "gpu.nvidia.com", "pool": "n1", "request": "", "device": "x".repeat(1 << 20)}]}}})).to_string(),
    ] {
        node.api(json!({"next": [text]}));
        let said = node.refused("a");
        assert!(said.len() < 4096, "{} bytes: {}", said.len(), &said[..200]);
        node.prepared("a");
        node.unprepared("a");
    }
    // To a watch and a list.
    for text in [
        "",
        "{",
        "null\n",
        "{\"type\": \"ADDED\", \"object\": {}}\n",
        "{\"kind\": \"List\", \"items\": [{}]}",
    ] {
        node.api(json!({"next": [text, text]}));
        node.api(json!({"end": 410}));
        node.remove_slices();
        node.published();
    }
    check(&mut node, &mut daemon);
}

/// Bytes that are no calls, at both sockets.
pub(crate) fn frames() {
    let mut node = Node::new();
    let command = node.command(&["--healthcheck-port", &free_port().to_string()]);
    let mut daemon = node.spawn(command);
    node.register(&mut daemon);
    node.published();
    node.claim("a", &["gpu-0"]);
    for socket in [node.services(), node.registrations()].concat() {
        for (what, bytes) in garbage() {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream
                .set_write_timeout(Some(Duration::from_secs(2)))
                .unwrap();
            stream
                .set_read_timeout(Some(Duration::from_millis(100)))
                .unwrap();
            // It may hang up at any byte.
            let _ = stream.write_all(&bytes);
            let _ = stream.read(&mut [0; 64 << 10]);
            assert!(daemon.is_alive(), "{what}: {}", daemon.log());
            assert!(
                resident_kib(&daemon) < MOST_KIB,
                "{what}: {} KiB",
                resident_kib(&daemon)
            );
        }
    }
    check(&mut node, &mut daemon);
}

fn garbage() -> Vec<(&'static str, Vec<u8>)> {
    let frame = |kind: u8, flags: u8, id: u32, payload: &[u8]| {
        let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&len[1..], &[kind, flags], &id.to_be_bytes(), payload].concat()
    };
    let with = |parts: &[Vec<u8>]| [PREFACE, &frame(4, 0, 0, &[]), &parts.concat()].concat();
    // :method POST, :scheme http, :path, content-type.
    let head = |path: &str| {
        let mut block = vec![0x83, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
        block.extend(path.bytes());
        block.extend(b"\x41\x01a\x5f\x10application/grpc");
        block
    };
    let prepare = head("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources");
    let odd = |n: u32| 2 * n + 1;
    let mut random = 1u64;
    let mut noise = |len: usize| -> Vec<u8> {
        (0..len)
            .map(|_| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                random.to_be_bytes()[0]
            })
            .collect()
    };
    let long = |n: u32| [&[0][..], &n.to_be_bytes()].concat();
    // A table entry of 4000 bytes, repeated by one byte each.
    let mut bomb = vec![0x40, 0x01, b'a', 0x7f, 0xa1, 0x1e];
    bomb.extend(vec![b'b'; 4000]);
    bomb.extend(vec![0xbe; 12_000]);
    vec![
        ("noise", noise(1 << 20)),
        ("HTTP/1", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1000)),
        (
            "noise after the preface",
            [PREFACE, &noise(1 << 16)].concat(),
        ),
        (
            "the longest frame",
            with(&[vec![0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1], vec![0; 1 << 20]]),
        ),
        (
            "a message of 4 GiB",
            with(&[
                frame(1, 4, 1, &prepare),
                frame(0, 0, 1, &long(u32::MAX)),
                frame(0, 0, 1, &[0; 16 << 10]),
            ]),
        ),
        (
            "a message beyond the limit",
            with(&[frame(1, 4, 1, &prepare), frame(0, 0, 1, &long(1 << 20))]),
        ),
        (
            "a message that is no message",
            with(&[
                frame(1, 4, 1, &prepare),
                frame(0, 1, 1, &[&long(64)[..], &[0xff; 64]].concat()),
            ]),
        ),
        (
            "a message that is compressed",
            with(&[
                frame(1, 4, 1, &prepare),
                frame(0, 1, 1, &[1, 0, 0, 0, 1, 0]),
            ]),
        ),
        (
            "a bomb of headers",
            with(
                &(0..64)
                    .map(|n| frame(1, 5, odd(n), &bomb))
                    .collect::<Vec<_>>(),
            ),
        ),
        (
            "headers without an end",
            with(
                &[
                    vec![frame(1, 0, 1, &prepare)],
                    (0..4096).map(|_| frame(9, 0, 1, &[0; 64])).collect(),
                ]
                .concat(),
            ),
        ),
        (
            "calls that are taken back",
            with(
                &(0..4096)
                    .flat_map(|n| {
                        [
                            frame(1, 5, odd(n), &prepare),
                            frame(3, 0, odd(n), &[0, 0, 0, 8]),
                        ]
                    })
                    .collect::<Vec<_>>(),
            ),
        ),
        (
            "calls without an end",
            with(
                &(0..4096)
                    .map(|n| frame(1, 4, odd(n), &prepare))
                    .collect::<Vec<_>>(),
            ),
        ),
        (
            "pings",
            with(
                &(0..65_536)
                    .map(|_| frame(6, 0, 0, &[0; 8]))
                    .collect::<Vec<_>>(),
            ),
        ),
        (
            "settings",
            with(&(0..65_536).map(|_| frame(4, 0, 0, &[])).collect::<Vec<_>>()),
        ),
        (
            "windows",
            with(&[
                frame(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
                frame(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
            ]),
        ),
    ]
}

/// A thousand connections that say nothing, at each socket, and at the port that the whole cluster can reach.
pub(crate) fn idle_connections() {
    let mut node = Node::new();
    let port = free_port();
    let inner = node.command(&["--healthcheck-port", &port.to_string()]);
    // A stranger must not be able to use up what there is.
    let mut command = Command::new("prlimit");
    command
        .arg("--nofile=512:512")
        .arg(inner.get_program())
        .args(inner.get_args());
    let mut daemon = node.spawn(command);
    node.register(&mut daemon);
    node.published();
    node.claim("a", &["gpu-0"]);
    let strangers: Vec<_> = (0..1000)
        .map(|_| TcpStream::connect(("::1", port)).unwrap())
        .collect();
    check(&mut node, &mut daemon);
    for request in [&b""[..], PREFACE] {
        for mut stranger in &strangers {
            let _ = stranger.write_all(request);
        }
        check(&mut node, &mut daemon);
        assert!(
            resident_kib(&daemon) < MOST_KIB,
            "{} KiB",
            resident_kib(&daemon)
        );
    }
    drop(strangers);
    // Those of root are its own affair; they must not stay.
    for socket in [node.services(), node.registrations()].concat() {
        let root: Vec<_> = (0..100)
            .map(|_| UnixStream::connect(&socket).unwrap())
            .collect();
        check(&mut node, &mut daemon);
        drop(root);
    }
    let descriptors = format!("/proc/{}/fd", daemon.pid());
    wait("few descriptors", || {
        fs::read_dir(&descriptors).unwrap().count() < 64
    });
}

/// Those who send as much as they can, of what costs most, at the port that the whole cluster can reach: the kubelet's calls
/// and probes are answered, within its limits.
pub(crate) fn a_flood() {
    let mut node = Node::new();
    let port = free_port();
    let command = node.command(&["--healthcheck-port", &port.to_string()]);
    let mut daemon = node.spawn(command);
    node.register(&mut daemon);
    node.published();
    // Header blocks of pairs, of which each copies the name of nearly 4 KiB that the first one has left in the table.
    let frame = |id: u32, block: &[u8]| {
        let len = u32::try_from(block.len()).unwrap().to_be_bytes();
        [&len[1..], &[1, 5], &id.to_be_bytes(), block].concat()
    };
    let mut first = vec![0x40, 0x7f, 0x97, 0x1e];
    first.extend(vec![b'a'; 3990]);
    first.push(0);
    let mut flood = [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0], &frame(1, &first)].concat();
    for id in (3..60).step_by(2) {
        flood.extend(frame(id, &[0x7e, 0].repeat(8 << 10)));
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let mut stranger = TcpStream::connect(("::1", port)).unwrap();
                    let _ = stranger.set_write_timeout(Some(Duration::from_secs(1)));
                    // It may hang up at any byte.
                    let _ = stranger.write_all(&flood);
                }
            });
        }
        let checked = panic::catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..8 {
                check(&mut node, &mut daemon);
            }
            (0..15).filter(|_| is_said_to_live(port, || ())).count()
        }));
        is_over.store(true, Ordering::Relaxed);
        let answered = checked.unwrap();
        assert!(answered >= 13, "{answered} of 15 probes");
    });
    // Those who come and go, and those who stay, while a probe is under way.
    let come_and_go = || {
        let stranger = || TcpStream::connect(("::1", port)).unwrap();
        let mut staying = Vec::new();
        for _ in 0..100 {
            drop(stranger());
            staying.push(stranger());
        }
        sleep(Duration::from_millis(100));
        staying
    };
    assert!(is_said_to_live(port, come_and_go));
    check(&mut node, &mut daemon);
}

/// Makes a probe as the kubelet does: from an address of its own, and it waits a second. Something happens after it has
/// connected.
fn is_said_to_live<T>(port: u16, meanwhile: impl FnOnce() -> T) -> bool {
    let frame = |kind: u8, flags: u8, id: u32, payload: &[u8]| {
        let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&len[1..], &[kind, flags], &id.to_be_bytes(), payload].concat()
    };
    let path = b"/grpc.health.v1.Health/Check";
    let head = [
        &[0x83, 0x86, 0x04, 28][..],
        path,
        b"\x41\x01a\x5f\x10application/grpc",
    ]
    .concat();
    let message = [&[0, 0, 0, 0, 10, 0x0a, 8][..], b"liveness"].concat();
    let (head, message) = (frame(1, 4, 1, &head), frame(0, 1, 1, &message));
    let request = [PREFACE, &frame(4, 0, 0, &[]), &head, &message].concat();
    let second = Duration::from_secs(1);
    let asked = || -> std::io::Result<bool> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut stream = TcpStream::connect_timeout(&address, second)?;
        stream.set_write_timeout(Some(second))?;
        let _strangers = meanwhile();
        let mut answer = Vec::<u8>::new();
        let began = Instant::now();
        stream.write_all(&request)?;
        while began.elapsed() < second {
            stream.set_read_timeout(Some(second.saturating_sub(began.elapsed())))?;
            let mut buffer = [0; 4096];
            let len = stream.read(&mut buffer)?;
            answer.extend(&buffer[..len]);
            // SERVING.
            if answer.windows(7).any(|part| part == [0, 0, 0, 0, 2, 8, 1]) {
                return Ok(true);
            }
            if len == 0 {
                break;
            }
        }
        Ok(false)
    };
    asked().unwrap_or(false)
}

/// The sockets are for root alone, whatever their modes are.
pub(crate) fn another_user() {
    let mut node = Node::new();
    // Locks of a driver that let others open them.
    let state = node.scratch.join("plugins/gpu.nvidia.com");
    let locks = ["pu.lock", "publisher.lock"].map(|name| state.join(name));
    fs::create_dir(&state).unwrap();
    for lock in &locks {
        fs::write(lock, "").unwrap();
        fs::set_permissions(lock, fs::Permissions::from_mode(0o666)).unwrap();
    }
    let mut daemon = node.started();
    check(&mut node, &mut daemon);
    let script = "import socket,sys\n\
        s = socket.socket(socket.AF_UNIX)\n\
        s.settimeout(20)\n\
        try:\n s.connect(sys.argv[1]); print(len(s.recv(9)))\n\
        except OSError as e: print(e.strerror)";
    let said = |socket: &Path| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            PYTHON,
            "-c",
            script,
        ]);
        let output = command.arg(socket).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    for socket in [node.services(), node.registrations()].concat() {
        let mode = fs::metadata(&socket).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", socket.display());
        assert_eq!(said(&socket), "Permission denied\n");
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(said(&socket), "0\n");
    }
    assert!(
        daemon
            .log()
            .contains("a caller that is not root was refused")
    );
    // Nor can it hold a lock.
    for lock in &locks {
        let mode = fs::metadata(lock).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", lock.display());
    }
    check(&mut node, &mut daemon);
}

/// Who opened a lock before keeps it as long as it likes. The log says which, once.
pub(crate) fn held_locks() {
    let mut node = Node::new();
    drop(node.started());
    node.remove_slices();
    for name in ["pu.lock", "publisher.lock"] {
        let lock = node.scratch.join("plugins/gpu.nvidia.com").join(name);
        let file = fs::File::open(&lock).unwrap();
        let held = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
        let mut daemon = node.start();
        node.register(&mut daemon);
        let said = format!("Waiting for {}", lock.display());
        wait("a word about the lock", || daemon.log().contains(&said));
        assert!(node.slices().is_empty());
        drop(held);
        node.published();
        node.remove_slices();
        assert!(daemon.log().matches(&said).count() <= 2, "{}", daemon.log());
        daemon.signal(Signal::SIGKILL);
        daemon.ended();
    }
}

/// The driver serves as before.
#[track_caller]
fn check(node: &mut Node, daemon: &mut Daemon) {
    assert!(daemon.is_alive(), "{}", daemon.log());
    let info = node.register(daemon);
    assert_eq!(info["name"], "gpu.nvidia.com", "{info}");
    node.claim("a", &["gpu-0"]);
    node.prepared("a");
    node.unprepared("a");
    let log = daemon.log();
    assert!(!log.contains("panicked") && log.len() < 1 << 20, "{log}");
}

fn resident_kib(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn free_port() -> u16 {
    TcpListener::bind(("::", 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}
