//! Shares what the container toolkit's programs have in common: the runtime hook, the OCI runtime,
//! `nvidia-ctk` and `nvidia-cdi-hook`.
//!
//! The programs are thin: each reads its input, calls this crate and [libnvc](../libnvc/index.html),
//! and writes its output. Nothing here parses a command line.
#![forbid(unsafe_code)]
