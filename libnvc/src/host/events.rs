//! Waits for NVML's events, by a query process that lives as long as the watch.
//!
//! The process keeps the watched GPUs in use: the driver cannot be unloaded, nor such a GPU be reset, before the watch is
//! dropped. So a GPU that needs a reset should not be watched.

use std::time::Duration;

use super::monitor::error_of;
use super::query::{Conversation, Message, QueryProcess, QueryProgram, QueryRequest, Question};
use crate::error::Result;

pub use super::query::facts::GpuEvent;

/// How long a process without any sign of life counts as alive.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process that waits for events. Dropping it ends the process.
#[derive(Debug)]
pub struct Watch(Conversation);

impl Watch {
    /// Starts to watch GPUs, by NVML's indices; returns the UUIDs of those that can be watched. The process is killed if
    /// the calling *thread* ends.
    ///
    /// # Errors
    /// Those of [`monitor::facts`](super::monitor::facts).
    pub fn start(
        program: &QueryProgram,
        request: &QueryRequest,
        indices: &[u32],
    ) -> Result<(Self, Vec<String>)> {
        let question = Question::Events(indices.to_vec());
        let process = QueryProcess::start(program);
        let mut conversation = Conversation::start(process, request, question, None)?;
        loop {
            match conversation.next()? {
                Message::Watching(uuids) => {
                    conversation.deadline = PATIENCE;
                    return Ok((Self(conversation), uuids));
                }
                Message::Unavailable(fault) => return Err(error_of(&fault)),
                _ => {}
            }
        }
    }

    /// Waits for the next event, or for a sign of life, which comes at least every few seconds.
    ///
    /// # Errors
    /// The process died or hangs, or NVML failed, also because a GPU was lost: start another one.
    pub fn wait(&mut self) -> Result<Option<GpuEvent>> {
        match self.0.next()? {
            Message::Event(event) => Ok(event),
            Message::Unavailable(fault) => Err(error_of(&fault)),
            _ => Ok(None),
        }
    }
}
