//! Tests the host's sockets and directories in a container: it can use them, but not change them.
#![allow(clippy::unwrap_used)]

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;

use nix::errno::Errno;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nvc_testkit::harness::{self, Need::Root};
use nvc_testkit::machine::Scratch;
use nvc_testkit::{container, driver};
use nvc_tests::{configure, configure_on, debian, debian_root, start};

fn main() -> ExitCode {
    // Objects of services: sockets, and the directory of MPS.
    harness::on_debian();
    harness::main(nvc_testkit::tests![&[Root];
        a_daemons_socket,
        the_directory_of_capability_devices,
        the_directory_of_mps,
        the_directory_of_a_users_mps,
        a_link_in_the_place_of_the_directory_of_mps,
        the_environment_of_a_hook_of_lxc_is_an_images,
    ])
}

fn errno(error: &std::io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw)
}

fn a_daemons_socket() {
    let scratch = Scratch::new().unwrap();
    let driver = driver::Builder::default().build(scratch.path()).unwrap();
    let socket = driver.path("/var/run/nvidia-persistenced/socket");
    fs::remove_file(&socket).unwrap();
    let _daemon = UnixListener::bind(&socket).unwrap();
    let container = debian();
    configure_on(&driver, &container, &["--utility", "--device=0"]).succeeds();
    let seen = container.inside("/run/nvidia-persistenced/socket");
    UnixStream::connect(&seen).unwrap();
    let closed = fs::set_permissions(&seen, Permissions::from_mode(0o000)).unwrap_err();
    assert_eq!(errno(&closed), Some(Errno::EROFS));
    let taken = std::os::unix::fs::chown(&seen, Some(4242), None).unwrap_err();
    assert_eq!(errno(&taken), Some(Errno::EROFS));
}

fn the_directory_of_capability_devices() {
    let container = debian();
    configure(
        &container,
        &["--utility", "--device=all", "--mig-config=all"],
    )
    .succeeds();
    let directory = container.inside("/dev/nvidia-caps");
    let mode = Mode::from_bits_truncate(0o666);
    let made = mknod(&directory.join("new"), SFlag::S_IFCHR, mode, makedev(1, 3));
    assert_eq!(made, Err(Errno::EROFS));
    let nodes: Vec<_> = fs::read_dir(&directory).unwrap().flatten().collect();
    assert!(!nodes.is_empty());
    for node in nodes {
        let removed = fs::remove_file(node.path()).unwrap_err();
        assert_eq!(errno(&removed), Some(Errno::EROFS));
        // There is no driver behind it, but opening it is not prevented by the mount.
        let opened = OpenOptions::new().read(true).write(true).open(node.path());
        assert_ne!(opened.err().as_ref().and_then(errno), Some(Errno::EROFS));
    }
}

/// Clients write there.
fn the_directory_of_mps() {
    let container = debian();
    configure(&container, &["--compute", "--device=0"]).succeeds();
    let file = container.inside("/tmp/nvidia-mps/a-clients-own");
    fs::write(&file, "").unwrap();
    fs::remove_file(file).unwrap();
}

/// Any user can create the name, and would be the server of all containers. The container's own user may serve it, but a
/// container's root could create files of root's there.
fn the_directory_of_a_users_mps() {
    let scratch = Scratch::new().unwrap();
    let driver = driver::Builder::default().build(scratch.path()).unwrap();
    let pipes = driver.path("/tmp/nvidia-mps");
    let _daemon = UnixListener::bind(pipes.join("of-the-daemon")).unwrap();
    for (owner, user, expected) in [
        (0, 0, Some(None)),
        (1000, 1000, Some(Some(Errno::EROFS))),
        (1000, 0, None),
        (1000, 1001, None),
    ] {
        std::os::unix::fs::chown(&pipes, Some(owner), None).unwrap();
        fs::set_permissions(&pipes, Permissions::from_mode(0o777)).unwrap();
        let container = container::Builder::new(debian_root().no_programs());
        let container = start(container.owner(user));
        let outcome = configure_on(&driver, &container, &["--compute", "--device=0"]);
        let outcome = outcome.outcome().unwrap();
        assert_eq!(outcome.status, Some(0), "{outcome:?}");
        let inside = container.inside("/tmp/nvidia-mps");
        assert_eq!(inside.exists(), expected.is_some(), "{owner} {user}");
        let refusal = format!("it belongs to the user {owner}, and not to root");
        assert_eq!(outcome.stderr.contains(&refusal), expected.is_none());
        if let Some(errno) = expected {
            let made = fs::write(inside.join("file"), "");
            assert_eq!(made.err().as_ref().and_then(self::errno), errno, "{owner}");
            UnixStream::connect(inside.join("of-the-daemon")).unwrap();
        }
    }
}

/// A user of the host, or a container with a volume of /tmp, could choose a directory for all others to write in.
fn a_link_in_the_place_of_the_directory_of_mps() {
    let scratch = Scratch::new().unwrap();
    let driver = driver::Builder::default().build(scratch.path()).unwrap();
    let (tmp, secrets) = (driver.path("/tmp"), driver.path("/root-only"));
    fs::set_permissions(&tmp, Permissions::from_mode(0o1777)).unwrap();
    fs::remove_dir_all(tmp.join("nvidia-mps")).unwrap();
    fs::create_dir(&secrets).unwrap();
    fs::write(secrets.join("secret"), "").unwrap();
    std::os::unix::fs::symlink("/root-only", tmp.join("nvidia-mps")).unwrap();
    let container = debian();
    let outcome = configure_on(&driver, &container, &["--compute", "--device=0"])
        .outcome()
        .unwrap();
    assert_eq!(outcome.status, Some(0), "{outcome:?}");
    assert!(
        outcome
            .stderr
            .contains("a link that other users could have created")
    );
    for place in ["/root-only/secret", "/tmp/nvidia-mps/secret"] {
        assert!(!container.inside(place).exists(), "{place}");
    }
}

/// `lxc-create -t oci` copies an image's variables into the container's configuration, and LXC gives them to its hooks.
fn the_environment_of_a_hook_of_lxc_is_an_images() {
    let scratch = Scratch::new().unwrap();
    let driver = driver::Builder::default().build(scratch.path()).unwrap();
    fs::create_dir_all(driver.path("/srv/tenant")).unwrap();
    fs::write(driver.path("/srv/tenant/secret"), "").unwrap();
    for is_lxc in [false, true] {
        let container = debian();
        let log = scratch.path().join(format!("log-{is_lxc}"));
        let run = configure_on(&driver, &container, &["--compute", "--device=0"])
            .env("CUDA_MPS_PIPE_DIRECTORY", "/srv/tenant")
            .env("NVC_DRIVER_TIMEOUT", "never")
            .env("NVC_DEBUG_FILE", &log);
        let run = if is_lxc {
            run.env("LXC_HOOK_TYPE", "mount")
        } else {
            run
        };
        let outcome = run.outcome().unwrap();
        assert_eq!(outcome.status, Some(0), "{outcome:?}");
        let is_read = outcome.stderr.contains("NVC_DRIVER_TIMEOUT");
        let has_secret = container.inside("/srv/tenant/secret").exists();
        assert_eq!([is_read, has_secret, log.exists()], [!is_lxc; 3]);
    }
}
