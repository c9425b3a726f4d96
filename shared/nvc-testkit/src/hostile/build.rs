//! Builds a hostile root: first an ordinary one, then its traps.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::{fs, thread};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, SFlag, fstatat, makedev, mkdirat, mknodat};
use rustix::fs::IFlags;

use super::{Layout, Link, Mounted, Root, Spot, Thing, deepest_below, is_file};
use crate::driver::{Driver, NATIVE};
use crate::elf::SharedObject;
use crate::files;

const NONE: Option<&str> = None;

/// Environment for building roots.
#[derive(Debug)]
pub struct Place<'a> {
    /// A directory for all mounts, the same for every root.
    pub base: &'a Path,
    /// The target of escaping links: a tree laid out like a root.
    pub canary: &'a Path,
    /// A process in the mount namespace.
    pub pid: u32,
    /// The driver whose files go into the root.
    pub driver: &'a Driver,
}

/// Builds a root in the mount namespace of the calling thread; returns its path. Unmounting the base removes all of it.
///
/// A trap that cannot be created because another one blocks it is skipped.
///
/// # Errors
/// The ordinary part cannot be created.
pub fn build(root: &Root, place: &Place<'_>) -> io::Result<PathBuf> {
    mount(
        Some("tmpfs"),
        place.base,
        Some("tmpfs"),
        MsFlags::empty(),
        NONE,
    )?;
    let path = place.base.join("root");
    let below = match root.mounted {
        Mounted::Overlay => place.base.join("lower"),
        _ => path.clone(),
    };
    ordinary(&below, root.layout, place.driver)?;
    if root.mounted == Mounted::Overlay {
        for name in ["upper", "work", "root"] {
            fs::create_dir(place.base.join(name))?;
        }
        overlay(
            &below,
            &place.base.join("upper"),
            &place.base.join("work"),
            &path,
        )?;
    } else {
        mount(Some(&path), &path, NONE, MsFlags::MS_BIND, NONE)?;
    }
    runtime(&path)?;
    let opened = fs::File::open(&path)?;
    let builder = Builder {
        root: opened.as_fd().try_clone_to_owned()?,
        place,
    };
    for (number, spot) in root.spots.iter().enumerate() {
        // Another trap may block it.
        let _ = builder.spoil(spot, number);
    }
    match root.mounted {
        Mounted::Shared => mount(NONE, &path, NONE, MsFlags::MS_SHARED, NONE)?,
        Mounted::ReadOnly => read_only(&path)?,
        _ => {}
    }
    Ok(path)
}

/// Creates the part of an image with this layout that `configure` examines.
fn ordinary(root: &Path, layout: Layout, driver: &Driver) -> io::Result<()> {
    for name in [
        "proc", "sys", "dev", "tmp", "run", "etc", "usr/bin", "usr/lib",
    ] {
        files::directory(&root.join(name))?;
    }
    if layout == Layout::Bare {
        return Ok(());
    }
    for name in ["bin", "sbin", "lib"] {
        let target = if name == "sbin" {
            "usr/bin".into()
        } else {
            format!("usr/{name}")
        };
        symlink(target, root.join(name))?;
    }
    let libraries = match layout {
        Layout::Debian => driver.fill("LIB"),
        _ => "usr/lib64".into(),
    };
    files::directory(&root.join(&libraries))?;
    for name in ["var/cache/ldconfig", "etc/ld.so.conf.d"] {
        files::directory(&root.join(name))?;
    }
    symlink("/run", root.join("var/run"))?;
    let file = |path: &str, text: &str| fs::write(root.join(path), text);
    if layout == Layout::Debian {
        file("etc/debian_version", "1\n")?;
    }
    file("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")?;
    file("etc/ld.so.conf.d/image.conf", &format!("/{libraries}\n"))?;
    file("etc/ld.so.cache", "the image's cache")?;
    library(&root.join(&libraries), "libimage.so.1", "libimage.so.1.2")?;
    let compat = root.join("usr/local/cuda-12.9/compat");
    files::directory(&compat)?;
    symlink("cuda-12.9", root.join("usr/local/cuda"))?;
    library(&compat, "libcuda.so.1", "libcuda.so.999.1")?;
    symlink("libcuda.so.999.1", compat.join("libcuda.so.1"))
}

/// Writes a library.
fn library(directory: &Path, soname: &str, file: &str) -> io::Result<()> {
    let object = SharedObject::new(NATIVE.1).soname(soname);
    fs::write(directory.join(file), object.bytes())
}

