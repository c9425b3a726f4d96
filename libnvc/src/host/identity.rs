//! Picks the user for NVML: never root, unless the caller asks for it.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{getegid, geteuid};

use crate::error::{Error, Result};
use crate::read_file::read_path;

/// Nodes that NVML or libcuda opens: those of discrete GPUs, then those of a Jetson.
const NODES: [&str; 4] = [
    "dev/nvidiactl",
    "dev/nvmap",
    "dev/nvhost-ctrl-gpu",
    "dev/nvgpu/igpu0/ctrl",
];

/// A user and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl Identity {
    /// Returns the caller.
    pub fn caller() -> Self {
        Self {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
        }
    }

    /// Returns the overflow user and group, or the caller in a user namespace that does not map them.
    ///
    /// # Errors
    /// `open failed: /proc/sys/kernel/overflowuid: <cause>`, and the same for the group.
    pub fn overflow() -> Result<Self> {
        let overflow = Self {
            uid: overflow_uid()?,
            gid: overflow_id("/proc/sys/kernel/overflowgid")?,
        };
        // Without the maps, the kernel presumably has no user namespaces.
        let has = |path, id| read(path).map_or(true, |map| mapped(&map, id).is_some());
        if has("/proc/self/uid_map", overflow.uid) && has("/proc/self/gid_map", overflow.gid) {
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

    /// Returns the user of a query of the driver below `root`: the one that the caller wants, or else one that is not
    /// root.
    ///
    /// That is the overflow user if the caller is root. On SUSE and on a Jetson only root and a group may use the
    /// driver's nodes; the user then has this group, unless it is root's.
    ///
    /// # Errors
    /// Those of [`overflow`](Self::overflow).
    pub(super) fn of_query(wanted: Option<Self>, root: &Path) -> Result<Self> {
        if let Some(user) = wanted {
            return Ok(user);
        }
        let caller = Self::caller();
        if caller.uid != 0 {
            return Ok(caller);
        }
        let overflow = Self::overflow()?;
        let group = NODES.iter().find_map(|node| {
            let node = root.join(node).metadata().ok()?;
            group_of_users(node.mode(), node.gid())
        });
        Ok(Self {
            // A user namespace without the overflow user may not have the group either.
            gid: group.filter(|_| overflow != caller).unwrap_or(overflow.gid),
            ..overflow
        })
    }
}

/// Returns the group of a node that only root and this group may open for reading and writing.
fn group_of_users(mode: u32, group: u32) -> Option<u32> {
    let is_for = |bits: u32| mode & bits == bits;
    (!is_for(0o006) && is_for(0o060) && group != 0).then_some(group)
}

/// Returns the uid that the kernel shows for users that a user namespace does not map.
pub(crate) fn overflow_uid() -> Result<u32> {
    overflow_id("/proc/sys/kernel/overflowuid")
}

fn overflow_id(path: &str) -> Result<u32> {
    let text = read(path)
        .map_err(|errno| Error::file("open failed", path, errno).hint("is /proc mounted?"))?;
    let number = text.trim_end().parse();
    number.map_err(|_| Error::file("read error", path, Errno::EINVAL))
}

fn read(path: &str) -> Result<String, Errno> {
    let bytes = read_path(path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the id outside that a `uid_map` or `gid_map` has for `id`. Each line holds the first id inside, the first id
/// outside and the count.
pub(crate) fn mapped(map: &str, id: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().map(str::parse::<u32>);
        let mut field = || fields.next()?.ok();
        let (inside, outside, count) = (field()?, field()?, field()?);
        let offset = id.checked_sub(inside).filter(|offset| *offset < count)?;
        outside.checked_add(offset)
    })
}

/// Returns true in a user namespace other than the initial one, which may neither load modules nor create device nodes.
pub fn in_user_namespace() -> bool {
    let [uid_map, gid_map, setgroups] =
        ["uid_map", "gid_map", "setgroups"].map(|name| read(&format!("/proc/self/{name}")).ok());
    is_user_namespace(uid_map.as_deref(), gid_map.as_deref(), setgroups.as_deref())
}

/// Does the same with the contents of the relevant files, which are missing if the kernel lacks user namespaces.
fn is_user_namespace(
    uid_map: Option<&str>,
    gid_map: Option<&str>,
    setgroups: Option<&str>,
) -> bool {
    let identity = |map: &str| {
        let mut words = map.lines().next().unwrap_or_default().split_whitespace();
        ["0", "0", "4294967295"]
            .iter()
            .all(|word| words.next() == Some(word))
    };
    let maps = [uid_map, gid_map].into_iter().flatten();
    maps.into_iter().any(|map| !identity(map))
        || setgroups.is_some_and(|text| text.starts_with("deny"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn maps() {
        let whole = "         0          0 4294967295\n";
        assert_eq!(mapped(whole, 65534), Some(65534));
        let rootless = "         0       1000          1\n         1     100000      65536\n";
        for (id, outside) in [
            (0, Some(1000)),
            (65534, Some(165_533)),
            (65536, Some(165_535)),
            (65537, None),
        ] {
            assert_eq!(mapped(rootless, id), outside, "{id}");
        }
        assert_eq!(mapped("", 0), None);
        assert_eq!(mapped("a b c\n1 2\n", 1), None);
    }

    #[test]
    fn a_group_counts_if_only_its_members_may_use_the_node() {
        for (mode, group, expected) in [
            (0o666, 44, None),
            (0o660, 44, Some(44)),
            (0o664, 44, Some(44)),
            (0o640, 44, None),
            (0o600, 44, None),
            (0o660, 0, None),
        ] {
            assert_eq!(
                group_of_users(0o020_000 | mode, group),
                expected,
                "{mode:o}"
            );
        }
    }

    #[test]
    fn no_query_is_roots_by_default() {
        let root = Path::new("/");
        let user = Identity::of_query(None, root).unwrap();
        assert_ne!(user.uid, 0);
        if !geteuid().is_root() {
            assert_eq!(user, Identity::caller());
        }
        let wanted = Identity { uid: 0, gid: 7 };
        assert_eq!(Identity::of_query(Some(wanted), root).unwrap(), wanted);
    }

    #[test]
    fn overflow_user_exists() {
        assert_ne!(Identity::overflow().unwrap().uid, 0);
    }

    const IDENTITY: &str = "         0          0 4294967295\n";

    #[test]
    fn user_namespaces() {
        let all = |map| is_user_namespace(Some(map), Some(map), Some("allow\n"));
        assert!(!all(IDENTITY));
        assert!(!is_user_namespace(None, None, None));
        assert!(all("0 100000 65536\n"));
        assert!(all(""));
        assert!(is_user_namespace(Some(IDENTITY), Some("0 1 1\n"), None));
        assert!(is_user_namespace(
            Some(IDENTITY),
            Some(IDENTITY),
            Some("deny\n")
        ));
    }
}
