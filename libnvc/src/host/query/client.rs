//! Converts a query process's answers, silence or death to values and errors.
//!
//! Errors until NVML is initialised have the kind [`ErrorKind::DriverUnavailable`], later ones
//! [`ErrorKind::DriverFailed`] or [`ErrorKind::TimedOut`]: upstream reports the two phases in different words.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::HINT_TO_SERVE;
use super::conversation::{Conversation, QueryRequest, RPC_FAILED, Silence, garbled};
use super::process::{ProcessEnd, QueryProcess, QueryProgram};
use super::protocol::{GpuAnswer, GpuReport, Message, Only, Question, Versions};
use crate::error::{Error, ErrorKind, Result};
use crate::host::DriverVersions;
use crate::host::device::{self, DeviceInfo};
use crate::host::listing::{self, ListedGpu};

/// All answers, for tests.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Debug)]
pub struct QueryReply {
    /// The driver's versions.
    pub versions: DriverVersions,
    /// The GPUs.
    pub devices: DeviceInfo,
}

/// A running query, or answers that another process has handed over. Dropping it ends the process and reaps it.
#[derive(Debug)]
pub struct Query {
    /// None if all answers are known.
    conversation: Option<Conversation>,
    notice: Option<Notice>,
    answers: ReceivedAnswers,
}

/// The answers received so far.
#[derive(Debug, Default)]
struct ReceivedAnswers {
    /// The driver root, for errors.
    root: PathBuf,
    ready: Option<Result<Versions>>,
    gpus: Option<Result<Vec<GpuAnswer>>>,
    /// The GPU that NVML is currently asked about: its index, or its address.
    asking: Option<String>,
}

/// Called once if the query is slow.
struct Notice(Box<dyn FnOnce(Duration) + Send>);

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notice")
    }
}

impl Query {
    /// Starts a process and sends the request; returns at once.
    ///
    /// # Errors
    /// As `ask`.
    pub fn start(program: &QueryProgram, request: &QueryRequest) -> Result<Self> {
        let request = request.settled()?;
        let process = QueryProcess::start_for(program, &request.wanted()?);
        Self::ask(process, &request, None)
    }

    /// Sends the request to a process that was started beforehand, about all GPUs or only some; returns at once.
    ///
    /// # Errors
    /// `process creation failed: <cause>`.
    pub(crate) fn ask(
        process: QueryProcess,
        request: &QueryRequest,
        only: Option<Only>,
    ) -> Result<Self> {
        Ok(Self {
            conversation: Some(Conversation::start(
                process,
                request,
                Question::Identity,
                only,
            )?),
            notice: None,
            answers: ReceivedAnswers {
                root: request.root.clone(),
                ..ReceivedAnswers::default()
            },
        })
    }

    /// Returns answers that are known.
    pub(crate) fn answered(versions: Versions, gpus: Vec<GpuReport>) -> Self {
        Self {
            conversation: None,
            notice: None,
            answers: ReceivedAnswers {
                ready: Some(Ok(versions)),
                gpus: Some(Ok(gpus.into_iter().map(Ok).collect())),
                ..ReceivedAnswers::default()
            },
        }
    }

    /// Calls `notice` once if the query takes longer than three seconds.
    pub fn when_slow(&mut self, notice: impl FnOnce(Duration) + Send + 'static) {
        self.notice = Some(Notice(Box::new(notice)));
    }

    /// Waits until NVML is initialised.
    ///
    /// # Errors
    /// Their kind is always `DriverUnavailable`: `change root failed: …`, `privilege change failed: …`, `load library
    /// failed: …`, `nvml error: …`, `driver rpc error: …`.
    pub(crate) fn ready(&mut self) -> Result<()> {
        self.raw_versions().map(drop)
    }

    /// Waits for the driver's versions; the GPUs may still be pending.
    ///
    /// # Errors
    /// Those of `ready`, and `nvml error: …` of the kind `DriverFailed`.
    pub fn versions(&mut self) -> Result<DriverVersions> {
        self.raw_versions().and_then(device::versions)
    }

    /// Waits for the GPUs, and warns of those that are skipped because NVML fails on them.
    ///
    /// # Errors
    /// Those of `ready`; `nvml error: …`, also if NVML fails on every GPU there is; `driver rpc error:
    /// …` if NVML crashes, hangs or sends garbage.
    pub fn devices(&mut self) -> Result<DeviceInfo> {
        DeviceInfo::from_reports(self.reports()?)
    }

    /// Waits for the GPUs, and returns all of them with NVML's facts about each, however much is missing.
    ///
    /// # Errors
    /// Those of `ready`, and those of [`devices`](Self::devices) that concern the whole list.
    pub fn listed(&mut self) -> Result<Vec<ListedGpu>> {
        Ok(listing::of_reports(self.reports()?))
    }

    /// Waits for all answers and for the process to end.
    ///
    /// # Errors
    /// Those of [`versions`](Self::versions) and [`devices`](Self::devices), in this order.
    #[cfg(any(test, feature = "testing"))]
    pub fn finish(mut self) -> Result<QueryReply> {
        Ok(QueryReply {
            versions: self.versions()?,
            devices: self.devices()?,
        })
    }

    /// Waits until every answer or an error has arrived, and ends the process. The answers are kept.
    pub(crate) fn settle(&mut self) {
        while self.answers.ready.is_none() || self.answers.gpus.is_none() {
            self.step();
        }
        if let Some(conversation) = &mut self.conversation {
            conversation.process.dismiss();
        }
    }

