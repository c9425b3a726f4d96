//! `nvidia-container-runtime`: an OCI runtime that adds requested GPUs to containers, and leaves everything else to the
//! real runtime.
//!
//! [`arguments`] finds the verb and the bundle, [`log`] opens the files for failures, [`lowlevel`] finds the real
//! runtime, [`create`] edits config.json if the verb starts a container, and the process executes the real runtime with
//! the original command line.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), no_main)] // see libnvc::main!

mod arguments;
mod crun_line;
mod log;
mod lowlevel;
mod place;

// ways to add GPUs
mod create;
mod job;
mod modes;

// changes of config.json
mod control_nodes;
mod crun;
mod hook_program;
mod injection;
mod mount_namespace;
mod protection;
mod spec_edits;

// used everywhere
mod error;

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::Write as _;

use libnvc::host::query::serve_if_asked;
use log::Log;
use nvc_hostfile::cause;
use nvc_policy::config::{Config, LoadedConfig, lookup};
use nvc_program::messages::{self, Level};

use arguments::Line;
use error::{Result, refused};

/// The supported version of the runtime specification; parts of newer ones are kept unchanged.
const SPECIFICATION: &str = "1.2.1";

libnvc::main!(main_with_code);

/// Runs the program; returns its exit code.
fn main_with_code() -> u8 {
    messages::take_panics();
    // The NVML query is this program, executed again.
    serve_if_asked();
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    let words: Vec<OsString> = words.collect();
    let line = arguments::read(&words);
    let mut log = Log::open(&line);
    let Err(error) = run(&name, &words, &line, &mut log);
    log.fail(&error);
    1
}

/// Does everything; returns only on failure.
fn run(name: &OsString, words: &[OsString], line: &Line, log: &mut Log) -> Result<Infallible> {
    if line.version {
        print(&version());
    } else if line.help {
        print(HELP);
    }
    let loaded = configuration(name).map_err(|error| error.context("error loading config"))?;
    log.configure(line, &loaded.config);
    for warning in &loaded.warnings {
        log.write(Level::Warning, warning);
    }
    serve(line, words, &loaded.config, log)
}

fn serve(line: &Line, words: &[OsString], config: &Config, log: &mut Log) -> Result<Infallible> {
    let candidates = &config.runtime.runtimes;
    let runtime = lowlevel::find(candidates, std::env::var_os("PATH").as_deref());
    let runtime = runtime.map_err(|error| {
        error
            .context("error constructing low-level runtime")
            .context(create::NOT_CREATED)
    })?;
    if line.starts_container() {
        create::edit(line, config, &runtime, log)?;
    }
    let shown: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    log.write(
        Level::Debug,
        &format!("executing {} {}", runtime.display(), shown.join(" ")),
    );
    libnvc::execute(runtime.as_os_str(), words, None).map_err(|error| {
        let (runtime, cause) = (runtime.display(), cause::text(&error));
        refused(format!("could not execute '{runtime}': {cause}"))
    })
}

/// Loads the configuration, with the mode implied by the program's own name.
fn configuration(name: &OsString) -> Result<LoadedConfig> {
    let place = lookup::place(None, |name| std::env::var_os(name));
    let mut loaded = lookup::load(&place, false).map_err(refused)?;
    let name = name.to_string_lossy();
    for (ending, mode) in [(".cdi", "cdi"), (".legacy", "legacy")] {
        if name.ends_with(ending) {
            loaded.config.force_mode(mode, &name);
        }
    }
    Ok(loaded)
}

/// What precedes the help of the low-level runtime.
const HELP: &str = "\
NVIDIA Container Runtime: edits the config.json of containers that request GPUs, and executes the low-level runtime
with the same arguments. All commands and options are those of the low-level runtime.

Requests:      NVIDIA_VISIBLE_DEVICES and other variables, annotations, mounts
Configuration: /etc/nvidia-container-runtime/config.toml, or the file NVIDIA_CTK_CONFIG_FILE_PATH
Engines:       nvidia-ctk runtime configure
Manual:        nvidia-container-runtime(8)

";

fn version() -> String {
    format!(
        "NVIDIA Container Runtime version {}\ncommit: {}\nspec: {SPECIFICATION}\n\n",
        env!("CARGO_PKG_VERSION"),
        env!("NVC_BUILD_REVISION"),
    )
}

/// Prints what must precede the low-level runtime's own output.
fn print(text: &str) {
    // The reader has closed it.
    let _ = std::io::stdout().write_all(text.as_bytes());
}
