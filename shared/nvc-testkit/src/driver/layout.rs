//! Applies what a machine's layout says to a driver root: files, links, removals.

use std::path::Path;
use std::{fs, io};

use super::libraries as package;
use super::native::{NATIVE, NATIVE_32};
use super::root::Driver;
use crate::compile::{Source, compiled};
use crate::elf::SharedObject;
use crate::files;
use crate::profile::layout::{Change, What};

/// Makes the changes in their order.
pub(super) fn apply(driver: &Driver) -> io::Result<()> {
    for change in &driver.profile.layout.changes {
        make(driver, change)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", change.path)))?;
    }
    Ok(())
}

fn make(driver: &Driver, change: &Change) -> io::Result<()> {
    let at = |path: &str| driver.path(driver.fill(path));
    let path = at(&change.path);
    match &change.what {
        What::File { text, mode } => files::file(&path, driver.fill(text), *mode),
        What::Library {
            soname,
            is_narrow,
            needs,
        } => {
            let machine = if *is_narrow { NATIVE_32.1 } else { NATIVE.1 };
            let version = &driver.profile.driver;
            let mut object = package::of_file(&path, version).map_or_else(
                || SharedObject::new(machine).needed("libc.so.6"),
                |library| library.object(machine, version),
            );
            if let Some(names) = needs {
                object = object.needing(names.iter().map(|name| driver.fill(name)).collect());
            }
            files::file(&path, object.soname(driver.fill(soname)).bytes(), 0o644)
        }
        What::Dxcore(store) => {
            let library = compiled(Source::Dxcore, &[format!("-DSTORE=L\"{store}\"")])?;
            files::file(&path, library.as_slice(), 0o644)
        }
        What::Link(to) => files::link(&path, &driver.fill(to)),
        What::Move(to) => {
            let to = at(to);
            files::directory(to.parent().unwrap_or(Path::new("/")))?;
            fs::rename(path, to)
        }
        // It was not made.
        What::Remove if !driver.left_out.is_empty() && change.path.starts_with("/dev/") => Ok(()),
        What::Remove if path.is_dir() => fs::remove_dir_all(path),
        What::Remove => fs::remove_file(path),
    }
}
