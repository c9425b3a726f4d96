//! Tests containers whose root propagates its mounts, in every mode: no mount made there appears on the host, also if
//! `configure` fails or is killed.
//!
//! The host is simulated by a mount namespace, in which the root is mounted as the case requires and bound a second
//! time, where a leak would show; the container's namespace is a copy of it. Each case fails, succeeds and is killed,
//! and then the container ends. In the caller's own namespace a root whose peers would see the mounts is refused.
#![allow(clippy::unwrap_used)]

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nvc_testkit::cli::{self, Run};
use nvc_testkit::harness::Need::Root as NeedRoot;
use nvc_testkit::harness::{self, Test, test};
use nvc_testkit::hostile::{self, Layout, Mounted, Place, Root};
use nvc_testkit::inside::Inside;
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::mounts::{self, Mount};
use nvc_tests::{command_line, failing_ldconfig, host_ldconfig};

const NONE: Option<&str> = None;

/// Propagation of the root on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Private,
    Shared,
    Slave,
    SharedAndSlave,
    Unbindable,
}

/// Nesting of the root's mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nesting {
    /// Only the root has the propagation, not the mounts in it.
    Outside,
    /// Only the mounts in the root have it; the root is private.
    Within,
    /// The root and all mounts in it have it, and it is bound recursively to the container's path.
    Bound,
}

/// One case: the root, and the propagation with which the container's namespace was created.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    nesting: Nesting,
    /// An argument of unshare(1), or none: the container is in the caller's namespace.
    namespace: Namespace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    Of(&'static str),
    Callers,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            nesting,
            namespace,
        } = self;
        write!(f, "{kind:?} {nesting:?} {namespace:?}")
    }
}

fn main() -> ExitCode {
    use Namespace::{Callers, Of};
    let kinds = [
        Kind::Private,
        Kind::Shared,
        Kind::Slave,
        Kind::SharedAndSlave,
        Kind::Unbindable,
    ];
    let mut tests: Vec<Test> = Vec::new();
    for kind in kinds {
        for nesting in [Nesting::Outside, Nesting::Within, Nesting::Bound] {
            if (kind, nesting) == (Kind::Unbindable, Nesting::Bound) {
                continue; // the kernel refuses
            }
            let name = format!("{kind:?}_{nesting:?}").to_lowercase();
            tests.push(test(name, &[NeedRoot], move || {
                for word in ["unchanged", "slave", "private", "shared"] {
                    let namespace = Of(word);
                    own_namespace(Case {
                        kind,
                        nesting,
                        namespace,
                    });
                }
                callers_namespace(Case {
                    kind,
                    nesting,
                    namespace: Callers,
                });
            }));
        }
    }
    harness::main(tests)
}

/// The host of a case.
struct Host {
    scratch: Scratch,
    namespace: Inside,
    root: PathBuf,
}

impl Host {
    fn new(case: Case) -> Self {
        let scratch = Scratch::new().unwrap();
        fs::create_dir(scratch.join("base")).unwrap();
        fs::create_dir(scratch.join("peer")).unwrap();
        fs::create_dir(scratch.join("bound")).unwrap();
        // The namespace is a copy: what the driver shows in /proc must be there by now.
        let driver = machine::driver();
        let namespace = Inside::new().unwrap();
        let base = scratch.join("base");
        let place = Place {
            base: &base,
            canary: &scratch.join("peer"),
            pid: namespace.pid(),
            driver,
        };
        let root = Root {
            layout: Layout::Debian,
            mounted: Mounted::Bind,
            spots: Vec::new(),
        };
        let (peer, bound) = (scratch.join("peer"), scratch.join("bound"));
        let made = namespace.run(|| hostile::build(&root, &place));
        let mut host = Self {
            root: made.unwrap().unwrap(),
            scratch,
            namespace,
        };
        host.make_mount_points();
        let root = host.root.clone();
        let made = host.namespace.run(|| {
            bind(&root.join("usr"), &root.join("usr"), MsFlags::empty())?;
            let all = [root.clone(), root.join("usr"), root.join("dev")];
            let of_kind: &[PathBuf] = match case.nesting {
                Nesting::Outside => &all[..1],
                Nesting::Within => &all[1..],
                Nesting::Bound => &all,
            };
            for at in of_kind {
                make(at, case.kind)?;
            }
            if case.kind != Kind::Unbindable {
                bind(&root, &peer, MsFlags::MS_REC)?;
            }
            if case.nesting != Nesting::Bound {
                return Ok(root);
            }
            bind(&root, &bound, MsFlags::MS_REC)?;
            Ok::<_, std::io::Error>(bound)
        });
        host.root = made.unwrap().unwrap();
        host
    }

