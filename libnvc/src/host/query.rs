//! Queries NVML about the driver and its GPUs, in a separate, unprivileged process that lives for one query.
//!
//! NVML may crash, hang, leak descriptors and threads, and must be loaded from inside the driver root. None of that may
//! happen to the calling process, which may be multi-threaded and privileged. So a program is *executed* for it:
//! `Query::start` returns at once, discovery continues in parallel, and `Query::versions` and `Query::devices`
//! collect the answers. Any program will do whose `main` first calls [`serve_if_asked`]; the command line executes
//! itself.
//!
//! The process gets one request and sends one reply in a few pieces, over a socket. It ends when it has replied, when
//! the deadline has passed, when the query is dropped, and when the calling process ends in any way.

use std::ffi::CStr;

mod ask;
mod choice;
#[cfg_attr(not(feature = "testing"), allow(unreachable_pub))] // `testing` exports it
pub(crate) mod client;
mod conversation;
pub(super) mod facts;
mod needs;
mod place;
mod process;
pub(crate) mod protocol;
mod readings;
mod server;
mod watching;

pub use conversation::QueryRequest;
pub use process::{QueryProcess, QueryProgram};
pub use server::serve_if_asked;

pub(crate) use client::Query;
pub(crate) use conversation::{Conversation, ask_once};
pub(crate) use protocol::{
    AskedGpu, CudaReport, Fault, GpuAnswer, GpuFault, GpuReport, Message, MigReport, Only,
    PciReport, Question, Versions, not_served, numbered,
};

/// The operation of errors about starting a query process.
const CREATION: &str = "process creation failed";

/// The cause if a program does not serve.
const NOT_SERVED: &str = "the program was executed to query NVML, and did not";

/// The way out, for the programmer.
const HINT_TO_SERVE: &str =
    "the first call in the program's main must be libnvc::host::query::serve_if_asked()";

/// File name of NVML; the loader finds it by the rules of the driver root, or else [`place`] does.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// File name of CUDA's driver library.
const CUDA: &str = "libcuda.so.1";

/// First argument of the query program, which `ps` shows.
const PROGRAM_NAME: &CStr = c"nvc:[driver]";

/// Second argument of the query program; no user types it together with the first.
const MARKER: &CStr = c"--nvc-query";
