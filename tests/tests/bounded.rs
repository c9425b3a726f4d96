//! Tests images that would take unbounded time, memory or disk: each `configure` ends soon and uses little memory.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nvc_testkit::cli::Run;
use nvc_testkit::container::{Builder, Container};
use nvc_testkit::harness::{self, Need};
use nvc_testkit::helper::Helper;
use nvc_testkit::machine::{self, Scratch};
use nvc_tests::{State, command_line, debian_root, host_ldconfig, start};

/// Limit of private writable memory of every process; the program's own size, which depends on the build, does not count.
const MEMORY: &str = "--data=12582912";
/// Many times longer than any of these takes, and shorter than a lease, which is held for 45 seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let mut tests = nvc_testkit::tests![&[Need::Root];
        an_ordinary_container,
        many_links,
        many_compat_libraries,
        many_files_beside_the_compat_libraries,
        many_files_of_configuration,
        a_sparse_cache,
        caches_on_a_volume,
        links_to_the_kernels_log,
    ];
    tests.extend(
        nvc_testkit::tests![&[Need::Root, Need::Command("python3"), Need::Command("flock")];
            leases,
            the_lock_of_a_container,
            the_lock_of_another_configuration,
        ],
    );
    harness::main(tests)
}

/// Runs `configure` with little memory.
fn configure(container: &Container, ldconfig: &str) -> Run {
    let pid = format!("--pid={}", container.pid());
    let words = [
        "configure",
        ldconfig,
        "--no-cgroups",
        &pid,
        "--compute",
        "--device=0",
    ];
    let mut line = command_line(machine::driver(), &words);
    line.push(container.root().into());
    let mut command = Command::new("prlimit");
    command.args([MEMORY, "--"]);
    Run::within(command, line)
}

/// Returns both ways of updating the cache.
fn ldconfigs() -> [String; 2] {
    [host_ldconfig(), "--ldconfig=builtin".into()]
}

fn in_time<T>(run: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let done = run();
    assert!(begin.elapsed() < TIMEOUT, "{:?}", begin.elapsed());
    done
}

/// Checks that it fails soon without changes.
fn is_refused(container: &Container, ldconfig: &str) -> String {
    let before = State::of(container);
    let text = in_time(|| configure(container, ldconfig).fails());
    before.assert_unchanged(container);
    text
}

/// The memory limit is not the reason for the other tests' failures.
fn an_ordinary_container() {
    for ldconfig in ldconfigs() {
        let container = start(Builder::new(debian_root().no_programs()));
        in_time(|| configure(&container, &ldconfig).succeeds());
    }
}

/// Returns a name of maximum length.
fn long_name(number: usize, before: &str, after: &str) -> String {
    format!("{before}{number:0width$}{after}", width = 220)
}

/// A snapshot would hold all of them. ldconfig itself ignores names that are not a library's.
fn many_links() {
    let root = debian_root().no_programs().edit(|root| {
        let directory = root.join("usr/lib");
        (0..70_000).try_for_each(|number| symlink("x", directory.join(long_name(number, "", ""))))
    });
    let container = start(Builder::new(root));
    for ldconfig in ldconfigs() {
        in_time(|| configure(&container, &ldconfig).succeeds());
    }
}

fn compat(names: impl Fn(usize) -> String + Send + Sync + 'static) -> Container {
    let compat = "/usr/local/cuda/compat";
    let root = debian_root().no_programs().directory(compat);
    start(Builder::new(root.edit(move |root| {
        let directory = root.join("usr/local/cuda/compat");
        (0..70_000).try_for_each(|number| symlink("x", directory.join(names(number))))
    })))
}

fn many_compat_libraries() {
    let container = compat(|number| long_name(number, "lib", ".so.1"));
    let text = is_refused(&container, &host_ldconfig());
    assert!(text.contains("container error: too many "), "{text}");
}