/// Mounts a runtime's filesystems.
fn runtime(root: &Path) -> io::Result<()> {
    let at = |name: &str| root.join(name);
    let nothing = MsFlags::empty();
    mount(Some("proc"), &at("proc"), Some("proc"), nothing, NONE)?;
    let driver = at("proc/driver");
    mount(Some("tmpfs"), &driver, Some("tmpfs"), nothing, NONE)?;
    fs::create_dir(driver.join("nvidia"))?;
    mount(Some("tmpfs"), &at("dev"), Some("tmpfs"), nothing, NONE)?;
    symlink("/proc/self/fd", at("dev/fd"))
}

struct Builder<'a> {
    root: OwnedFd,
    place: &'a Place<'a>,
}

impl Builder<'_> {
    /// Creates one trap.
    fn spoil(&self, spot: &Spot, number: usize) -> io::Result<()> {
        let path = PathBuf::from(self.place.driver.fill(spot.path));
        let at = At {
            parent: self.directory(path.parent().unwrap_or(Path::new("")))?,
            name: path.file_name().unwrap_or_default().to_owned(),
            number,
        };
        match &spot.thing {
            Thing::Nothing => at.aside(),
            Thing::Link(link) => {
                let here = at.aside_for()?;
                symlink(
                    self.target(link, &path, &here.with_file_name("chain"))?,
                    here,
                )
            }
            Thing::File(mode) => {
                let here = at.aside_for()?;
                fs::write(&here, "none of yours")?;
                fs::set_permissions(here, fs::Permissions::from_mode(*mode))
            }
            Thing::Empty => fs::write(at.aside_for()?, ""),
            Thing::Directory(mode) => at.directory(*mode),
            Thing::Fifo => Ok(nix::unistd::mkfifo(&at.aside_for()?, Mode::S_IRWXU)?),
            Thing::Socket => UnixListener::bind(at.aside_for()?).map(drop),
            Thing::Device(true, major, minor) => at.device(SFlag::S_IFCHR, *major, *minor),
            Thing::Device(false, major, minor) => at.device(SFlag::S_IFBLK, *major, *minor),
            Thing::Immutable => at.immutable(),
            Thing::ReadOnly => {
                let old = by_descriptor(&at.old()?);
                mount(Some(&old), &old, NONE, MsFlags::MS_BIND, NONE)?;
                // The new mount is found by name; the descriptor stays below it.
                read_only(&at.here())
            }
            Thing::Overlay => {
                let lower = by_descriptor(&at.old()?);
                let layers = self.place.base.join(format!("layers-{number}"));
                for name in ["upper", "work"] {
                    files::directory(&layers.join(name))?;
                }
                overlay(&lower, &layers.join("upper"), &layers.join("work"), &lower)
            }
            Thing::Tmpfs(like_ours) => {
                let ours = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
                at.filesystem("tmpfs", if *like_ours { ours } else { MsFlags::empty() })
            }
            Thing::Proc => at.filesystem("proc", MsFlags::empty()),
            Thing::Bind(source) => {
                let source = self.resolve(Path::new(&self.place.driver.fill(source)))?;
                let (source, old) = (by_descriptor(&source), by_descriptor(&at.old()?));
                Ok(mount(Some(&source), &old, NONE, MsFlags::MS_BIND, NONE)?)
            }
        }
    }

    /// Returns the target of a link at `path`.
    fn target(&self, link: &Link, path: &Path, chain: &Path) -> io::Result<PathBuf> {
        let inside = |path: &str| Path::new("/").join(self.place.driver.fill(path));
        let canary = self.place.canary;
        let relative = |path: &Path| {
            let climb = "../".repeat(30);
            Path::new(&climb).join(path.strip_prefix("/").unwrap_or(path))
        };
        Ok(match link {
            Link::Canary => canary.join(path),
            Link::Climbing => relative(&canary.join(path)),
            Link::Magic(magic) => {
                let magic = magic.replace("PID", &self.place.pid.to_string());
                files::below(Path::new(&magic), &canary.join(path))
            }
            Link::Descriptor(number) => format!("/proc/self/fd/{number}").into(),
            Link::CanaryTop => canary.to_owned(),
            Link::Loop => path.file_name().unwrap_or_default().into(),
            Link::Chain => {
                for number in 0..45 {
                    let next = format!("chain{}", number + 1);
                    let link = chain.with_file_name(format!("chain{number}"));
                    // Another trap may have created one.
                    let _ = symlink(next, link);
                }
                "chain0".into()
            }
            Link::Dangling => "/nowhere/at/all".into(),
            Link::Absolute(path) => inside(path),
            Link::Relative(path) => relative(&inside(path)),
            Link::Detour(to) => {
                let to = PathBuf::from(self.place.driver.fill(to));
                let detour = deepest_below(path).join("detour");
                self.directory(&to.join(&detour))?;
                let back = "../".repeat(detour.components().count());
                Path::new("/").join(to).join(detour).join(back)
            }
        })
    }

    /// Opens a directory of the root; creates it if missing.
    fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.resolve(path) {
            Err(Errno::ENOENT) => {
                let (parent, name) = (path.parent(), path.file_name());
                let (Some(parent), Some(name)) = (parent, name) else {
                    return Err(Errno::ENOENT.into());
                };
                let parent = self.directory(parent)?;
                mkdirat(&parent, name, Mode::from_bits_truncate(0o755))?;
                Ok(self.resolve(path)?)
            }
            found => Ok(found?),
        }
    }

    fn resolve(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        loop {
            match openat2(&self.root, path, how) {
                Err(Errno::EAGAIN) => thread::yield_now(),
                done => return done,
            }
        }
    }
}

