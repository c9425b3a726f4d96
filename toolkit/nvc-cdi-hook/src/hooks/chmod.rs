//! Changes permissions; symlinks are followed only inside the container's root.

use std::path::Path;

use rustix::fs::{Mode, fstat};
use rustix::io::Errno;

use crate::arguments::Given;
use crate::report::Report;
use crate::root::{Root, own_name};
use crate::{Failure, Result};
use std::os::fd::AsFd;

pub(super) fn run(given: &Given, root: &Root, report: &mut Report) -> Result<()> {
    let word = given
        .text("mode")
        .ok_or_else(|| Failure::new("--mode is missing"))?;
    let mode =
        u32::from_str_radix(word, 8).map_err(|_| Failure::new(format!("invalid --mode {word}")))?;
    let mode = mode & 0o777;
    if given.list("path").any(str::is_empty) {
        return Err(Failure::new("--path is empty"));
    }
    for path in given.list("path") {
        let path = Path::new("/").join(path);
        let Some(found) = root.find(&path)? else {
            report.step(&format!("{} is missing", path.display()));
            continue;
        };
        let failed = |errno| root.failure("chmod failed", &path, errno);
        if fstat(&found).map_err(failed)?.st_mode & 0o777 == mode {
            continue;
        }
        // A mounted device node belongs to the host.
        let found = match root.own(&path, found) {
            Ok(found) => found,
            Err(failure) => {
                report.warning(&failure.to_string());
                continue;
            }
        };
        match rustix::fs::chmod(own_name(found.as_fd()), Mode::from_raw_mode(mode)) {
            Ok(()) => {}
            Err(Errno::PERM | Errno::ACCESS) => {
                report.step(&format!("{} belongs to another user", path.display()));
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
    Ok(())
}