    /// A separate mount in the root is a volume, which needs existing mount points.
    fn make_mount_points(&self) {
        let container = self
            .namespace
            .run(|| Inside::with_propagation("private"))
            .unwrap()
            .unwrap();
        self.succeeds(container.pid());
    }

    fn mounts(&self) -> Vec<(u64, Mount)> {
        mounts::numbered(self.namespace.pid()).unwrap()
    }

    fn line(&self, container: u32, ldconfig: &str) -> Vec<std::ffi::OsString> {
        let pid = format!("--pid={container}");
        let words = [
            "configure",
            ldconfig,
            "--no-cgroups",
            &pid,
            "--utility",
            "--graphics",
            "--device=0",
        ];
        let mut line = command_line(machine::driver(), &words);
        line.push(self.root.clone().into());
        line
    }

    fn succeeds(&self, container: u32) {
        let line = self.line(container, &host_ldconfig());
        self.namespace.run(|| Run::cli(line).succeeds()).unwrap();
    }

    fn fails(&self, container: u32) {
        let line = self.line(container, &failing_ldconfig(&self.scratch, &[]));
        let message = self.namespace.run(|| Run::cli(line).fails()).unwrap();
        assert!(message.ends_with("failed with error code: 3"), "{message}");
    }

    /// Kills it some time after its start; returns whether that was too late.
    fn killed(&self, container: u32, after: Duration) -> bool {
        let mut command = Command::new(cli::program().unwrap());
        command
            .args(self.line(container, &host_ldconfig()))
            .env_clear();
        command
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = self.namespace.run(|| command.spawn()).unwrap().unwrap();
        thread::sleep(after);
        let late = child.try_wait().unwrap().is_some();
        let _ = child.kill();
        child.wait().unwrap();
        late
    }
}

/// Nothing is visible outside the container's namespace, however it ends.
fn own_namespace(case: Case) {
    let Namespace::Of(propagation) = case.namespace else {
        return;
    };
    let host = Host::new(case);
    let before = host.mounts();
    let container = || {
        let made = host.namespace.run(|| Inside::with_propagation(propagation));
        made.unwrap().unwrap()
    };
    let quiet = |what: &str| {
        let now = host.mounts();
        assert!(now == before, "{case}: {what}: {}", changes(&before, &now));
    };

    let one = container();
    // A mount that temporarily became a slave is shared again, but stays a slave.
    let table = |container: &Inside| {
        let mut table = mounts::of(container.pid()).unwrap();
        let propagations = table.iter_mut().map(|mount| &mut mount.propagation);
        propagations.for_each(|words| words.retain(|word| word != "master"));
        table
    };
    let empty = table(&one);
    host.fails(one.pid());
    quiet("failed");
    let left = table(&one);
    assert!(left == empty, "{case}: {:#?}", mounts::delta(&empty, &left));
    let started = Instant::now();
    host.succeeds(one.pid());
    let usual = started.elapsed();
    quiet("done");
    let (new, _) = mounts::delta(&empty, &table(&one));
    let of_driver = new.iter().filter(|mount| mount.root != Path::new("/"));
    assert!(of_driver.clone().count() > 10, "{case}: {new:#?}");
    drop(one);
    quiet("gone");

    let kills = harness::cases(1, 20);
    for number in 0..kills {
        let one = container();
        // Short form: the middle of the run. Long form: every part of it.
        let part =
            (2 * u32::try_from(number).unwrap() + 1) * 1000 / u32::try_from(2 * kills).unwrap();
        let late = host.killed(one.pid(), usual * part / 1000);
        quiet(if late { "done" } else { "killed" });
        // Mounts left in the container vanish with it.
        drop(one);
        quiet("killed and gone");
    }
}

