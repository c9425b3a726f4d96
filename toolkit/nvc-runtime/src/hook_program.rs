//! Finds the program of createContainer hooks: our nvidia-cdi-hook, which applies plans.
//!
//! A foreign program of that name would take the arguments for an unknown hook, exit 0 and do nothing, so only a program
//! with the build id of ours gets them.

use std::path::{Path, PathBuf};

use nvc_generate::HookProgram;
use nvc_hostfile::{ours, programs};
use nvc_policy::config::Config;
use nvc_policy::config::keys::CTK_PATH;

use crate::error::{Result, refused};
use crate::injection;

const PROGRAM: &str = "nvidia-cdi-hook";

/// The program whose path is configured: config.toml and upstream's specifications name nvidia-ctk.
const CONFIGURED: &str = "nvidia-ctk";

/// The record of the programs that were built before this one: an installer that copies programs by name leaves the file
/// behind. Empty in a build without scripts/build/all.sh.
const BUILT_BEFORE: &str = match option_env!("NVC_BUILD_IDS") {
    Some(record) => record,
    None => "",
};

/// Returns our nvidia-cdi-hook: the one beside this program, or the configured one, or the one beside that; and a warning
/// if a configured program is left aside.
///
/// # Errors
/// There is none.
pub(crate) fn find(config: &Config) -> Result<(HookProgram, Option<String>)> {
    let own = std::env::current_exe().unwrap_or_default();
    let record = known(&own);
    let of_configured = || {
        let configured = injection::resolve(&config.ctk.path, "/usr/bin/nvidia-ctk");
        if ours::is_recorded(&configured, PROGRAM, &record) {
            return Some(configured);
        }
        ours_beside(&configured, &record)
    };
    let beside = own.parent().and_then(|parent| ours_in(parent, &record));
    let is_set = config.ctk.path != CONFIGURED;
    let is_left = beside.is_some() && is_set && of_configured().is_none();
    let Some(found) = beside.or_else(of_configured) else {
        let place = own.with_file_name(PROGRAM);
        let text = format!(
            "{} is not the hook program of this version",
            place.display()
        );
        return Err(refused(text).hint(
            "install the package nvidia-container-toolkit-base of the same version, or put all programs into one directory",
        ));
    };
    let path = found.to_string_lossy().into_owned();
    let warning = is_left.then(|| {
        let origin = config.origin(CTK_PATH);
        let configured = &config.ctk.path;
        format!("{CTK_PATH} ({origin}): {configured} is not of this version; {path} is used")
    });
    Ok((HookProgram { path }, warning))
}

/// Returns the build ids of our programs, of this build alone: another version may not know the arguments.
fn known(own: &Path) -> String {
    format!("{BUILT_BEFORE}\n{}", ours::record(own))
}

/// Returns our nvidia-cdi-hook beside an nvidia-ctk that is ours.
fn ours_beside(ctk: &Path, record: &str) -> Option<PathBuf> {
    let ctk = ctk.canonicalize().ok()?;
    let directory = ctk.parent()?;
    let program = ours::behind_script(ctk.clone());
    let is_ours = ours::is_recorded(&program, CONFIGURED, record);
    is_ours.then(|| ours_in(directory, record)).flatten()
}

/// Returns our nvidia-cdi-hook in a directory.
fn ours_in(directory: &Path, record: &str) -> Option<PathBuf> {
    let hook = ours::behind_script(directory.join(PROGRAM));
    let is_ours = programs::is_executable(&hook) && ours::is_recorded(&hook, PROGRAM, record);
    is_ours.then_some(hook)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// What lies under a name.
    #[derive(Clone, Copy)]
    enum File {
        Ours,
        Foreign,
        Script,
        Nothing,
    }
    use File::{Foreign, Nothing, Ours, Script};

    fn put(path: &Path, file: File) {
        match file {
            // A copy of this test's program, whose build id is in the record.
            Ours => drop(fs::copy(std::env::current_exe().unwrap(), path).unwrap()),
            Foreign => fs::write(path, b"\x7fELF\x02\x01 of another build").unwrap(),
            Script => fs::write(path, "#!/bin/sh\nexec \"$0.real\" \"$@\"\n").unwrap(),
            Nothing => return,
        }
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Returns our hook program's name for a directory with nvidia-ctk, nvidia-ctk.real, nvidia-cdi-hook and
    /// nvidia-cdi-hook.real.
    fn found(files: [File; 4], record: &str) -> Option<String> {
        let directory = tempfile::tempdir().unwrap();
        let names = [
            "nvidia-ctk",
            "nvidia-ctk.real",
            "nvidia-cdi-hook",
            "nvidia-cdi-hook.real",
        ];
        for (name, file) in names.iter().zip(files) {
            put(&directory.path().join(name), file);
        }
        let elsewhere = tempfile::tempdir().unwrap();
        let link = elsewhere.path().join("nvidia-ctk");
        symlink(directory.path().join("nvidia-ctk"), &link).unwrap();
        let direct = ours_beside(&directory.path().join("nvidia-ctk"), record);
        assert_eq!(ours_beside(&link, record), direct, "by a link");
        let hook = direct?;
        assert_eq!(
            hook.parent(),
            Some(directory.path().canonicalize().unwrap().as_path())
        );
        Some(hook.file_name().unwrap().to_str().unwrap().to_owned())
    }

    #[test]
    fn only_programs_of_this_build_are_ours() {
        let this = fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let id = libnvc::library_file::build_id(this).unwrap();
        let record = format!("{id} nvidia-ctk\n{id} nvidia-cdi-hook\n");
        let (plain, real) = (Some("nvidia-cdi-hook"), Some("nvidia-cdi-hook.real"));
        for (files, expected) in [
            ([Ours, Nothing, Ours, Nothing], plain),
            // As an operator's installer writes it.
            ([Script, Ours, Script, Ours], real),
            ([Script, Ours, Ours, Nothing], plain),
            ([Ours, Nothing, Script, Ours], real),
            ([Foreign, Nothing, Ours, Nothing], None),
            ([Foreign, Ours, Ours, Nothing], None),
            ([Script, Foreign, Ours, Nothing], None),
            ([Script, Nothing, Ours, Nothing], None),
            ([Nothing, Ours, Ours, Nothing], None),
            ([Ours, Nothing, Foreign, Nothing], None),
            ([Ours, Nothing, Foreign, Ours], None),
            ([Ours, Nothing, Script, Foreign], None),
            ([Ours, Nothing, Script, Nothing], None),
            ([Ours, Nothing, Nothing, Ours], None),
            ([Ours, Nothing, Nothing, Nothing], None),
        ] {
            assert_eq!(found(files, &record).as_deref(), expected);
        }
        let all = [Ours, Nothing, Ours, Nothing];
        for other in [
            String::new(),
            format!("{id} nvidia-ctk\n"),
            format!("{id} nvidia-cdi-hook\n"),
            format!("{id} other\n"),
        ] {
            assert_eq!(found(all, &other), None, "{other}");
        }
    }
}
