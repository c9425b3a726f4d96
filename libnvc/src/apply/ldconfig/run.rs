//! Runs ldconfig inside the container's root, in a sandbox.
//!
//! ldconfig reads every library of a hostile image and writes into it, with the privileges of the container's owner. It
//! is the host's program rather than the image's, protected from changes before any namespace is entered, so that
//! nothing it touches leads back to the host (CVE-2024-0135 to 0137, CVE-2025-23267). [`PreparedLdconfig::new`] does
//! all the work that can be done beforehand, [`PreparedLdconfig::start`] starts the program,
//! [`RunningLdconfig::finish`] waits for it; [`Snapshot`](super::Snapshot) restores what it changed.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag};
use nix::unistd::{pipe2, read};

use super::watch::Termination;
use super::{Folders, explain, filter, program, watch};
use crate::error::{Error, ErrorKind, Result, errno_of};
use crate::inroot::{self, RootDir};
use crate::ldcache::search_path;
use crate::options::Ldconfig;
use crate::path::ContainerPath;
use crate::sys::capabilities::shield;
use crate::sys::descriptors::above_streams;
use crate::sys::sandbox::{self, Sandbox, SandboxFailure, SandboxedProcess};
use crate::sys::seccomp::Instruction;

/// Default wall-clock limit of ldconfig; its CPU time is limited to ten seconds.
const DEADLINE: Duration = Duration::from_secs(30);

/// Everything that running ldconfig needs independently of the container.
#[derive(Debug)]
pub struct PreparedLdconfig {
    program: Program,
    /// The directories at the end of its command line.
    directories: Vec<CString>,
    /// For a hook, which default directories the image has: Debian's, or those of all others.
    multiarch: Option<bool>,
    filter: Vec<Instruction>,
    pivot: bool,
    deadline: Duration,
}

/// Limits of the program in a container.
#[derive(Clone, Copy, Debug)]
pub(in crate::apply) struct Bounds<'a> {
    /// User and group to change to.
    pub(in crate::apply) owner: (u32, u32),
    /// The container's user namespace, if it has one.
    pub(in crate::apply) user_namespace: Option<BorrowedFd<'a>>,
    /// True if it may write on mounts other than the root's.
    pub(in crate::apply) writes_volumes: bool,
    /// The calling thread's `/proc/thread-self/fd`.
    pub(in crate::apply) descriptors: BorrowedFd<'a>,
}

/// A started program, killed on drop.
#[derive(Debug)]
pub(in crate::apply) struct RunningLdconfig {
    process: SandboxedProcess,
    output: Option<OwnedFd>,
    report: OwnedFd,
    /// The program's path for messages.
    path: PathBuf,
    from_image: bool,
    deadline: Duration,
    until: Instant,
}

/// The program to run.
#[derive(Debug)]
pub(in crate::apply) enum Program {
    Host(program::SealedProgram),
    Image(ContainerPath),
}

impl Program {
    /// Opens, checks and copies the host's program. The image's own is left to [`PreparedLdconfig::start`].
    ///
    /// # Errors
    /// Kind [`ErrorKind::LdCache`]: `open failed: <path>: <cause>` as in upstream; the program is a script or
    /// dynamically linked; the system cannot create sealed copies.
    pub(in crate::apply) fn open(ldconfig: &Ldconfig) -> Result<Self> {
        Ok(match ldconfig {
            Ldconfig::Host(path) => {
                // A program that can be traced after its exec exposes the container's root to other containers.
                let unreadable = shield().is_none();
                Self::Host(program::seal(path, unreadable)?)
            }
            Ldconfig::Image(path) => Self::Image(path.clone()),
            // Only a plan for another container contains this: discovery found that a program must run.
            Ldconfig::Auto => {
                let text = "the container's ld.so.cache cannot be updated without a program";
                return Err(Error::new(ErrorKind::LdCache, text));
            }
        })
    }

    /// Opens the file to execute; returns None, after logging it, if the image does not have the program.
    fn executable(&self, rootfs: BorrowedFd<'_>) -> Result<Option<Executable<'_>>> {
        let path = match self {
            Self::Host(sealed) => return Ok(Some(Executable::Host(sealed))),
            Self::Image(path) => path,
        };
        let Some((file, path)) = image_program(rootfs, path)? else {
            // As in upstream: many images have none, and then nothing in them reads the cache.
            log::info!("not updating the ld.so.cache: the image has no {path}");
            return Ok(None);
        };
        log::warn!(
            "running the image's own {}; with @ before the path it would be the host's",
            path.display()
        );
        Ok(Some(Executable::Image(file, path)))
    }
}

/// The file to execute.
enum Executable<'p> {
    Host(&'p program::SealedProgram),
    Image(OwnedFd, PathBuf),
}

impl Executable<'_> {
    /// Returns the file and its path.
    fn parts(&self) -> (BorrowedFd<'_>, &Path) {
        match self {
            Self::Host(sealed) => (sealed.file.as_fd(), &sealed.path),
            Self::Image(file, path) => (file.as_fd(), path),
        }
    }
}

