//! Compiles the kit's C sources with the machine's `cc`, each once per process.
//!
//! C, because the sources imitate or probe C code: a library loaded with dlopen where nothing but a C library is
//! present, a program for a root with only a C library, and raw system calls without safe wrappers.

use std::collections::HashMap;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

/// A source of the kit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The fake libnvidia-ml.so.1.
    Nvml,
    /// Uses NVML as a device plugin does, and knows only its documentation.
    NvmlCaller,
    /// Calls the functions of NVML that it is told to.
    NvmlAsk,
    /// The fake libcuda.so.1, for programs that call it rather than only mount it.
    Cuda,
    /// The fake libnvidia-sandboxutils.so.1.
    SandboxUtils,
    /// The fake libdxcore.so of WSL.
    Dxcore,
    /// The fake nvidia-smi.
    NvidiaSmi,
    /// Another program of the driver, which says its name.
    Program,
    /// A static program that replaces the linker cache and fails, in place of ldconfig.
    Failure,
    /// Reports the device accesses of a process; handles cgroup v2 device programs.
    DeviceProbe,
    /// Reports what programs of a container find: libraries, programs, files.
    Look,
    /// Runs a program with a chosen pid.
    WithPid,
    /// Mounts a directory with shifted owners (idmapped).
    IdMap,
    /// The minimum of an `info` or a `configure`, which nvc-bench compares with.
    Baseline,
    /// Counts the system calls of a command and reports the memory of its processes.
    Trace,
}

impl Source {
    fn text(self) -> &'static str {
        match self {
            Self::Nvml => concat!(
                include_str!("../c/nvml/state.c"),
                include_str!("../c/nvml/gpus.c"),
                include_str!("../c/nvml/instances.c"),
                include_str!("../c/nvml/events.c"),
                include_str!("../c/nvml/links.c"),
                include_str!("../c/nvml/readings.c"),
            ),
            Self::NvmlCaller => include_str!("../c/nvml-caller.c"),
            Self::NvmlAsk => include_str!("../c/nvml-ask.c"),
            Self::SandboxUtils => include_str!("../c/sandboxutils.c"),
            Self::Dxcore => include_str!("../c/dxcore.c"),
            Self::Cuda => include_str!("../c/cuda.c"),
            Self::NvidiaSmi => include_str!("../c/nvidia-smi.c"),
            Self::Program => include_str!("../c/program.c"),
            Self::Failure => include_str!("../c/failure.c"),
            Self::DeviceProbe => include_str!("../c/device-probe.c"),
            Self::Look => concat!(
                "#define _GNU_SOURCE\n",
                include_str!("../c/elf-names.h"),
                include_str!("../c/look.c")
            ),
            Self::WithPid => include_str!("../c/with-pid.c"),
            Self::IdMap => include_str!("../c/idmap.c"),
            Self::Baseline => include_str!("../c/baseline.c"),
            Self::Trace => include_str!("../c/trace.c"),
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Nvml => &["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"],
            Self::SandboxUtils => &[
                "-shared",
                "-fPIC",
                "-Wl,-soname,libnvidia-sandboxutils.so.1",
            ],
            Self::Dxcore => &["-shared", "-fPIC", "-Wl,-soname,libdxcore.so"],
            Self::Cuda => &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"],
            // glibc before 2.34 has dlopen in a separate library.
            Self::NvidiaSmi | Self::Baseline | Self::NvmlCaller | Self::Look => {
                &["-Wl,--as-needed", "-ldl"]
            }
            // NVML must use its open().
            Self::NvmlAsk => &["-rdynamic", "-Wl,--as-needed", "-ldl"],
            Self::Failure => &["-static"],
            Self::DeviceProbe => &["-pthread"],
            Self::Program | Self::WithPid | Self::IdMap | Self::Trace => &[],
        }
    }
}

type Compiled = HashMap<(Source, Vec<String>), Arc<Vec<u8>>>;

/// Returns the compiled file; `more` are additional compiler arguments.
///
/// # Errors
/// There is no `cc`, or the source does not compile.
pub fn compiled(source: Source, more: &[String]) -> io::Result<Arc<Vec<u8>>> {
    static DONE: Mutex<Option<Compiled>> = Mutex::new(None);
    // A panic in another test leaves the map consistent.
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let done = done.get_or_insert_default();
    let key = (source, more.to_vec());
    if let Some(bytes) = done.get(&key) {
        return Ok(bytes.clone());
    }
    let bytes = Arc::new(compile(source, more)?);
    done.insert(key, bytes.clone());
    Ok(bytes)
}

fn compile(source: Source, more: &[String]) -> io::Result<Vec<u8>> {
    let directory = tempfile::tempdir()?;
    let (input, output) = (directory.path().join("x.c"), directory.path().join("x"));
    fs::write(&input, source.text())?;
    let done = Command::new("cc")
        .args(["-O1", "-s", "-o"])
        .args([&output, &input])
        .args(source.arguments())
        .args(more)
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("cannot run cc: {error}")))?;
    if !done.status.success() {
        let text = String::from_utf8_lossy(&done.stderr);
        return Err(io::Error::other(format!("cc {source:?}: {text}")));
    }
    fs::read(&output)
}
