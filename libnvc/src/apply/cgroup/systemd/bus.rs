//! Calls systemd's methods over a socket: its own private one, or the system bus.
//!
//! The time for all calls of a connection is limited, also if the peer sends other messages, or bytes one by one.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, setsockopt, socket,
    sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::wire::{self, Body, Call, HEAD, Malformed, Reply, Value};
use crate::error::{Error, ErrorKind, Result};

const SYSTEMD: &str = "org.freedesktop.systemd1";
const BUS: &str = "org.freedesktop.DBus";
/// Limit of messages between a call and its reply that are not ours: signals of a bus.
const MAX_OTHERS: usize = 64;
/// Limit of the line that answers the authentication.
const MAX_LINE: usize = 512;

/// A method and its arguments.
pub(super) struct Method<'a> {
    pub(super) path: &'a str,
    pub(super) interface: &'a str,
    pub(super) member: &'a str,
    pub(super) body: Body,
}

/// An authenticated connection.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    /// True if a bus is between us and systemd.
    is_bus: bool,
    serial: u32,
    /// Bytes that were received but not yet used.
    received: Vec<u8>,
    /// The time that remains for calls.
    remaining: Duration,
}

impl Connection {
    /// Connects to systemd's private socket.
    pub(super) fn private(path: &Path, time: Duration) -> Result<Self> {
        Self::open(path, false, time)
    }

    /// Connects to the system bus.
    pub(super) fn system(path: &Path, time: Duration) -> Result<Self> {
        let mut bus = Self::open(path, true, time)?;
        let hello = Method {
            path: "/org/freedesktop/DBus",
            interface: BUS,
            member: "Hello",
            body: Body::default(),
        };
        let [welcome] = bus.call_peer(BUS, [hello])?;
        match welcome {
            Ok(_) => Ok(bus),
            Err(name) => Err(Error::new(ErrorKind::System, "the bus refused").with_cause(name)),
        }
    }

    fn open(path: &Path, is_bus: bool, time: Duration) -> Result<Self> {
        let start = Instant::now();
        let failed = |errno| Error::file("connecting failed", path, errno);
        let socket = open_socket(path, time).map_err(failed)?;
        let mut opened = Self {
            socket,
            is_bus,
            serial: 0,
            received: Vec::new(),
            remaining: time.saturating_sub(start.elapsed()),
        };
        opened.timed(Self::authenticate)?;
        Ok(opened)
    }

    /// Makes sure that there is this much time for calls.
    pub(super) fn extend(&mut self, time: Duration) {
        self.remaining = self.remaining.max(time);
    }

    /// Leaves less time for calls.
    #[cfg(test)]
    pub(super) fn limit(&mut self, time: Duration) {
        self.remaining = time;
    }

