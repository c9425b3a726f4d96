//! Puts libnvc behind the C interface of libnvidia-container.so.1: the same functions, structs and error texts.
//!
//! Each function converts, calls libnvc and converts back. The doc comments of the C interface are the C programmer's
//! manual: they become the comments of include/nvc.h. At this boundary no panic may cross, no pointer is trusted beyond
//! the header's requirements, and the calling process is not changed.

#![allow(non_camel_case_types)] // the names are C's
#![allow(clippy::missing_safety_doc)] // the header says what callers must do, in C's words

// the C interface
pub mod config;
pub mod container;
pub mod context;
pub mod device;
pub mod driver;
pub mod imex;
pub mod mig;
pub mod nvcaps;
pub mod state;
pub mod version;

// the boundary
mod arg;
mod boundary;
mod environment;
mod handles;
mod layout;
mod memory;
mod options;

// the shared object's support
mod entry;
mod logfile;
mod program;
