//! Queries monitoring data: facts about each GPU, and its current state.
//!
//! A query process ([`query`](super::query)) asks NVML and libcuda and ends with its answer, so nothing keeps the
//! driver in use, and an updated driver is noticed at once. A GPU that fails, hangs or crashes the process does not
//! affect the answers about the others.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::query::{
    Conversation, Fault, Message, QueryProcess, QueryProgram, QueryRequest, Question,
};
use crate::error::{Error, ErrorKind, Result};

/// Facts about a driver and its GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Version of the kernel driver, or NVML's error message.
    pub driver: std::result::Result<String, String>,
    /// CUDA's version as a number, 12020 for 12.2, or CUDA's error message.
    pub cuda: std::result::Result<i32, String>,
    /// The GPUs in NVML's order; NVML's error message for one that cannot be identified.
    pub gpus: Vec<std::result::Result<GpuFacts, String>>,
}

/// Facts that do not change while a GPU is in use. None if the GPU or the driver does not provide one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GpuFacts {
    /// Position in NVML's order.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// The N of /dev/nvidiaN.
    pub minor: u32,
    /// PCI address; the domain has four digits unless it needs more.
    pub busid: String,
    /// Product name.
    pub model: Option<String>,
    /// Power limit in milliwatts.
    pub power_limit: Option<u32>,
    /// Bytes of BAR1, through which CPUs access the memory.
    pub bar1: Option<u64>,
    /// Newest supported PCIe generation.
    pub link_generation: Option<u32>,
    /// Largest number of PCIe lanes.
    pub link_width: Option<u32>,
    /// Maximum clock of the multiprocessors in MHz.
    pub core_clock: Option<u32>,
    /// Maximum clock of the memory in MHz.
    pub memory_clock: Option<u32>,
    /// Compute capability, major and minor.
    pub arch: Option<(i32, i32)>,
    /// Number of multiprocessors.
    pub multiprocessors: Option<u32>,
    /// True if ECC is enabled.
    pub ecc: Option<bool>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Bytes of shared memory per multiprocessor.
    pub shared_memory: Option<u32>,
    /// Bytes of constant memory.
    pub constant_memory: Option<u32>,
    /// Bytes of the L2 cache.
    pub l2_cache: Option<u32>,
    /// Width of the memory bus in bits.
    pub bus_width: Option<u32>,
    /// The memory clock as reported by CUDA, in kHz.
    pub cuda_memory_clock: Option<u32>,
    /// GPUs with peer access.
    pub peers: Vec<Peer>,
    /// MIG devices.
    pub mig: Vec<MigFacts>,
    /// NVML's or CUDA's messages about values that could not be read, although they should exist.
    pub problems: Vec<String>,
}

/// Another GPU with peer access.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its PCI address.
    pub busid: String,
    /// Topology distance (`nvmlGpuTopologyLevel_t`: 0 is the same board, 10 to 50 farther); None if NVML does not know.
    pub level: Option<i32>,
}

/// A MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigFacts {
    /// NVML's slot for it.
    pub index: u32,
    /// `MIG-…`.
    pub uuid: String,
    /// GPU instance.
    pub gpu_instance: u32,
    /// Compute instance.
    pub compute_instance: u32,
    /// Product name including the profile.
    pub name: Option<String>,
}

/// Current state of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GpuStatus {
    /// Power draw in milliwatts.
    pub power: Option<u32>,
    /// Temperature in degrees Celsius.
    pub temperature: Option<u32>,
    /// Utilisation in percent.
    pub busy: Option<u32>,
    /// Memory utilisation in percent.
    pub memory_busy: Option<u32>,
    /// Video encoder utilisation in percent.
    pub encoder: Option<u32>,
    /// Video decoder utilisation in percent.
    pub decoder: Option<u32>,
    /// Bytes of memory in use.
    pub memory_used: Option<u64>,
    /// Bytes of memory.
    pub memory_total: Option<u64>,
    /// Uncorrectable errors: L1 cache, L2 cache, device memory.
    pub ecc_errors: [Option<u64>; 3],
    /// Clock of the multiprocessors in MHz.
    pub core_clock: Option<u32>,
    /// Clock of the memory in MHz.
    pub memory_clock: Option<u32>,
    /// Bytes of BAR1 in use.
    pub bar1_used: Option<u64>,
    /// PCIe traffic to the GPU in kB/s.
    pub received: Option<u32>,
    /// PCIe traffic from the GPU in kB/s.
    pub sent: Option<u32>,
    /// Processes with a compute context.
    pub processes: Vec<ProcessStatus>,
    /// Memory of its MIG devices.
    pub mig: Vec<MigStatus>,
}

/// A process with a compute context on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Its pid.
    pub pid: u32,
    /// Its name, unless it has ended.
    pub name: Option<String>,
    /// Bytes of GPU memory, if the driver knows.
    pub memory: Option<u64>,
}

