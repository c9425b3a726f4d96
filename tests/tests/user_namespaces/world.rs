//! Creates user namespaces, with the maps of rootless tools and runtimes, and a container's mounts in them.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nvc_testkit::cli;
use nvc_testkit::compile::{Source, compiled};
use nvc_testkit::driver::{Builder, Driver};
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::{files, rootfs, userland};

/// The user outside who is root in the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// The host's root, alone: `unshare -Ur`.
    Host,
    /// An unprivileged user, alone.
    User(u32),
    /// The first of a range of users.
    Range(u32),
}

/// Number of users in a range.
pub(crate) const RANGE: u32 = 65536;

/// The environment of one test.
pub(crate) struct World {
    pub(crate) driver: Driver,
    pub(crate) root: PathBuf,
    pub(crate) scratch: Scratch,
}

/// Mounts made before `$setup`, in the user namespace. $1: the container's root; $2: the driver's.
const MOUNTS: &str = r#"
set -e
root=$1 driver=$2
[ "$bound" ] || mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount -t tmpfs -o mode=555 tmpfs proc/driver
mkdir -m 555 proc/driver/nvidia
mount -t tmpfs -o mode=755 tmpfs dev
mount -t tmpfs tmpfs run
"#;

impl World {
    /// Creates a driver and a Debian root that belongs to `owner`.
    pub(crate) fn new(driver: &Builder, owner: u32) -> Self {
        let scratch = Scratch::new().unwrap();
        let driver = driver.build(scratch.join("driver")).unwrap();
        let builder = rootfs::Builder::new(rootfs::Layout::Debian);
        let root = builder.build(scratch.join("rootfs")).unwrap();
        own(&root, owner);
        // In a directory where every user can execute it.
        let cli = scratch.join("nvidia-container-cli");
        files::copy_program(&cli::program().unwrap(), &cli).unwrap();
        Self {
            driver,
            root,
            scratch,
        }
    }

    pub(crate) fn cli(&self) -> PathBuf {
        self.scratch.join("nvidia-container-cli")
    }

    /// Installs a program of the kit in the scratch directory.
    pub(crate) fn tool(&self, source: Source, name: &str) -> PathBuf {
        let path = self.scratch.join(name);
        files::file(&path, &compiled(source, &[]).unwrap()[..], 0o755).unwrap();
        path
    }

    /// Runs a script in a user namespace: first `before` on the host's side, in a separate mount namespace, then the
    /// container's mounts, then `script`. It sees the driver's /proc/devices.
    pub(crate) fn start(&self, who: Root, before: &str, script: &str) -> Child {
        let entered = match who {
            Root::Range(_) => "echo entered",
            _ => "",
        };
        let inside = format!("{entered}\n{MOUNTS}\n{script}");
        let enter = match who {
            Root::Host => "exec unshare -Urmpf sh -c \"$inside\" sh \"$@\"".to_owned(),
            Root::User(uid) => format!(
                "exec setpriv --reuid={uid} --regid={uid} --clear-groups \
                 unshare -Urmpf sh -c \"$inside\" sh \"$@\""
            ),
            // Changing the user needs privileges that only entering it from outside gives.
            Root::Range(_) => {
                "exec nsenter --user=\"$users\" unshare -mpf sh -c \"$inside\" sh \"$@\"".to_owned()
            }
        };
        // procfs can be mounted only if the existing one is not covered.
        let outer = format!(
            "set -e; root=$1 driver=$2; ({}) 2>/dev/null || true
             {before}\n{enter}",
            machine::WITHOUT_DRIVER
        );
        let mut users = match who {
            Root::Range(first) => Some(user_namespace(first)),
            _ => None,
        };
        let path = users
            .as_ref()
            .map(|users| format!("/proc/{}/ns/user", users.id()));
        let mut child = Command::new("unshare")
            .args(["-m", "sh", "-c", &outer, "sh"])
            .args([&self.root, self.driver.root()])
            .env("inside", inside)
            .env("users", path.unwrap_or_default())
            .env("cli", self.cli())
            .env("ldconfig", userland::host_ldconfig())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if let Some(users) = &mut users {
            expect_line(&mut child, "entered");
            users.kill().unwrap();
            users.wait().unwrap();
        }
        child
    }

    /// Runs `configure` within the namespace; returns `status N`, and the output of `then`.
    pub(crate) fn configure(
        &self,
        who: Root,
        before: &str,
        setup: &str,
        arguments: &str,
        then: &str,
    ) -> Output {
        let script = format!(
            "mount --bind \"$driver/proc/devices\" /proc/devices
             {setup}
             set +e
             \"$cli\" --user --root=\"$driver\" configure --ldconfig=@\"$ldconfig\" --utility {arguments} \"$root\"
             echo status $?
             {then}"
        );
        let child = self.start(who, before, &script);
        child.wait_with_output().unwrap()
    }
}

/// Creates a user namespace with a range of users; a process holds it.
fn user_namespace(first: u32) -> Child {
    let script = "echo unshared; exec sleep 3600";
    let mut command = Command::new("unshare");
    command.args(["-U", "sh", "-c", script]);
    let mut holder = command.stdout(Stdio::piped()).spawn().unwrap();
    expect_line(&mut holder, "unshared");
    for map in ["uid_map", "gid_map"] {
        let path = format!("/proc/{}/{map}", holder.id());
        fs::write(path, format!("0 {first} {RANGE}")).unwrap();
    }
    holder
}

/// Reads one line byte by byte, so that the following data stays unread.
pub(crate) fn expect_line(child: &mut Child, expected: &str) {
    let output = child.stdout.as_mut().unwrap();
    let mut line = String::new();
    let mut byte = [0];
    while output.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        line.push(char::from(byte[0]));
    }
    if line != expected {
        let mut errors = String::new();
        if let Some(stream) = child.stderr.as_mut() {
            stream.read_to_string(&mut errors).unwrap();
        }
        panic!("{line:?} instead of {expected:?}: {errors}");
    }
}

pub(crate) fn own(path: &Path, owner: u32) {
    let status = Command::new("chown")
        .args(["-R", "-h", &format!("{owner}:{owner}")])
        .arg(path)
        .status();
    assert!(status.unwrap().success());
}
