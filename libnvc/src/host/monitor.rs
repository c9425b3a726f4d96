//! Asks for what monitoring shows: facts about each GPU, and what it does now.
//!
//! NVML and the CUDA library are asked by a query process ([`query`](super::query)) which ends with its answer: nothing
//! keeps the driver in use, and a driver that was updated is seen at once. A GPU that fails, hangs or crashes the process
//! leaves the answers about the others as they are.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::query::{
    Conversation, Fault, Message, QueryProcess, QueryProgram, QueryRequest, Question,
};
use crate::error::{Error, ErrorKind, Result};

/// What a driver and its GPUs are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Version of the kernel driver, or NVML's words why it is unknown.
    pub driver: std::result::Result<String, String>,
    /// CUDA's version as a number, 12020 for 12.2, or CUDA's words why it is unknown.
    pub cuda: std::result::Result<i32, String>,
    /// The GPUs in NVML's order, or NVML's words about one that cannot be identified.
    pub gpus: Vec<std::result::Result<GpuFacts, String>>,
}

/// What does not change while a GPU is in use. A fact is none where the GPU or the driver does not have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GpuFacts {
    /// Position in NVML's order.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// The N of /dev/nvidiaN.
    pub minor: u32,
    /// PCI address, with the domain in four digits where it has no more.
    pub busid: String,
    /// Product name.
    pub model: Option<String>,
    /// Power limit in milliwatts.
    pub power_limit: Option<u32>,
    /// Bytes of the window through which processors see the memory.
    pub bar1: Option<u64>,
    /// Newest PCIe generation.
    pub link_generation: Option<u32>,
    /// Most PCIe lanes.
    pub link_width: Option<u32>,
    /// Highest clock of the multiprocessors in MHz.
    pub core_clock: Option<u32>,
    /// Highest clock of the memory in MHz.
    pub memory_clock: Option<u32>,
    /// Compute capability, major and minor.
    pub arch: Option<(i32, i32)>,
    /// Number of multiprocessors.
    pub multiprocessors: Option<u32>,
    /// Whether ECC is on.
    pub ecc: Option<bool>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Bytes of shared memory of a multiprocessor.
    pub shared_memory: Option<u32>,
    /// Bytes of constant memory.
    pub constant_memory: Option<u32>,
    /// Bytes of the L2 cache.
    pub l2_cache: Option<u32>,
    /// Width of the memory bus in bits.
    pub bus_width: Option<u32>,
    /// The memory clock as CUDA has it, in kHz.
    pub cuda_memory_clock: Option<u32>,
    /// GPUs whose memory this one can read.
    pub peers: Vec<Peer>,
    /// MIG devices.
    pub mig: Vec<MigFacts>,
    /// NVML's or CUDA's words about what could not be read, although it should be there.
    pub problems: Vec<String>,
}

/// Another GPU that is within reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its PCI address.
    pub busid: String,
    /// How far it is (`nvmlGpuTopologyLevel_t`: 0 the same board, 10 to 50 farther); none where NVML cannot tell.
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
    /// Product name with the profile.
    pub name: Option<String>,
}

/// What a GPU does now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GpuStatus {
    /// Power drawn in milliwatts.
    pub power: Option<u32>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// How busy it is, in percent.
    pub busy: Option<u32>,
    /// How busy its memory is, in percent.
    pub memory_busy: Option<u32>,
    /// How busy its video encoder is, in percent.
    pub encoder: Option<u32>,
    /// How busy its video decoder is, in percent.
    pub decoder: Option<u32>,
    /// Bytes of memory in use.
    pub memory_used: Option<u64>,
    /// Bytes of memory.
    pub memory_total: Option<u64>,
    /// Errors that could not be corrected: L1 cache, L2 cache, device memory.
    pub ecc_errors: [Option<u64>; 3],
    /// Clock of the multiprocessors in MHz.
    pub core_clock: Option<u32>,
    /// Clock of the memory in MHz.
    pub memory_clock: Option<u32>,
    /// Bytes in use of the window through which processors see the memory.
    pub bar1_used: Option<u64>,
    /// PCIe traffic to the GPU in kB/s.
    pub received: Option<u32>,
    /// PCIe traffic from the GPU in kB/s.
    pub sent: Option<u32>,
    /// Processes that compute on it.
    pub processes: Vec<ProcessStatus>,
    /// Memory of its MIG devices.
    pub mig: Vec<MigStatus>,
}

/// A process that computes on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Its number.
    pub pid: u32,
    /// Its name, unless it ended meanwhile.
    pub name: Option<String>,
    /// Bytes of the GPU's memory, where the driver knows.
    pub memory: Option<u64>,
}

/// The memory of a MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigStatus {
    /// `MIG-…`.
    pub uuid: String,
    /// Bytes in use.
    pub memory_used: Option<u64>,
    /// Bytes.
    pub memory_total: Option<u64>,
}

/// The status of one GPU, or why it is unknown.
pub type StatusOf = std::result::Result<GpuStatus, String>;

/// Asks what the driver and its GPUs are.
///
/// # Errors
/// `could not load NVML library`, `nvml: <NVML's words>`, and those of [`Query`](super::query::Query) about the process.
pub fn facts(program: &QueryProgram, request: &QueryRequest) -> Result<Facts> {
    ask(program, request, Question::Facts)
}

/// Asks for the versions, and which GPUs and MIG devices there are: of each GPU only what identifies it.
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

/// Asks what GPUs do, all of them at once; the answers are in the order of `indices`.
///
/// # Errors
/// Those of [`facts`] that concern all GPUs. A GPU's own failure, also that it does not answer in time, is in its place.
pub fn status(
    program: &QueryProgram,
    request: &QueryRequest,
    indices: &[u32],
) -> Result<Vec<StatusOf>> {
    let started = Instant::now();
    let mut answers: Vec<Option<StatusOf>> = vec![None; indices.len()];
    let died = ask_for(program, request, indices, &mut answers)?;
    if let Some(error) = died {
        // One of them took the process down, or hangs: each that is missing gets a process of its own.
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

/// Asks about one GPU in a process of its own.
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

/// Asks one process; the error is what ended it before it had answered about all.
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

/// A failure in the words of the first nvidia-docker.
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
