//! Finds the directory of the container's device cgroup.
//!
//! Two procfs files locate it: the process's `cgroup` names its groups, and a `mountinfo` says where their filesystems
//! are mounted. Finding is pure. Opening is separate, because in standalone mode the directory is resolved in the
//! container's own root.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, fstatfs};
use serde::Serialize;

use super::CgroupVersion;
use crate::error::{Error, ErrorKind, Result};
use crate::inroot::RootDir;
use crate::mountinfo::{self, MountEntry, unescape};

/// The device cgroup of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceCgroup {
    /// Its version, which decides the kind of rules.
    pub version: CgroupVersion,
    /// Its directory; in standalone mode, below the container's root.
    pub directory: PathBuf,
    /// Its path in the hierarchy, as the caller's cgroup namespace shows it.
    #[serde(skip)]
    pub(crate) group: PathBuf,
}

/// Finds the device cgroup from the container's `/proc/PID/cgroup` and a `/proc/PID/mountinfo`.
///
/// A version 1 `devices` hierarchy has precedence: it holds the runtime's rules if it exists, also on hosts that mount
/// both versions. If only version 2 is mounted, the runtime used that: systemd-nspawn and LXC can run a system that
/// knows version 2 alone on such a host.
pub(crate) fn locate(proc_cgroup: &[u8], mountinfo: &[u8]) -> Result<DeviceCgroup> {
    let (version, path) = membership(proc_cgroup)?;
    let found = find(version, path, mountinfo);
    let unified = match &found {
        Err(error) if version == CgroupVersion::V1 && error.kind() == ErrorKind::NotFound => {
            unified_group(proc_cgroup)
        }
        _ => None,
    };
    match unified {
        Some(path) => find(CgroupVersion::V2, path, mountinfo).or(found),
        None => found,
    }
}

/// Returns the path of the process's version 2 group, unless that is the root.
fn unified_group(proc_cgroup: &[u8]) -> Option<&[u8]> {
    let mut lines = proc_cgroup.split(|b| *b == b'\n');
    let path = lines.find_map(|line| line.strip_prefix(b"0::"))?;
    (path != b"/").then_some(path)
}

/// Finds the mounted directory of a group.
fn find(version: CgroupVersion, path: &[u8], mountinfo: &[u8]) -> Result<DeviceCgroup> {
    let path = absolute(Path::new(OsStr::from_bytes(path)))
        .ok_or_else(|| root_path_error("relative path in cgroup entry").of(show(path)))?;
    let mut hidden = None;
    for mount in mountinfo::entries(mountinfo) {
        let point = mount.point();
        if !point.is_absolute() || !holds_devices(&mount, &point, version) {
            continue;
        }
        let root = unescape(mount.root);
        let Some(root) = absolute(&root) else {
            hidden.get_or_insert_with(|| {
                mount_path_error("relative path in mount prefix").of(root.display())
            });
            continue;
        };
        match path.strip_prefix(root) {
            Ok(below) => {
                let mut directory = point;
                // Joining an empty path would append a slash.
                if !below.as_os_str().is_empty() {
                    directory.push(below);
                }
                return Ok(DeviceCgroup {
                    version,
                    directory,
                    group: path.to_owned(),
                });
            }
            Err(_) => {
                hidden.get_or_insert_with(|| {
                    root_path_error(format!(
                        "cgroup {} is not below {}, the part of the hierarchy that is mounted",
                        path.display(),
                        root.display()
                    ))
                });
            }
        }
    }
    Err(hidden.unwrap_or_else(|| {
        mount_path_error(match version {
            CgroupVersion::V1 => {
                "no cgroup filesystem mounted for the devices subsytem in mountinfo file"
            }
            CgroupVersion::V2 => "no cgroup2 filesystem in mountinfo file",
        })
        .with_kind(ErrorKind::NotFound)
    }))
}

