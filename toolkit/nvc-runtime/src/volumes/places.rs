//! Finds out whether a path of a container leads to a volume, before the container exists: unlike libnvc's walk, this
//! one goes through mounts that are not made yet, and on through directories that are missing.
//!
//! The low-level runtime resolves the destination of each mount in the image's root, with the image's links and the
//! mounts made so far, and creates what is missing. So the links are followed here too, by descriptor. If the answer
//! depends on something that is not known yet, it is yes: the hook decides again, in the finished root.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nvc_hostfile::kind;
use nvc_oci::paths::{absolute, clean};
use serde_json::Value;

/// Limit of links in one path, as the kernel's.
const MAX_LINKS: usize = 40;

/// Limit of components of one path, those of its links' targets included. The kernel has none, but an image could make
/// each look-up take long.
const MAX_COMPONENTS: usize = 4096;

/// File systems that a runtime mounts for one container alone, or that have no files of anybody.
const PRIVATE: [&str; 7] = [
    "tmpfs", "proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2",
];

/// Where paths of one container lead.
pub(super) struct Places {
    /// None if the runtime will not find it either.
    root: Option<Rc<OwnedFd>>,
    device: u64,
    /// The mount points of volumes, with and without links resolved, and the directories that are mounted.
    volumes: BTreeMap<PathBuf, Option<Rc<OwnedFd>>>,
    /// A volume's mount point is on another volume, whose links can change until it is mounted.
    pub(super) is_doubtful: bool,
    /// Directories that files were asked for: most files share one with others.
    known: HashMap<PathBuf, Directory>,
}

/// A directory of the container's.
enum Directory {
    OnVolume,
    /// Its path leads over no link and no mount.
    Plain(OwnedFd),
    Other,
}

/// The end of a path.
struct Reached {
    real: PathBuf,
    on_volume: bool,
    exists: bool,
}

impl Places {
    /// Reads the mounts of a container; `bundle` is its directory.
    pub(super) fn of(spec: &Value, bundle: &Path) -> Self {
        let path = spec["root"]["path"].as_str().unwrap_or_default();
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = open(&absolute(path, bundle), flags, Mode::empty()).ok();
        let stat = root.as_ref().and_then(|root| fstat(root).ok());
        let mut places = Self {
            root: root.map(Rc::new),
            device: stat.map_or(0, |stat| stat.st_dev),
            volumes: BTreeMap::new(),
            is_doubtful: false,
            known: HashMap::new(),
        };
        for mount in spec["mounts"].as_array().into_iter().flatten() {
            if let Some(point) = mount["destination"].as_str()
                && is_volume(mount, bundle)
            {
                let source = mount["source"].as_str().unwrap_or_default();
                let source = open(&absolute(source, bundle), flags, Mode::empty());
                places.add(point, &source.ok().map(Rc::new));
            }
        }
        places
    }

    fn add(&mut self, point: &str, source: &Option<Rc<OwnedFd>>) {
        // Runtimes clean the text, or follow `..` as the kernel does.
        for point in [clean(&format!("/{point}")), format!("/{point}")].map(PathBuf::from) {
            let mut points = vec![point.clone()];
            if let Some((parent, name)) = point.parent().zip(point.file_name()) {
                points.push(self.walk(parent).real.join(name));
            }
            let reached = self.walk(&point);
            self.is_doubtful |= reached.on_volume;
            points.push(reached.real);
            let points = points.into_iter().map(|point| (point, source.clone()));
            self.volumes.extend(points);
        }
    }

    /// Returns true if a file at this path is on a volume, or would be created there.
    pub(super) fn is_on_volume(&mut self, path: &Path) -> bool {
        if self.volumes.is_empty() && self.root.is_none() {
            return false;
        }
        let mut above = path.ancestors().skip(1);
        if above.any(|above| self.volumes.contains_key(above)) {
            return true;
        }
        let Some((parent, name)) = path.parent().zip(path.file_name()) else {
            return false;
        };
        if !self.known.contains_key(parent) {
            let directory = self.directory(parent);
            self.known.insert(parent.to_owned(), directory);
        }
        match &self.known[parent] {
            Directory::OnVolume => true,
            // Only the last component can be a link to somewhere else.
            Directory::Plain(directory) if !is_link(directory, name) => false,
            Directory::Plain(_) | Directory::Other => self.walk(path).on_volume,
        }
    }

    fn directory(&self, path: &Path) -> Directory {
        match self.has_no_links(path) {
            Some(directory) => Directory::Plain(directory),
            None if self.walk(path).on_volume => Directory::OnVolume,
            None => Directory::Other,
        }
    }

    /// Returns true if there is a file at this path, on a volume or not, which need not be created.
    pub(super) fn exists(&self, path: &Path) -> bool {
        self.walk(path).exists
    }

