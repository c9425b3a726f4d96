//! Prints or changes the toolkit's configuration file.

use std::path::Path;

use libnvc::{Error, Result};
use nvc_hostfile::HostFile;
use nvc_policy::config::lookup;

use crate::config_file::{self, Host};
use crate::engine::read;
use crate::line::CommandLine;
use crate::logging::print;

/// Runs `nvidia-ctk config`.
pub(super) fn run(line: &CommandLine) -> Result<()> {
    let given = line.given("config-file").map(Path::new);
    let file = lookup::place(given, |name| std::env::var_os(name)).file;
    let change = |text: Option<&str>| {
        let default = || config_file::default_text(host());
        let text = text.map_or_else(default, String::from);
        config_file::change(&text, line.list("set"), line.text("set-list-separator"))
    };
    if line.flag("in-place") {
        let file = HostFile::open(&file)?;
        let changed = change(file.text())?;
        return file.replace(&changed, 0o644);
    }
    let changed = change(read(&file)?.as_deref())?;
    match line.text("output") {
        "" => print(&changed),
        output => nvc_hostfile::write(Path::new(output), &changed),
    }
}

/// Runs `nvidia-ctk config default`.
pub(super) fn default(line: &CommandLine) -> Result<()> {
    let text = config_file::change(&config_file::default_text(host()), &[], ":")?;
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
    nvc_hostfile::write(output, &text)
}

fn host() -> Host {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    Host {
        has_ldconfig_real: Path::new("/sbin/ldconfig.real").exists(),
        is_suse: !nvc_policy::config::Config::default()
            .user(&release)
            .is_empty(),
    }
}
