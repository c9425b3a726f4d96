//! Parses `--user`, the user of the driver's library.

use libnvc::host::Identity;
use libnvc::{Error, Result};
use nix::errno::Errno;
use nix::unistd::{Group, User};

/// Parses `UID[:GID]`, each a number or a name; without a group, the user's own.
///
/// # Errors
/// `parse user/group failed: <invalid argument | numerical result out of range | no such file or directory>`.
pub(crate) fn parse(text: &str) -> Result<Identity> {
    read(text).map_err(|errno| {
        Error::system("parse user/group failed", errno)
            .hint("expected UID[:GID], numbers or names that exist on this machine")
    })
}

fn read(text: &str) -> nix::Result<Identity> {
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    if group.is_empty() {
        let found = match number(user) {
            Some(uid) => User::from_uid(uid?.into())?,
            None => User::from_name(user)?,
        };
        let user = found.ok_or(Errno::ENOENT)?;
        return Ok(Identity {
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
        });
    }
    let uid = match number(user) {
        Some(uid) => uid?,
        None => User::from_name(user)?.ok_or(Errno::ENOENT)?.uid.as_raw(),
    };
    let gid = match number(group) {
        Some(gid) => gid?,
        None => Group::from_name(group)?.ok_or(Errno::ENOENT)?.gid.as_raw(),
    };
    Ok(Identity { uid, gid })
}

/// Returns `text` as a number, or `None` if it is a name: names do not begin with a digit.
fn number(text: &str) -> Option<nix::Result<u32>> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Some(Err(Errno::EINVAL));
    }
    // All bits set is not a user: system calls interpret it as "unchanged".
    let number = text.parse().ok().filter(|id| *id != u32::MAX);
    Some(number.ok_or(Errno::ERANGE))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn users() {
        for (text, uid, gid) in [
            ("0", 0, 0),
            ("0:", 0, 0),
            ("root", 0, 0),
            ("root:", 0, 0),
            ("1000:1001", 1000, 1001),
            ("12345678:root", 12_345_678, 0),
            ("root:7", 0, 7),
            ("4294967294:0", 4_294_967_294, 0),
        ] {
            assert_eq!(parse(text).unwrap(), Identity { uid, gid }, "{text}");
        }
    }

    #[test]
    fn mistakes() {
        for (text, errno) in [
            ("", Errno::ENOENT),
            (":0", Errno::ENOENT),
            ("no-such-user", Errno::ENOENT),
            ("0:no-such-group", Errno::ENOENT),
            ("4000000000", Errno::ENOENT),
            ("-1", Errno::ENOENT),
            ("1x", Errno::EINVAL),
            ("1:2:3", Errno::EINVAL),
            ("0x10:0", Errno::EINVAL),
            ("4294967295:0", Errno::ERANGE),
            ("0:99999999999999999999", Errno::ERANGE),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.errno(), Some(errno), "{text}");
            assert!(error.message().starts_with("parse user/group failed: "));
        }
    }
}