/// Opens the cgroup's directory by reference, below `base` if there is one.
///
/// Verifies that it is on a cgroup filesystem: an image can contain a directory of the same name, and a link in a
/// container's root could lead to another container's group.
pub(crate) fn open_directory(
    cgroup: &DeviceCgroup,
    base: Option<(&RootDir, &Path)>,
) -> Result<OwnedFd> {
    let directory = cgroup.directory.as_path();
    let name = match base {
        None => directory.to_owned(),
        Some((_, rootfs)) => rootfs.join(directory.strip_prefix("/").unwrap_or(directory)),
    };
    // Upstream's messages: version 1 opens a file in it, version 2 the directory itself.
    let (what, name) = match cgroup.version {
        CgroupVersion::V1 => (None, name.join("devices.allow")),
        CgroupVersion::V2 => (Some("unable to open the cgroup path"), name),
    };
    let failure = |error: Error| {
        let error = what
            .into_iter()
            .fold(error, |error, what| error.context(what));
        error.context("failed to add device rules")
    };
    let opened = match base {
        None => nix::fcntl::open(
            directory,
            OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        ),
        // Mount points and cgroups have no symlinks in their paths.
        Some((root, _)) => match root.real_path(directory) {
            Ok((_, real)) if real != directory => Err(Errno::ELOOP),
            opened => opened.map(|(fd, _)| fd),
        },
    };
    let system = |errno| failure(Error::system(format!("open {}", name.display()), errno));
    let fd = opened.map_err(system)?;
    let (magic, kind) = match cgroup.version {
        CgroupVersion::V1 => (CGROUP_SUPER_MAGIC, "cgroup"),
        CgroupVersion::V2 => (CGROUP2_SUPER_MAGIC, "cgroup2"),
    };
    if fstatfs(&fd).map_err(system)?.filesystem_type() != magic {
        let what = format!("{} is not on a {kind} filesystem", name.display());
        return Err(failure(Error::new(ErrorKind::Malformed, what)));
    }
    Ok(fd)
}

/// Returns the version and path of the group for devices.
fn membership(proc_cgroup: &[u8]) -> Result<(CgroupVersion, &[u8])> {
    let mut unified = None;
    for line in proc_cgroup
        .split(|b| *b == b'\n')
        .filter(|line| !line.is_empty())
    {
        let mut fields = line.splitn(3, |b| *b == b':');
        let (Some(_id), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            return Err(root_path_error("malformed cgroup entry").of(show(line)));
        };
        // Several controllers can share a hierarchy.
        if controllers
            .split(|b| *b == b',')
            .any(|name| name == b"devices")
        {
            return Ok((CgroupVersion::V1, path));
        }
        if controllers.is_empty() {
            unified.get_or_insert(path);
        }
    }
    unified
        .map(|path| (CgroupVersion::V2, path))
        .ok_or_else(|| {
            let what = "no devices or unified cgroup entries found";
            Error::new(ErrorKind::NotFound, what).context("failed to get device cgroup version")
        })
}

/// Returns true for the hierarchy with device rules.
///
/// Upstream compares the mount point's name, and misses hierarchies that several controllers share.
fn holds_devices(mount: &MountEntry<'_>, point: &Path, version: CgroupVersion) -> bool {
    let mut options = mount.super_options.split(|b| *b == b',');
    match version {
        CgroupVersion::V1 => {
            let is_named = || point.as_os_str().as_bytes().ends_with(b"/devices");
            mount.kind == b"cgroup" && (is_named() || options.any(|o| o == b"devices"))
        }
        CgroupVersion::V2 => mount.kind == b"cgroup2",
    }
}

/// Returns the path if it is absolute without `..`: a cgroup outside the reader's cgroup namespace starts with `/..`.
fn absolute(path: &Path) -> Option<&Path> {
    let climbs = path.components().any(|c| c == Component::ParentDir);
    (path.is_absolute() && !climbs).then_some(path)
}

fn mount_path_error(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, what).context("failed to get device cgroup mount path")
}

fn root_path_error(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, what).context("failed to get device cgroup root path")
}

fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const V2: &str =
        "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const HYBRID: &str = "\
23 1 8:1 / / rw - ext4 /dev/sda1 rw
31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
32 31 0:29 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw
35 31 0:32 / /sys/fs/cgroup/memory rw shared:11 - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/devices rw shared:12 master:3 - cgroup cgroup rw,devices
";

    #[test]
    fn finds_the_directory() {
        use CgroupVersion::{V1, V2 as Two};
        let cases: &[(&str, &str, &str, CgroupVersion, &str)] = &[
            (
                "unified",
                "0::/a/b.scope\n",
                V2,
                Two,
                "/sys/fs/cgroup/a/b.scope",
            ),
            ("the root group", "0::/\n", V2, Two, "/sys/fs/cgroup"),
            (
                "hybrid",
                "5:devices:/docker/x\n4:memory:/y\n0::/z\n",
                HYBRID,
                V1,
                "/sys/fs/cgroup/devices/docker/x",
            ),
            (
                "both versions exist, version 2 is mounted",
                "5:devices:/x\n0::/z\n",
                V2,
                Two,
                "/sys/fs/cgroup/z",
            ),
            (
                "hybrid, unified first",
                "0::/z\n5:devices:/x",
                HYBRID,
                V1,
                "/sys/fs/cgroup/devices/x",
            ),
            (
                "hybrid without devices",
                "4:memory:/y\n1:name=systemd:/s\n0::/z\n",
                HYBRID,
                Two,
                "/sys/fs/cgroup/unified/z",
            ),
            (
                "a path with colons",
                "5:devices:/a:b:/c\n",
                HYBRID,
                V1,
                "/sys/fs/cgroup/devices/a:b:/c",
            ),
            (
                "another controller's name",
                "7:nodevices,devices2:/x\n0::/z\n",
                V2,
                Two,
                "/sys/fs/cgroup/z",
            ),
            (
                "shared hierarchy",
                "5:devices,freezer:/x\n0::/\n",
                "36 31 0:33 / /cg/devices,freezer rw - cgroup cgroup rw,devices,freezer\n",
                V1,
                "/cg/devices,freezer/x",
            ),
            (
                "by the mount point's name",
                "5:devices:/x\n",
                "36 31 0:33 / /cg/devices rw - cgroup none rw,xattr\n",
                V1,
                "/cg/devices/x",
            ),
            (
                "part of the hierarchy",
                "5:devices:/docker/abc/inner\n",
                "36 31 0:33 /docker/abc /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n",
                V1,
                "/sys/fs/cgroup/devices/inner",
            ),
            (
                "the mounted part itself",
                "0::/docker/abc\n",
                "36 31 0:33 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
                Two,
                "/sys/fs/cgroup",
            ),
            (
                "the second mount shows it",
                "0::/b/c\n",
                "1 2 0:3 /../x /m0 rw - cgroup2 none rw\n1 2 0:3 /a /m1 rw - cgroup2 none rw\n1 2 0:3 /b /m2 rw - cgroup2 none rw\n",
                Two,
                "/m2/c",
            ),
            (
                "a line without a mount point",
                "0::/b/c\n",
                "1 2 0:3 /b  rw - cgroup2 none rw\n1 2 0:3 /b /m2 rw - cgroup2 none rw\n",
                Two,
                "/m2/c",
            ),
            (
                "escapes",
                "0::/x\\040y\n",
                "1 2 0:3 / /a\\040b\\134c\\011\\0 rw - cgroup2 a\\040b rw\n",
                Two,
                "/a b\\c\t\\0/x\\040y",
            ),
            (
                "no optional fields, dashes elsewhere; a mount point that is none",
                "0::/x\n",
                "1 2 0:3 / - rw - cgroup2 - rw\n1 2 0:3 / /- rw - cgroup2 - rw\n",
                Two,
                "/-/x",
            ),
            (
                "broken lines are passed over",
                "0::/x\n",
                "\n1 2\n1 2 0:3 / /p rw cgroup2 a rw\n1 2 0:3 / /q rw - cgroup2\n1 2 0:3 / /m rw - cgroup2 a rw\n",
                Two,
                "/m/x",
            ),
        ];
        for (name, cgroup, mountinfo, version, directory) in cases {
            let found = locate(cgroup.as_bytes(), mountinfo.as_bytes()).expect(name);
            assert_eq!(found.version, *version, "{name}");
            assert_eq!(found.directory.as_os_str(), *directory, "{name}");
        }
    }

    #[test]
    fn fails_like_upstream() {
        use ErrorKind::{Malformed, NotFound};
        let cases: &[(&str, &str, ErrorKind, &str)] = &[
            (
                "5:devices:/x\n0::/\n",
                V2,
                NotFound,
                "failed to get device cgroup mount path: no cgroup filesystem mounted for the devices subsytem in mountinfo file",
            ),
            (
                "0::/x\n",
                "36 31 0:33 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n",
                NotFound,
                "failed to get device cgroup mount path: no cgroup2 filesystem in mountinfo file",
            ),
            (
                "4:memory:/y\n",
                HYBRID,
                NotFound,
                "failed to get device cgroup version: no devices or unified cgroup entries found",
            ),
            (
                "",
                "",
                NotFound,
                "failed to get device cgroup version: no devices or unified cgroup entries found",
            ),
            (
                "nonsense\n",
                V2,
                Malformed,
                "failed to get device cgroup root path: malformed cgroup entry: nonsense",
            ),
            (
                "0::/x\n",
                "1 2 0:3 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
                Malformed,
                "failed to get device cgroup mount path: relative path in mount prefix: /../..",
            ),
            (
                "0::/../../x\n",
                V2,
                Malformed,
                "failed to get device cgroup root path: relative path in cgroup entry: /../../x",
            ),
            (
                "0::/docker/abcd\n",
                "1 2 0:3 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
                Malformed,
                "failed to get device cgroup root path: cgroup /docker/abcd is not below /docker/abc, the part of the hierarchy that is mounted",
            ),
        ];
        for (cgroup, mountinfo, kind, message) in cases {
            let error = locate(cgroup.as_bytes(), mountinfo.as_bytes()).unwrap_err();
            assert_eq!(error.message(), *message);
            assert_eq!(error.kind(), *kind, "{message}");
        }
    }

    #[test]
    fn an_impostor_is_not_opened() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("sys/fs/cgroup/x")).unwrap();
        std::os::unix::fs::symlink("x", root.path().join("sys/fs/cgroup/y")).unwrap();
        let base = RootDir::open(root.path()).unwrap();
        let open = |version, directory: &str| {
            let directory = PathBuf::from(directory);
            let group = PathBuf::new();
            let cgroup = DeviceCgroup {
                version,
                directory,
                group,
            };
            let base = Some((&base, Path::new("/c")));
            open_directory(&cgroup, base).unwrap_err().message()
        };
        let v1 = "failed to add device rules:";
        let prefix = "failed to add device rules: unable to open the cgroup path:";
        assert_eq!(
            open(CgroupVersion::V2, "/sys/fs/cgroup/x"),
            format!("{prefix} /c/sys/fs/cgroup/x is not on a cgroup2 filesystem")
        );
        assert_eq!(
            open(CgroupVersion::V1, "/sys/fs/cgroup/x"),
            format!("{v1} /c/sys/fs/cgroup/x/devices.allow is not on a cgroup filesystem")
        );
        assert_eq!(
            open(CgroupVersion::V2, "/sys/fs/cgroup/y"),
            format!("{prefix} open /c/sys/fs/cgroup/y: too many levels of symbolic links")
        );
        assert_eq!(
            open(CgroupVersion::V2, "/sys/fs/cgroup/z"),
            format!("{prefix} open /c/sys/fs/cgroup/z: no such file or directory")
        );
    }
}
