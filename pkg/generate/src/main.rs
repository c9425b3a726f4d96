//! Writes the manual pages and shell completions of nvidia-container-cli, nvidia-ctk and gpu-kubelet-plugin, and the page
//! of config.toml, laid out as below `<prefix>/share`.
//!
//!     nvc-pages DIRECTORY [DATE]
//!
//! They come from the programs' own tables of options and keys, so that they cannot say anything else than `--help` does. What a
//! table cannot say (files, the ways to name a device, examples) is in `pkg/man`. A program of its own, because neither
//! generator should be linked into one that runs as root.

#![forbid(unsafe_code)]

mod completions;
mod configuration;
mod manual;
mod toolkit;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let Some(share) = words.next().map(PathBuf::from) else {
        eprintln!("Usage: nvc-pages DIRECTORY [DATE]");
        return ExitCode::FAILURE;
    };
    let date = words.next().unwrap_or_default();
    let written = manual::write(&share, &date.to_string_lossy())
        .and_then(|()| completions::write(&share))
        .and_then(|()| configuration::write(&share.join("man/man5"), &date.to_string_lossy()))
        .and_then(|()| toolkit::write(&share, &date.to_string_lossy()));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvc-pages: {}: {error}", share.display());
            ExitCode::FAILURE
        }
    }
}

/// Writes a file, and the directories above it.
fn save(path: &std::path::Path, content: &[u8]) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    std::fs::write(path, content)
}
