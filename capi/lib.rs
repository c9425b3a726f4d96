//! Puts libnvc behind the C interface of libnvidia-container.so.1: the same functions, structs and error texts.
//!
//! Each function converts, calls libnvc and converts back. The doc comments of what C sees are the C programmer's manual:
//! they become the comments of include/nvc.h. What must not happen at this border: a panic that crosses it, a pointer
//! that is trusted to be what its type says without the header saying so, a change to the calling process.

#![allow(non_camel_case_types)] // the names are C's
#![allow(clippy::missing_safety_doc)] // the header says what callers must do, in C's words

// what C sees
pub mod container;
pub mod context;
pub mod device;
pub mod driver;
pub mod imex;
pub mod mig;
pub mod nvcaps;
pub mod version;

// the border
mod boundary;
mod handles;
mod layout;
mod memory;
mod options;

// the shared object's surroundings
mod entry;
mod logfile;
mod program;
