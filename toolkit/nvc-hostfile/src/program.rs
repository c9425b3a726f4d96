//! Checks a program before it is executed.
//!
//! Its path is not typed by the caller, as in a shell: it is found in PATH, or beside a program that root may start
//! anywhere, also in a directory where others put files.

use std::fs::Metadata;
use std::path::Path;

use libnvc::trust::Caller;
use libnvc::{Error, ErrorKind, Result};
use nix::fcntl::AtFlags;
use nix::sys::stat::{SFlag, fstatat};

use super::walk::{PathTrust, find, kind};

/// Fails if a user other than root, the caller and those who may change the file `own`, if there is one, can change a
/// program or exchange it for another.
///
/// Nothing is opened: as long as those are to be trusted, the name stays that of the checked program, because no
/// other user can rename it, a directory on the way, or a link.
///
/// # Errors
/// Why it cannot be trusted.
pub fn check_program(path: &Path, own: Option<&Metadata>) -> Result<()> {
    let caller = Caller::current();
    let caller = own.map_or(caller, |own| caller.or_who_may_change(own));
    let place = find(caller, path, PathTrust::Any, true)?;
    if let Some(exposed) = place.exposed() {
        return Err(refused(exposed.to_string()));
    }
    let stat = fstatat(
        place.directory(),
        place.name.as_os_str(),
        AtFlags::AT_SYMLINK_NOFOLLOW,
    );
    let stat = stat.map_err(|errno| refused(errno.desc()))?;
    if kind(&stat) != SFlag::S_IFREG {
        return Err(refused("it is not a regular file"));
    }
    match caller.file(path, place.directory(), &place.name, &stat) {
        Some(exposed) => Err(refused(exposed.to_string())),
        None => Ok(()),
    }
}

fn refused(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    /// A user, and another.
    const USER: u32 = 4242;
    const OTHER: u32 = 4243;

    /// Checks the program `top/bin/program` of a directory beside the own program, after a change; `None` is success.
    fn checked(own: (u32, u32), change: impl Fn(&Path)) -> Option<String> {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path().join("top");
        fs::create_dir_all(top.join("bin")).unwrap();
        let put = |name: &str| {
            let path = top.join(name);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
            path
        };
        let (own_path, program) = (put("own"), put("bin/program"));
        change(&top);
        let (uid, mode) = own;
        chown(&own_path, Some(uid), Some(uid)).unwrap();
        fs::set_permissions(&own_path, Permissions::from_mode(mode)).unwrap();
        let found = check_program(&program, Some(&own_path.metadata().unwrap()));
        let top = top.display().to_string();
        found
            .err()
            .map(|error| error.message().replace(&top, "TOP"))
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn give(path: &Path, uid: u32) {
        chown(path, Some(uid), Some(uid)).unwrap();
    }

    #[test]
    fn no_other_user_may_change_a_program() {
        let root = |change: &dyn Fn(&Path)| checked((0, 0o755), change);
        let refused = |text: &str| Some(text.to_owned());
        assert_eq!(root(&|_| ()), None);
        assert_eq!(
            root(&|top| mode(top, 0o1777)),
            None,
            "entries of a sticky directory belong to their owners"
        );
        assert_eq!(
            root(&|top| mode(&top.join("bin"), 0o777)),
            refused("every user may write to TOP/bin")
        );
        assert_eq!(
            root(&|top| mode(top, 0o777)),
            refused("every user may write to TOP")
        );
        assert_eq!(
            root(&|top| give(top, OTHER)),
            refused("TOP belongs to the user 4243")
        );
        for sticky in [0o755, 0o1777] {
            let found = root(&|top| {
                mode(&top.join("bin"), sticky);
                give(&top.join("bin/program"), OTHER);
            });
            assert_eq!(found, refused("TOP/bin/program belongs to the user 4243"));
        }
        for bits in [0o757, 0o1757] {
            let found = root(&|top| mode(&top.join("bin/program"), bits));
            assert_eq!(found, refused("every user may write to TOP/bin/program"));
        }
        let found = root(&|top| {
            chown(top.join("bin/program"), None, Some(OTHER)).unwrap();
            mode(&top.join("bin/program"), 0o775);
        });
        assert_eq!(
            found,
            refused("the group 4243 may write to TOP/bin/program")
        );
    }

    /// The file to which it leads counts, and each directory on the way.
    #[test]
    fn links_are_followed_where_they_can_be_trusted() {
        let linked = |uid: u32, sticky: bool, change: &dyn Fn(&Path)| {
            checked((0, 0o755), |top| {
                let program = top.join("bin/program");
                fs::create_dir(top.join("real")).unwrap();
                fs::rename(&program, top.join("real/program")).unwrap();
                symlink("../real/program", &program).unwrap();
                std::os::unix::fs::lchown(&program, Some(uid), Some(uid)).unwrap();
                if sticky {
                    mode(&top.join("bin"), 0o1777);
                }
                change(top);
            })
        };
        assert_eq!(linked(0, false, &|_| ()), None);
        assert_eq!(
            linked(0, false, &|top| mode(&top.join("real"), 0o777)).unwrap(),
            "every user may write to TOP/bin/../real"
        );
        assert_eq!(
            linked(0, false, &|top| give(&top.join("real/program"), OTHER)).unwrap(),
            "TOP/bin/program belongs to the user 4243"
        );
        assert_eq!(
            linked(OTHER, true, &|_| ()).unwrap(),
            "TOP/bin/program belongs to the user 4243"
        );
    }

    /// Who may change nvidia-ctk needs no nvc-query to execute something.
    #[test]
    fn who_may_change_the_own_program_is_trusted() {
        let all_of = |top: &Path| {
            for part in [top.to_owned(), top.join("bin"), top.join("bin/program")] {
                give(&part, USER);
                mode(&part, 0o775);
            }
        };
        assert_eq!(checked((USER, 0o775), all_of), None);
        assert_eq!(
            checked((USER, 0o755), all_of).unwrap(),
            "the group 4242 may write to TOP"
        );
        assert_eq!(
            checked((0, 0o755), all_of).unwrap(),
            "TOP belongs to the user 4242"
        );
        assert_eq!(
            checked((OTHER, 0o777), all_of).unwrap(),
            "TOP belongs to the user 4242"
        );
    }
}
