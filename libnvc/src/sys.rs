//! Wraps the raw system calls that nix does not have; with `capi`, the only place for `unsafe`.

pub(crate) mod bpf;
