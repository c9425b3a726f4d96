//! Examines the container for facts that an intent leaves open: its devices, its compatibility library, and the work of
//! earlier hooks.
//!
//! Reads only, before the first effect. Everything below the container's root is the image's.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use crate::apply::replace::NewFile;
use crate::apply::steps::{Action, TmpfsFile, of_proc};
use crate::container::Container;
use crate::error::{Error, ErrorKind, Result};
use crate::host::{DriverRoot, nvcaps, procfs};
use crate::inroot::{self, Image, RootDir};
use crate::path::{ContainerPath, HostPath};
use crate::plan::{CudaCompat, profile};

mod compat;
mod devices;

use devices::OwnDevices;
pub(super) use devices::is_gpu_name;

/// The file in which the directory of compatibility libraries is configured. It sorts before all others.
const CONFIGURATION: &str = "/etc/ld.so.conf.d/00-compat-nvidia.conf";

/// Limit of GPUs in the file with the application profile, the same as upstream's.
const MAX_GPUS: u32 = 64;

/// A container before anything is changed.
#[derive(Clone, Copy)]
pub(super) struct ContainerView<'a> {
    container: &'a Container,
    /// The driver root.
    host: &'a DriverRoot,
}

impl<'a> ContainerView<'a> {
    pub(super) fn new(container: &'a Container, host: &'a DriverRoot) -> Self {
        Self { container, host }
    }

