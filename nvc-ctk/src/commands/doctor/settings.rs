//! Checks settings: the toolkit's own, and SELinux.

use std::path::Path;

use nvc_toolkit::config::lookup;

use super::{Fault, read};
use crate::line::CommandLine;

pub(super) fn config(line: &CommandLine) -> Vec<Fault> {
    let given = line.given("config").map(Path::new);
    let place = lookup::place(given, |name| std::env::var_os(name));
    let file = place.file.display();
    match lookup::load(&place, place.named) {
        Err(error) => {
            let shows = "every container that asks for a GPU fails";
            vec![Fault::new(
                format!("{file}: {error}"),
                shows,
                format!("correct {file}; nvidia-ctk config default shows the defaults"),
            )]
        }
        Ok(loaded) => loaded
            .warnings
            .into_iter()
            .map(|warning| {
                Fault::new(
                    warning,
                    "the setting has no effect",
                    format!("correct the key in {file}"),
                )
            })
            .collect(),
    }
}

pub(super) fn selinux() -> Vec<Fault> {
    if read("/sys/fs/selinux/enforce").as_deref().map(str::trim) != Some("1") {
        return Vec::new();
    }
    let boolean = read("/sys/fs/selinux/booleans/container_use_devices").unwrap_or_default();
    if boolean.trim_start().starts_with('1') {
        return Vec::new();
    }
    let what = "SELinux does not let containers use devices";
    vec![Fault::new(
        what,
        "podman: permission denied on /dev/nvidia*",
        "setsebool -P container_use_devices on",
    )]
}
