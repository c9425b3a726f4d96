//! Asks NVML about the driver and its GPUs, in a separate, unprivileged process that lives for one query.
//!
//! NVML may crash, hang, leak descriptors and threads, and must be loaded from inside the driver root; none of that may
//! happen to the calling process, which may be multi-threaded and privileged. So a program is *executed* that does it
//! and is then thrown away: [`Query::start`] returns at once, discovery goes on meanwhile, and the answers are collected
//! with [`Query::versions`] and [`Query::devices`]. The program is any that calls [`serve_if_asked`] first thing in its
//! `main`; the command line executes itself again.
//!
//! One request goes to the process, one reply comes back in a few pieces, over a socket. The process ends when it has
//! replied, when the deadline has passed, when the query is dropped, and when the calling process is gone, however it
//! went.

use std::ffi::CStr;

mod ask;
mod choice;
mod client;
mod conversation;
mod needs;
mod process;
pub(crate) mod protocol;
mod readings;
mod server;

pub use client::{Query, QueryProcess, QueryProgram, QueryReply, QueryRequest};
pub use server::serve_if_asked;

pub(crate) use client::Wanted;
pub(crate) use conversation::Conversation;
pub(crate) use protocol::{
    Fault, GpuFault, GpuReport, Message, MigReport, PciReport, Question, Versions,
};

/// Name of NVML's library; the loader finds it by the rules of the driver root.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// First argument of the query program: what `ps` shows.
const PROGRAM_NAME: &CStr = c"nvc:[driver]";

/// Second argument of the query program; together with the first nothing that a person types.
const MARKER: &CStr = c"--nvc-query";