    fn reports(&mut self) -> Result<&[GpuAnswer]> {
        self.ready()?;
        while self.answers.gpus.is_none() {
            self.step();
        }
        match self.answers.gpus.as_ref() {
            Some(Ok(gpus)) => Ok(gpus),
            Some(Err(error)) => Err(error.clone()),
            None => Err(garbled()),
        }
    }

    fn raw_versions(&mut self) -> Result<&Versions> {
        while self.answers.ready.is_none() {
            self.step();
        }
        match self.answers.ready.as_ref() {
            Some(ready) => ready.as_ref().map_err(Clone::clone),
            None => Err(garbled()),
        }
    }

    /// Waits for one message, or for the end of the query. Each call settles one answer or advances by one GPU.
    fn step(&mut self) {
        let end = match self.receive() {
            Ok(message) => self.answers.take(message),
            Err(error) => Some(error),
        };
        if let Some(error) = end {
            self.answers.fail(error);
        }
    }

    fn receive(&mut self) -> Result<Message> {
        let conversation = self.conversation.as_mut().ok_or_else(garbled)?;
        let mut notice = self.notice.take().map(|Notice(notice)| notice);
        let message = conversation.receive(&mut notice);
        self.notice = notice.map(Notice);
        message.map_err(|silence| match silence {
            Silence::MalformedMessage => garbled(),
            Silence::Died(ending) => self.answers.died(&ending, conversation),
            Silence::TimedOut => self.answers.timed_out(conversation.deadline),
            Silence::Failed(errno) => Error::system("poll failed", errno),
        })
    }
}

impl ReceivedAnswers {
    fn died(&self, ending: &ProcessEnd, conversation: &Conversation) -> Error {
        let how = &ending.how;
        if self.ready.is_none() && conversation.may_not_serve(ending) {
            return Error::new(ErrorKind::DriverFailed, RPC_FAILED).hint(format!(
                "the process that loads NVML, this program executed again, answered nothing: {how}; {HINT_TO_SERVE}; if \
                 it is, run nvidia-smi to see whether NVML works at all"
            ));
        }
        Error::new(ErrorKind::DriverFailed, RPC_FAILED).hint(format!(
            "the process that loads NVML died {}: {how}; run nvidia-smi to see whether NVML works at all",
            self.occasion()
        ))
    }

    fn timed_out(&self, deadline: Duration) -> Error {
        let text = "driver rpc error: timed out";
        Error::new(ErrorKind::TimedOut, text).hint(format!(
            "NVML did not answer within {} s {}; if it is only slow, raise NVC_DRIVER_TIMEOUT (seconds) \
             or enable persistence mode (nvidia-persistenced)",
            deadline.as_secs_f32(),
            self.occasion()
        ))
    }

    /// Stores a message; returns an error if it ends the query.
    fn take(&mut self, message: Message) -> Option<Error> {
        match message {
            Message::Unavailable(fault) if self.ready.is_none() => {
                return Some(device::unavailable(&fault, &self.root));
            }
            Message::Ready(versions) if self.ready.is_none() => self.ready = Some(Ok(versions)),
            Message::Asking(index) if self.ready.is_some() => self.asking = Some(index.to_string()),
            Message::AskingAt(address) if self.ready.is_some() => self.asking = Some(address),
            Message::Gpus(gpus) if self.ready.is_some() => {
                self.gpus =
                    Some(gpus.map_err(|fault| device::error(&fault, ErrorKind::DriverFailed)));
            }
            _ => return Some(garbled()),
        }
        None
    }

    /// Sets the same error for every missing answer.
    fn fail(&mut self, error: Error) {
        if self.ready.is_none() {
            let error = error.clone().with_kind(ErrorKind::DriverUnavailable);
            self.ready = Some(Err(error));
        }
        if self.gpus.is_none() {
            self.gpus = Some(Err(error));
        }
    }

    /// Describes NVML's current work, as context for an error message.
    fn occasion(&self) -> String {
        match (&self.ready, &self.asking) {
            (None, _) => "while it was being initialised".into(),
            (Some(_), None) => "while it was asked for the GPUs".into(),
            (Some(_), Some(gpu)) => format!("while it was asked about GPU {gpu}"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::host::query::Fault;

    fn versions() -> Versions {
        Versions {
            driver: Ok("535.261.03".into()),
            cuda: Ok(12020),
        }
    }

    #[test]
    fn messages_out_of_order_end_the_query() {
        let load = || Message::Unavailable(Fault::Load("x".into()));
        for (before, message) in [
            (vec![], Message::Asking(0)),
            (vec![], Message::Gpus(Ok(vec![]))),
            (vec![Message::Ready(versions())], load()),
            (vec![Message::Ready(versions())], Message::Ready(versions())),
        ] {
            let mut answers = ReceivedAnswers::default();
            for message in before {
                assert!(answers.take(message).is_none());
            }
            let error = answers.take(message.clone()).expect("an error");
            assert_eq!(error.message(), RPC_FAILED, "{message:?}");
        }
    }

    #[test]
    fn the_phase_decides_the_kind_of_a_failure() {
        let mut answers = ReceivedAnswers::default();
        answers.fail(Error::new(ErrorKind::TimedOut, "x"));
        let error = answers.ready.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DriverUnavailable);

        let mut answers = ReceivedAnswers::default();
        assert!(answers.take(Message::Ready(versions())).is_none());
        assert!(answers.take(Message::Asking(3)).is_none());
        assert_eq!(answers.occasion(), "while it was asked about GPU 3");
        answers.fail(Error::new(ErrorKind::TimedOut, "x"));
        assert!(answers.ready.unwrap().is_ok());
        let error = answers.gpus.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
