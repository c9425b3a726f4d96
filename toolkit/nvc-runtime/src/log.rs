//! Writes records to the log files of engines and administrators, and to the system's log.
//!
//! Engines show the last error in the `--log` file as their own message. So that file is opened before anything can
//! fail, and [`Log::fail`] is the only place that reports a failure. After it nothing else writes to the file: the real
//! runtime is not executed.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sys::stat::fstat;
use nvc_hostfile::cause;
use nvc_policy::config::Config;
use nvc_program::hints::{Reader, one_line};
use nvc_program::messages::{self, Format, Level, Severity, SystemLog, record};

use crate::arguments::Line;
use crate::error::Error;

/// The open files.
#[derive(Debug)]
pub(crate) struct Log {
    files: Vec<File>,
    format: Format,
    level: Level,
    system: SystemLog,
    /// Engines call the runtime for every signal and every state: a warning that is the same each time is written to the
    /// system's log only when a container starts.
    warns_system: bool,
    /// Warnings about files that cannot be opened, until all are.
    unopened: Vec<String>,
}

impl Log {
    /// Opens the caller's file.
    pub(crate) fn open(line: &Line) -> Self {
        let format = if line.json {
            Format::Json
        } else {
            Format::Text
        };
        let mut system = SystemLog::new("nvidia-container-runtime");
        if let Some(id) = line.container() {
            system.of_container(&id);
        }
        let mut log = Self {
            files: Vec::new(),
            format,
            level: if line.debug {
                Level::Debug
            } else {
                Level::Info
            },
            system,
            warns_system: line.starts_container(),
            unopened: Vec::new(),
        };
        // The real runtime fails if the directory of its log is missing.
        if let (Some(file), false) = (&line.log, line.version) {
            log.add(file, open(file));
        }
        log
    }

    /// Opens the configured file, and sets the configured level unless the command line has one.
    pub(crate) fn configure(&mut self, line: &Line, config: &Config) {
        let debug = Path::new(&config.runtime.debug);
        let is_set = !debug.as_os_str().is_empty() && debug != Path::new("/dev/null");
        if is_set && !line.version {
            self.add(debug, open_below(debug));
        }
        let mut unknown = None;
        if !line.debug {
            let name = &config.runtime.log_level;
            match Level::named(name) {
                Some(level) => self.level = level,
                None => unknown = Some(format!("unknown log level \"{name}\", using info")),
            }
        }
        if self.has_steps() {
            self.log_steps();
        }
        let problems = std::mem::take(&mut self.unopened);
        for problem in problems.into_iter().chain(unknown) {
            self.write(Level::Warning, &problem);
        }
    }

    /// Returns true if there is a log file whose level includes every step.
    pub(crate) fn has_steps(&self) -> bool {
        self.level <= Level::Debug && !self.files.is_empty()
    }

    /// Writes libnvc's steps to the files: which files it selects, and why others are missing.
    fn log_steps(&self) {
        let files = self.files.iter().map(File::try_clone);
        let Ok(files) = files.collect::<io::Result<Vec<_>>>() else {
            return;
        };
        let format = self.format;
        if log::set_boxed_logger(Box::new(Steps { files, format })).is_ok() {
            log::set_max_level(log::LevelFilter::Debug);
        }
    }

    /// Adds a file, unless it is one of those that are open.
    fn add(&mut self, path: &Path, opened: io::Result<File>) {
        match opened {
            Ok(file) if self.files.iter().any(|other| is_same(other, &file)) => {}
            Ok(file) => self.files.push(file),
            Err(error) => self.unopened.push(format!(
                "failed to open log file {}: {}",
                path.display(),
                cause::text(&error)
            )),
        }
    }

    /// Writes a record to all files if the level includes it.
    pub(crate) fn write(&mut self, level: Level, message: &str) {
        if level < self.level {
            return;
        }
        if level == Level::Warning && self.warns_system {
            self.system.write(Severity::Warning, message);
        }
        self.put(level, message);
    }

    /// Reports why the program ends: in all files whatever their level, on standard error, and in the system's log.
    pub(crate) fn fail(&mut self, error: &Error) {
        for problem in std::mem::take(&mut self.unopened) {
            self.write(Level::Warning, &problem);
        }
        let text = one_line(error, Reader::Engine);
        self.put(Level::Error, &reason_first(error, &text));
        // `--log=/dev/stderr`.
        let is_there = self.files.iter().any(|file| is_same(file, io::stderr()));
        if !is_there {
            messages::write_record(Level::Error, &text);
        }
        self.system.write(Severity::Error, &text);
    }

    fn put(&mut self, level: Level, message: &str) {
        if self.files.is_empty() {
            return;
        }
        let text = record(self.format, level, message);
        for file in &mut self.files {
            // A full disk must not prevent a container from starting.
            let _ = file.write_all(text.as_bytes());
        }
    }
}

/// Returns an error's text with the reason before the operations, which are upstream's words: engines show it as the end
/// of a long line of their own.
fn reason_first(error: &Error, text: &str) -> String {
    let parts = error.callers().and_then(|callers| {
        let reason = text.strip_prefix(callers)?.strip_prefix(": ")?;
        Some(format!("{reason}; {callers}"))
    });
    parts.unwrap_or_else(|| text.into())
}

/// The files for libnvc's steps.
struct Steps {
    files: Vec<File>,
    format: Format,
}

impl log::Log for Steps {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Debug
    }

    fn log(&self, step: &log::Record<'_>) {
        // libnvc also returns its warnings, so every step is a debug record here.
        let text = record(self.format, Level::Debug, &step.args().to_string());
        for mut file in &self.files {
            let _ = file.write_all(text.as_bytes());
        }
    }

    fn flush(&self) {}
}

/// Returns true if both are the same file.
fn is_same(one: impl AsFd, other: impl AsFd) -> bool {
    match (fstat(one), fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

/// Opens a file without waiting for the reader of a pipe: without one it cannot be opened, and a full one takes nothing.
fn open(file: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let options = options.append(true).create(true).mode(0o644);
    options.custom_flags(flags.bits()).open(file)
}

/// Opens a file, and creates its directories.
fn open_below(file: &Path) -> io::Result<File> {
    match (open(file), file.parent()) {
        (Err(error), Some(parent)) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(parent)?;
            open(file)
        }
        (done, _) => done,
    }
}
