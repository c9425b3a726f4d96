//! Queries monitoring data: facts about each GPU, and its current state.
//!
//! A query process ([`query`](super::query)) asks NVML and libcuda and ends with its answer, so nothing keeps the
//! driver in use, and an updated driver is noticed at once. A GPU that fails, hangs or crashes the process does not
//! affect the answers about the others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::query::{
    Conversation, Fault, Message, QueryProcess, QueryProgram, QueryRequest, Question, Versions,
};
use super::{DriverVersions, device};
use crate::error::{Error, ErrorKind, Result};

pub use super::query::facts::{
    DriverMessage, Facts, GpuFacts, GpuStatus, MigFacts, MigStatus, Peer, ProcessStatus,
};
pub use crate::sys::nvml::{MigAttributes, MigPlacement};

/// Queries facts about the driver and its GPUs.
///
/// # Errors
/// `could not load NVML library`, `nvml: <NVML's words>`, and those of `Query` about the
/// process.
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
            Message::Facts(facts) => return facts.map_err(|fault| error_of(&fault)),
            Message::Unavailable(fault) => return Err(error_of(&fault)),
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
) -> Result<Vec<Result<GpuStatus>>> {
    let started = Instant::now();
    let mut answers: Vec<Option<Result<GpuStatus>>> = vec![None; indices.len()];
    let died = ask_for(program, request, indices, &mut answers)?;
    if let Some(error) = died {
        // One of them crashed the process, or hangs: query each missing GPU in a process of its own.
        for (place, index) in indices.iter().enumerate() {
            if answers.get(place).is_some_and(Option::is_some) {
                continue;
            }
            let left = request.deadline.saturating_sub(started.elapsed());
            let answer = if left.is_zero() {
                Err(error.clone())
            } else {
                alone(program, request, *index, left)
            };
            if let Some(slot) = answers.get_mut(place) {
                *slot = Some(answer);
            }
        }
    }
    Ok(answers
        .into_iter()
        .map(|answer| answer.unwrap_or_else(|| Err(no_answer())))
        .collect())
}

/// Queries one GPU in a process of its own.
fn alone(
    program: &QueryProgram,
    request: &QueryRequest,
    index: u32,
    left: Duration,
) -> Result<GpuStatus> {
    let request = QueryRequest {
        deadline: left,
        ..request.clone()
    };
    let mut answer = [None];
    let died = ask_for(program, &request, &[index], &mut answer)?;
    let [answer] = answer;
    answer.unwrap_or_else(|| Err(died.unwrap_or_else(no_answer)))
}

fn no_answer() -> Error {
    Error::new(ErrorKind::DriverFailed, "nvml: no answer")
}

/// Queries one process; the error is the event that ended it before all answers had arrived.
fn ask_for(
    program: &QueryProgram,
    request: &QueryRequest,
    indices: &[u32],
    answers: &mut [Option<Result<GpuStatus>>],
) -> Result<Option<Error>> {
    let mut conversation = start(program, request, Question::Status(indices.to_vec()))?;
    loop {
        match conversation.next() {
            Ok(Message::Unavailable(fault)) => return Err(error_of(&fault)),
            Ok(Message::Status(index, status)) => {
                let place = indices.iter().position(|asked| *asked == index);
                if let Some(slot) = place.and_then(|place| answers.get_mut(place)) {
                    *slot = Some(status.map_err(|fault| error_of(&fault)));
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
    Conversation::start(QueryProcess::start(program), request, question, None)
}

/// Queries the versions, and what an allocator of GPUs needs to know about each, in NVML's order. A GPU that
/// fails, crashes the process or hangs has its reason there, and the others their facts.
///
/// # Errors
/// Those of [`facts`]. The kind is `DriverUnavailable` if NVML said itself that there is no driver, or not its own.
pub fn devices(
    program: &QueryProgram,
    request: &QueryRequest,
) -> Result<(DriverVersions, Vec<Result<GpuFacts>>)> {
    let mut gpus: BTreeMap<u32, Result<GpuFacts>> = BTreeMap::new();
    let mut versions: Option<Versions> = None;
    loop {
        // Those that have answered, and one that ended the last process.
        let skip = gpus.keys().copied().collect();
        let mut conversation = start(program, request, Question::Devices { skip })
            .map_err(|error| error.with_kind(ErrorKind::System))?;
        let mut asking = None;
        let died = loop {
            match conversation.next() {
                Ok(Message::Unavailable(fault)) => {
                    return Err(device::unavailable(&fault, &request.root));
                }
                Ok(Message::Ready(found)) => versions = Some(found),
                Ok(Message::Asking(index)) => asking = Some(index),
                Ok(Message::Device(index, facts)) => {
                    asking = None;
                    gpus.insert(index, facts.map_err(Error::from));
                }
                Ok(Message::Done) => break None,
                Ok(_) => {}
                Err(error) => break Some(error),
            }
        };
        match (died, asking, &versions) {
            (None, _, Some(versions)) => {
                return Ok((device::versions(versions)?, gpus.into_values().collect()));
            }
            (Some(error), Some(index), _) => {
                gpus.insert(index, Err(error));
            }
            (Some(error), ..) => return Err(error),
            (None, _, None) => return Err(no_answer()),
        }
    }
}

/// Returns NVML's name of a brand, `Nvidia`.
pub fn brand(number: u32) -> &'static str {
    device::brand(number)
}

/// Returns the name of an architecture by its compute capability.
pub fn architecture(compute: (i32, i32)) -> Option<&'static str> {
    Some(match compute {
        (1, _) => "Tesla",
        (2, _) => "Fermi",
        (3, _) => "Kepler",
        (5, _) => "Maxwell",
        (6, _) => "Pascal",
        (7, 0 | 2) => "Volta",
        (7, _) => "Turing",
        (8, 9) => "Ada Lovelace",
        (8, _) => "Ampere",
        (9, _) => "Hopper",
        (10..=12, _) => "Blackwell",
        _ => return None,
    })
}

pub(super) fn error_of(fault: &Fault) -> Error {
    let error = Error::new(ErrorKind::DriverUnavailable, fault.to_string());
    match fault {
        Fault::Load(text) => error.hint(text.clone()),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures() {
        for (compute, name) in [
            ((6, 1), Some("Pascal")),
            ((7, 0), Some("Volta")),
            ((7, 5), Some("Turing")),
            ((8, 6), Some("Ampere")),
            ((8, 9), Some("Ada Lovelace")),
            ((9, 0), Some("Hopper")),
            ((12, 0), Some("Blackwell")),
            ((99, 0), None),
        ] {
            assert_eq!(architecture(compute), name);
        }
    }
}
