//! Prints or changes the toolkit's configuration file.

use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};
use nvc_toolkit::config::edit::{self, Host};
use nvc_toolkit::config::lookup;
use nvc_toolkit::engine::change::{read, write};

use crate::line::CommandLine;
use crate::logging::print;

/// Runs `nvidia-ctk config`.
pub(super) fn run(line: &CommandLine) -> Result<()> {
    let given = line.given("config-file").map(Path::new);
    let file = lookup::place(given, |name| std::env::var_os(name)).file;
    let text = match read(&file)? {
        Some(text) => text,
        None => edit::default_text(host()),
    };
    let changed = edit::change(&text, line.list("set"), line.text("set-list-separator"))
        .map_err(|refusal| Error::new(ErrorKind::InvalidArgument, refusal.to_string()))?;
    let target = match (line.flag("in-place"), line.text("output")) {
        (true, _) => file,
        (false, "") => return print(&changed),
        (false, output) => PathBuf::from(output),
    };
    write(&target, &changed)
}

/// Runs `nvidia-ctk config default`.
pub(super) fn default(line: &CommandLine) -> Result<()> {
    let text = edit::change(&edit::default_text(host()), &[], ":")
        .map_err(|refusal| Error::new(ErrorKind::Malformed, refusal.to_string()))?;
    let output = Path::new(line.text("output"));
    if output.as_os_str().is_empty() {
        return print(&text);
    }
    let directory = output
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
        return Err(Error::file(
            "open failed",
            directory,
            nix::errno::Errno::ENOENT,
        ));
    }
    write(output, &text)
}

fn host() -> Host {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    Host {
        has_ldconfig_real: Path::new("/sbin/ldconfig.real").exists(),
        is_suse: !nvc_toolkit::config::Config::default()
            .user(&release)
            .is_empty(),
    }
}
