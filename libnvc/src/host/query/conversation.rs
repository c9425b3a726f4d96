//! Exchanges messages with a query process: one request, then replies until either side ends.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::choice::ProcessContext;
use super::process::{Child, ProcessEnd, QueryProcess, QueryProgram, Started, not_created};
use super::protocol::{MAX_SIZE, Message, Only, Question, WireRequest};
use super::{CUDA, LIBRARY, needs};
use crate::error::{Error, ErrorKind, Result, errno_of};
use crate::frame::{encode, take};
use crate::host::search::{self, usual};
use crate::host::{Abi, DriverRoot, Identity, device, procfs};
use crate::path::HostPath;
use crate::sys::files::waiting_bytes;

/// Delay after which a waiting caller is told that NVML is slow.
const SLOW: Duration = Duration::from_secs(3);

/// Number of GPUs for which the time limit begins anew; no machine has more.
const MAX_GPUS: usize = 128;

/// Size of one read.
const MAX_BYTES: usize = 16 << 10;

/// First line of every error about a process that died or sent garbage: upstream's words, which tools look for.
pub(super) const RPC_FAILED: &str = "driver rpc error: failed to process request";

/// Returns the kernel module's version, as the driver root or the host says it.
fn module_version(root: &Path) -> Option<String> {
    let mut roots = [root, Path::new("/")].into_iter();
    roots.find_map(|root| procfs::module_version(&DriverRoot::open(root).ok()?))
}

/// The node without which NVML says that no driver is loaded.
const CONTROL_NODE: &str = "dev/nvidiactl";

/// The question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryRequest {
    /// Driver root; the query process changes its root unless it is exactly `/`.
    pub root: PathBuf,
    /// The root of the device nodes, for a driver root that has none; `/` if None.
    pub dev_root: Option<PathBuf>,
    /// User that the query process changes to. None: one that is not root. If the caller is root, that is the overflow
    /// user, and otherwise the caller.
    pub user: Option<Identity>,
    /// Directories below the driver root in which NVML and libcuda are sought before the loader looks for them.
    pub library_search: Vec<HostPath>,
    /// NVML's absolute path under WSL2, where minor numbers and MIG do not exist; None elsewhere.
    pub wsl_library: Option<PathBuf>,
    /// Time limit of the query; it begins anew with the first question about each further GPU.
    pub deadline: Duration,
}

impl QueryRequest {
    /// Returns the request with the user that it will be answered as.
    ///
    /// # Errors
    /// `open failed: /proc/sys/kernel/overflowuid: <cause>`, and the same for the group.
    pub(crate) fn settled(&self) -> Result<Self> {
        let user = Identity::of_query(self.user, &self.sandbox())?;
        Ok(Self {
            user: Some(user),
            ..self.clone()
        })
    }

    /// Returns what a process must be able to change to.
    ///
    /// # Errors
    /// Those of [`settled`](Self::settled).
    pub(crate) fn wanted(&self) -> Result<ProcessContext<'_>> {
        Ok(ProcessContext {
            root: &self.root,
            user: Identity::of_query(self.user, &self.sandbox())?,
        })
    }

    /// Returns the root of the query process. NVML opens device nodes, which the driver root of a container-optimised
    /// host does not have: there it is the root of the nodes.
    fn sandbox(&self) -> PathBuf {
        let has_nodes = |root: &Path| root.join(CONTROL_NODE).exists();
        let other = self.dev_root.as_deref().unwrap_or(Path::new("/"));
        // In the other root the loader would find the host's, of which a driver root without NVML says nothing.
        let has_library = || {
            DriverRoot::open(&self.root).is_ok_and(|root| {
                let found = |name| search::library(&root, name, &self.library_search).is_some();
                [LIBRARY, CUDA].into_iter().any(found)
            })
        };
        let sandbox = if has_nodes(&self.root) || !has_nodes(other) || !has_library() {
            &self.root
        } else {
            other
        };
        sandbox.to_owned()
    }

    /// Returns the directories in which a process with this root looks for libraries first: those of the caller, and if
    /// it is not the driver root, all usual ones of the driver root.
    fn directories(&self, sandbox: &Path) -> Vec<OsString> {
        let given = self.library_search.iter().cloned();
        if sandbox == self.root {
            return given.map(|path| path.as_path().into()).collect();
        }
        let Ok(root) = DriverRoot::open(&self.root) else {
            return Vec::new();
        };
        let real = given.chain(usual(Abi::Native)).filter_map(|path| {
            let (_, real) = root.real_path(&path).ok()?;
            Some(real.below(root.path()).into_os_string())
        });
        real.collect()
    }
}

