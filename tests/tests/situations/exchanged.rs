//! What others put into the places of daemons' sockets and of the driver's files, also after a specification was written.
//!
//! A container with the host's /tmp, and the user of a daemon, can exchange a name there at any time. The file behind
//! it is root's, and must reach no container.

use std::fs::{self, Permissions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use nvc_testkit::driver::Driver;
use nvc_testkit::files;
use serde_json::json;

use super::modes::{Configure, Jit, Live, Specification};
use super::row::{Row, row};

const MPS: &str = "/tmp/nvidia-mps";
const MANIFEST: &str = "/usr/share/glvnd/egl_vendor.d/10_nvidia.json";
const SOCKET: &str = "/var/run/nvidia-persistenced/socket";
/// A directory of root's, with a file and the socket of another daemon.
const PRIVATE: &str = "/private";

const USER: u32 = 4242;

const OWN_SEARCH: &str =
    "specifications and jit-cdi never have the directory of MPS, as upstream's";
const OF_ROOT: &str =
    "the container's process is still root's, and its caller does not say what it will be";
const BY_PATH: &str = "the engine opens the file later, by its path";

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = mps();
    rows.extend(persistenced());
    rows.extend(files_of_the_driver());
    rows
}

fn mps() -> Vec<Row> {
    let attacked = |name| {
        row(name).host(prepare).expect(|expected| {
            expected
                .nothing("/tmp/nvidia-mps/mark")
                .nothing("/tmp/nvidia-mps/control")
                .nothing("/private/mark")
        })
    };
    vec![
        row("exchanged_roots_mps")
            .host(prepare)
            .expect(|expected| expected.host("/tmp/nvidia-mps/control", "/tmp/nvidia-mps/control"))
            .but(&[Jit, Specification, Live], OWN_SEARCH, |expected| {
                expected.nothing("/tmp/nvidia-mps/control")
            }),
        attacked("exchanged_a_link_for_mps").service(link(MPS, PRIVATE), nothing),
        attacked("exchanged_a_file_then_a_link_for_mps").service(file(MPS), link(MPS, PRIVATE)),
        attacked("exchanged_a_directory_then_a_link_for_mps").service(nothing, link(MPS, PRIVATE)),
        attacked("exchanged_a_users_directory_for_mps").service(users_mps, nothing),
        row("exchanged_the_containers_users_mps")
            .host(prepare)
            .service(users_mps, nothing)
            .container(|config| config["process"]["user"] = json!({ "uid": USER, "gid": USER }))
            .expect(|expected| expected.host("/tmp/nvidia-mps/mark", "/tmp/nvidia-mps/mark"))
            .but(&[Configure], OF_ROOT, |expected| {
                expected.nothing("/tmp/nvidia-mps/mark")
            })
            .but(&[Jit, Specification, Live], OWN_SEARCH, |expected| {
                expected.nothing("/tmp/nvidia-mps/mark")
            }),
        attacked("exchanged_a_file_for_mps")
            .service(file(MPS), nothing)
            .expect(|expected| expected.nothing(MPS)),
        attacked("exchanged_a_fifo_for_mps")
            .service(
                |host| {
                    remove(&host.path(MPS));
                    let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
                    nix::unistd::mkfifo(&host.path(MPS), mode).unwrap();
                },
                nothing,
            )
            .expect(|expected| expected.nothing(MPS)),
    ]
}

fn persistenced() -> Vec<Row> {
    let attacked = |name| {
        row(name).host(prepare).expect(|expected| {
            expected
                .nothing(SOCKET)
                .nothing("/private/mark")
                .nothing("/private/socket")
        })
    };
    vec![
        row("exchanged_a_daemon_with_a_user_of_its_own")
            .host(prepare)
            .service(listen, nothing)
            .expect(|expected| expected.host(SOCKET, SOCKET)),
        attacked("exchanged_a_link_to_a_socket").service(link(SOCKET, "/private/socket"), nothing),
        attacked("exchanged_a_socket_then_a_link").service(listen, link(SOCKET, "/private/socket")),
        attacked("exchanged_a_link_to_a_file").service(link(SOCKET, "/private/mark"), nothing),
        attacked("exchanged_a_socket_then_a_link_to_a_file")
            .service(listen, link(SOCKET, "/private/mark")),
        attacked("exchanged_a_file_for_a_socket").service(file(SOCKET), nothing),
        attacked("exchanged_a_socket_then_a_file").service(listen, file(SOCKET)),
    ]
}

