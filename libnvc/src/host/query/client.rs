//! Starts the query process, and converts its answers, silence or death to values and errors.
//!
//! Errors until NVML is initialised have the kind [`ErrorKind::DriverUnavailable`], later ones
//! [`ErrorKind::DriverFailed`] or [`ErrorKind::TimedOut`]: upstream reports the two phases in different words.

use std::fmt;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

use super::choice::{Start, choose};
use super::conversation::{Conversation, Silence};
use super::process::{Process, THIS_EXECUTABLE, above_streams, errno, may_copy};
use super::protocol::{GpuFault, GpuReport, Message, Question, Versions};
use crate::error::{Error, ErrorKind, Result};
use crate::host::DriverVersions;
use crate::host::device::{self, DeviceInfo};

/// First line of every error about a process that died or sent garbage: upstream's words, which tools look for.
const RPC_FAILED: &str = "driver rpc error: failed to process request";

/// The program that the process runs. An executed program must first call [`serve_if_asked`](super::serve_if_asked).
#[derive(Clone, Debug)]
pub enum QueryProgram {
    /// The running program, executed again.
    ThisExecutable,
    /// Like `ThisExecutable`, but forks if the process has a single thread and no environment variable addresses the
    /// loader, which takes half the time. For a program's `main` that holds no secrets from NVML yet.
    ThisProcess,
    /// An absolute path.
    Path(PathBuf),
    /// A library's helper program, or the error of looking for it. If it is missing, or the caller's bounding set would
    /// leave it without the capabilities that it needs, a fork replaces it, provided the process has one thread.
    Helper(Result<PathBuf>),
}

/// The root and identity that a query process must be able to change to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// Its root.
    pub(crate) root: &'a Path,
    /// Its user.
    pub(crate) uid: u32,
    /// Its group.
    pub(crate) gid: u32,
}

/// The question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryRequest {
    /// Driver root; the query process changes its root unless it is exactly `/`.
    pub root: PathBuf,
    /// User that the query process changes to.
    pub uid: u32,
    /// Group that it changes to.
    pub gid: u32,
    /// NVML's absolute path under WSL2, where minor numbers and MIG do not exist; None elsewhere.
    pub wsl_library: Option<PathBuf>,
    /// Time limit of the whole query.
    pub deadline: Duration,
}

/// All answers.
#[derive(Clone, Debug)]
pub struct QueryReply {
    /// The driver's versions.
    pub versions: DriverVersions,
    /// The GPUs.
    pub devices: DeviceInfo,
}

/// A started query process that has not received a request. Dropping it ends the process and reaps it.
#[derive(Debug)]
pub struct QueryProcess {
    // Declared first, so that it is closed before the wait: closing it ends the process.
    socket: UnixStream,
    process: Process,
}

impl QueryProcess {
    /// Starts the program, which initialises itself while the caller prepares the request.
    ///
    /// The process needs SYS_CHROOT (for a driver root other than `/`), SETUID and SETGID after its start: start it
    /// while the bounding set still has them, or with them as ambient capabilities. It is killed when the *thread* that
    /// calls this ends, so call it from a thread that stays until the answers have arrived.
    ///
    /// # Errors
    /// `process creation failed: <cause>`.
    pub fn start(program: &QueryProgram) -> Result<Self> {
        // No process has that root or these users, so every capability counts as needed.
        let everything = Wanted {
            root: Path::new(""),
            uid: u32::MAX,
            gid: u32::MAX,
        };
        Self::start_for(program, &everything)
    }

    /// Starts the program when the required root and identity are known.
    pub(crate) fn start_for(program: &QueryProgram, wanted: &Wanted<'_>) -> Result<Self> {
        let this = Path::new(THIS_EXECUTABLE);
        let way = match program {
            QueryProgram::ThisProcess if may_copy() => Start::Copy,
            QueryProgram::ThisProcess | QueryProgram::ThisExecutable => Start::Execute(this),
            QueryProgram::Path(path) => Start::Execute(path),
            QueryProgram::Helper(helper) => choose(helper, wanted)?,
        };
        let (socket, theirs) = UnixStream::pair().map_err(|e| not_created(errno(&e)))?;
        let theirs = above_streams(theirs.into()).map_err(not_created)?;
        let process = Process::start(&way, theirs.as_fd()).map_err(|errno| match way {
            Start::Execute(path) => {
                not_created(errno).hint(format!("the query program is {}", path.display()))
            }
            Start::Copy => not_created(errno),
        })?;
        Ok(Self { socket, process })
    }

    /// Returns our end of the socket, and the process.
    pub(super) fn into_parts(self) -> (UnixStream, Process) {
        (self.socket, self.process)
    }
}

/// A running query. Dropping it ends the process and reaps it.
#[derive(Debug)]
pub struct Query {
    conversation: Conversation,
    notice: Option<Notice>,
    answers: Answers,
}

/// The answers received so far.
#[derive(Debug, Default)]
struct Answers {
    ready: Option<Result<Versions>>,
    gpus: Option<Result<Vec<Result<GpuReport, GpuFault>>>>,
    /// The GPU that NVML is currently asked about.
    asking: Option<u32>,
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
    /// Those of [`QueryProcess::start`].
    pub fn start(program: &QueryProgram, request: &QueryRequest) -> Result<Self> {
        let wanted = Wanted {
            root: &request.root,
            uid: request.uid,
            gid: request.gid,
        };
        Self::ask(QueryProcess::start_for(program, &wanted)?, request)
    }