    fn root(&self) -> &'a RootDir {
        self.container.process.root()
    }

    fn failed(&self, operation: &str, path: &Path, errno: Errno) -> Error {
        let place = ContainerPath::new(path).below(self.container.rootfs());
        Error::file(operation, place, errno)
    }

    /// Opens a path by reference; None if it does not exist.
    fn find(&self, path: &Path) -> Result<Option<OwnedFd>> {
        match self.root().resolve(path) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            found => found
                .map(Some)
                .map_err(|errno| self.failed("open failed", path, errno)),
        }
    }

    /// Opens a directory for listing; None if it does not exist.
    fn directory(&self, path: &Path) -> Result<Option<OwnedFd>> {
        match self
            .root()
            .resolve_directory(path)
            .and_then(inroot::open_to_list)
        {
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            found => found
                .map(Some)
                .map_err(|errno| self.failed("open failed", path, errno)),
        }
    }

    /// Returns the mount of a `params` that forbids programs to create nodes. None if the driver's already forbids
    /// that, or if the container's is not the driver's.
    pub(super) fn params(&self) -> Result<Option<Action>> {
        let Some(params) = procfs::container_params(self.host)? else {
            log::info!("the driver does not let programs create device nodes");
            return Ok(None);
        };
        let path = HostPath::new(procfs::DIRECTORY).join(&params.name);
        Ok(self.is_drivers(&path)?.then(|| Action::CoverFile {
            at: ContainerPath::from(&path),
            file: TmpfsFile::from(params),
        }))
    }

    /// Returns the mounts that hide GPUs and capabilities of which the container has no nodes.
    pub(super) fn devices(&self) -> Result<Vec<Action>> {
        let own = OwnDevices::of(self.container, self.host)?;
        let mut actions = Vec::new();
        for (directory, entries, shown) in [
            ("gpus", gpu_minors(self.host), &own.gpus),
            ("capabilities", nvcaps::files(self.host), &own.capabilities),
        ] {
            let directory = HostPath::new(procfs::DIRECTORY).join(directory);
            let is_shown = |minor: &Option<u32>| minor.is_some_and(|minor| shown.contains(&minor));
            if entries.iter().all(|(_, minor)| is_shown(minor)) || !self.is_drivers(&directory)? {
                continue;
            }
            actions.push(Action::MountTmpfs {
                at: ContainerPath::from(&directory),
                mode: 0o555,
                files: Vec::new(),
            });
            let shown = entries.iter().filter(|(_, minor)| is_shown(minor));
            actions.extend(shown.map(|(path, _)| of_proc(path)));
            // A read-only container must not get a directory that it can fill.
            let at = ContainerPath::from(&directory);
            actions.push(Action::Seal { at });
        }
        Ok(actions)
    }

    /// Returns the application profile for the GPUs that have nodes, if any.
    pub(super) fn profile(&self, warnings: &mut Vec<Error>) -> Result<Option<Action>> {
        let mut minors: BTreeSet<u32> = match self.directory(Path::new("/dev"))? {
            None => return Ok(None),
            Some(directory) => devices::nodes(directory.as_fd())
                .map_err(|errno| self.failed("reading failed", Path::new("/dev"), errno))?
                .into_iter()
                .filter(|node| devices::is_gpu_name(&node.name))
                .map(|node| node.number.minor)
                .collect(),
        };
        // One warning: the image can have any number of nodes.
        let beyond = minors.split_off(&MAX_GPUS);
        if let Some(first) = beyond.first() {
            let text = "devices are not in the application profile";
            let cause = format!(
                "it has {MAX_GPUS}; {} more, from minor number {first}",
                beyond.len()
            );
            warnings.push(Error::new(ErrorKind::Malformed, text).because(cause));
        }
        let minors: Vec<u32> = minors.into_iter().collect();
        Ok((!minors.is_empty()).then(|| Action::WriteFile {
            directory: ContainerPath::new(profile::DIRECTORY),
            file: NewFile {
                name: profile::FILE.into(),
                content: profile::compact(&profile::mask(&minors)).into_bytes(),
                mode: 0o444,
                above: 0o555,
            },
        }))
    }

    /// Returns the loader's configuration for compatibility libraries, and their directory, if they should be used.
    pub(super) fn compat(
        &self,
        compat: &CudaCompat,
        warnings: &mut Vec<Error>,
    ) -> Result<Option<(Action, ContainerPath)>> {
        let directory = match &compat.root {
            Some(root) => root.clone(),
            None => self.container.image.layout.cudart_dir.join("compat"),
        };
        let Some(library) = compat::library(self, &directory, warnings)? else {
            return Ok(None);
        };
        let is_wanted = compat.configures(&library).unwrap_or_else(|error| {
            warnings.push(error);
            false
        });
        if !is_wanted {
            log::info!("the driver is as new as {}", library.version);
            return Ok(None);
        }
        let mut content = library.directory.as_path().as_os_str().as_bytes().to_vec();
        // It would add another line.
        if content.contains(&b'\n') {
            return Ok(None);
        }
        content.push(b'\n');
        let path = ContainerPath::new(CONFIGURATION);
        let action = Action::WriteFile {
            directory: path.parent(),
            file: NewFile {
                name: path.file_name().to_string_lossy().into_owned(),
                content,
                mode: 0o644,
                above: 0o755,
            },
        };
        Ok(Some((action, library.directory)))
    }

    /// Returns the directories of compatibility libraries that a hook, ours or upstream's, has configured.
    pub(super) fn configured(&self) -> Vec<ContainerPath> {
        compat::configured(self)
    }

    /// Returns true if a file of the container is the driver's own: on procfs, or the same as the host's. Otherwise
    /// another program has put it there, and it stays.
    fn is_drivers(&self, path: &HostPath) -> Result<bool> {
        let Some(found) = self.find(path.as_path())? else {
            return Ok(false);
        };
        let failed = |errno| self.failed("stat failed", path.as_path(), errno);
        let own = inroot::identity_of(&found).map_err(failed)?;
        let host = self.host.resolve(path).and_then(inroot::identity_of);
        let is_same = host == Ok(own);
        let kind = fstatfs(&found).map_err(failed)?.filesystem_type();
        let is_drivers = kind == PROC_SUPER_MAGIC || is_same;
        if !is_drivers {
            log::info!("{path} is not the driver's: it stays");
        }
        Ok(is_drivers)
    }

    /// Returns the container's root with this thread's descriptors.
    fn with_image<T>(&self, read: impl FnOnce(Image<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
        let descriptors = inroot::own_descriptors()?;
        read(Image {
            root: self.root(),
            descriptors: descriptors.as_fd(),
        })
    }
}

/// Returns the directories of all GPUs with their minor numbers, as far as the kernel module lists them.
fn gpu_minors(host: &DriverRoot) -> Vec<(HostPath, Option<u32>)> {
    let directory = HostPath::new(procfs::DIRECTORY).join("gpus");
    let gpus = procfs::gpus(host).into_iter();
    gpus.map(|gpu| (directory.join(gpu.busid), gpu.minor))
        .collect()
}