    /// Sends calls to systemd, all before the first reply, and returns the outcomes in the same order.
    pub(super) fn call<const N: usize>(
        &mut self,
        methods: [Method<'_>; N],
    ) -> Result<[Result<Value, String>; N]> {
        self.call_peer(SYSTEMD, methods)
    }

    fn call_peer<const N: usize>(
        &mut self,
        destination: &str,
        methods: [Method<'_>; N],
    ) -> Result<[Result<Value, String>; N]> {
        let first = self.serial + 1;
        let destination = self.is_bus.then_some(destination);
        let mut messages = Vec::new();
        for method in methods {
            self.serial += 1;
            let call = Call {
                serial: self.serial,
                destination,
                path: method.path,
                interface: method.interface,
                member: method.member,
                body: method.body,
            };
            messages.extend(call.message());
        }
        self.timed(|bus, deadline| {
            bus.send(&messages, deadline)?;
            bus.replies(first, deadline)
        })
    }

    /// Runs `work` with the remaining time as its deadline, and deducts the time that it took.
    fn timed<T>(&mut self, work: impl FnOnce(&mut Self, Instant) -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let result = work(self, start + self.remaining);
        self.remaining = self.remaining.saturating_sub(start.elapsed());
        result
    }

    /// Authenticates by `EXTERNAL`: sends our user id, which the peer compares with the socket's credentials.
    fn authenticate(&mut self, deadline: Instant) -> Result<()> {
        let uid = nix::unistd::geteuid().to_string();
        let uid: String = uid.bytes().map(|digit| format!("{digit:02x}")).collect();
        let hello = format!("\0AUTH EXTERNAL {uid}\r\nBEGIN\r\n");
        self.send(hello.as_bytes(), deadline)?;
        let line = loop {
            if let Some(end) = self.received.windows(2).position(|two| two == b"\r\n") {
                break self.received.drain(..end + 2).collect::<Vec<u8>>();
            }
            if self.received.len() > MAX_LINE {
                return Err(malformed(Malformed));
            }
            self.receive(deadline)?;
        };
        if line.starts_with(b"OK ") {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&line);
        let error = Error::new(ErrorKind::System, "authentication was refused");
        Err(error.with_cause(text.trim().to_owned()))
    }

    /// Returns the outcomes of N calls with consecutive serial numbers from `first` on.
    fn replies<const N: usize>(
        &mut self,
        first: u32,
        deadline: Instant,
    ) -> Result<[Result<Value, String>; N]> {
        let mut outcomes = [const { None }; N];
        let mut others = 0;
        while outcomes.iter().any(Option::is_none) {
            let message = self.message(deadline)?;
            let reply = wire::parse(&message).map_err(malformed)?;
            let place = reply.and_then(|Reply { to, outcome }| {
                let at = usize::try_from(to.checked_sub(first)?).ok()?;
                Some((outcomes.get_mut(at)?, outcome))
            });
            match place {
                Some((place @ None, outcome)) => *place = Some(outcome),
                _ => others += 1,
            }
            if others > MAX_OTHERS {
                return Err(malformed(Malformed));
            }
        }
        Ok(outcomes.map(|outcome| outcome.expect("the loop has set all")))
    }

    /// Returns the next message.
    fn message(&mut self, deadline: Instant) -> Result<Vec<u8>> {
        loop {
            let length = match self.received.first_chunk::<HEAD>() {
                Some(head) => wire::message_length(head).map_err(malformed)?,
                None => usize::MAX,
            };
            if length <= self.received.len() {
                return Ok(self.received.drain(..length).collect());
            }
            self.receive(deadline)?;
        }
    }

    fn send(&self, mut bytes: &[u8], deadline: Instant) -> Result<()> {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        while !bytes.is_empty() {
            match send(self.socket.as_raw_fd(), bytes, flags) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::EAGAIN) => self.wait(PollFlags::POLLOUT, deadline)?,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::system("sending failed", errno)),
            }
        }
        Ok(())
    }

    /// Receives some bytes.
    fn receive(&mut self, deadline: Instant) -> Result<()> {
        let mut buffer = [0; 4096];
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Err(Error::system("receiving failed", Errno::ECONNRESET)),
                Ok(length) => {
                    self.received.extend(&buffer[..length]);
                    return Ok(());
                }
                Err(Errno::EAGAIN) => self.wait(PollFlags::POLLIN, deadline)?,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::system("receiving failed", errno)),
            }
        }
    }

    /// Waits until the socket can be used.
    fn wait(&self, what: PollFlags, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::new(ErrorKind::TimedOut, "no answer in time"));
        }
        // Rounded up: the next call finds the time over.
        let left = left + Duration::from_millis(1);
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut polled = [PollFd::new(self.socket.as_fd(), what)];
        match poll(&mut polled, left) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(Error::system("poll failed", errno)),
        }
    }
}

/// Connects to a socket; a full queue of the peer is waited for.
fn open_socket(path: &Path, time: Duration) -> std::result::Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let opened = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let milliseconds = i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1);
    setsockopt(
        &opened,
        sockopt::SendTimeout,
        &TimeVal::milliseconds(milliseconds),
    )?;
    connect(opened.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(opened)
}

fn malformed(Malformed: Malformed) -> Error {
    Error::new(ErrorKind::Malformed, "the answer is no valid D-Bus message")
}
