//! Creates driver roots with the simulated NVML, and queries it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use libnvc::host::query::{QueryProgram, QueryRequest};
use libnvc::host::{DeviceInfo, Identity};
use libnvc::testing::{Query, QueryReply};
use libnvc::{Error, ErrorKind};
use libtest_mimic::Failed;
use nvc_testkit::compile::{Source, compiled};
use tempfile::TempDir;

use crate::{GID, Outcome, UID, is_copied};

/// Hangs during NVML's initialisation.
pub(crate) const HANG_IN_INIT: &str = "hang-at=nvmlInit_v2";
/// Hangs in the query for the name of GPU 1.
pub(crate) const HANG_AT_GPU_1: &str = "hang-at=nvmlDeviceGetName:1";

/// Returns the compiler argument that omits an entry point.
pub(crate) fn without(symbol: &str) -> [String; 1] {
    [format!("-D{symbol}=absent_{symbol}")]
}

/// A driver root without a C library, containing only the simulated NVML.
pub(crate) struct Root(TempDir);

/// Default answers of the simulated NVML: GPU 1 is in MIG mode, with devices in slots 0 and 2 of 7.
pub(crate) const PROFILE: &str = "\
driver=535.261.03
cuda=12020
gpu minor=4 bus=10000:3b:00 cc=8.0 brand=14 mig=unsupported uuid=GPU-0 name=NVIDIA A100
gpu minor=5 bus=10000:3c:00 cc=8.0 brand=14 mig=on uuid=GPU-1 name=NVIDIA A100
gpu minor=6 bus=10000:3d:00 cc=8.0 brand=14 mig=off uuid=GPU-2 name=NVIDIA A100
mig gpu=1 slot=0 gi=7 ci=0 uuid=MIG-0 name=NVIDIA A100
mig gpu=1 slot=2 gi=9 ci=0 uuid=MIG-2 name=NVIDIA A100
";

impl Root {
    /// Creates a root. Words with `=` are additional lines of the profile (`shared/nvc-testkit/c/nvml/state.c` has the grammar),
    /// others macros of `query/process.c`.
    pub(crate) fn new(words: &[&str]) -> Self {
        let (lines, macros): (Vec<&str>, Vec<&str>) =
            words.iter().partition(|word| word.contains('='));
        let mut arguments: Vec<_> = macros.iter().map(|name| format!("-D{name}")).collect();
        if macros.contains(&"INSPECT") {
            // Its codes differ from NVML's.
            arguments.extend(without("nvmlErrorString"));
        }
        let profile = format!("{PROFILE}{}\n", lines.join("\n"));
        Self::with(profile.as_bytes(), &arguments)
    }

    /// Creates a root with this profile and these compiler arguments.
    pub(crate) fn with(profile: &[u8], arguments: &[String]) -> Self {
        let root = Self(tempfile::tempdir().expect("a directory"));
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777)).expect("chmod");
        // Distributions configure one of these two directories.
        fs::create_dir_all(root.path().join("usr/lib")).expect("mkdir");
        for (link, target) in [
            ("lib", "usr/lib"),
            ("lib64", "usr/lib"),
            ("usr/lib64", "lib"),
        ] {
            symlink(target, root.path().join(link)).expect("a link");
        }
        fs::write(root.path().join("only-in-this-root"), "").expect("a file");
        // NVML looks whether it exists.
        fs::create_dir(root.path().join("dev")).expect("mkdir");
        fs::write(root.path().join("dev/nvidiactl"), "").expect("a file");
        let sim = root.path().join("etc/nvidia-sim");
        fs::create_dir_all(&sim).expect("mkdir");
        fs::write(sim.join("profile"), profile).expect("a file");
        let extension = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/query/process.c");
        let mut all = vec!["-w".to_owned(), format!("-DEXTENSION=\"{extension}\"")];
        all.extend_from_slice(arguments);
        all.push("-Wl,--no-as-needed".into());
        all.extend(["m", "pthread", "dl", "rt", "gcc_s"].map(|name| format!("-l{name}")));
        let library = compiled(Source::Nvml, &all).expect("a library");
        let path = root.path().join("usr/lib/libnvidia-ml.so.1");
        fs::write(path, library.as_slice()).expect("a file");
        root
    }

    /// Compiles a library into the root.
    pub(crate) fn compile(&self, name: &str, source: &Path, arguments: &[&str]) {
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-w", "-o"])
            .arg(self.path().join("usr/lib").join(name))
            .arg(format!("-Wl,-soname,{name}"))
            .arg(source)
            .args(arguments)
            .status()
            .expect("a C compiler");
        assert!(status.success(), "cannot compile {name}");
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn request(&self) -> QueryRequest {
        request(self.path(), UID, GID)
    }

    pub(crate) fn ask(&self) -> Result<QueryReply, Error> {
        finish(&self.request())
    }

    /// Returns the query process's pid, once the library hangs.
    pub(crate) fn pid(&self) -> i32 {
        let file = self.path().join("pid");
        wait_for("the library to hang", || fs::read_to_string(&file).ok())
            .trim()
            .parse()
            .expect("a number")
    }
}

pub(crate) fn request(root: &Path, uid: u32, gid: u32) -> QueryRequest {
    QueryRequest {
        root: root.into(),
        user: Some(Identity { uid, gid }),
        dev_root: None,
        library_search: Vec::new(),
        wsl_library: None,
        deadline: Duration::from_secs(30),
    }
}

pub(crate) fn start(request: &QueryRequest) -> Query {
    let program = if is_copied() {
        QueryProgram::ThisProcess
    } else {
        QueryProgram::ThisExecutable
    };
    Query::start(&program, request).expect("a process")
}

pub(crate) fn finish(request: &QueryRequest) -> Result<QueryReply, Error> {
    start(request).finish()
}

pub(crate) fn report(result: &Result<QueryReply, Error>) -> String {
    match result {
        Ok(reply) => format!("{} gpus", reply.devices.gpus.len()),
        Err(error) => error.message(),
    }
}

pub(crate) fn wait_for<T>(what: &str, mut test: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = test() {
            return value;
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "timed out waiting for {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns true if a process is alive; a zombie is not.
pub(crate) fn lives(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    !matches!(state, Some('Z' | 'X'))
}

pub(crate) fn ensure(condition: bool, what: impl Into<String>) -> Outcome {
    if condition {
        Ok(())
    } else {
        Err(Failed::from(what.into()))
    }
}

/// Checks a failure's kind and text, and the words in its hint.
pub(crate) fn ensure_error<T>(
    result: Result<T, Error>,
    kind: ErrorKind,
    text: &str,
    hint: &str,
) -> Outcome {
    let Err(error) = result else {
        return Err(format!("no failure, instead of: {text}").into());
    };
    let advice = error.advice().unwrap_or_default();
    ensure(
        error.kind() == kind && error.message() == text && advice.contains(hint),
        format!("{:?}: {}\nhint: {advice}", error.kind(), error.message()),
    )
}

pub(crate) fn indices(devices: &DeviceInfo) -> (Vec<u32>, Vec<u32>) {
    (
        devices.gpus.iter().map(|gpu| gpu.index).collect(),
        devices.failed.iter().map(|gpu| gpu.index).collect(),
    )
}

pub(crate) const RPC_FAILED: &str = "driver rpc error: failed to process request";