/// A query process that has received its request. Dropping it ends the process and reaps it.
#[derive(Debug)]
pub(crate) struct Conversation {
    // Declared first, so that it is closed before the wait: closing it ends the process.
    socket: UnixStream,
    pub(super) process: Child,
    /// The library that it loads, for errors.
    library: &'static str,
    received: Vec<u8>,
    started: Instant,
    /// When the time limit began: at the start, or with the first question about a further GPU.
    limited: Instant,
    pub(in crate::host) deadline: Duration,
    /// The GPUs that NVML was asked about, by index or address.
    asked: HashSet<String>,
    /// Number of reads for the bytes that had arrived by the deadline; None before it.
    late_reads: Option<usize>,
    program: QueryProgram,
}

/// The reason why no message arrived.
#[derive(Debug)]
pub(super) enum Silence {
    /// The received bytes are not a message.
    MalformedMessage,
    /// The process ended.
    Died(ProcessEnd),
    /// The deadline passed; the process was killed.
    TimedOut,
    /// Waiting for the socket failed.
    Failed(Errno),
}

impl Conversation {
    /// Sends a request to a process.
    ///
    /// # Errors
    /// `process creation failed: <cause>`, also of the process; those of [`QueryRequest::settled`].
    pub(crate) fn start(
        process: QueryProcess,
        request: &QueryRequest,
        question: Question,
        only: Option<Only>,
    ) -> Result<Self> {
        let Started {
            socket,
            process,
            program,
        } = process.started()?;
        let sandbox = request.sandbox();
        let user = Identity::of_query(request.user, &sandbox)?;
        let started = Instant::now();
        let name = match question {
            Question::Cuda => "cuda",
            Question::Adapters => "dxcore",
            _ => "nvml",
        };
        let library = request.wsl_library.as_deref();
        let host_libraries = if sandbox == Path::new("/") {
            Vec::new()
        } else {
            needs::of_library(
                &sandbox,
                match question {
                    Question::Cuda => CUDA.as_ref(),
                    _ => library.map_or(LIBRARY.as_ref(), Path::as_os_str),
                },
            )
        };
        let wire = WireRequest {
            directories: request.directories(&sandbox),
            root: sandbox.into(),
            uid: user.uid,
            gid: user.gid,
            host_libraries: host_libraries.into_iter().map(String::from).collect(),
            version: module_version(&request.root),
            wsl_library: request.wsl_library.clone().map(OsString::from),
            parent: nix::unistd::getpid().as_raw(),
            only,
            question,
        };
        let bytes = encode(&wire, MAX_SIZE).map_err(|_| not_created(Errno::E2BIG))?;
        send(&socket, &bytes)?;
        Ok(Self {
            socket,
            process,
            library: name,
            received: Vec::new(),
            started,
            limited: started,
            deadline: request.deadline,
            asked: HashSet::new(),
            late_reads: None,
            program,
        })
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// NVML crashed, or did not answer in time, in words for nvidia-docker's callers.
    pub(crate) fn next(&mut self) -> Result<Message> {
        let message = self.receive(&mut None::<fn(Duration)>);
        message.map_err(|silence| match silence {
            Silence::MalformedMessage => garbled(),
            Silence::Died(ending) => {
                let cause = format!("the process that loads it died, {}", ending.how);
                Error::fault(ErrorKind::DriverFailed, self.library, cause)
            }
            Silence::TimedOut => {
                let cause = format!("no answer within {:.1} s", self.deadline.as_secs_f32());
                Error::fault(ErrorKind::TimedOut, self.library, cause)
            }
            Silence::Failed(errno) => Error::system("poll failed", errno),
        })
    }

    /// Waits for the next message. Calls the notice once when three seconds have passed since the start.
    pub(super) fn receive(
        &mut self,
        notice: &mut Option<impl FnOnce(Duration)>,
    ) -> Result<Message, Silence> {
        let mut buffer = [0; MAX_BYTES];
        loop {
            match take(&mut self.received, MAX_SIZE) {
                Ok(Some(message)) => {
                    self.note(&message);
                    return Ok(message);
                }
                Ok(None) => self.wait_for_bytes(notice)?,
                Err(_) => return Err(Silence::MalformedMessage),
            }
            match self.socket.read(&mut buffer) {
                Ok(length) if length > 0 => self.received.extend(buffer.iter().take(length)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The socket was closed, or the process died with part of our request unread.
                Ok(_) | Err(_) => return Err(Silence::Died(self.process.end())),
            }
        }
    }

    /// Returns true if the process may have ended like this because its program does not call `serve_if_asked`. That
    /// matters only for a program that libnvc executes again, which its author may not expect.
    pub(super) fn may_not_serve(&self, ending: &ProcessEnd) -> bool {
        !ending.is_by_signal && matches!(self.program, QueryProgram::ThisExecutable)
    }

    /// Begins the time limit anew with the first question about a further GPU: attaching one may take seconds.
    fn note(&mut self, message: &Message) {
        let gpu = match message {
            Message::Asking(index) => index.to_string(),
            Message::AskingAt(address) => address.clone(),
            // A watch has no end, but signs of life.
            Message::Watching(_) | Message::Event(_) => {
                self.limited = Instant::now();
                self.late_reads = None;
                return;
            }
            _ => return,
        };
        let is_first = self.asked.is_empty();
        if self.asked.len() < MAX_GPUS && self.asked.insert(gpu) && !is_first {
            self.limited = Instant::now();
            self.late_reads = None;
        }
    }

    fn wait_for_bytes(
        &mut self,
        notice: &mut Option<impl FnOnce(Duration)>,
    ) -> Result<(), Silence> {
        loop {
            let elapsed = self.limited.elapsed();
            let rest = self.deadline.saturating_sub(elapsed);
            let until_notice = match notice {
                Some(_) => SLOW.saturating_sub(self.started.elapsed()),
                None => Duration::MAX,
            };
            // Rounded up, to avoid waking just before the deadline. Zero if that has passed.
            let millis = rest.min(until_notice).as_micros().div_ceil(1000);
            let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
            let mut ends = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            let is_late = elapsed >= self.deadline;
            match poll(&mut ends, timeout) {
                // More data may always be available: what arrives after the deadline does not count.
                Ok(1..) if !is_late || self.is_in_time()? => return Ok(()),
                Ok(0) if !is_late => {}
                Ok(_) => {
                    self.process.kill();
                    return Err(Silence::TimedOut);
                }
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Silence::Failed(errno)),
            }
            if self.started.elapsed() >= SLOW
                && let Some(notice) = notice.take()
            {
                notice(self.started.elapsed());
            }
        }
    }

    /// Returns true if the socket's bytes were there when it was first looked at after the deadline: the caller may have
    /// been busy meanwhile. Also if there are none, because the process has ended.
    fn is_in_time(&mut self) -> Result<bool, Silence> {
        let queued = waiting_bytes(&self.socket).map_err(Silence::Failed)?;
        let late_reads = self.late_reads.get_or_insert(queued.div_ceil(MAX_BYTES));
        let is_in_time = queued == 0 || *late_reads > 0;
        *late_reads = late_reads.saturating_sub(1);
        Ok(is_in_time)
    }
}

/// Asks a question that has one answer, in a process of its own.
///
/// # Errors
/// The process cannot be started, dies, or does not answer in time; or `pick` returns None for the answer.
pub(crate) fn ask_once<T>(
    program: &QueryProgram,
    request: &QueryRequest,
    question: Question,
    pick: impl FnOnce(Message) -> Option<T>,
) -> Result<T> {
    let process = QueryProcess::start_for(program, &request.wanted()?);
    let mut conversation = Conversation::start(process, request, question, None)?;
    match conversation.next()? {
        Message::Unavailable(fault) => Err(device::unavailable(&fault, &request.root)),
        answer => pick(answer).ok_or_else(|| {
            let cause = "an answer to another question";
            Error::fault(ErrorKind::DriverFailed, conversation.library, cause)
        }),
    }
}

/// Sends a request.
fn send(mut socket: &UnixStream, request: &[u8]) -> Result<()> {
    // The socket buffers it. The write cannot block, because a request is a path or two long.
    match socket.write_all(request) {
        // The process has already died; receiving will report that.
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
            ) =>
        {
            Ok(())
        }
        done => done.map_err(|e| not_created(errno_of(&e))),
    }
}

