//! Determines whether a program was built and installed together with the calling program.
//!
//! Packages record the GNU build ids of their programs. A program in the caller's directory whose build id is recorded
//! under its name is ours: its interface is known, and its work may be done without executing it. Everything else is
//! foreign, including files that cannot be read: an administrator may have installed another program on purpose.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use libnvc::library_file::build_id;

/// The file of recorded build ids, relative to the programs' directory: lines of `BUILD-ID NAME`.
pub const RECORD: &str = "../share/nvidia-container-toolkit/build-ids";

/// Size limit of the record.
const MAX_RECORD_SIZE: u64 = 1 << 16;

/// Returns true if `found` is our program `name`; `own` is the path of the calling program.
pub fn is_ours(found: &Path, name: &str, own: &Path) -> bool {
    let directory = |path: &Path| Some(std::fs::canonicalize(path).ok()?.parent()?.to_owned());
    let (Some(of_found), Some(of_own)) = (directory(found), directory(own)) else {
        return false;
    };
    if of_found != of_own {
        return false;
    }
    is_recorded(found, name, &record(own))
}

/// Returns the record of the programs that were installed with the calling program, whose path is `own`; empty without
/// one.
pub fn record(own: &Path) -> String {
    let own = std::fs::canonicalize(own).unwrap_or_default();
    let directory = own.parent().unwrap_or(Path::new(""));
    let mut record = Vec::new();
    if let Some(file) = open(&directory.join(RECORD)) {
        // A part of it has fewer programs: the others are foreign.
        let _ = file.take(MAX_RECORD_SIZE).read_to_end(&mut record);
    }
    String::from_utf8_lossy(&record).into_owned()
}

/// Returns true if a record has the build id of `program` under this name, wherever the program lies.
pub fn is_recorded(program: &Path, name: &str, record: &str) -> bool {
    let Some(id) = open(program).and_then(build_id) else {
        return false;
    };
    let mut pairs = record.lines().filter_map(|line| line.split_once(' '));
    pairs.any(|pair| pair == (id.as_str(), name))
}

/// Returns true if a file is a script, which names its interpreter.
pub fn is_script(program: &Path) -> bool {
    let mut head = [0; 2];
    open(program).is_some_and(|mut file| file.read_exact(&mut head).is_ok()) && head == *b"#!"
}

/// Returns the program that a script in its place executes: operators' installers rename a program to `NAME.real`. A
/// shell must not run as a hook anyway, since it is a dynamic program.
pub fn behind_script(program: PathBuf) -> PathBuf {
    if !is_script(&program) {
        return program;
    }
    let mut name = program.into_os_string();
    name.push(".real");
    name.into()
}

/// Opens a regular file. Opening anything else could block.
fn open(program: &Path) -> Option<File> {
    let is_file = std::fs::metadata(program).is_ok_and(|facts| facts.is_file());
    is_file.then(|| File::open(program).ok())?
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_the_recorded_program_beside_us_is_ours() {
        let dir = tempfile::tempdir().unwrap();
        let (bin, share) = (dir.path().join("bin"), dir.path().join("share"));
        let record = bin.join(RECORD);
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(share.join("nvidia-container-toolkit")).unwrap();
        let this = std::env::current_exe().unwrap();
        let (cli, own) = (bin.join("cli"), bin.join("hook"));
        fs::copy(&this, &cli).unwrap();
        fs::write(&own, "").unwrap();
        assert!(!is_ours(&cli, "cli", &own), "nothing is recorded");

        let id = build_id(fs::File::open(&this).unwrap()).expect("test programs have a build id");
        assert_eq!(id.len(), 40);
        fs::write(&record, format!("00 cli\n{id} cli\n{id} other\n")).unwrap();
        assert!(is_ours(&cli, "cli", &own));
        assert!(!is_ours(&cli, "hook", &own), "recorded under another name");
        assert!(!is_ours(&this, "cli", &own), "it lies elsewhere");
        std::os::unix::fs::symlink(&cli, dir.path().join("link")).unwrap();
        assert!(
            is_ours(&dir.path().join("link"), "cli", &own),
            "it is only named elsewhere"
        );

        for damaged in ["", " cli", &id, &format!("{id}cli")] {
            fs::write(&record, damaged).unwrap();
            assert!(!is_ours(&cli, "cli", &own), "{damaged:?}");
        }
        fs::write(&record, format!("{id} cli\n")).unwrap();
        fs::write(&cli, "#!/bin/sh\n").unwrap();
        assert!(!is_ours(&cli, "cli", &own), "a script in its place");
        assert!(!is_ours(&bin.join("missing"), "cli", &own));
        assert!(!is_ours(&bin, "cli", &own));
    }
}