    /// Sends the request to a process that was started beforehand; returns at once.
    ///
    /// # Errors
    /// `process creation failed: <cause>`.
    pub fn ask(process: QueryProcess, request: &QueryRequest) -> Result<Self> {
        Ok(Self {
            conversation: Conversation::start(process, request, Question::Identity)?,
            notice: None,
            answers: Answers::default(),
        })
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
    pub fn ready(&mut self) -> Result<()> {
        self.raw_versions().map(drop)
    }

    /// Waits for the driver's versions; the GPUs may still be pending.
    ///
    /// # Errors
    /// Those of [`ready`](Self::ready), and `nvml error: …` of the kind `DriverFailed`.
    pub fn versions(&mut self) -> Result<DriverVersions> {
        self.raw_versions().and_then(device::versions)
    }

    /// Waits for the GPUs, and warns of those that are skipped because NVML fails on them.
    ///
    /// # Errors
    /// Those of [`ready`](Self::ready); `nvml error: …`, also if NVML fails on every GPU there is; `driver rpc error:
    /// …` if NVML crashes, hangs or sends garbage.
    pub fn devices(&mut self) -> Result<DeviceInfo> {
        self.ready()?;
        while self.answers.gpus.is_none() {
            self.step();
        }
        match self.answers.gpus.as_ref() {
            Some(Ok(gpus)) => DeviceInfo::from_reports(gpus),
            Some(Err(error)) => Err(error.clone()),
            None => Err(garbled()),
        }
    }

    /// Waits for all answers and for the process to end.
    ///
    /// # Errors
    /// Those of [`versions`](Self::versions) and [`devices`](Self::devices), in this order.
    pub fn finish(mut self) -> Result<QueryReply> {
        Ok(QueryReply {
            versions: self.versions()?,
            devices: self.devices()?,
        })
    }

    /// Waits until every answer or an error has arrived, and ends the process. The answers are kept.
    pub fn settle(&mut self) {
        while self.answers.ready.is_none() || self.answers.gpus.is_none() {
            self.step();
        }
        self.conversation.process.dismiss();
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
        let mut notice = self.notice.take().map(|Notice(notice)| notice);
        let message = self.conversation.receive(&mut notice);
        self.notice = notice.map(Notice);
        message.map_err(|silence| match silence {
            Silence::Garbled => garbled(),
            Silence::Died(how) => self.died(&how),
            Silence::TimedOut => self.timed_out(),
            Silence::Failed(errno) => Error::system("poll failed", errno),
        })
    }

    fn died(&self, how: &str) -> Error {
        Error::new(ErrorKind::DriverFailed, RPC_FAILED).hint(format!(
            "the process that loads NVML died {}: {how}; run nvidia-smi to see whether NVML works at all",
            self.answers.occasion()
        ))
    }

    fn timed_out(&self) -> Error {
        let text = "driver rpc error: timed out";
        Error::new(ErrorKind::TimedOut, text).hint(format!(
            "NVML did not answer within {} s {}; if it is only slow, raise NVC_DRIVER_TIMEOUT (seconds) \
             or enable persistence mode (nvidia-persistenced)",
            self.conversation.deadline.as_secs_f32(),
            self.answers.occasion()
        ))
    }
}

impl Answers {
    /// Stores a message; returns an error if it ends the query.
    fn take(&mut self, message: Message) -> Option<Error> {
        match message {
            Message::Unavailable(fault) if self.ready.is_none() => {
                return Some(device::error(&fault, ErrorKind::DriverUnavailable));
            }
            Message::Ready(versions) if self.ready.is_none() => self.ready = Some(Ok(versions)),
            Message::Asking(index) if self.ready.is_some() => self.asking = Some(index),
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
        match (&self.ready, self.asking) {
            (None, _) => "while it was being initialised".into(),
            (Some(_), None) => "while it was asked for the GPUs".into(),
            (Some(_), Some(index)) => format!("while it was asked about GPU {index}"),
        }
    }
}

pub(super) fn not_created(errno: Errno) -> Error {
    Error::system("process creation failed", errno).with_kind(ErrorKind::DriverUnavailable)
}

pub(super) fn garbled() -> Error {
    Error::new(ErrorKind::DriverFailed, RPC_FAILED)
        .hint("the process that loads NVML answered nonsense; its memory may have been corrupted")
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
            let mut answers = Answers::default();
            for message in before {
                assert!(answers.take(message).is_none());
            }
            let error = answers.take(message.clone()).expect("an error");
            assert_eq!(error.message(), RPC_FAILED, "{message:?}");
        }
    }

    #[test]
    fn the_phase_decides_the_kind_of_a_failure() {
        let mut answers = Answers::default();
        answers.fail(Error::new(ErrorKind::TimedOut, "x"));
        let error = answers.ready.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DriverUnavailable);

        let mut answers = Answers::default();
        assert!(answers.take(Message::Ready(versions())).is_none());
        assert!(answers.take(Message::Asking(3)).is_none());
        assert_eq!(answers.occasion(), "while it was asked about GPU 3");
        answers.fail(Error::new(ErrorKind::TimedOut, "x"));
        assert!(answers.ready.unwrap().is_ok());
        let error = answers.gpus.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
