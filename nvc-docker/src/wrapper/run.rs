//! Runs the wrapper from its arguments until it executes docker.

use std::ffi::OsString;

use libnvc::{Error, ErrorKind, Result};

use super::arguments::quoted;
use super::backend::Choice;
use super::container::Translation;
use super::docker::Docker;
use super::help::Help;
use super::host::place;
use super::invocation::{Invocation, is_set, variable};
use super::line::{Command, read};
use crate::VERSION;
use crate::log_line::{log_error, log_text};

/// Runs the wrapper; returns the exit code if it does not execute docker.
pub fn run() -> u8 {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match exec_docker(&words) {
        Ok(()) => 0,
        Err(failure) => {
            log_error(&failure);
            1
        }
    }
}

fn exec_docker(words: &[OsString]) -> Result<()> {
    if variable("DOCKER_HOST").is_none() && variable("NV_HOST").is_some() {
        log_text("Warning: NV_HOST is set but DOCKER_HOST is not");
    }
    let place = place(
        variable("NV_HOST").as_deref(),
        variable("DOCKER_HOST").as_deref(),
    )?;
    let nv_docker = variable("NV_DOCKER").unwrap_or_default();
    let texts = words.iter().map(|word| word.to_string_lossy().into_owned());
    let texts: Vec<OsString> = texts.map(OsString::from).collect();
    let mut help = Help::new(&nv_docker);
    let line = read(&texts, |scope, name| help.takes(scope, name))?;
    let globals = words.get(..line.globals).unwrap_or_default();
    let invocation = Invocation {
        words,
        docker: Docker::new(&nv_docker, globals),
        bare: Docker::new(&nv_docker, &[]),
        place,
        is_dry: is_set("NV_DRY_RUN"),
        line,
    };
    match (invocation.line.command, invocation.line.image) {
        (Command::Run, Some(image)) => {
            let name = texts
                .get(image)
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            // What was asked ahead has ended when this process becomes docker.
            match invocation.translated(name)? {
                Translation::Unchanged(reason) => invocation.unchanged(&reason),
                Translation::With(arguments, choice) => invocation.with(image, arguments, &choice),
            }
        }
        (Command::Version, _) => {
            print(&format!("NVIDIA Docker: {VERSION}\n\n"));
            invocation.unchanged("not a command that starts a container")
        }
        (Command::Help, _) => {
            print(HELP);
            invocation.unchanged("not a command that starts a container")
        }
        _ => invocation.unchanged("not a command that starts a container"),
    }
}

/// What precedes docker's help.
const HELP: &str = "\
NVIDIA Docker: adds GPUs to the containers of run and create. Everything else is docker's.

Environment:
  NV_GPU         The GPUs: indices, UUIDs or their starts, MIG devices as GPU:SLOT, or all
  NV_DRY_RUN=1   Print the docker command instead of executing it, and why it is that one
  NV_BACKEND     cdi, runtime, gpus or volume, whatever the engine can do
  NV_HOST        The plugin of another machine
  NV_DOCKER      The docker command

Manual: nvidia-docker(1)

";

/// Prints what must precede docker's own output.
fn print(text: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout();
    // The reader may have closed it.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

impl Invocation<'_> {
    /// Passes the command on unchanged.
    fn unchanged(&self, reason: &str) -> Result<()> {
        self.finish(self.words, &format!("unchanged: {reason}"))
    }

    /// Passes the command on with additional arguments before the image.
    fn with(&self, image: usize, arguments: Vec<String>, choice: &Choice) -> Result<()> {
        let (before, after) = self.words.split_at(image);
        // After `--` an option would be parsed as the image.
        let (before, dashes) = match before.split_last() {
            Some((last, rest)) if self.line.has_dashes => (rest, Some(last.clone())),
            _ => (before, None),
        };
        let words = before.iter().cloned();
        let words = words
            .chain(arguments.into_iter().map(OsString::from))
            .chain(dashes)
            .chain(after.iter().cloned())
            .collect::<Vec<_>>();
        let Choice { backend, reason } = choice;
        self.finish(&words, &format!("back end {}: {reason}", backend.name()))
    }

    fn finish(&self, words: &[OsString], explanation: &str) -> Result<()> {
        if self.is_dry {
            log_text(explanation);
            let mut line = quoted(&self.bare.line(words)).into_bytes();
            line.push(b'\n');
            use std::io::Write as _;
            return std::io::stdout().write_all(&line).map_err(|error| {
                let text = format!("cannot print the command: write to standard output: {error}");
                Error::new(ErrorKind::System, text)
            });
        }
        Err(self.bare.exec(words))
    }
}
