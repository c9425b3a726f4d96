//! Chooses the program that an engine's configuration names.
//!
//! Packages install into /usr/bin, `make install` below /usr/local or elsewhere: the program beside nvidia-ctk is the one
//! that was installed with it.

use std::path::{Path, PathBuf};

use nvc_hostfile::check_program;
use nvc_hostfile::programs::is_executable;

/// The runtime.
pub(crate) const RUNTIME: &str = "nvidia-container-runtime";
/// The hook that engines run before a container starts.
pub(crate) const HOOK: &str = "nvidia-container-runtime-hook";

/// Where packages install programs.
const PACKAGED: &str = "/usr/bin";

/// Directories in dockerd's PATH under every service manager.
const DOCKERS: [&str; 2] = ["/usr/local/bin", PACKAGED];

/// Returns true if a program has the name of the runtime, or of one for a mode.
pub(crate) fn is_toolkit(program: &str) -> bool {
    program.contains(RUNTIME)
}

/// Returns the path of this program; empty if /proc is missing.
pub(crate) fn own() -> PathBuf {
    std::env::current_exe().unwrap_or_default()
}

/// Returns the program beside `own` if it is there and nobody else can exchange it; otherwise where packages install it.
pub(crate) fn beside(own: &Path, name: &str) -> String {
    let path = own.with_file_name(name);
    let is_ours = is_executable(&path)
        && own
            .metadata()
            .is_ok_and(|own| check_program(&path, Some(&own)).is_ok());
    match path.to_str() {
        Some(path) if is_ours => path.into(),
        _ => format!("{PACKAGED}/{name}"),
    }
}

/// Returns the bare name, as upstream's, if dockerd finds it; otherwise a path.
pub(crate) fn for_docker(own: &Path, name: &str) -> String {
    if is_found(Path::new(name)) {
        return name.into();
    }
    beside(own, name)
}

/// Warns of a program that is not there. It is no error: images are built, and hosts are prepared, before it is.
pub(crate) fn warn_of_missing(program: &str) {
    let path = Path::new(program);
    if !is_found(path) {
        log::warn!(
            "{program} does not exist: containers of this runtime fail until it is installed"
        );
    }
}

/// Returns true if an engine finds a program: a path, or a name in its PATH.
fn is_found(program: &Path) -> bool {
    if program.is_absolute() {
        return is_executable(program);
    }
    DOCKERS
        .iter()
        .any(|directory| is_executable(&Path::new(directory).join(program)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_program_beside_this_one_is_named_if_it_is_there() {
        let scratch = tempfile::tempdir().unwrap();
        let own = scratch.path().join("nvidia-ctk");
        let beside_own = scratch.path().join(RUNTIME);
        fs::write(&own, "").unwrap();
        let packaged = "/usr/bin/nvidia-container-runtime";
        assert_eq!(beside(&own, RUNTIME), packaged);
        assert_eq!(beside(Path::new(""), RUNTIME), packaged);
        fs::write(&beside_own, "").unwrap();
        assert_eq!(beside(&own, RUNTIME), packaged, "it is not executable");
        fs::set_permissions(&beside_own, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(beside(&own, RUNTIME), beside_own.to_str().unwrap());
        fs::set_permissions(&beside_own, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(beside(&own, RUNTIME), packaged, "others can change it");
    }
}