/// If the container is in the caller's namespace, a root with peers outside is refused until the user has done what the
/// hint says; a failure undoes all mounts there too.
fn callers_namespace(case: Case) {
    let host = Host::new(case);
    let table = || mounts::of(host.namespace.pid()).unwrap();
    let before = table();
    let mut line = host.line(host.namespace.pid(), &host_ldconfig());
    line.insert(line.len() - 1, "--dry-run".into());
    let looked = host.namespace.run(|| Run::cli(line).outcome().unwrap());
    let said = looked.unwrap().stderr;
    let repair = said.lines().find_map(|line| line.strip_prefix("hint: "));
    assert_eq!(table(), before, "{case}");
    if let Some(repair) = repair {
        assert!(said.contains("it is shared with mounts outside"), "{said}");
        assert!(repair.starts_with("mount --make-rslave "), "{said}");
        let mut shell = Command::new("sh");
        shell.args(["-ec", repair]);
        let done = host.namespace.run(|| shell.status().unwrap());
        assert!(done.unwrap().success(), "{case}: {repair}");
    } else {
        let is_shared = matches!(case.kind, Kind::Shared | Kind::SharedAndSlave);
        assert!(!is_shared, "{case}: {said}");
    }
    let before = table();
    host.fails(host.namespace.pid());
    let left = table();
    assert!(
        left == before,
        "{case}: {:#?}",
        mounts::delta(&before, &left)
    );
    host.succeeds(host.namespace.pid());
    let (new, gone) = mounts::delta(&before, &table());
    assert!(gone.is_empty(), "{case}: {gone:#?}");
    let scratch = host.scratch.path();
    let outside = new.iter().find(|mount| !mount.point.starts_with(scratch));
    assert!(outside.is_none(), "{case}: {outside:#?}");
    let elsewhere = new
        .iter()
        .find(|mount| !mount.point.starts_with(&host.root));
    assert!(elsewhere.is_none(), "{case}: {elsewhere:#?}");
}

/// Sets a mount's propagation; a slave gets a master that is bound over the same directory.
fn make(at: &Path, kind: Kind) -> std::io::Result<()> {
    let set = |flags| Ok(mount(NONE, at, NONE, flags, NONE)?);
    match kind {
        Kind::Private => set(MsFlags::MS_PRIVATE),
        Kind::Unbindable => set(MsFlags::MS_UNBINDABLE),
        Kind::Shared => set(MsFlags::MS_SHARED),
        Kind::Slave | Kind::SharedAndSlave => {
            // The lower mount becomes the master, the upper one its slave.
            set(MsFlags::MS_SHARED)?;
            bind(at, at, MsFlags::MS_REC)?;
            set(MsFlags::MS_SLAVE)?;
            match kind {
                Kind::Slave => Ok(()),
                _ => set(MsFlags::MS_SHARED),
            }
        }
    }
}

fn bind(source: &Path, at: &Path, recursive: MsFlags) -> std::io::Result<()> {
    Ok(mount(
        Some(source),
        at,
        NONE,
        MsFlags::MS_BIND | recursive,
        NONE,
    )?)
}

fn changes(before: &[(u64, Mount)], now: &[(u64, Mount)]) -> String {
    let lines = |of: &[(u64, Mount)], other: &[(u64, Mount)], sign: char| -> String {
        let missing = of.iter().filter(|mount| !other.contains(mount));
        missing
            .map(|(id, mount)| format!("\n{sign} {id} {mount}"))
            .collect()
    };
    lines(now, before, '+') + &lines(before, now, '-')
}
