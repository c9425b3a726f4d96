//! Finds the driver's programs: in the usual directories, beside the libraries, in the caller's `PATH`.
//!
//! The first that is an ELF file counts. A script of that name calls the program that lies beside the libraries, by a
//! path that containers lack.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use log::{debug, info};

use super::places::Places;
use crate::error::{Error, ErrorKind, Result};
use crate::host::catalogue::Pattern;
use crate::host::{DriverFile, WslDriver};
use crate::inroot;
use crate::path::{ContainerPath, HostPath, STANDARD_PATH};

/// The directory of programs in a container.
const IN_CONTAINER: &str = "/usr/bin";

/// Returns the programs that exist, with links resolved, in the order of the patterns; and those that only the caller's
/// `PATH` led to. Under WSL2 the last adapter's driver store comes first, as with upstream: Windows puts no script there.
pub(super) fn programs(
    places: &mut Places<'_>,
    patterns: impl Iterator<Item = &'static Pattern>,
    path: &[HostPath],
    wsl: &[WslDriver],
) -> (Vec<DriverFile>, Vec<HostPath>) {
    let stores: Vec<_> = wsl
        .iter()
        .rev()
        .map(|driver| driver.store.clone())
        .collect();
    let mut known: Vec<HostPath> = STANDARD_PATH.iter().map(HostPath::new).collect();
    known.extend(places.beside("bin"));
    let (mut found, mut by_path) = (Vec::new(), Vec::new());
    for pattern in patterns {
        let in_store = stores
            .iter()
            .find_map(|store| places.file(&store.join(pattern.name)));
        let mut in_one = |directories: &[HostPath]| {
            let mut paths = directories.iter().map(|place| place.join(pattern.name));
            paths.find_map(|path| {
                let real = places.file(&path)?;
                is_program(places, &real).then_some(real)
            })
        };
        let program = in_store.or_else(|| in_one(&known)).or_else(|| {
            let program = in_one(path)?;
            by_path.push(program.clone());
            Some(program)
        });
        // Gentoo's and Flatcar's place, which a service's PATH lacks.
        let program = program.or_else(|| in_one(&[HostPath::new("/opt/bin")]));
        match program {
            Some(real) => {
                debug!("selecting {real}");
                let at = ContainerPath::new(IN_CONTAINER).join(pattern.name);
                found.push(DriverFile {
                    at: Some(at),
                    ..pattern.file(real)
                });
            }
            None => info!("missing program {}", pattern.name),
        }
    }
    (found, by_path)
}

/// Returns true for an ELF file that may be executed.
fn is_program(places: &Places<'_>, real: &HostPath) -> bool {
    let Ok(mut file) = places.root.open_file(real) else {
        return false;
    };
    let mut magic = [0; 4];
    let is_elf = file.read_exact(&mut magic).is_ok() && magic == *b"\x7fELF";
    is_elf && inroot::stat(file.as_fd()).is_ok_and(|stat| stat.st_mode & 0o111 != 0)
}

/// Returns the directories in a value of `PATH`. An unset `PATH` is an error even if no program is wanted: callers of
/// upstream rely on that.
///
/// # Errors
/// `environment variable PATH not found`.
pub(in crate::host) fn path_of(value: Option<&OsStr>) -> Result<Vec<HostPath>> {
    let value = value.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "environment variable PATH not found")
            .hint("set PATH to the directories of the driver's programs, e.g. /usr/bin")
    })?;
    let directories = value.as_bytes().split(|&byte| byte == b':');
    Ok(directories
        .map(|text| HostPath::new(OsStr::from_bytes(text)))
        .collect())
}