impl PreparedLdconfig {
    /// Opens the program, in the caller's namespaces and before anything is changed.
    ///
    /// # Errors
    /// Those of [`Program::open`].
    #[cfg(any(test, feature = "testing"))]
    pub fn open(
        ldconfig: &Ldconfig,
        directories: &[ContainerPath],
        no_pivot: bool,
    ) -> Result<Self> {
        Self::new(Program::open(ldconfig)?, directories, no_pivot)
    }

    /// Prepares to run a program with these directories on its command line.
    ///
    /// With `no_pivot` the sandbox's root is covered instead of exchanged, for roots on a ramdisk.
    pub(in crate::apply) fn new(
        program: Program,
        directories: &[ContainerPath],
        no_pivot: bool,
    ) -> Result<Self> {
        let directories = directories.iter().map(|path| text(path.as_path()));
        Ok(Self {
            program,
            directories: directories.collect::<Result<_>>()?,
            multiarch: None,
            filter: filter::compile()?,
            pivot: !no_pivot,
            deadline: DEADLINE,
        })
    }

    /// Makes it search some directories after those of its command line, and the image's defaults, for a hook.
    pub(in crate::apply) fn search(&mut self, folders: &Folders) -> Result<()> {
        for folder in &folders.first {
            self.directories.push(text(folder.as_path())?);
        }
        self.multiarch = Some(folders.is_multiarch);
        Ok(())
    }

    /// Changes the program's time limit.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Runs the program as this owner, and waits for it; it can write only on the root's own mount.
    ///
    /// # Errors
    /// Those of [`start`](Self::start) and `RunningLdconfig::finish`.
    #[cfg(any(test, feature = "testing"))]
    pub fn run(&self, rootfs: BorrowedFd<'_>, owner_uid: u32, owner_gid: u32) -> Result<()> {
        let descriptors = inroot::own_descriptors().map_err(cannot_start)?;
        let bounds = Bounds {
            owner: (owner_uid, owner_gid),
            user_namespace: None,
            writes_volumes: false,
            descriptors: descriptors.as_fd(),
        };
        let started = self.start(rootfs, bounds)?;
        started.map_or(Ok(()), RunningLdconfig::finish)
    }

    /// Starts the program in the container's root. Returns None if the program belongs to the image, and the image does
    /// not have it.
    ///
    /// Must be called by a thread that has entered the container's mount namespace, with a descriptor of the root
    /// opened there and with its own /proc. The thread must outlive the program, because the kernel kills the program
    /// when this thread ends.
    ///
    /// # Errors
    /// Kind [`ErrorKind::LdCache`]: the process could not be started.
    pub(in crate::apply) fn start(
        &self,
        rootfs: BorrowedFd<'_>,
        bounds: Bounds<'_>,
    ) -> Result<Option<RunningLdconfig>> {
        let Some(executable) = self.program.executable(rootfs)? else {
            return Ok(None);
        };
        let (program, path) = executable.parts();
        let from_image = matches!(executable, Executable::Image(..));
        let mut arguments = vec![text(path)?];
        let root = rootfs.try_clone_to_owned();
        let root = RootDir::from_fd(root.map_err(|e| cannot_start(errno_of(&e)))?);
        let configuration = self.configuration(&root, from_image);
        let options = options(&root, configuration.is_some())?;
        arguments.extend(options.iter().map(|&option| option.to_owned()));
        arguments.extend_from_slice(&self.directories);
        log::info!("executing {}", path.display());

        let input = nothing().map_err(cannot_start)?;
        let (output, output_end) = pipe().map_err(cannot_start)?;
        let (report, report_end) = pipe().map_err(cannot_start)?;
        let caller = stat_of_caller(bounds.descriptors).map_err(cannot_start)?;
        let moved_root = is_stream(rootfs).then(|| rootfs.try_clone_to_owned());
        let moved_root = moved_root.transpose();
        let moved_root = moved_root.map_err(|e| cannot_start(errno_of(&e)))?;
        let rootfs = moved_root.as_ref().map_or(rootfs, AsFd::as_fd);
        let process = sandbox::spawn(&Sandbox {
            rootfs,
            program,
            arguments: &arguments,
            input: input.as_fd(),
            output: output_end.as_fd(),
            report: report_end.as_fd(),
            caller: caller.as_fd(),
            configuration: configuration.as_deref(),
            filter: &self.filter,
            pivot: self.pivot,
            image_programs: from_image,
            owner: (bounds.owner.0 != 0).then_some(bounds.owner),
            user_namespace: bounds.user_namespace,
            writes_volumes: bounds.writes_volumes,
            descriptors: bounds.descriptors,
        })
        .map_err(cannot_start)?;
        Ok(Some(RunningLdconfig {
            process,
            output: Some(output),
            report,
            path: path.to_owned(),
            from_image,
            deadline: self.deadline,
            until: Instant::now() + self.deadline,
        }))
    }
}

