//! Runs the query process: drops everything it does not need, loads NVML, answers once, ends.
//!
//! The order of the steps matters, and each comment gives the reason. The asking process has already reduced the
//! environment, because the loader reads its variables before `main`. The process may be a fork of the asking one, so
//! it leaves inherited state alone, except for descriptors, which it closes.

use std::ffi::{CStr, OsStr};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid};

use super::protocol::{Fault, MAX_SIZE, Message, Question, WireRequest};
use super::{CUDA, LIBRARY, MARKER, PROGRAM_NAME, ask, not_served, place, readings, watching};
use crate::error::Error;
use crate::frame::{encode, receive};
use crate::sys::capabilities::keep_shield_only;
use crate::sys::cuda::{Cuda, CudaError};
use crate::sys::nvml::{Nvml, loader_text, preload};
use crate::sys::process::{close_from, exit_now, hide, live_as_long_as, reset_signals};
use crate::sys::seccomp::forbid_execve;

/// Exit statuses, for observers of the process; the reply says what happened.
const DONE: u8 = 0;
const NO_REQUEST: u8 = 64;
const ABANDONED: u8 = 65;

/// Becomes the query process if the program was executed for that, and then does not return.
///
/// Must be the first call in `main`, before any thread, descriptor or signal handler exists.
pub fn serve_if_asked() {
    if is_asked() {
        exit_now(serve());
    }
}

/// Fails if this process is itself a query: its program has not called [`serve_if_asked`], and would start processes
/// without end. Tells the asking process, which waits for an answer.
///
/// # Errors
/// [`not_served`].
pub(super) fn refuse_if_asked() -> Result<(), Error> {
    if !is_asked() {
        return Ok(());
    }
    if let Ok(socket) = take_socket() {
        // A caller that is gone needs no answer.
        let _ = send(&socket, &Message::Unavailable(Fault::NotServed));
    }
    Err(not_served())
}

/// Returns true if the program was executed for a query.
fn is_asked() -> bool {
    let mut arguments = std::env::args_os();
    let mut next_is = |expected: &CStr| {
        arguments
            .next()
            .is_some_and(|argument| argument.as_bytes() == expected.to_bytes())
    };
    next_is(PROGRAM_NAME) && next_is(MARKER)
}

/// Runs the query process and returns its exit status. Its standard input is the socket; its signals are blocked.
pub(super) fn serve() -> u8 {
    // Before anything blocks. `confine` reports a failure later.
    let _ = hide();
    // NVML and the helpers it runs must not inherit the asking process's files.
    close_from(3);
    if reset_signals().is_err() {
        return NO_REQUEST;
    }
    let Ok(socket) = take_socket() else {
        return NO_REQUEST;
    };
    let Ok(Some(request)) = receive(&socket, MAX_SIZE) else {
        return NO_REQUEST;
    };
    match answer(socket, &request) {
        Ok(()) => DONE,
        Err(_) => ABANDONED,
    }
}

/// Moves the socket from standard input to a close-on-exec descriptor.
fn take_socket() -> io::Result<UnixStream> {
    let input = io::stdin();
    let socket = input.as_fd().try_clone_to_owned()?;
    // Standard output and error are /dev/null, opened for reading and writing.
    nix::unistd::dup2_stdin(io::stdout())?;
    Ok(UnixStream::from(socket))
}

fn send(mut socket: &UnixStream, message: &Message) -> io::Result<()> {
    socket.write_all(&encode(message, MAX_SIZE)?)
}

/// Answers the request. An error means that the reader is gone.
///
/// NVML is neither shut down nor unloaded: the kernel releases the process's resources, and foreign code that does not
/// run can neither fail nor hang.
fn answer(socket: UnixStream, request: &WireRequest) -> io::Result<()> {
    if let Err(fault) = confine(request) {
        return send(&socket, &Message::Unavailable(fault));
    }
    let socket = stay_only_with(socket, request.parent)?;

    if request.question == Question::Cuda {
        let cuda = load_cuda(request);
        // Foreign code has run by now, and may have made the process dumpable.
        let _ = hide();
        return send(socket, &Message::Cuda(readings::cuda(&cuda)));
    }
    if request.question == Question::Adapters {
        let adapters = readings::adapters();
        let _ = hide();
        return send(socket, &Message::Adapters(adapters));
    }
    // Before NVML, which may start threads.
    let needs_cuda = matches!(request.question, Question::Identities | Question::Facts);
    let cuda = needs_cuda.then(|| load_cuda(request));
    let _ = hide();
    let nvml = match load(request) {
        Ok(nvml) => nvml,
        Err(fault) => return send(socket, &Message::Unavailable(fault)),
    };
    match (&request.question, cuda) {
        (Question::Identities, Some(cuda)) => {
            send(socket, &Message::Facts(readings::identities(&nvml, &cuda)))
        }
        (Question::Facts, Some(cuda)) => {
            send(socket, &Message::Facts(readings::facts(&nvml, &cuda)))
        }
        (Question::Status(indices), _) => {
            let mut listening = Ok(());
            readings::status(&nvml, indices, |index, status| {
                if listening.is_ok() {
                    listening = send(socket, &Message::Status(index, status));
                }
            });
            listening?;
            send(socket, &Message::Done)
        }
        (Question::Devices { skip }, _) => devices(socket, &nvml, skip),
        (Question::Events(indices), _) => {
            watching::watch(&nvml, indices, |message| send(socket, &message))
        }
        _ => identify(socket, &nvml, request),
    }
}