/// Directories of other users on the way to the driver's files.
fn files_of_the_driver() -> Vec<Row> {
    vec![
        row("exchanged_libraries_of_another_user")
            .profile("libraries=/opt/nvidia/lib\n")
            .host(|host| chown(host.path("/opt/nvidia"), Some(USER), None).unwrap())
            .expect(|expected| {
                expected.libraries([
                    "/opt/nvidia/lib/libcuda.so.VER",
                    "/opt/nvidia/lib/libnvidia-ml.so.VER",
                    "/opt/nvidia/lib/libGLX_nvidia.so.VER",
                    "/opt/nvidia/lib/libnvidia-glcore.so.VER",
                ])
            })
            .but(&[Jit, Specification], BY_PATH, |expected| {
                expected.fails(&["/opt/nvidia belongs to the user 4242"])
            }),
        row("exchanged_a_program_of_another_user")
            .profile("move path=/usr/bin/nvidia-smi to=/opt/tools/nvidia-smi\n")
            .path("/opt/tools")
            .host(|host| chown(host.path("/opt/tools"), Some(USER), None).unwrap())
            .expect(|expected| expected.program("nvidia-smi", "/opt/tools/nvidia-smi"))
            .but(&[Jit, Specification], BY_PATH, |expected| {
                expected
                    .nothing("nvidia-smi")
                    .warns("/opt/tools belongs to the user 4242")
            })
            .but(
                &[Live],
                "the engine's hooks have another PATH",
                |expected| expected.without("nvidia-smi"),
            ),
        row("exchanged_a_link_of_another_user_to_a_manifest")
            .host(|host| {
                prepare(host);
                for path in ["/home/user", "/usr/share/glvnd/egl_vendor.d"] {
                    files::directory(&host.path(path)).unwrap();
                }
                link("/home/user/chosen", "/private/mark")(host);
                link(MANIFEST, "/home/user/chosen")(host);
                lchown(host.path("/home/user/chosen"), Some(USER), None).unwrap();
                chown(host.path("/home/user"), Some(USER), None).unwrap();
            })
            .expect(|expected| expected.nothing(MANIFEST)),
        row("exchanged_libraries_in_usr_local")
            .profile("libraries=/usr/local/lib\n")
            .host(|host| {
                // Debian's, whose group has no members.
                fs::write(host.path("/etc/group"), "root:x:0:\nstaff:x:50:\n").unwrap();
                for directory in ["/usr/local", "/usr/local/lib"] {
                    chown(host.path(directory), None, Some(50)).unwrap();
                    mode(&host.path(directory), 0o2775);
                }
            })
            .expect(|expected| {
                expected.libraries([
                    "/usr/local/lib/libcuda.so.VER",
                    "/usr/local/lib/libnvidia-ml.so.VER",
                    "/usr/local/lib/libGLX_nvidia.so.VER",
                    "/usr/local/lib/libnvidia-glcore.so.VER",
                ])
            }),
    ]
}

/// Makes what an attacker wants, and a /tmp of all users.
fn prepare(host: &Driver) {
    files::directory(&host.path(PRIVATE)).unwrap();
    fs::write(host.path("/private/mark"), "").unwrap();
    bind(&host.path("/private/socket"));
    mode(&host.path(PRIVATE), 0o700);
    mode(&host.path("/tmp"), 0o1777);
    let daemons = host.path(SOCKET);
    chown(daemons.parent().unwrap(), Some(USER), Some(USER)).unwrap();
}

fn nothing(_: &Driver) {}

/// The directory of an MPS server that an ordinary user started.
fn users_mps(host: &Driver) {
    fs::write(host.path(MPS).join("mark"), "").unwrap();
    chown(host.path(MPS), Some(USER), None).unwrap();
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_dir_all(path);
}

/// The kernel takes links of uid 0 in /tmp for root's; they can be those of a container's root.
fn link(at: &'static str, target: &'static str) -> impl Fn(&Driver) + Send {
    move |host| {
        remove(&host.path(at));
        symlink(target, host.path(at)).unwrap();
    }
}

fn file(at: &'static str) -> impl Fn(&Driver) + Send {
    move |host| {
        remove(&host.path(at));
        fs::write(host.path(at), "").unwrap();
    }
}

fn listen(host: &Driver) {
    bind(&host.path(SOCKET));
    chown(host.path(SOCKET), Some(USER), None).unwrap();
}

/// Binds a socket through a short path: a socket's path is limited to 107 bytes.
fn bind(socket: &Path) {
    remove(socket);
    let directory = fs::File::open(socket.parent().unwrap()).unwrap();
    let short = format!("/proc/self/fd/{}/socket", directory.as_raw_fd());
    UnixListener::bind(short).unwrap();
}
