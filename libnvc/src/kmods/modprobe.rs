//! Loads a kernel module with the driver root's modprobe, unless it is loaded.

use std::cell::OnceCell;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use log::info;
use nix::errno::Errno;
use nix::sys::stat::{Mode, SFlag};

use crate::error::errno_text;
use crate::host::DriverRoot;
use crate::inroot;
use crate::kmods::pci::GpuCount;
use crate::path::HostPath;
use crate::sys;

const DEFAULT_PROGRAM: &str = "/sbin/modprobe";

/// How long loading a module may take: with many GPUs, half a minute.
const PATIENCE: Duration = Duration::from_secs(120);

/// The reason why a module is not loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotLoaded {
    #[error("not root")]
    NotRoot,
    #[error("no NVIDIA GPU on the PCI bus")]
    NoGpu,
    /// The program, and the system's reason why it cannot run.
    #[error("{}: {}", .0.display(), errno_text(*.1))]
    Program(PathBuf, Errno),
    #[error("{}: not a program", .0.display())]
    NoProgram(PathBuf),
    #[error("{}: {}", .0.display(), .1)]
    Run(PathBuf, io::Error),
    #[error("{}: it had no effect", .0.display())]
    NoEffect(PathBuf),
    #[error("{}: {}", .0.display(), .1)]
    Failed(PathBuf, ExitStatus),
}

/// The kernel's list of loaded modules, read when /sys/module does not have one.
#[derive(Debug, Default)]
pub(super) struct Modules(OnceCell<String>);

impl Modules {
    /// Ensures that a module is loaded; returns the reason if it cannot be.
    pub(super) fn ensure(
        &mut self,
        root: &DriverRoot,
        name: &str,
        gpus: &GpuCount,
    ) -> Result<(), NotLoaded> {
        if self.has(root, name) {
            return Ok(());
        }
        if !nix::unistd::geteuid().is_root() {
            return Err(NotLoaded::NotRoot);
        }
        // None means that sysfs is missing; then modprobe will report.
        if gpus.get() == Some(0) {
            return Err(NotLoaded::NoGpu);
        }
        let program = program(root)?;
        info!("loading kernel module {name}");
        let place = root.join(&HostPath::new(&program));
        // For the host's own root no chroot is needed, so processes that may load modules but not chroot can do this
        // too.
        let other = (root.path() != Path::new("/")).then(|| root.resolve(&HostPath::new("/")));
        let other = other
            .transpose()
            .map_err(|errno| NotLoaded::Program(place.clone(), errno))?;
        let other = other.as_ref().map(AsFd::as_fd);
        let status = sys::modprobe::run(other, &program, name, PATIENCE);
        let status = status.map_err(|error| NotLoaded::Run(place.clone(), error))?;
        *self = Self::default();
        // modprobe succeeds for a blacklisted module, and fails if another process was faster.
        if self.has(root, name) {
            Ok(())
        } else if status.success() {
            Err(NotLoaded::NoEffect(place))
        } else {
            Err(NotLoaded::Failed(place, status))
        }
    }

    fn has(&self, root: &DriverRoot, name: &str) -> bool {
        let name = name.replace('-', "_");
        let directory = HostPath::new("/sys/module").join(&name);
        root.exists(&directory) == Ok(true) || self.lists(root, &name)
    }

    fn lists(&self, root: &DriverRoot, name: &str) -> bool {
        let text = self.0.get_or_init(|| {
            let bytes = root.read(&HostPath::new("/proc/modules"));
            String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
        });
        let mut names = text.lines().map(|line| line.split(' ').next());
        names.any(|listed| listed == Some(name))
    }
}

/// Returns the kernel's modprobe path, resolved in the driver root.
fn program(root: &DriverRoot) -> Result<PathBuf, NotLoaded> {
    let configured = root.read(&HostPath::new("/proc/sys/kernel/modprobe"));
    let configured = String::from_utf8(configured.unwrap_or_default()).unwrap_or_default();
    let program = match configured.trim_end() {
        "" => DEFAULT_PROGRAM,
        path => path,
    };
    let path = HostPath::new(program);
    let failed = |errno| NotLoaded::Program(root.join(&path), errno);
    let fd = root.resolve(&path).map_err(failed)?;
    let stat = inroot::stat(fd.as_fd()).map_err(failed)?;
    let kind = inroot::kind(&stat);
    let mode = Mode::from_bits_truncate(stat.st_mode);
    if kind != SFlag::S_IFREG || !mode.contains(Mode::S_IXUSR) {
        return Err(NotLoaded::NoProgram(root.join(&path)));
    }
    Ok(path.as_path().to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn modules_by_whole_name() {
        let dir = tempfile::tempdir().unwrap();
        let root = DriverRoot::open(dir.path()).unwrap();
        assert!(!Modules::default().lists(&root, ""));
        let text = "nvidia_uvm 1 0 - Live 0x0\nnvidiafb 1 0 - Live 0x0\n";
        std::fs::create_dir_all(dir.path().join("proc")).unwrap();
        std::fs::write(dir.path().join("proc/modules"), text).unwrap();
        let modules = Modules::default();
        assert!(modules.lists(&root, "nvidia_uvm") && modules.has(&root, "nvidia-uvm"));
        assert!(!modules.lists(&root, "nvidia"));
        std::fs::create_dir_all(dir.path().join("sys/module/nvidia")).unwrap();
        assert!(modules.has(&root, "nvidia"));
    }

    #[test]
    fn the_kernel_names_the_program() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let root = DriverRoot::open(dir.path()).unwrap();
        let missing = dir.path().join("sbin/modprobe");
        let text = format!("{}: no such file or directory", missing.display());
        assert_eq!(program(&root).unwrap_err().to_string(), text);
        std::fs::create_dir_all(dir.path().join("proc/sys/kernel")).unwrap();
        std::fs::write(dir.path().join("proc/sys/kernel/modprobe"), "/mp\n").unwrap();
        std::fs::write(dir.path().join("mp"), "").unwrap();
        let error = program(&root).unwrap_err();
        assert!(matches!(error, NotLoaded::NoProgram(_)), "{error}");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path().join("mp"), executable).unwrap();
        assert_eq!(program(&root).unwrap(), Path::new("/mp"));
    }
}