    /// Returns the directory at a path that leads over no link and no mount.
    fn has_no_links(&self, path: &Path) -> Option<OwnedFd> {
        let root = self.root.as_ref()?;
        let below = path.strip_prefix("/").ok()?;
        let below = if below.as_os_str().is_empty() {
            Path::new(".")
        } else {
            below
        };
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(
                ResolveFlag::RESOLVE_BENEATH
                    | ResolveFlag::RESOLVE_NO_SYMLINKS
                    | ResolveFlag::RESOLVE_NO_XDEV,
            );
        openat2(root, below, how).ok()
    }

    /// Follows a path to its end, as the runtime would with the volumes in place.
    fn walk(&self, path: &Path) -> Reached {
        let mut pending = components(path);
        let (mut links, mut count) = (0, 0);
        // The directories from the root to the current one; None if one does not exist.
        let mut stack = vec![self.root.clone()];
        let mut reached = Reached {
            real: PathBuf::from("/"),
            on_volume: false,
            exists: true,
        };
        while let Some(name) = pending.pop() {
            count += 1;
            if count > MAX_COMPONENTS {
                reached.on_volume = true;
                reached.exists = false;
                return reached;
            }
            if name == ".." {
                if stack.len() > 1 {
                    stack.pop();
                    reached.real.pop();
                }
                continue;
            }
            if let Some(source) = self.volumes.get(&reached.real) {
                reached.on_volume = true;
                stack.pop();
                stack.push(source.clone());
            }
            let Some(directory) = stack.last().and_then(Option::as_ref) else {
                reached.real.push(&name);
                stack.push(None);
                continue;
            };
            match self.step(directory, &name) {
                Ok(Step::Link(target)) => {
                    links += 1;
                    if links > MAX_LINKS {
                        reached.on_volume = true;
                        reached.exists = false;
                        return reached;
                    }
                    if target.is_absolute() {
                        stack.truncate(1);
                        reached.real = PathBuf::from("/");
                    }
                    pending.extend(components(&target));
                }
                Ok(Step::Other(fd)) => {
                    reached.real.push(&name);
                    stack.push(Some(Rc::new(fd)));
                }
                // Mounted in the image's root before the container was created.
                Ok(Step::Mount) => {
                    reached.real.push(&name);
                    reached.on_volume |= !pending.is_empty();
                    reached.exists = pending.is_empty();
                    return reached;
                }
                Err(Errno::ENOENT) => {
                    reached.real.push(&name);
                    stack.push(None);
                }
                Err(_) => {
                    reached.on_volume = true;
                    reached.exists = false;
                    return reached;
                }
            }
        }
        reached.exists = stack.last().is_some_and(Option::is_some);
        reached
    }

    fn step(&self, directory: &OwnedFd, name: &OsStr) -> Result<Step, Errno> {
        let (fd, stat) = match lookup(directory, name) {
            Err(Errno::EXDEV) => return Ok(Step::Mount),
            found => found?,
        };
        match kind(&stat) {
            SFlag::S_IFLNK => readlinkat(&fd, "").map(|target| Step::Link(target.into())),
            // Without openat2(2).
            SFlag::S_IFDIR if stat.st_dev != self.device => Ok(Step::Mount),
            _ => Ok(Step::Other(fd)),
        }
    }
}

/// What a name is.
enum Step {
    Link(PathBuf),
    Mount,
    Other(OwnedFd),
}

/// Returns true if a name in a directory may be a link.
fn is_link(directory: &OwnedFd, name: &OsStr) -> bool {
    match lookup(directory, name) {
        Ok((_, stat)) => kind(&stat) == SFlag::S_IFLNK,
        Err(errno) => errno != Errno::ENOENT,
    }
}

/// Opens a name in a directory: `EXDEV` for a mount point.
fn lookup(directory: &OwnedFd, name: &OsStr) -> Result<(OwnedFd, FileStat), Errno> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_NO_XDEV);
    let fd = match openat2(directory, name, how) {
        Err(Errno::ENOSYS | Errno::EPERM) => openat(directory.as_fd(), name, flags, Mode::empty()),
        found => found,
    }?;
    let stat = fstat(&fd)?;
    Ok((fd, stat))
}

/// Returns the components of a path, the first one last.
fn components(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    parts.collect()
}

