//! Finds nvc-query, the program that asks NVML.
//!
//! nvidia-ctk is a static program, which cannot load libraries, because engines start it as a hook with an environment
//! that can be a container's; gpu-kubelet-plugin is one so that its image needs no loader of its own. So they execute
//! nvc-query, by an absolute path that neither environment nor working directory can change. Only users who can change
//! the program itself can change that one.

use std::path::{Path, PathBuf};

use libnvc::host::query::QueryProgram;
use libnvc::{Error, ErrorKind, Result};
use nvc_hostfile::check_program;

const NAME: &str = "nvc-query";

/// Its directory in an installation, as scripts/build/place.sh has it.
const INSTALLED: &str = match option_env!("NVC_LIBEXECDIR") {
    Some(directory) => directory,
    None => "/usr/local/libexec/libnvidia-container",
};

/// The same below the prefix, for an installation that was moved or is not yet in its place.
const BELOW_PREFIX: &str = "libexec/libnvidia-container";

/// Returns the program, or the error that names the directories where it was sought.
pub fn query_program() -> QueryProgram {
    let own = std::env::current_exe().unwrap_or_default();
    QueryProgram::Path(QueryProgram::find(NAME, &directories(&own), check))
}

/// Refuses a program that is less protected than this one itself, which root may have copied into /tmp.
///
/// The installation's own place is the administrator's choice. On Debian the group staff may write to /usr/local.
fn check(path: &Path) -> Result<()> {
    if path.parent() == Some(Path::new(INSTALLED)) {
        return Ok(());
    }
    let own = std::fs::metadata("/proc/self/exe");
    let own = own.map_err(|error| {
        let text = format!("/proc/self/exe: {error}");
        Error::new(ErrorKind::System, text)
    })?;
    check_program(path, Some(&own))
}

/// Returns the directories to search: that of the program itself, and those of installations.
fn directories(own: &Path) -> Vec<PathBuf> {
    let beside = own.parent().filter(|directory| directory.is_absolute());
    let prefix = beside.and_then(Path::parent);
    let moved = prefix.map(|prefix| prefix.join(BELOW_PREFIX));
    let places = [beside.map(Path::to_owned), moved, Some(INSTALLED.into())];
    let mut all: Vec<PathBuf> = Vec::new();
    for place in places.into_iter().flatten() {
        if !all.contains(&place) {
            all.push(place);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_beside_or_in_the_installation() {
        let found = directories(Path::new("/no/such/bin/nvidia-ctk"));
        let moved = "/no/such/libexec/libnvidia-container";
        assert_eq!(found, ["/no/such/bin", moved, INSTALLED].map(Path::new));
        // Without /proc the own path is unknown.
        assert_eq!(directories(Path::new("")), [Path::new(INSTALLED)]);
    }

    /// A build without the scripts uses the same directory as the scripts.
    #[test]
    fn the_scripts_have_the_same_place() {
        let place = include_str!("../../../scripts/build/place.sh");
        assert!(place.contains("PREFIX=${PREFIX:-/usr/local}"));
        assert!(place.contains("LIBEXECDIR=${LIBEXECDIR:-$PREFIX/libexec}"));
        assert!(
            INSTALLED.ends_with("/libexec/libnvidia-container")
                || option_env!("NVC_LIBEXECDIR").is_some()
        );
    }
}
