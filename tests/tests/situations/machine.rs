//! Makes the machine of a row: a root with a driver, our programs, runc, and an image.

use std::cell::Cell;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use nvc_testkit::compile::{Source, compiled};
use nvc_testkit::driver::{Builder, Driver, NATIVE, free_majors};
use nvc_testkit::machine::Scratch;
use nvc_testkit::profile::Profile;
use nvc_testkit::{cli, files, userland};

use super::row::Row;

/// Our programs on the machine.
pub(crate) const BIN: &str = "/opt/nvc/bin";

/// Where the simulated NVML notes the GPUs that it attaches.
const ATTACHED: &str = "/etc/nvidia-sim/attached";

/// An ordinary machine.
const PROFILE: &str = "driver=570.124.06\ncuda=12080\n\
    gpu minor=0 bus=0000:3b:00.0 cc=8.9 brand=14 mig=unsupported uuid=GPU-51a2d1c0-64a7-4f6e-8d3b-0c9c5e2f7a10 name=NVIDIA L4\n";

/// Makes a directory the root of a mount namespace, and executes a program there. The second procfs has nothing mounted
/// on it: otherwise the kernel would let no user namespace mount one.
const ENTER: &str = "set -e; mount --bind \"$0\" \"$0\"; cd \"$0\"
    for p in driver devices; do mount --bind proc/$p /proc/$p; done
    for p in proc sys; do mkdir -p $p; mount --rbind /$p $p; done
    mkdir -p .proc; mount -t proc proc .proc; mount --bind \"$1\" opt/nvc; shift
    mkdir -p .old; pivot_root . .old; umount -l .old; cd /; exec \"$@\"";

pub(crate) struct Machine {
    pub(crate) driver: Driver,
    scratch: Scratch,
    log: UnixDatagram,
    containers: Cell<u32>,
}

impl Machine {
    pub(crate) fn new(row: &Row) -> Self {
        let scratch = Scratch::new().unwrap();
        let is_whole = row.profile.starts_with("driver=");
        let profile = format!("{}{}", if is_whole { "" } else { PROFILE }, row.profile);
        let mut profile = Profile::parse(&profile).unwrap_or_else(|error| panic!("{error}"));
        if row.is_real {
            profile.layout = Profile::real("h100").unwrap().layout;
        }
        let driver = Builder::new(profile)
            .majors(free_majors())
            .build(scratch.join("machine"))
            .unwrap();
        let libraries = format!("/lib/{}", NATIVE.0);
        let programs = ["ldconfig", "runc", "cat", "sed", "sh", "umount"];
        userland::install(driver.root(), &programs, &libraries).unwrap();
        let query = cli::beside("nvc-query").unwrap();
        userland::install_needed(driver.root(), &query, &libraries).unwrap();
        for directory in ["tmp", "run", "opt/nvc", "bundle", "volumes", "etc"] {
            files::directory(&driver.path(directory)).unwrap();
        }
        for node in ["null", "zero", "full", "random", "urandom", "tty"] {
            printed(
                Command::new("cp")
                    .arg("-a")
                    .arg(format!("/dev/{node}"))
                    .arg(driver.path("dev")),
            );
        }
        let log = bound(&driver.path("/dev"), "log");
        for change in &row.host {
            change(&driver);
        }
        let image = row.image.build(scratch.join("image")).unwrap();
        let look = compiled(Source::Look, &[]).unwrap();
        files::file(&image.join("look"), look.as_slice(), 0o755).unwrap();
        let containers = Cell::new(0);
        Self {
            driver,
            scratch,
            log,
            containers,
        }
    }

    /// Returns the image, which no container changes.
    pub(crate) fn image(&self) -> PathBuf {
        self.scratch.join("image")
    }

    /// Returns a name that no other container of the machine or of another test has: runc's cgroups have it too.
    pub(crate) fn name(&self) -> String {
        let number = self.containers.get();
        self.containers.set(number + 1);
        let own = self.scratch.path().file_name().unwrap().to_string_lossy();
        format!("nvc-{own}-{}-{number}", std::process::id())
    }

    /// Runs a program on the machine.
    pub(crate) fn run(&self, row: &Row, words: &[&str]) -> Output {
        let mut command = Command::new("unshare");
        let path = format!("{BIN}:{}", cli::PATH);
        let path = match row.path {
            "" => path,
            first => format!("{first}:{path}"),
        };
        command
            .args(["--mount", "--propagation", "private", "sh", "-c", ENTER])
            .arg(self.driver.root())
            .arg(programs())
            .args(words)
            .env_clear()
            .env("PATH", path)
            .envs(row.variable)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Returns how many GPUs were attached since [`forget`](Self::forget) was called.
    pub(crate) fn attached(&self) -> usize {
        let text = fs::read_to_string(self.driver.path(ATTACHED));
        text.unwrap_or_default().lines().count()
    }

    /// Begins to count the GPUs that are attached. NVML's user is none of ours.
    pub(crate) fn forget(&self) {
        files::file(&self.driver.path(ATTACHED), "", 0o666).unwrap();
    }

    /// Returns what was written to the system's log since the last call.
    pub(crate) fn log(&self) -> String {
        let mut text = String::new();
        let mut bytes = [0; 8192];
        while let Ok(length) = self.log.recv(&mut bytes) {
            text += &String::from_utf8_lossy(&bytes[..length]);
            text += "\n";
        }
        text
    }
}

/// Returns the directory of our programs, as packages install them, for all machines.
fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<Scratch> = OnceLock::new();
    let made = PROGRAMS.get_or_init(|| {
        let scratch = Scratch::new().unwrap();
        let bin = scratch.join("bin");
        cli::copy_programs(&bin).unwrap();
        files::copy_program(
            &cli::beside("nvc-simruntime").unwrap(),
            &bin.join("sim-runc"),
        )
        .unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/build/ids.sh");
        let ids = printed(Command::new(script).arg(&bin));
        let file = scratch.join("share/nvidia-container-toolkit/build-ids");
        files::file(&file, ids, 0o644).unwrap();
        scratch
    });
    made.path()
}

/// Binds a datagram socket through a short path: a socket's path is limited to 107 bytes.
fn bound(directory: &Path, name: &str) -> UnixDatagram {
    use std::os::fd::AsRawFd as _;

    let directory = fs::File::open(directory).unwrap();
    let short = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
    let socket = UnixDatagram::bind(short).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Returns the output of a command, which must succeed.
pub(crate) fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
