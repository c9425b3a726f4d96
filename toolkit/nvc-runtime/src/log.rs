//! Writes records to the log files of engines and administrators.
//!
//! Engines show the last error in the `--log` file as their own message, so failures must be in it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use nvc_hostfile::cause;
use nvc_policy::config::Config;
use nvc_program::messages::{Format, Level, record};

use crate::arguments::Line;

/// The open files.
#[derive(Debug)]
pub(crate) struct Log {
    files: Vec<File>,
    format: Format,
    level: Level,
}

impl Log {
    /// Opens the configured file and the caller's; a failure to open one is a warning in the other.
    pub(crate) fn open(line: &Line, config: &Config) -> Self {
        let format = if line.json {
            Format::Json
        } else {
            Format::Text
        };
        let configured = Level::named(&config.runtime.log_level);
        let level = match configured {
            _ if line.debug => Level::Debug,
            Some(level) => level,
            None => Level::Info,
        };
        let mut log = Self {
            files: Vec::new(),
            format,
            level,
        };
        if line.version {
            return log;
        }
        let debug = Path::new(&config.runtime.debug);
        let own = Some(debug)
            .filter(|file| !file.as_os_str().is_empty() && *file != Path::new("/dev/null"));
        let mut warnings = Vec::new();
        // The real runtime fails if the directory of its log is missing.
        let opened = own.map(|file| (file, open_below(file)));
        let callers = line.log.as_deref().map(|file| (file, open(file)));
        for (file, opened) in opened.into_iter().chain(callers) {
            match opened {
                Ok(opened) => log.files.push(opened),
                Err(error) => warnings.push(format!(
                    "failed to open log file {}: {}",
                    file.display(),
                    cause::text(&error)
                )),
            }
        }
        if configured.is_none() && !line.debug {
            let name = &config.runtime.log_level;
            warnings.push(format!("unknown log level \"{name}\", using info"));
        }
        for warning in warnings {
            log.write(Level::Warning, &warning);
        }
        log
    }

    /// Writes a record to all files whose level includes it.
    pub(crate) fn write(&mut self, level: Level, message: &str) {
        if level < self.level || self.files.is_empty() {
            return;
        }
        let text = record(self.format, level, message);
        for file in &mut self.files {
            // A full disk must not prevent a container from starting.
            let _ = file.write_all(text.as_bytes());
        }
    }
}

fn open(file: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o644).open(file)
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
