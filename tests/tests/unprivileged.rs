//! Without privileges: `configure` in a user namespace, `info` and `list` as an ordinary user.
#![allow(clippy::unwrap_used)]

use std::process::{Command, ExitCode};

use nvc_testkit::cli::{self, Run};
use nvc_testkit::driver::Builder;
use nvc_testkit::harness::Need::{Root, UserNamespaces};
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::{harness, userland};
use nvc_tests::{command_line, debian_root};

fn main() -> ExitCode {
    let mut tests = nvc_testkit::tests![&[UserNamespaces]; configures_in_a_user_namespace];
    tests.extend(nvc_testkit::tests![&[Root]; an_ordinary_user_may_ask]);
    harness::main(tests)
}

/// A manually created container, with everything that a user namespace allows: no device nodes.
const BY_HAND: &str = r#"
set -e
root=$1 driver=$2 cli=$3 ldconfig=$4
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount -t tmpfs -o mode=555 tmpfs proc/driver
mkdir -m 555 proc/driver/nvidia
mount -t tmpfs tmpfs dev
mount -t tmpfs tmpfs run
mount --bind "$driver/proc/devices" /proc/devices
"$cli" --load-kmods --user --root="$driver" configure --ldconfig=@"$ldconfig" \
  --no-cgroups --no-devbind --utility --device=1:0 "$root"
NVIDIA_SIM_NO_NODES=1 chroot . /usr/bin/nvidia-smi -L 2>&1
grep " $root/usr/bin/nvidia-smi " proc/self/mountinfo
"#;

fn configures_in_a_user_namespace() {
    let scratch = Scratch::new().unwrap();
    let driver = Builder::default()
        .no_nodes()
        .build(scratch.join("driver"))
        .unwrap();
    let root = debian_root().build(scratch.join("rootfs")).unwrap();
    // procfs can be mounted only if the existing one is not covered.
    let script = "umount /proc/devices /proc/driver 2>/dev/null; exec unshare -Urmpf sh -c \"$@\"";
    let flags = if machine::is_root() { "-m" } else { "-Urm" };
    let output = Command::new("unshare")
        .args([flags, "sh", "-c", script, "sh", BY_HAND, "sh"])
        .args([&root, driver.root()])
        .args([cli::program().unwrap(), userland::host_ldconfig()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains(&driver.listing(1, &[0])), "{text}");
    assert!(text.contains(" ro,nosuid,nodev"), "{text}");
}

fn an_ordinary_user_may_ask() {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=1000", "--regid=1000", "--clear-groups", "--"]);
    let line = command_line(machine::driver(), &["info"]);
    // Entering another root needs a privilege.
    let message = Run::within(command, line).fails();
    assert!(
        message.starts_with("nvidia-container-cli: initialization error: "),
        "{message}"
    );
}
