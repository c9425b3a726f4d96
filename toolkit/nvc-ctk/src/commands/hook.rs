//! Runs a hook like nvidia-cdi-hook, for specifications that name nvidia-ctk.

use std::ffi::OsString;

use nvc_cdi_hook::Verbosity;

use crate::line::CommandLine;

pub(super) fn run(line: &CommandLine) -> u8 {
    let verbosity = match (line.flag("quiet"), line.flag("debug")) {
        (true, _) => Verbosity::Quiet,
        (false, true) => Verbosity::Debug,
        (false, false) => Verbosity::Normal,
    };
    let words: Vec<OsString> = line.rest.iter().map(OsString::from).collect();
    nvc_cdi_hook::run(&words, verbosity)
}