fn many_files_beside_the_compat_libraries() {
    let container = compat(|number| long_name(number, "other", ""));
    let text = is_refused(&container, &host_ldconfig());
    assert!(
        text.contains("container error: too many files in "),
        "{text}"
    );
}

/// Each matches.
fn many_files_of_configuration() {
    let root = debian_root().no_programs().edit(|root| {
        let below = "d".repeat(250);
        let directory = root.join("etc").join(&below).join(&below).join(&below);
        fs::create_dir_all(&directory)?;
        for number in 0..60_000 {
            symlink("x", directory.join(format!("{number}.conf")))?;
        }
        let line = format!("include /etc/{below}/{below}/{below}/*.conf\n");
        fs::write(root.join("etc/ld.so.conf"), line)
    });
    let container = start(Builder::new(root));
    for ldconfig in ldconfigs() {
        let outcome = in_time(|| configure(&container, &ldconfig).outcome().unwrap());
        // ldconfig itself may fail on that many.
        assert!([Some(0), Some(1)].contains(&outcome.status), "{outcome:?}");
        assert!(!outcome.stderr.contains("memory allocation"), "{outcome:?}");
    }
}

/// Restoring six gigabytes of holes from a copy would allocate blocks.
fn a_sparse_cache() {
    for name in ["etc/ld.so.cache", "etc/ld.so.cache~"] {
        let container = start(Builder::new(debian_root().no_programs()));
        let path = container.root().join(name);
        File::create(&path).unwrap().set_len(6 << 30).unwrap();
        let text = in_time(|| configure(&container, &host_ldconfig()).fails());
        let expected = format!("/{name}: it has more than 16777216 bytes");
        assert!(text.ends_with(&expected), "{text}");
        assert_eq!(fs::metadata(&path).unwrap().len(), 6 << 30);
    }
}

/// Another tenant writes them. Each is refused; libraries in the loader's own directories are found without it, but an
/// entry in it could win.
fn caches_on_a_volume() {
    let container = start(Builder::new(debian_root().no_programs()));
    let scratch = Scratch::new().unwrap();
    let cache = scratch.join("ld.so.cache");
    let mut mount = container.enter("mount");
    mount
        .arg("--bind")
        .arg(scratch.path())
        .arg(container.point("etc"));
    assert!(mount.status().unwrap().success());
    // More of either than is read, each for a library of the driver.
    let many = |number: usize| fs::write(&cache, cache_with(number)).unwrap();
    let kinds: [&dyn Fn(); 4] = [
        &|| many(130_000),
        &|| many(60_000),
        &|| nix::unistd::mkfifo(&cache, Mode::S_IRUSR).unwrap(),
        &|| File::create(&cache).unwrap().set_len(6 << 30).unwrap(),
    ];
    for (number, make) in kinds.into_iter().enumerate() {
        let _ = fs::remove_file(&cache);
        make();
        for ldconfig in ["--ldconfig=auto", &host_ldconfig()] {
            let before = container.mounts().unwrap();
            let outcome = in_time(|| configure(&container, ldconfig).outcome().unwrap());
            // Those whose entries exist nowhere say nothing about the libraries.
            let text = &outcome.stderr;
            let named = ["/etc is a volume", "open failed: /etc/ld.so.cache: "];
            assert!(
                named.iter().any(|named| text.contains(named)),
                "{number}: {text}"
            );
            assert!(outcome.status == Some(0) || container.mounts().unwrap() == before);
        }
    }
}

