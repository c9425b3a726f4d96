//! Creates the driver's control nodes; existing ones stay unchanged.

use std::path::Path;

use libnvc::{Error, Result};
use log::info;
use nix::errno::Errno;
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmodat, makedev, mknod};

use super::{CONTROL, Majors, load_modules};
use crate::line::CommandLine;

pub(in crate::commands) fn run(line: &CommandLine) -> Result<()> {
    let (root, dry_run) = (line.text("root"), line.flag("dry-run"));
    if line.flag("load-kernel-modules") {
        load_modules(root, dry_run)?;
    }
    if line.flag("control-devices") {
        let dev_root = line
            .given("dev-root")
            .filter(|root| !root.is_empty())
            .unwrap_or(root);
        control_nodes(Path::new(dev_root), dry_run)?;
    }
    Ok(())
}

/// Creates the control nodes below `<root>/dev`.
pub(super) fn control_nodes(root: &Path, dry_run: bool) -> Result<()> {
    let majors = Majors::read()?;
    for (name, driver, minor) in CONTROL {
        let path = root.join("dev").join(name);
        let major = majors.get(driver)?;
        if dry_run {
            info!("mknod --mode=0666 {} c {major} {minor}", path.display());
            continue;
        }
        match mknod(&path, SFlag::S_IFCHR, Mode::empty(), makedev(major, minor)) {
            Ok(()) => {}
            // A dangling link is not a node, and prevents its creation.
            Err(Errno::EEXIST) if path.exists() => continue,
            Err(errno) => return Err(Error::file("mknod failed", &path, errno)),
        }
        let mode = Mode::from_bits_truncate(0o666);
        fchmodat(
            nix::fcntl::AT_FDCWD,
            &path,
            mode,
            FchmodatFlags::FollowSymlink,
        )
        .map_err(|errno| Error::file("chmod failed", &path, errno))?;
    }
    Ok(())
}
