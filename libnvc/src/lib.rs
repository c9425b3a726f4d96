//! Finds the NVIDIA driver on a Linux host and puts it, with chosen GPUs, into a container.
//!
//! # The front door
//!
//! A program fills in a [`Request`](request::Request) and calls [`configure`]. What a container asks for (devices,
//! capabilities, requirements) and how the administrator grants it ([`Policy`](request::Policy): where the driver is,
//! whether cgroups are touched, what becomes of CUDA compatibility libraries) are plain values; option words,
//! environment variables and configuration files are the front ends' to read.
//!
//! ```no_run
//! use libnvc::request::{Capabilities, DeviceRequest, Request};
//! use libnvc::{Target, configure};
//!
//! # fn main() -> libnvc::Result<()> {
//! libnvc::host::query::serve_if_asked(); // NVML is asked by this program, executed once more
//! let request = Request {
//!     devices: DeviceRequest { ids: "0,MIG-5f…".into(), ..Default::default() },
//!     capabilities: Capabilities::UTILITY | Capabilities::COMPUTE,
//!     ..Default::default()
//! };
//! let report = configure(&request, Target::Process { pid: 4242, rootfs: "/run/bundle/rootfs".into() })?;
//! for reason in report.skipped {
//!     eprintln!("going on without it: {}", reason.message());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! * A **prestart hook** uses [`Target::Process`] with the state's pid.
//! * A **createContainer hook** is in the container already: [`Target::Here`] with the root's descriptor. It must never
//!   use a pid. Who has intents instead of a request (one of the cdi hooks) applies those:
//!   [`Container::discover`](container::Container::discover), then [`apply::apply`] of a few [`plan::Intent`]s.
//! * An **OCI runtime** plans without a container: [`host::discover`], [`plan::plan`], then [`render::oci::edit`] of
//!   config.json, or [`render::cdi::edits`] for code that applies CDI edits anyway.
//! * A **generator of CDI specifications** wants [`host::Content::Everything`] and
//!   [`Placement::AsHost`](request::Placement::AsHost), all capabilities, `environment: true`, devices `all`; then
//!   [`render::cdi::content`]. `verify` compares two such contents.
//! * `--dry-run` is [`Configuration::plan`] and [`render::text`] or [`render::json`].
//!
//! Errors know the [`Phase`] in which they happened; front ends print it in their own words.
//!
//! # The data's way
//!
//! [`request`] says what is wanted; [`host`] and [`container`] discover, reading only; [`plan`] decides, a pure function
//! to intents; [`apply`] carries them out by descriptor and undoes everything on failure, or [`render`] writes them down.

#![deny(unsafe_code)]

// the front door
mod configure;

// what is wanted
pub mod capability;
pub mod options;
pub mod request;
pub mod require;
pub mod select;

// before discovery
pub mod kmods;

// discover
pub mod container;
pub mod host;

// decide
pub mod plan;

// show
pub mod render;

// carry out
pub mod apply;

// for programs
pub mod debuglog;
pub mod library_file;

// for tests outside of the crate
#[doc(hidden)]
pub mod testing;

// used everywhere
mod directory;
mod elf;
mod error;
mod inroot;
mod ldcache;
mod path;
mod read_file;
mod sys;

pub use apply::Report;
pub use configure::{Configuration, Prepared, configure};
pub use container::Target;
pub use error::{Error, ErrorKind, Phase, Result};
pub use path::{ContainerPath, HostPath};
#[doc(hidden)]
pub use sys::start::start;

/// Lets this process wait for the children that the library starts, even if it was started with SIGCHLD ignored.
///
/// For programs, at their start; a library has no business with its host's signals.
pub fn await_children() {
    // Fails for signals that do not exist only.
    let _ = sys::process::await_children();
}

/// The library's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The README's example, compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