impl PreparedLdconfig {
    /// Returns a configuration for the image's default directories: after those of its own configuration, as they are
    /// searched by the image's ldconfig. None if the program knows them, or if the sandbox has no place for a file.
    fn configuration(&self, root: &RootDir, from_image: bool) -> Option<Vec<u8>> {
        let is_multiarch = self.multiarch.filter(|_| !from_image)?;
        let dev = root.resolve_nofollow(Path::new("/dev")).ok()?;
        let stat = inroot::stat(dev.as_fd()).ok()?;
        if inroot::kind(&stat) != SFlag::S_IFDIR {
            return None;
        }
        let mut text = b"include /etc/ld.so.conf\n".to_vec();
        for directory in search_path::defaults(is_multiarch) {
            text.extend(directory.as_os_str().as_bytes());
            text.push(b'\n');
        }
        Some(text)
    }
}

impl RunningLdconfig {
    /// Waits until the program has ended.
    ///
    /// # Errors
    /// Kind [`ErrorKind::LdCache`]: upstream's `process <path> failed with error code: <n>` and `process <path>
    /// terminated with signal <n>`; `ldconfig's sandbox: <step>: <cause>` if it was not executed; a timeout.
    pub(in crate::apply) fn finish(mut self) -> Result<()> {
        let (ended, said) = watch::watch(&self.process, self.output.take(), self.until);
        for line in said.lines() {
            log::info!("ldconfig: {line}");
        }
        if said.left_out() > 0 {
            log::info!("ldconfig: {} more bytes", said.left_out());
        }
        let failure = match &ended {
            Termination::Exited(0) => return Ok(()),
            Termination::TimedOut => None,
            _ => read_failure(&self.report),
        };
        let path = self.path.as_path();
        Err(match failure {
            Some(failure) => explain::sandbox(failure, path, self.from_image),
            None => explain::end(ended, path, said.last(), self.deadline),
        })
    }
}

impl Drop for RunningLdconfig {
    fn drop(&mut self) {
        // Still set unless it was waited for.
        if self.output.is_some() {
            watch::end(&self.process);
        }
    }
}

/// Returns the image's own program; None if it is missing.
///
/// By reference only, and never read: exec determines its kind.
fn image_program(
    rootfs: BorrowedFd<'_>,
    path: &ContainerPath,
) -> Result<Option<(OwnedFd, PathBuf)>> {
    let failed = |errno| {
        let error = Error::file("open failed", path.as_path(), errno);
        error.with_kind(ErrorKind::LdCache)
    };
    let root = rootfs
        .try_clone_to_owned()
        .map_err(|e| failed(errno_of(&e)))?;
    let root = RootDir::from_fd(root);
    let path = Ldconfig::real(path.as_path(), |path| root.exists(path) != Ok(false));
    let file = match root.resolve(&path) {
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
        found => found.map_err(failed)?,
    };
    let stat = inroot::stat(file.as_fd()).map_err(failed)?;
    if inroot::kind(&stat) != SFlag::S_IFREG {
        return Err(program::not_a_file(&path));
    }
    Ok(Some((above_streams(file).map_err(failed)?, path)))
}

/// Returns the options of its command line: without an /etc there can be no cache, and only links are created. The
/// configuration is the sandbox's if it has one.
fn options(root: &RootDir, is_sandboxs: bool) -> Result<&'static [&'static CStr]> {
    if matches!(
        root.resolve_directory(Path::new("/etc")),
        Err(Errno::ENOENT)
    ) {
        log::info!("not updating the ld.so.cache: the image has no /etc");
        return Ok(&[c"-N"]);
    }
    if is_sandboxs {
        return Ok(&[c"-f", sandbox::CONFIGURATION, c"-C", c"/etc/ld.so.cache"]);
    }
    Ok(&[c"-f", c"/etc/ld.so.conf", c"-C", c"/etc/ld.so.cache"])
}

/// Reads the child's report of a failure before exec; None if the program was executed.
fn read_failure(report: &OwnedFd) -> Option<SandboxFailure> {
    // The child has closed its write end; another thread's child may hold a copy, which must not block this.
    if !watch::is_readable(report.as_fd()) {
        return None;
    }
    let mut bytes = [0; SandboxFailure::SIZE];
    // Written by one call, so it is complete or missing.
    let length = read(report, &mut bytes).ok()?;
    SandboxFailure::from_bytes(bytes.get(..length)?)
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    Ok((read, above_streams(write)?))
}

/// Returns an input at end of file: a pipe without a writer. Not /dev/null, which is a file of the host: its mode can
/// be changed through any descriptor of it.
fn nothing() -> Result<OwnedFd, Errno> {
    above_streams(pipe2(OFlag::O_CLOEXEC)?.0)
}

/// Opens the calling thread's `stat`, which lies beside its `fd` directory.
fn stat_of_caller(descriptors: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    above_streams(openat(descriptors, "../stat", flags, Mode::empty())?)
}

fn is_stream(fd: BorrowedFd<'_>) -> bool {
    fd.as_raw_fd() <= 2
}

fn text(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::file("invalid path", path, Errno::EINVAL).with_kind(ErrorKind::LdCache))
}

fn cannot_start(errno: Errno) -> Error {
    Error::system("process creation failed", errno).with_kind(ErrorKind::LdCache)
}