/// Returns a cache with this number of entries for libcuda.so.1, each in another directory.
fn cache_with(number: usize) -> Vec<u8> {
    let (header, entry) = (48, 24);
    let strings = header + number * entry;
    let key = b"libcuda.so.1\0";
    let mut table = Vec::new();
    let mut text = key.to_vec();
    for directory in 0..number {
        let place = |offset: usize| u32::try_from(strings + offset).unwrap().to_ne_bytes();
        table.extend(0x0303_u32.to_ne_bytes());
        table.extend(place(0));
        table.extend(place(text.len()));
        table.extend([0; 12]);
        text.extend(format!("/{directory}/libcuda.so.1\0").bytes());
    }
    let mut bytes = b"glibc-ld.so.cache1.1".to_vec();
    for count in [number, text.len()] {
        bytes.extend(u32::try_from(count).unwrap().to_ne_bytes());
    }
    bytes.push(if cfg!(target_endian = "little") { 2 } else { 3 });
    bytes.resize(header, 0);
    [bytes, table, text].concat()
}

fn links_to_the_kernels_log() {
    let root = debian_root().no_programs().edit(|root| {
        fs::write(root.join("etc/ld.so.conf"), "include a.conf\n")?;
        symlink("/proc/kmsg", root.join("etc/a.conf"))
    });
    let container = start(Builder::new(root));
    for ldconfig in ldconfigs() {
        let text = is_refused(&container, &ldconfig);
        let expected = "/etc/a.conf: it is generated by the kernel";
        assert!(text.ends_with(expected), "{text}");
    }
}

/// Leases by the file's owner, which need no privilege.
fn leases() {
    for name in ["etc/ld.so.conf", "etc/ld.so.cache"] {
        let root = debian_root().no_programs();
        let container = start(Builder::new(root));
        let path = container.root().join(name);
        if !path.exists() {
            fs::write(&path, "").unwrap();
        }
        let mut holder = Command::new("python3");
        let holder = Helper::start(holder.args(["-c", LEASE]).arg(&path), "ready").unwrap();
        for ldconfig in ldconfigs() {
            let text = in_time(|| configure(&container, &ldconfig).fails());
            let expected = format!("/{name}: another process holds a lease on it");
            assert!(text.ends_with(&expected), "{text}");
        }
        drop(holder);
    }
}

/// A container with the host's /proc as a volume can open the file that `configure` locks. It takes the lock with fewer
/// capabilities than `configure` needs, or through a process that has ended.
fn the_lock_of_a_container() {
    let container = start(Builder::new(debian_root().no_programs()));
    let narrow = "exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin python3 -c \"$1\"";
    for line in [narrow, "flock 9 && echo ready && exec cat"] {
        let holder = hold(&container, line);
        let outcome = in_time(|| configure(&container, &host_ldconfig()).outcome().unwrap());
        drop(holder);
        assert_eq!(outcome.status, Some(0), "{outcome:?}");
        assert!(
            outcome.stderr.contains("not waiting for /proc/"),
            "{outcome:?}"
        );
    }
}

fn the_lock_of_another_configuration() {
    let container = start(Builder::new(debian_root().no_programs()));
    let holder = hold(&container, "exec python3 -c \"$1\"");
    thread::scope(|scope| {
        let run = configure(&container, &host_ldconfig());
        let run = scope.spawn(move || run.outcome().unwrap());
        thread::sleep(Duration::from_secs(2));
        assert!(!run.is_finished());
        drop(holder);
        let outcome = run.join().unwrap();
        assert_eq!(outcome.status, Some(0), "{outcome:?}");
        assert!(!outcome.stderr.contains("not waiting"), "{outcome:?}");
    });
}

/// Starts a shell with the lock's file as descriptor 9, and `$1` as a program that locks it.
fn hold(container: &Container, line: &str) -> Helper {
    let line = format!("exec 9<\"/proc/$0/environ\"; {line}");
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", &line, &container.pid().to_string(), LOCK]);
    Helper::start(shell, "ready").unwrap()
}

const LOCK: &str = "
import fcntl, sys
fcntl.flock(9, fcntl.LOCK_EX)
print('ready', flush=True)
sys.stdin.read()
";

/// Takes a lease and does not release it.
const LEASE: &str = "
import fcntl, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = open(sys.argv[1], 'r+')
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('ready', flush=True)
sys.stdin.read()
";
