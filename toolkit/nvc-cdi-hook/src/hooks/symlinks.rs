//! Creates symlinks; replaces existing files, but not directories.

use std::collections::HashSet;
use std::path::Path;

use crate::arguments::Given;
use crate::report::Report;
use crate::root::{Place, Root};
use crate::{Failure, Result};

pub(super) fn run(given: &Given, root: &Root, report: &mut Report) -> Result<()> {
    let pairs = pairs(given)?;
    let mut seen = HashSet::new();
    for (target, link) in pairs {
        if !seen.insert((target, link)) {
            continue;
        }
        report.step(&format!("linking {link} to {target}"));
        let mut path = Path::new("/").join(link);
        // A trailing slash asks for a directory, and the link goes into it by the same name.
        if let (true, Some(name)) = (link.ends_with('/'), path.file_name()) {
            path = path.join(name);
        }
        let made = root.place(&path, 0o755).and_then(|place| {
            let made = place.link(target);
            made.map_err(|errno| root.failure("symlink failed", &path, errno))
        });
        match made {
            Err(failure) if failure.is_closed => report.warning(&failure.to_string()),
            made => made?,
        }
    }
    Ok(())
}

/// Replaces an existing file or another link by a link. Does nothing if nothing exists there, or a directory.
pub(super) fn replace(root: &Root, target: &str, path: &Path) -> Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    let Some(directory) = root.find(parent)? else {
        return Ok(());
    };
    let name = name.to_owned();
    let place = Place { directory, name };
    if !place.is_taken() || place.leads_to(target) {
        return Ok(());
    }
    let Place { directory, name } = place;
    let directory = root.own(parent, directory)?;
    let made = Place { directory, name }.link(target);
    made.map_err(|errno| root.failure("symlink failed", path, errno))
}

/// Returns the requested links: target and link.
pub(super) fn pairs(given: &Given) -> Result<Vec<(&str, &str)>> {
    given.list("link").map(parse).collect()
}

/// Splits `TARGET::LINK`.
fn parse(word: &str) -> Result<(&str, &str)> {
    let invalid = || Failure::new(format!("invalid symlink specification {word}"));
    let (target, link) = word.split_once("::").ok_or_else(invalid)?;
    if target.is_empty() || link.is_empty() || link.contains("::") {
        return Err(invalid());
    }
    Ok((target, link))
}
