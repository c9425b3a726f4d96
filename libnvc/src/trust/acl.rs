//! Reads from a POSIX ACL who may write to a file or directory.
//!
//! If there is an ACL, the mode's group bits are its mask: they say that others may write, but not who.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;

use crate::sys::xattr;

const VERSION: u32 = 2;

// The kinds of entries.
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;

/// The permission to write.
const WRITE: u16 = 2;

/// A user or group other than the owner that an ACL permits to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    User(u32),
    Group(u32),
    OwningGroup,
}

/// The users and groups that an ACL permits to write; None if there is no ACL.
pub(super) type List = Result<Option<Vec<Writer>>, Errno>;

/// Returns the users and groups that the ACL of a file or directory permits to write.
pub(super) fn writers(directory: BorrowedFd<'_>, name: &OsStr) -> List {
    let list = xattr::access_list(directory, name)?;
    list.map(|list| parse(&list).ok_or(Errno::EINVAL))
        .transpose()
}

/// Parses the attribute: the version, then entries of a kind, permissions and an identity.
fn parse(list: &[u8]) -> Option<Vec<Writer>> {
    let (version, list) = list.split_first_chunk::<4>()?;
    let (entries, rest) = list.as_chunks::<8>();
    if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
        return None;
    }
    let entries = entries.iter().map(|&[k0, k1, p0, p1, id @ ..]| {
        let permissions = u16::from_le_bytes([p0, p1]);
        let may_write = permissions & WRITE != 0;
        (
            u16::from_le_bytes([k0, k1]),
            may_write,
            u32::from_le_bytes(id),
        )
    });
    let is_masked = |(kind, may_write, _): (u16, bool, u32)| kind == MASK && !may_write;
    if entries.clone().any(is_masked) {
        return Some(Vec::new());
    }
    let writers = entries.filter(|(_, may_write, _)| *may_write);
    let writers = writers.filter_map(|(kind, _, id)| match kind {
        USER => Some(Writer::User(id)),
        GROUP => Some(Writer::Group(id)),
        OWNING_GROUP => Some(Writer::OwningGroup),
        _ => None,
    });
    Some(writers.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (kind, permissions, id) in entries {
            bytes.extend(kind.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn whom_a_list_lets_write() {
        let entries = [
            (0x01, 7, u32::MAX),
            (USER, 7, 1),
            (USER, 5, 2),
            (OWNING_GROUP, 2, u32::MAX),
            (GROUP, 6, 3),
            (GROUP, 1, 4),
            (MASK, 7, u32::MAX),
            (0x20, 7, u32::MAX),
        ];
        let expected = vec![Writer::User(1), Writer::OwningGroup, Writer::Group(3)];
        assert_eq!(parse(&list(&entries)), Some(expected));
        let masked = entries.map(|(kind, bits, id)| match kind {
            MASK => (kind, 5, id),
            _ => (kind, bits, id),
        });
        assert_eq!(parse(&list(&masked)), Some(Vec::new()));
    }

    #[test]
    fn what_is_not_a_list() {
        assert_eq!(parse(b""), None);
        assert_eq!(parse(&[3, 0, 0, 0]), None);
        assert_eq!(parse(&list(&[(USER, 7, 1)])[..11]), None);
        assert_eq!(parse(&list(&[])), Some(Vec::new()));
    }
}
