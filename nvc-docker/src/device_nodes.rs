//! Names the device nodes for docker's command line, if they are the driver's devices.
//!
//! Docker takes a path and gives the container whatever is there. A container with the host's /dev and the right to make
//! nodes can put the host's disk or another GPU there, so each node is looked up before it is named. Docker looks it up
//! again, later: this check finds what is wrong, and does not prevent a change in between.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use libnvc::host::nodes::{CONTROL, UVM, UVM_TOOLS};
use libnvc::host::{CharDrivers, DeviceNumber};

use crate::failure::{Failure, Result};

/// Returns the nodes that all GPUs share, and those of the GPUs with these minor numbers.
///
/// # Errors
/// `missing device node: …`, `invalid device node: …`.
pub(crate) fn of_gpus(minors: impl IntoIterator<Item = u32>) -> Result<Vec<String>> {
    let drivers = CharDrivers::discover();
    let mut paths = Vec::new();
    for path in [CONTROL, UVM] {
        paths.push(required(path.to_owned(), &drivers)?);
    }
    if is_there(UVM_TOOLS, &drivers)? {
        paths.push(UVM_TOOLS.to_owned());
    }
    for minor in minors {
        paths.push(required(format!("/dev/nvidia{minor}"), &drivers)?);
    }
    Ok(paths)
}

fn required(path: String, drivers: &CharDrivers) -> Result<String> {
    match is_there(&path, drivers)? {
        true => Ok(path),
        false => Err(Failure::new(format!("missing device node: {path}"))
            .hint("load the driver, or run nvidia-modprobe -u -c=0")),
    }
}

/// Returns false if there is no such node. Links are followed, because docker follows them.
fn is_there(path: &str, drivers: &CharDrivers) -> Result<bool> {
    let facts = match Path::new(path).metadata() {
        Ok(facts) => facts,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(Failure::new(format!("{path}: {error}"))),
    };
    let (kind, number) = (facts.file_type(), DeviceNumber::from_rdev(facts.rdev()));
    let checked = match () {
        () if kind.is_char_device() => drivers.check(path, number),
        () if kind.is_block_device() => Err(format!(
            "is the block device {number}, and should be a character device"
        )),
        () => Err("is not a character device".to_owned()),
    };
    match checked {
        Ok(()) => Ok(true),
        Err(why) => Err(Failure::new(format!("invalid device node: {path} {why}"))
            .hint("remove it and load the driver again")),
    }
}
