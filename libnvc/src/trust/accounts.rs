//! Reads names and members of users and groups from /etc/passwd and /etc/group.
//!
//! They are read here, because the C library's look-ups load modules, which a static program cannot do.

use std::fs;

/// Returns the name of a user or group.
pub fn name(file: &str, id: u32) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.into())
    })
}

/// Returns true if a group has a member whose user is another one: as its primary group, or by its list.
pub(super) fn has_other_members(gid: u32, is_other: impl Fn(u32) -> bool) -> bool {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    has_others(gid, &read("/etc/passwd"), &read("/etc/group"), is_other)
}

fn has_others(gid: u32, passwd: &str, group: &str, is_other: impl Fn(u32) -> bool) -> bool {
    let users: Vec<(&str, u32, u32)> = passwd.lines().filter_map(user).collect();
    if users
        .iter()
        .any(|&(_, uid, primary)| primary == gid && is_other(uid))
    {
        return true;
    }
    group.lines().any(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [_, _, number, members] = fields[..] else {
            return false;
        };
        let mut members = members.split(',').map(str::trim);
        number.parse() == Ok(gid)
            && members.any(|member| {
                let known = users.iter().find(|(name, ..)| *name == member);
                // A user that another database knows is another one.
                !member.is_empty() && known.is_none_or(|&(_, uid, _)| is_other(uid))
            })
    })
}

/// Returns a user's name, number and primary group.
fn user(line: &str) -> Option<(&str, u32, u32)> {
    let mut fields = line.split(':');
    let name = fields.next()?;
    let uid = fields.nth(1)?.parse().ok()?;
    Some((name, uid, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_files() {
        assert_eq!(name("/etc/passwd", 0).as_deref(), Some("root"));
        assert_eq!(name("/etc/passwd", 4_000_000_000), None);
        assert_eq!(name("/nonexistent", 0), None);
    }

    #[test]
    fn members() {
        let passwd = "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/:/bin/sh\nbob:x:1001:100::/:/bin/sh\nshort:x\n";
        let group = "root:x:0:root\nalice:x:1000:\nusers:x:100:\nshared:x:7:root,alice,bob\nmine:x:8:alice,root\n\
                     remote:x:9:carol\nempty:x:10:,\n";
        let has = |gid| has_others(gid, passwd, group, |uid| ![0, 1000].contains(&uid));
        for (gid, expected) in [
            (0, false),
            (1000, false),
            (100, true),
            (7, true),
            (8, false),
            (9, true),
            (10, false),
            (11, false),
        ] {
            assert_eq!(has(gid), expected, "{gid}");
        }
    }
}
