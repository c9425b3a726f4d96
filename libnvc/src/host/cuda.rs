//! Asks libcuda for its version and its first GPU, on a machine whose driver has no NVML.
//!
//! libcuda is the driver's code like NVML, and is loaded by the same kind of process ([`query`](super::query)), which
//! has no privileges and lives for one question.

use super::device::{arch, cuda_version};
use super::query::facts::DriverMessage;
use super::query::{CudaReport, Message, QueryProgram, QueryRequest, Question, ask_once};
use crate::error::Result;

/// The facts of libcuda; None for one that it does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaFacts {
    /// Newest CUDA version that the driver supports, e.g. `12.2`.
    pub version: Option<String>,
    /// Compute capability of CUDA's first GPU, e.g. `8.7`.
    pub arch: Option<String>,
    /// The reason why the first unknown fact is unknown.
    pub problem: Option<String>,
}

/// Asks libcuda, without NVML.
///
/// # Errors
/// The process cannot be started, dies, or does not answer in time.
pub fn cuda_facts(program: &QueryProgram, request: &QueryRequest) -> Result<CudaFacts> {
    let request = request.settled()?;
    ask_once(program, &request, Question::Cuda, |answer| match answer {
        Message::Cuda(report) => Some(checked(&report)),
        _ => None,
    })
}

fn checked(report: &CudaReport) -> CudaFacts {
    let version = fact(&report.version, cuda_version);
    let arch = fact(&report.compute_capability, arch);
    let problem = version.as_ref().err().or(arch.as_ref().err());
    let problem = problem.map(ToString::to_string);
    CudaFacts {
        version: version.ok(),
        arch: arch.ok(),
        problem,
    }
}

/// Converts a fact, or returns the reason why it is unknown.
fn fact<T: Copy + std::fmt::Debug>(
    answer: &Result<T, DriverMessage>,
    convert: fn(T) -> Result<String>,
) -> Result<String, DriverMessage> {
    match answer {
        Ok(value) => {
            convert(*value).map_err(|_| DriverMessage(format!("cuda: malformed answer: {value:?}")))
        }
        Err(message) => Err(message.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sane_facts_are_taken() {
        let facts = |version, compute_capability| {
            checked(&CudaReport {
                version,
                compute_capability,
            })
        };
        let message = |text: &str| DriverMessage(text.into());
        let orin = facts(Ok(12060), Ok((8, 7)));
        assert_eq!(orin.version.as_deref(), Some("12.6"));
        assert_eq!(orin.arch.as_deref(), Some("8.7"));
        let odd = facts(Ok(-1), Ok((-1, 0)));
        assert_eq!((odd.version, odd.arch), (None, None));
        assert_eq!(odd.problem.as_deref(), Some("cuda: malformed answer: -1"));
        let failed = facts(Err(message("cuda: a\nb")), Err(message("y")));
        assert_eq!(failed.problem.as_deref(), Some("cuda: a\nb"));
        assert_eq!((failed.version, failed.arch), (None, None));
    }
}