/// Sends the versions and the facts about GPUs.
fn devices(socket: &UnixStream, nvml: &Nvml, skip: &[u32]) -> io::Result<()> {
    send(socket, &Message::Ready(ask::versions(nvml)))?;
    let count = match ask::gpu_count(nvml) {
        Ok(count) => count,
        Err(fault) => return send(socket, &Message::Unavailable(fault)),
    };
    for index in (0..count).filter(|index| !skip.contains(index)) {
        send(socket, &Message::Asking(index))?;
        let device = readings::device(nvml, index);
        send(socket, &Message::Device(index, device))?;
    }
    send(socket, &Message::Done)
}

/// Sends the versions and the GPUs.
fn identify(socket: &UnixStream, nvml: &Nvml, request: &WireRequest) -> io::Result<()> {
    send(socket, &Message::Ready(ask::versions(nvml)))?;

    let mut listening = Ok(());
    let (wsl, only) = (request.wsl_library.is_some(), request.only.as_ref());
    let gpus = ask::gpus(nvml, wsl, only, |asking| {
        if listening.is_ok() {
            listening = send(socket, &asking);
        }
    });
    listening?;
    send(socket, &Message::Gpus(gpus))
}

/// Confines the process to the driver root, with the requested identity and no privileges.
fn confine(request: &WireRequest) -> Result<(), Fault> {
    // For users who look at the process table; nothing depends on it.
    let _ = prctl::set_name(PROGRAM_NAME);
    if request.root != "/" {
        // Before the root changes, because the files cannot be found afterwards. NVML's dependencies resolve to these
        // by name, rather than to those of the driver root, which may belong to another C library than the running one.
        request.host_libraries.iter().for_each(|name| preload(name));
        nix::unistd::chroot(request.root.as_os_str()).map_err(failed("change root failed"))?;
        nix::unistd::chdir("/").map_err(failed("change root failed"))?;
    }
    become_user(Uid::from_raw(request.uid), Gid::from_raw(request.gid))
        .map_err(failed("privilege change failed"))?;
    // The kernel clears some sets when the user changes from 0, but the user may not have changed.
    let shielded = keep_shield_only().map_err(failed("capability change failed"))?;
    prctl::set_no_new_privs().map_err(failed("privilege change failed"))?;
    // A program would be dumpable again, with the host's root directory. Without privileges it could not help NVML
    // anyway.
    if !shielded {
        forbid_execve().map_err(failed("privilege change failed"))?;
    }
    Ok(())
}

/// Changes group and user if they differ, the group first, because that needs the user's privileges.
///
/// The capabilities stay, so that the process cannot be traced before it is hidden again: the change of user may have
/// made it dumpable (fs.suid_dumpable=1).
fn become_user(uid: Uid, gid: Gid) -> Result<(), Errno> {
    prctl::set_keepcaps(true)?;
    let groups = nix::unistd::getresgid()?;
    if [groups.real, groups.effective, groups.saved] != [gid; 3] {
        nix::unistd::setgroups(&[gid])?;
        nix::unistd::setresgid(gid, gid, gid)?;
    }
    let users = nix::unistd::getresuid()?;
    if [users.real, users.effective, users.saved] != [uid; 3] {
        nix::unistd::setresuid(uid, uid, uid)?;
    }
    hide()
}

/// Makes the process end together with the asking one, also while NVML hangs.
///
/// The kernel's death signal is set after the change of identity, which clears it. It is tied to the asking *thread*
/// and can be lost, so closing the other end of the socket ends the process as well.
fn stay_only_with(socket: UnixStream, parent: i32) -> Result<&'static UnixStream, Errno> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    let ours = nix::unistd::getppid().as_raw();
    // Zero: the parent is outside our pid namespace, and its pid cannot be compared.
    if ours != parent && ours != 0 {
        return Err(Errno::ESRCH);
    }
    live_as_long_as(socket, ABANDONED)
}

fn load_cuda(request: &WireRequest) -> Result<Cuda, CudaError> {
    place::load(
        CUDA,
        request.version.as_deref(),
        &request.directories,
        Cuda::load,
        |error| match error {
            CudaError::Library(text) => text,
            _ => "",
        },
    )
}

fn load(request: &WireRequest) -> Result<Nvml, Fault> {
    let load = |path: &OsStr| Nvml::load(path).map_err(|error| loader_text(&error));
    let nvml = match request.wsl_library.as_deref() {
        Some(path) => load(path),
        None => place::load(
            LIBRARY,
            request.version.as_deref(),
            &request.directories,
            load,
            String::as_str,
        ),
    };
    let nvml = nvml.map_err(Fault::Load)?;
    // Foreign code has run by now, and may have made the process dumpable.
    let hidden = || hide().map_err(failed("privilege change failed"));
    hidden()?;
    let initialised = nvml.init();
    hidden()?;
    initialised.map_err(|failure| ask::fault(&nvml, failure))?;
    Ok(nvml)
}

fn failed(operation: &'static str) -> impl Fn(Errno) -> Fault {
    move |errno| Fault::System {
        operation: operation.into(),
        errno: errno as i32,
    }
}