pub(super) fn garbled() -> Error {
    Error::new(ErrorKind::DriverFailed, RPC_FAILED).hint(
        "the process that loads NVML returned invalid data; its memory may have been corrupted",
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Returns a conversation whose deadline has passed, and the other end of its socket.
    fn late() -> (Conversation, UnixStream) {
        let (socket, other) = UnixStream::pair().unwrap();
        let conversation = Conversation {
            socket,
            process: Child::none(),
            library: "nvml",
            received: Vec::new(),
            started: Instant::now(),
            limited: Instant::now(),
            deadline: Duration::ZERO,
            asked: HashSet::new(),
            late_reads: None,
            program: QueryProgram::ThisProcess,
        };
        (conversation, other)
    }

    fn receive(conversation: &mut Conversation) -> Result<Message, Silence> {
        conversation.receive(&mut None::<fn(Duration)>)
    }

    #[test]
    fn an_answer_that_waited_counts() {
        let (mut conversation, mut other) = late();
        // More than one read takes.
        let count = 3000;
        let messages =
            (0..count).flat_map(|number| encode(&Message::Asking(number), MAX_SIZE).unwrap());
        let messages: Vec<u8> = messages.collect();
        assert!(messages.len() > 2 * MAX_BYTES);
        other.write_all(&messages).unwrap();
        for number in 0..count {
            assert_eq!(receive(&mut conversation).unwrap(), Message::Asking(number));
        }
        assert!(matches!(receive(&mut conversation), Err(Silence::TimedOut)));
        let (mut conversation, _other) = late();
        assert!(matches!(receive(&mut conversation), Err(Silence::TimedOut)));
    }

    #[test]
    fn a_process_that_ended_did_not_time_out() {
        let (mut conversation, other) = late();
        drop(other);
        assert!(matches!(receive(&mut conversation), Err(Silence::Died(_))));
    }

    #[test]
    fn the_time_limit_begins_anew_once_for_each_further_gpu() {
        let (mut conversation, _other) = late();
        let mut begins_anew = |message: Message| {
            let before = conversation.limited;
            conversation.note(&message);
            conversation.limited != before
        };
        assert!(!begins_anew(Message::Asking(0)));
        assert!(begins_anew(Message::Asking(1)));
        assert!(begins_anew(Message::AskingAt("0000:3b:00.0".into())));
        assert!(!begins_anew(Message::Asking(1)));
        assert!(!begins_anew(Message::Done));
    }

    #[test]
    fn a_flood_ends_after_the_deadline() {
        let (mut conversation, mut other) = late();
        let flood = std::thread::spawn(move || {
            let asking = encode(&Message::Asking(1), MAX_SIZE).unwrap().repeat(4096);
            while other.write_all(&asking).is_ok() {}
        });
        let mut messages = std::iter::repeat_with(|| receive(&mut conversation));
        let silence = messages.find_map(Result::err);
        assert!(matches!(silence, Some(Silence::TimedOut)), "{silence:?}");
        drop(conversation);
        flood.join().unwrap();
    }
}
