//! Holds what the programs share and libnvc has no use for.
//!
//! It depends on little, because the programs that engines start with every container link it.

#![forbid(unsafe_code)]

// nvidia-container-runtime-hook, nvidia-docker and nvidia-ctk
pub mod goflag;
