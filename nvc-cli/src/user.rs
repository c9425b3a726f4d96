//! Decides as whom the driver's library runs: reads `--user`, and finds the least privileged user otherwise.

use std::fs::File;
use std::io::Read as _;

use libnvc::{Error, Result};
use nix::errno::Errno;
use nix::unistd::{Group, User, getegid, geteuid};

/// A user and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Identity {
    /// Who called.
    pub(crate) fn caller() -> Self {
        Self {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
        }
    }

    /// The users that own nothing. In a user namespace where they do not exist, nobody could become them: the caller.
    pub(crate) fn overflow() -> Result<Self> {
        let overflow = Self {
            uid: overflow_id("/proc/sys/kernel/overflowuid")?,
            gid: overflow_id("/proc/sys/kernel/overflowgid")?,
        };
        // Without the maps, assume a kernel without user namespaces.
        let mapped = |path, id| read_small(path).map_or(true, |map| is_mapped(&map, id));
        if mapped("/proc/self/uid_map", overflow.uid) && mapped("/proc/self/gid_map", overflow.gid)
        {
            return Ok(overflow);
        }
        let caller = Self::caller();
        log::info!(
            "user {}:{} does not exist in this user namespace, running the driver's library as {}:{}",
            overflow.uid,
            overflow.gid,
            caller.uid,
            caller.gid
        );
        Ok(caller)
    }

    /// Reads `UID[:GID]`, each a number or a name; without a group, the user's own.
    ///
    /// # Errors
    /// `parse user/group failed: <invalid argument | numerical result out of range | no such file or directory>`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        parse(text).map_err(|errno| {
            Error::system("parse user/group failed", errno)
                .hint("expected UID[:GID], numbers or names that exist on this machine")
        })
    }
}

fn parse(text: &str) -> nix::Result<Identity> {
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

/// The number that `text` is, or `None` if it is a name: names do not begin with a digit.
fn number(text: &str) -> Option<nix::Result<u32>> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Some(Err(Errno::EINVAL));
    }
    // All bits set is no user: system calls take it for "leave as is".
    let number = text.parse().ok().filter(|id| *id != u32::MAX);
    Some(number.ok_or(Errno::ERANGE))
}

fn overflow_id(path: &str) -> Result<u32> {
    let text = read_small(path)
        .map_err(|errno| Error::file("open failed", path, errno).hint("is /proc mounted?"))?;
    let number = text.trim_end().parse();
    number.map_err(|_| Error::file("read error", path, Errno::EINVAL))
}

/// Reads a file of /proc that fits into one read.
fn read_small(path: &str) -> Result<String, Errno> {
    let errno = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or_default());
    let mut buffer = [0; 4096];
    let count = File::open(path)
        .and_then(|mut file| file.read(&mut buffer))
        .map_err(errno)?;
    let text = buffer.get(..count).unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// Whether a `uid_map` or `gid_map`, lines of first id inside, first id outside and count, has `id` inside.
fn is_mapped(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().map(str::parse::<u32>);
        let (first, count) = (fields.next(), fields.nth(1));
        match (first, count) {
            (Some(Ok(first)), Some(Ok(count))) => id.checked_sub(first).is_some_and(|i| i < count),
            _ => false,
        }
    })
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
            assert_eq!(
                Identity::parse(text).unwrap(),
                Identity { uid, gid },
                "{text}"
            );
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
            let error = Identity::parse(text).unwrap_err();
            assert_eq!(error.errno(), Some(errno), "{text}");
            assert!(error.message().starts_with("parse user/group failed: "));
        }
    }

    #[test]
    fn maps() {
        let whole = "         0          0 4294967295\n";
        assert!(is_mapped(whole, 65534));
        let rootless = "         0       1000          1\n         1     100000      65536\n";
        assert!(is_mapped(rootless, 0));
        assert!(is_mapped(rootless, 65534));
        assert!(is_mapped(rootless, 65536));
        assert!(!is_mapped(rootless, 65537));
        assert!(!is_mapped("         0       1000          1\n", 65534));
        assert!(!is_mapped("", 0));
        assert!(!is_mapped("a b c\n1 2\n", 1));
    }

    #[test]
    fn overflow_user_exists() {
        assert_ne!(Identity::overflow().unwrap().uid, 0);
    }
}