/// Returns true for the mount of a directory that others can share. Engines mount single files of /etc in every
/// container, and nothing can be created below one.
fn is_volume(mount: &Value, bundle: &Path) -> bool {
    let mut options = mount["options"].as_array().into_iter().flatten();
    let is_bind = options.any(|option| option == "bind" || option == "rbind");
    let kind = mount["type"].as_str().unwrap_or_default();
    if !is_bind && PRIVATE.contains(&kind) {
        return false;
    }
    let source = mount["source"].as_str().unwrap_or_default();
    let is_file = || {
        let found = std::fs::metadata(absolute(source, bundle));
        found.is_ok_and(|found| !found.is_dir())
    };
    !(is_bind || kind == "bind") || !is_file()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;

    /// A bundle with links, and these mount points of volumes.
    fn places(bundle: &Path, points: &[&str]) -> Places {
        let root = bundle.join("rootfs");
        for directory in ["usr/lib/arch", "usr/bin", "data/in", "opt"] {
            std::fs::create_dir_all(root.join(directory)).unwrap();
        }
        for (target, link) in [
            ("usr/lib", "lib"),
            ("/data/in", "opt/volume"),
            ("../../../data/file", "usr/lib/arch/out.so"),
            ("inner", "usr/lib/arch/here.so"),
            ("loop", "loop"),
        ] {
            let _ = symlink(target, root.join(link));
        }
        let mounts = points.iter().map(|point| {
            json!({"destination": point, "source": "/usr", "type": "bind", "options": ["rbind"]})
        });
        let mounts: Vec<_> = mounts.collect();
        let spec = json!({"root": {"path": "rootfs"}, "mounts": mounts});
        Places::of(&spec, bundle)
    }

    #[test]
    fn links_of_the_image_are_followed() {
        let bundle = tempfile::tempdir().unwrap();
        let table: &[(&[&str], &str, bool)] = &[
            (&["/usr"], "/usr/lib/arch/x.so", true),
            (&["/usr"], "/lib/arch/x.so", true),
            (&["/usr"], "/usr", false),
            (&["/usr"], "/opt/x.so", false),
            (&["/lib"], "/usr/lib/arch/x.so", true),
            (&["/lib"], "/lib/arch/x.so", true),
            (&["/lib"], "/usr/bin/x", false),
            (&["/lib/../lib/arch"], "/usr/lib/arch/x", true),
            (&["/data"], "/opt/volume/x", true),
            (&["/data"], "/opt/volume/new/x", true),
            (&["/data"], "/usr/lib/arch/out.so", true),
            (&["/data"], "/usr/lib/arch/here.so", false),
            (&["/data"], "/lib/arch/other.so", false),
            (&["/data/in"], "/usr/lib/arch/out.so", false),
            (&["/new/volume"], "/new/volume/x", true),
            (&["/new/volume"], "/new/other", false),
            (&["/data"], "/loop/x", true),
            (&[], "/usr/lib/arch/out.so", false),
        ];
        for (points, path, expected) in table {
            let mut places = places(bundle.path(), points);
            // The second answer comes from the first.
            for _ in 0..2 {
                let found = places.is_on_volume(Path::new(path));
                assert_eq!(found, *expected, "{points:?} {path}");
            }
            assert!(!places.is_doubtful, "{points:?}");
        }
    }

    #[test]
    fn links_are_not_followed_without_end() {
        let bundle = tempfile::tempdir().unwrap();
        let mut places = places(bundle.path(), &["/data"]);
        let opt = bundle.path().join("rootfs/opt");
        let there = |next: &str, times: usize| "../opt/".repeat(times) + next;
        for number in 0..9 {
            let target = there(&format!("{}", number + 1), 300);
            symlink(target, opt.join(number.to_string())).unwrap();
        }
        std::fs::create_dir(opt.join("9")).unwrap();
        // Fewer links than the kernel follows.
        assert!(places.is_on_volume(Path::new("/opt/0/x")));
        assert!(!places.exists(Path::new("/opt/0")));
        assert!(!places.is_on_volume(Path::new("/opt/5/x")));
        assert!(places.exists(Path::new("/opt/5")));
    }

    #[test]
    fn a_volume_below_another_one_is_doubtful() {
        let bundle = tempfile::tempdir().unwrap();
        assert!(places(bundle.path(), &["/data", "/data/in"]).is_doubtful);
        assert!(places(bundle.path(), &["/data", "/opt/volume/x"]).is_doubtful);
    }

    #[test]
    fn existing_files_are_found() {
        let bundle = tempfile::tempdir().unwrap();
        // The volume is the host's /usr.
        let places = places(bundle.path(), &["/data"]);
        for (path, expected) in [
            ("/lib/arch", true),
            ("/lib/arch/x", false),
            ("/opt/volume", false),
            ("/data/in", false),
            ("/data/bin/env", true),
        ] {
            assert_eq!(places.exists(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn volumes_are_directories_that_others_can_share() {
        let bundle = tempfile::tempdir().unwrap();
        std::fs::write(bundle.path().join("file"), "").unwrap();
        for (mount, expected) in [
            (json!({"type": "bind", "source": "."}), true),
            (json!({"type": "bind", "source": "/no/such/thing"}), true),
            (json!({"type": "bind", "source": "file"}), false),
            (
                json!({"type": "none", "options": ["ro", "rbind"], "source": "/"}),
                true,
            ),
            (
                json!({"type": "tmpfs", "options": ["bind"], "source": "/"}),
                true,
            ),
            (json!({"type": "tmpfs", "source": "tmpfs"}), false),
            (json!({"type": "proc", "source": "proc"}), false),
            (json!({"type": "nfs", "source": "server:/x"}), true),
            (json!({"type": "overlay", "source": "overlay"}), true),
        ] {
            assert_eq!(is_volume(&mount, bundle.path()), expected, "{mount}");
        }
    }
}