/// The memory of a MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigStatus {
    /// `MIG-…`.
    pub uuid: String,
    /// Bytes in use.
    pub memory_used: Option<u64>,
    /// Total bytes.
    pub memory_total: Option<u64>,
}

/// The status of one GPU, or the reason why it is unknown.
pub type StatusOf = std::result::Result<GpuStatus, String>;

/// Queries facts about the driver and its GPUs.
///
/// # Errors
/// `could not load NVML library`, `nvml: <NVML's words>`, and those of [`Query`](super::query::Query) about the process.
pub fn facts(program: &QueryProgram, request: &QueryRequest) -> Result<Facts> {
    ask(program, request, Question::Facts)
}

/// Queries the versions, the GPUs and the MIG devices, with only the identifying facts of each GPU.
///
/// # Errors
/// Those of [`facts`].
pub fn identities(program: &QueryProgram, request: &QueryRequest) -> Result<Facts> {
    ask(program, request, Question::Identities)
}

fn ask(program: &QueryProgram, request: &QueryRequest, question: Question) -> Result<Facts> {
    let mut conversation = start(program, request, question)?;
    loop {
        match conversation.next()? {
            Message::Facts(facts) => return facts.map_err(|fault| said(&fault)),
            Message::Unavailable(fault) => return Err(said(&fault)),
            _ => {}
        }
    }
}

/// Queries the state of GPUs, all of them in parallel; the answers are in the order of `indices`.
///
/// # Errors
/// Those of [`facts`] that concern all GPUs. A single GPU's failure, including a timeout, takes its place in the
/// result.
pub fn status(
    program: &QueryProgram,
    request: &QueryRequest,
    indices: &[u32],
) -> Result<Vec<StatusOf>> {
    let started = Instant::now();
    let mut answers: Vec<Option<StatusOf>> = vec![None; indices.len()];
    let died = ask_for(program, request, indices, &mut answers)?;
    if let Some(error) = died {
        // One of them crashed the process, or hangs: query each missing GPU in a process of its own.
        for (place, index) in indices.iter().enumerate() {
            if answers.get(place).is_some_and(Option::is_some) {
                continue;
            }
            let left = request.deadline.saturating_sub(started.elapsed());
            let answer = match left.is_zero() {
                true => Err(error.message()),
                false => alone(program, request, *index, left),
            };
            if let Some(slot) = answers.get_mut(place) {
                *slot = Some(answer);
            }
        }
    }
    let missing = || Err("nvml: no answer".to_owned());
    Ok(answers
        .into_iter()
        .map(|answer| answer.unwrap_or_else(missing))
        .collect())
}

/// Queries one GPU in a process of its own.
fn alone(program: &QueryProgram, request: &QueryRequest, index: u32, left: Duration) -> StatusOf {
    let request = QueryRequest {
        deadline: left,
        ..request.clone()
    };
    let mut answer = [None];
    let died = ask_for(program, &request, &[index], &mut answer).map_err(|e| e.message())?;
    let [answer] = answer;
    answer.unwrap_or_else(|| {
        Err(died.map_or_else(|| "nvml: no answer".into(), |error| error.message()))
    })
}

/// Queries one process; the error is the event that ended it before all answers had arrived.
fn ask_for(
    program: &QueryProgram,
    request: &QueryRequest,
    indices: &[u32],
    answers: &mut [Option<StatusOf>],
) -> Result<Option<Error>> {
    let mut conversation = start(program, request, Question::Status(indices.to_vec()))?;
    loop {
        match conversation.next() {
            Ok(Message::Unavailable(fault)) => return Err(said(&fault)),
            Ok(Message::Status(index, status)) => {
                let place = indices.iter().position(|asked| *asked == index);
                if let Some(slot) = place.and_then(|place| answers.get_mut(place)) {
                    *slot = Some(status.map_err(|fault| words(&fault)));
                }
            }
            Ok(Message::Done) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Ok(Some(error)),
        }
    }
}

fn start(
    program: &QueryProgram,
    request: &QueryRequest,
    question: Question,
) -> Result<Conversation> {
    Conversation::start(QueryProcess::start(program)?, request, question)
}

fn said(fault: &Fault) -> Error {
    let error = Error::new(ErrorKind::DriverUnavailable, words(fault));
    match fault {
        Fault::Load(text) => error.hint(text.clone()),
        _ => error,
    }
}

/// Formats a failure in the words of nvidia-docker 1.
pub(super) fn words(fault: &Fault) -> String {
    match fault {
        Fault::System { operation, errno } => {
            Error::system(operation, nix::errno::Errno::from_raw(*errno)).message()
        }
        Fault::Load(_) => "could not load NVML library".into(),
        Fault::Nvml { text, .. } => format!("nvml: {text}"),
        Fault::Nonsense { text, .. } => text.clone(),
    }
}
