//! Builds a hostile root: first an ordinary one, then its traps.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::{fs, thread};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, SFlag, fstatat, makedev, mkdirat, mknodat};
use rustix::fs::IFlags;

use super::{Layout, Link, Mounted, Root, Spot, Thing, is_file};
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
        let name = path.file_name().unwrap_or_default().to_owned();
        let parent = self.directory(path.parent().unwrap_or(Path::new("")))?;
        let here = |name: &std::ffi::OsStr| by_descriptor(&parent).join(name);
        let old = || -> io::Result<OwnedFd> {
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            Ok(nix::fcntl::openat(
                &parent,
                name.as_os_str(),
                flags,
                Mode::empty(),
            )?)
        };
        let aside = || -> io::Result<()> {
            let other = format!(".old-{number}");
            match fs::rename(here(&name), here(other.as_ref())) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                done => done,
            }
        };
        match &spot.thing {
            Thing::Nothing => aside(),
            Thing::Link(link) => {
                aside()?;
                let target = self.target(link, &path, &here("chain".as_ref()))?;
                symlink(target, here(&name))
            }
            Thing::File(mode) => {
                aside()?;
                fs::write(here(&name), "none of yours")?;
                fs::set_permissions(here(&name), fs::Permissions::from_mode(*mode))
            }
            Thing::Empty => {
                aside()?;
                fs::write(here(&name), "")
            }
            Thing::Directory(mode) => {
                if let Err(Errno::EEXIST) = mkdirat(&parent, name.as_os_str(), Mode::S_IRWXU) {
                    aside()?;
                    mkdirat(&parent, name.as_os_str(), Mode::S_IRWXU)?;
                }
                fs::set_permissions(here(&name), fs::Permissions::from_mode(*mode))
            }
            Thing::Fifo => {
                aside()?;
                Ok(nix::unistd::mkfifo(&here(&name), Mode::S_IRWXU)?)
            }
            Thing::Socket => {
                aside()?;
                UnixListener::bind(here(&name)).map(drop)
            }
            Thing::Device(character, major, minor) => {
                aside()?;
                let kind = if *character {
                    SFlag::S_IFCHR
                } else {
                    SFlag::S_IFBLK
                };
                let number = makedev(*major, *minor);
                Ok(mknodat(
                    &parent,
                    name.as_os_str(),
                    kind,
                    Mode::S_IRUSR,
                    number,
                )?)
            }
            Thing::Immutable => {
                let kind = fstatat(&parent, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?;
                let kind = SFlag::from_bits_truncate(kind.st_mode) & SFlag::S_IFMT;
                if kind != SFlag::S_IFREG && kind != SFlag::S_IFDIR {
                    return Ok(()); // nothing else can be opened safely
                }
                let file = fs::File::open(here(&name))?;
                let flags = rustix::fs::ioctl_getflags(&file)?;
                Ok(rustix::fs::ioctl_setflags(
                    &file,
                    flags | IFlags::IMMUTABLE,
                )?)
            }
            Thing::ReadOnly => {
                let old = by_descriptor(&old()?);
                mount(Some(&old), &old, NONE, MsFlags::MS_BIND, NONE)?;
                // The new mount is found by name; the descriptor stays below it.
                let new = here(&name);
                read_only(&new)
            }
            Thing::Overlay => {
                let lower = by_descriptor(&old()?);
                let layers = self.place.base.join(format!("layers-{number}"));
                for name in ["upper", "work"] {
                    files::directory(&layers.join(name))?;
                }
                overlay(&lower, &layers.join("upper"), &layers.join("work"), &lower)
            }
            Thing::Tmpfs(like_ours) => {
                let ours = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
                let flags = if *like_ours { ours } else { MsFlags::empty() };
                let at = by_descriptor(&old()?);
                Ok(mount(Some("tmpfs"), &at, Some("tmpfs"), flags, NONE)?)
            }
            Thing::Proc => {
                let at = by_descriptor(&old()?);
                let nothing = MsFlags::empty();
                Ok(mount(Some("proc"), &at, Some("proc"), nothing, NONE)?)
            }
            Thing::Bind(source) => {
                let source = self.resolve(Path::new(&self.place.driver.fill(source)))?;
                let (source, at) = (by_descriptor(&source), by_descriptor(&old()?));
                Ok(mount(Some(&source), &at, NONE, MsFlags::MS_BIND, NONE)?)
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