/// The place of a trap.
struct At {
    parent: OwnedFd,
    name: OsString,
    /// Gives an existing object in the way a unique new name.
    number: usize,
}

impl At {
    fn here(&self) -> PathBuf {
        by_descriptor(&self.parent).join(&self.name)
    }

    /// Opens the existing object.
    fn old(&self) -> io::Result<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let name = self.name.as_os_str();
        Ok(openat(&self.parent, name, flags, Mode::empty())?)
    }

    /// Renames the existing object.
    fn aside(&self) -> io::Result<()> {
        let here = self.here();
        let other = here.with_file_name(format!(".old-{}", self.number));
        match fs::rename(here, other) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// Renames the existing object; returns the path for a new one.
    fn aside_for(&self) -> io::Result<PathBuf> {
        self.aside()?;
        Ok(self.here())
    }

    fn directory(&self, mode: u32) -> io::Result<()> {
        let name = self.name.as_os_str();
        if let Err(Errno::EEXIST) = mkdirat(&self.parent, name, Mode::S_IRWXU) {
            self.aside()?;
            mkdirat(&self.parent, name, Mode::S_IRWXU)?;
        }
        fs::set_permissions(self.here(), fs::Permissions::from_mode(mode))
    }

    fn device(&self, kind: SFlag, major: u64, minor: u64) -> io::Result<()> {
        self.aside()?;
        let name = self.name.as_os_str();
        let number = makedev(major, minor);
        Ok(mknodat(&self.parent, name, kind, Mode::S_IRUSR, number)?)
    }

    fn immutable(&self) -> io::Result<()> {
        let name = self.name.as_os_str();
        let found = fstatat(&self.parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        let kind = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT;
        if kind != SFlag::S_IFREG && kind != SFlag::S_IFDIR {
            return Ok(()); // nothing else can be opened safely
        }
        let file = fs::File::open(self.here())?;
        let flags = rustix::fs::ioctl_getflags(&file)? | IFlags::IMMUTABLE;
        Ok(rustix::fs::ioctl_setflags(&file, flags)?)
    }

    /// Mounts a new filesystem.
    fn filesystem(&self, kind: &str, flags: MsFlags) -> io::Result<()> {
        let old = by_descriptor(&self.old()?);
        Ok(mount(Some(kind), &old, Some(kind), flags, NONE)?)
    }
}

fn by_descriptor(fd: &OwnedFd) -> PathBuf {
    format!("/proc/thread-self/fd/{}", fd.as_raw_fd()).into()
}

fn read_only(at: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    Ok(mount(NONE, at, NONE, flags, NONE)?)
}

fn overlay(lower: &Path, upper: &Path, work: &Path, at: &Path) -> io::Result<()> {
    let [lower, upper, work] = [lower, upper, work].map(Path::display);
    let data = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let overlay = Some("overlay");
    Ok(mount(
        overlay,
        at,
        overlay,
        MsFlags::empty(),
        Some(data.as_str()),
    )?)
}

/// Fills a canary: a directory laid out like a root, in which a link followed on the host would find its target.
///
/// # Errors
/// A file cannot be created.
pub fn canary(at: &Path, driver: &Driver) -> io::Result<()> {
    for path in super::PATHS {
        let path = at.join(driver.fill(path));
        let is_file = is_file(&path);
        if is_file && !path.exists() {
            files::file(&path, "precious", 0o644)?;
        } else if !is_file {
            files::directory(&path)?;
        }
    }
    for directory in ["LIB", "usr/lib64", "usr/lib", "usr/local/cuda/compat"] {
        let directory = at.join(driver.fill(directory));
        library(&directory, "libcanary.so.1", "libcanary.so.1.0")?;
        library(&directory, "libcuda.so.1", "libcuda.so.998.1")?;
    }
    files::file(&at.join("precious"), "precious", 0o600)
}
