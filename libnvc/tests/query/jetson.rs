//! Tests the questions for a Jetson: GPUs that are no PCI devices, and CUDA's facts without NVML.

use std::fs;
use std::path::Path;
use std::time::Duration;

use libnvc::ErrorKind;
use libnvc::host::query::{QueryProgram, QueryRequest};
use libnvc::host::{CudaFacts, cuda_facts};

use crate::driver_root::{Root, ensure, ensure_error, indices, start};
use crate::{Outcome, is_copied};

const ORIN: &str = "driver=540.4.0\ncuda=12060\n\
    gpu minor=none bus=none cc=8.7 brand=0 mig=unsupported uuid=3f6c5d0e-52b1-5f9a-8e47-c2d90a7b1846 name=Orin (nvgpu)\n";
const DISCRETE: &str =
    "gpu minor=1 bus=0005:09:00 cc=8.6 brand=13 mig=off uuid=GPU-1 name=NVIDIA RTX A6000\n";

/// The integrated GPU has no address, which neither fails the driver nor hides the other GPU.
pub(crate) fn an_integrated_gpu_is_listed() -> Outcome {
    let root = Root::with(format!("{ORIN}{DISCRETE}").as_bytes(), &[]);
    let devices = root.ask()?.devices;
    ensure(indices(&devices) == (vec![1], vec![0]), "indices")?;
    let advice = devices.failed[0].error.advice().unwrap_or_default();
    ensure(advice.contains("mode csv"), advice)?;
    let listed = start(&root.request()).listed()?;
    let kinds: Vec<_> = listed.iter().map(|gpu| gpu.integrated).collect();
    ensure(kinds == [Some(true), Some(false)], format!("{listed:?}"))?;
    let first = &listed[0];
    ensure(
        (first.model.as_deref(), first.arch.as_deref()) == (Some("Orin (nvgpu)"), Some("8.7")),
        format!("{first:?}"),
    )?;
    // Alone, it is what containers fail for that are not configured by the lists.
    let root = Root::with(ORIN.as_bytes(), &[]);
    let text = "nvml error: not supported";
    ensure_error(root.ask(), ErrorKind::DriverFailed, text, "mode csv")?;
    let listed = start(&root.request()).listed()?;
    ensure(listed.len() == 1, format!("{listed:?}"))
}

/// Returns what libcuda says in a root without NVML.
fn ask(macros: &[&str], deadline: Duration) -> libnvc::Result<CudaFacts> {
    let root = Root::with(b"", &[]);
    let _ = fs::remove_file(root.path().join("usr/lib/libnvidia-ml.so.1"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/query/cuda.c");
    root.compile("libcuda.so.1", Path::new(source), macros);
    let program = if is_copied() {
        QueryProgram::ThisProcess
    } else {
        QueryProgram::ThisExecutable
    };
    let request = QueryRequest {
        deadline,
        ..root.request()
    };
    cuda_facts(&program, &request)
}

pub(crate) fn cuda_answers_without_nvml() -> Outcome {
    let soon = Duration::from_secs(30);
    let known = |facts: &CudaFacts, version, arch, problem| {
        let found = [&facts.version, &facts.arch, &facts.problem].map(|text| text.as_deref());
        ensure(found == [version, arch, problem], format!("{facts:?}"))
    };
    let version = Some("12.6");
    known(&ask(&[], soon)?, version, Some("8.7"), None)?;
    let problem = Some("cuda: error 100");
    known(&ask(&["-DFAIL"], soon)?, version, None, problem)?;
    let problem = Some("cuda: libcuda.so.1 has no cuDeviceGet");
    known(
        &ask(&["-DcuDeviceGet=absent"], soon)?,
        version,
        None,
        problem,
    )?;
    let Err(died) = ask(&["-DCRASH"], soon) else {
        return Err("a crash is an answer".into());
    };
    ensure(
        died.message()
            .starts_with("cuda: the process that loads it died"),
        died.message(),
    )?;
    let Err(late) = ask(&["-DHANG"], Duration::from_millis(300)) else {
        return Err("a hang is an answer".into());
    };
    ensure(late.kind() == ErrorKind::TimedOut, late.message())
}
