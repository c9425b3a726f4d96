//! Finds the NVIDIA driver on a Linux host and injects it, with chosen GPUs, into a container.
//!
//! # Entry point
//!
//! A program fills in a [`Request`](request::Request) and calls [`configure`]. The container's request (devices,
//! capabilities, requirements) and the administrator's [`Policy`](request::Policy) (driver root, cgroup rules, use of
//! CUDA compatibility libraries) are plain values. Option words, environment variables and configuration files belong
//! to the front ends.
//!
//! ```no_run
//! use libnvc::request::{Capabilities, DeviceRequest, Request};
//! use libnvc::{Target, configure};
//!
//! # fn main() -> libnvc::Result<()> {
//! libnvc::host::query::serve_if_asked(); // this program is executed again to query NVML
//! let request = Request {
//!     devices: DeviceRequest { ids: vec!["0".into(), "MIG-5f…".into()], ..Default::default() },
//!     capabilities: Capabilities::UTILITY | Capabilities::COMPUTE,
//!     ..Default::default()
//! };
//! let report = configure(&request, Target::Process { pid: 4242, rootfs: "/run/bundle/rootfs".into() })?;
//! for reason in report.skipped {
//!     eprintln!("skipped (optional): {}", libnvc::printable(&reason.message()));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! * A **prestart hook** uses [`Target::Process`] with the state's pid.
//! * An OCI runtime and its prestart hook can **share one query** of NVML: the runtime passes a [`host::Inventory`] in the
//!   hook's arguments, and the hook begins with [`Configuration::begin_known`].
//! * A **createContainer hook** already runs in the container: [`Target::Here`] with the root's descriptor. It must
//!   never use a pid. A caller that has intents instead of a request (one of the CDI hooks) applies those:
//!   [`Container::discover`](container::Container::discover), then [`apply::apply`] of a few [`plan::Intent`]s.
//! * An **OCI runtime** plans without a container: it finds all files ([`host::search`]) and all nodes
//!   ([`host::nodes`], [`host::drm`], [`host::nvcaps`]) for a [`survey::Host`] of its own, which also describes the
//!   machine for CDI specifications, then calls [`plan::plan`] with [`Placement::AsHost`](request::Placement::AsHost)
//!   and `before_start: true`, and writes the intents into config.json.
//! * `--dry-run` is [`Configuration::plan`] and [`render::text`] or [`render::json`].
//!
//! Errors carry the [`Phase`] in which they occurred; front ends print it in their own words. Their texts and those of
//! log records contain names from images as they are: a program passes them to [`printable()`] when it prints.
//!
//! # Data flow
//!
//! [`request`] holds the request; [`host`] and [`container`] discover, reading only; [`survey`] collects of the host
//! the facts that the request needs; [`plan`], a pure function, turns them into intents; [`apply`] executes them by
//! descriptor and undoes everything on failure, or [`render`] writes them down.

#![deny(unsafe_code)]
#![warn(missing_docs)]

// entry point
mod configure;

// request
pub mod capability;
mod device_name;
pub mod options;
pub mod request;
pub mod require;
pub mod select;

// before discovery
pub mod kmods;

// discover
pub mod container;
pub mod host;
pub mod survey;

// decide
pub mod plan;

// show
pub mod render;

// apply
pub mod apply;

// for programs
pub mod caller;
pub mod frame;
pub mod library_file;
pub mod pattern;
pub mod trust;

// for tests outside of the crate
#[cfg(any(test, feature = "testing"))]
pub mod testing;

// used everywhere
mod directory;
mod elf;
mod error;
mod hint;
mod inroot;
mod ldcache;
mod mount_id;
mod mountinfo;
mod path;
mod printable;
mod read_file;
mod sys;

pub use apply::Report;
pub use configure::{Configuration, PreparedRequest, configure};
pub use container::Target;
pub use device_name::DeviceName;
pub use error::{Error, ErrorKind, Phase, Result};
pub use hint::{Hint, Setting};
pub use mount_id::mount_id;
pub use path::{ContainerPath, HostPath, STANDARD_PATH};
pub use printable::{printable, printable_up_to};
pub use sys::execute::execute;
pub use sys::seccomp::speak_only;
pub use sys::start::start;
pub use sys::xattr;

/// The library's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The README's example, compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
