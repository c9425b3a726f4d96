//! Talks with a query process: one request, then messages until one of the two ends it.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::client::{QueryProcess, QueryRequest, garbled, not_created};
use super::process::{Process, errno};
use super::protocol::{Garbled, Message, Question, Request, encode, take};
use super::{LIBRARY, needs};
use crate::error::{Error, ErrorKind, Result};

/// When a caller that waits wants to hear that NVML is the reason.
const SLOW: Duration = Duration::from_secs(3);

/// A query process that was asked. Dropping it ends the process and reaps it.
#[derive(Debug)]
pub(crate) struct Conversation {
    // First, so that it is closed before the process is waited for: that alone ends it.
    socket: UnixStream,
    pub(super) process: Process,
    received: Vec<u8>,
    started: Instant,
    pub(super) deadline: Duration,
}

/// Why no message came.
#[derive(Debug)]
pub(super) enum Silence {
    /// What came is not a message.
    Garbled,
    /// The process ended, in these words.
    Died(String),
    /// The deadline passed; the process was ended.
    TimedOut,
    /// The socket could not be waited for.
    Failed(Errno),
}

impl Conversation {
    /// Puts a question to a process.
    ///
    /// # Errors
    /// `process creation failed: <cause>`.
    pub(crate) fn start(
        process: QueryProcess,
        request: &QueryRequest,
        question: Question,
    ) -> Result<Self> {
        let (mut socket, process) = process.into_parts();
        let started = Instant::now();
        let library = request.wsl_library.as_deref();
        let host_libraries = match request.root == Path::new("/") {
            true => Vec::new(),
            false => needs::of_nvml(
                &request.root,
                library.map_or(LIBRARY.as_ref(), Path::as_os_str),
            ),
        };
        let bytes = encode(&Request {
            root: request.root.clone().into(),
            uid: request.uid,
            gid: request.gid,
            host_libraries: host_libraries.into_iter().map(String::from).collect(),
            wsl_library: request.wsl_library.clone().map(OsString::from),
            parent: nix::unistd::getpid().as_raw(),
            question,
        })
        .map_err(|Garbled| not_created(Errno::E2BIG))?;
        // Waits in the socket for the process. It cannot block, since a request is a path or two long.
        match socket.write_all(&bytes) {
            // The process died already; reading its answer will say so.
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) => {}
            done => done.map_err(|e| not_created(errno(&e)))?,
        }
        Ok(Self {
            socket,
            process,
            received: Vec::new(),
            started,
            deadline: request.deadline,
        })
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// What a caller of nvidia-docker may read: that NVML crashed, or did not answer in time.
    pub(crate) fn next(&mut self) -> Result<Message> {
        let message = self.receive(&mut None::<fn(Duration)>);
        message.map_err(|silence| match silence {
            Silence::Garbled => garbled(),
            Silence::Died(how) => Error::new(
                ErrorKind::DriverFailed,
                format!("nvml: the process that loads it died, {how}"),
            ),
            Silence::TimedOut => Error::new(
                ErrorKind::TimedOut,
                format!(
                    "nvml: no answer within {:.1} s",
                    self.deadline.as_secs_f32()
                ),
            ),
            Silence::Failed(errno) => Error::system("poll failed", errno),
        })
    }

    /// Waits for the next message. The notice is given once when three seconds have passed since the start.
    pub(super) fn receive(
        &mut self,
        notice: &mut Option<impl FnOnce(Duration)>,
    ) -> Result<Message, Silence> {
        let mut buffer = [0; 16 << 10];
        loop {
            match take(&mut self.received) {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => self.wait_for_bytes(notice)?,
                Err(Garbled) => return Err(Silence::Garbled),
            }
            match self.socket.read(&mut buffer) {
                Ok(length) if length > 0 => self.received.extend(buffer.iter().take(length)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The end, or it died with some of our request unread.
                Ok(_) | Err(_) => return Err(Silence::Died(self.process.end())),
            }
        }
    }

    fn wait_for_bytes(
        &mut self,
        notice: &mut Option<impl FnOnce(Duration)>,
    ) -> Result<(), Silence> {
        loop {
            let elapsed = self.started.elapsed();
            // Also while there is always more to read.
            if elapsed >= self.deadline {
                self.process.kill();
                return Err(Silence::TimedOut);
            }
            if elapsed >= SLOW
                && let Some(notice) = notice.take()
            {
                notice(elapsed);
            }
            let end = match notice {
                Some(_) => self.deadline.min(SLOW),
                None => self.deadline,
            };
            let rest = end.saturating_sub(elapsed);
            // Rounded up, so as not to wake just before the time has come.
            let millis = rest.as_micros().div_ceil(1000);
            let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
            let mut ends = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ends, timeout) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(Silence::Failed(errno)),
            }
        }
    }
}
