//! Collects the GPUs of a Jetson from the file lists of its operating system, and a discrete one from the driver.

use std::io::ErrorKind as ErrorKindOfIo;
use std::path::{Path, PathBuf};

use libnvc::host::DriverRoot;
use libnvc::request::Request;
use libnvc::{Error, ErrorKind, Result};
use nvc_hostfile::system;

use crate::Find;
use crate::content::{Content, DeviceName, FoundDevice};
use crate::csv::{self, ChosenGpu, Driver, RequestedGpus, list};
use crate::devices::empty_device;
use crate::driver::nodes;

/// Directory of the lists.
const LISTS: &str = "/etc/nvidia-container-runtime/host-files-for-container.d";
const NAMES: [&str; 3] = ["devices.csv", "drivers.csv", "l4t.csv"];

pub(super) fn find(options: &Find, request: &Request) -> Result<Content> {
    if request.devices.ids.is_empty() {
        let error = Error::new(ErrorKind::InvalidArgument, "unsupported device id: none");
        return Err(error.hint("a Jetson's specification has at least one GPU"));
    }
    let driver = if !options.csv.no_compat || !options.csv.single_device {
        Driver::ask(&options.driver_root, &options.query)
    } else {
        Driver::unasked(&options.driver_root, &options.query)
    };
    with_driver(options, request, &driver)
}

/// Works like [`find`], with NVML's answers.
pub(super) fn with_driver(options: &Find, request: &Request, driver: &Driver) -> Result<Content> {
    let several = !options.csv.single_device;
    let wanted = RequestedGpus::of(request.devices.ids.clone());
    let choice = csv::choose(&wanted, driver.listing(), several).map_err(|refusal| {
        let text = format!("there is no device {}", refusal.id);
        Error::new(ErrorKind::InvalidArgument, text).hint(refusal.hint)
    })?;
    let tree = csv::Tree {
        root: DriverRoot::open(&options.driver_root)?,
        nodes: nodes(options),
        compat: if options.csv.no_compat {
            None
        } else {
            driver.compat(&options.csv.compat_root)
        },
    };
    let (entries, mut warnings) = entries(options)?;
    let found = csv::find(&tree, &entries, &choice, driver)?;
    warnings.extend(found.warnings);
    if warnings.is_empty() && found.devices.iter().any(|(_, found)| found.is_empty()) {
        let what = if entries.is_empty() {
            "anything"
        } else {
            "a node"
        };
        warnings.push(format!("no list names {what} of this machine"));
    }
    let device = |(chosen, intents): (ChosenGpu, _)| FoundDevice {
        name: DeviceName::Gpu(chosen.index().to_string(), chosen.uuid().map(String::from)),
        intents,
    };
    let mut devices: Vec<FoundDevice> = found.devices.into_iter().map(device).collect();
    if wanted == RequestedGpus::None {
        devices.push(empty_device());
    }
    Ok(Content {
        devices,
        common: found.common,
        warnings,
        ..Content::default()
    })
}

/// Reads the lists, without the links to ignore; warns about those that do not exist.
///
/// # Errors
/// One cannot be read, or none of those that were named exists.
fn entries(options: &Find) -> Result<(Vec<csv::Entry>, Vec<String>)> {
    let files: Vec<PathBuf> = match options.csv.files.as_slice() {
        [] => NAMES
            .iter()
            .map(|name| Path::new(LISTS).join(name))
            .filter(|path| path.exists())
            .collect(),
        given => given.to_vec(),
    };
    let (mut entries, mut missing) = (Vec::new(), Vec::new());
    for file in &files {
        let failed = |error| system("open failed", file, &error);
        match list::read(file) {
            Ok(read) => entries.extend(read),
            Err(error) if error.kind() == ErrorKindOfIo::NotFound => missing.push(failed(error)),
            Err(error) => return Err(failed(error)),
        }
    }
    if missing.len() == files.len()
        && let Some(error) = missing.pop()
    {
        return Err(error);
    }
    entries.retain(|entry| {
        !(entry.kind == csv::Kind::Link && is_ignored(&options.csv.ignore, &entry.path))
    });
    let warnings = missing.iter().map(Error::message);
    Ok((entries, warnings.collect()))
}

/// Returns true if a link matches a pattern: `**/X` compares the file name, any other pattern the whole path, of which
/// a wildcard matches no slash.
fn is_ignored(patterns: &[String], path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    patterns
        .iter()
        .any(|pattern| match pattern.strip_prefix("**/") {
            Some(pattern) => nvc_hostfile::programs::matches(pattern, name),
            None => {
                let mut parts = pattern.split('/').zip(path.split('/'));
                pattern.split('/').count() == path.split('/').count()
                    && parts.all(|(part, name)| nvc_hostfile::programs::matches(part, name))
            }
        })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::tests::options;
    use crate::{Csv, Mode, Naming, generate};

    /// Returns what a specification of a tree with two lists mounts and links.
    fn content(files: &[&str], ignored: &[&str]) -> Result<(Vec<String>, Vec<String>)> {
        content_of(&[], files, ignored)
    }

    fn content_of(
        ids: &[&str],
        files: &[&str],
        ignored: &[&str],
    ) -> Result<(Vec<String>, Vec<String>)> {
        let dir = crate::scratch();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("usr/lib/tegra")).unwrap();
        for name in ["liba.so.1", "libb.so.1"] {
            fs::write(at("usr/lib/tegra").join(name), "").unwrap();
            symlink(name, at("usr/lib/tegra").join(&name[..7])).unwrap();
        }
        for name in ["a", "b"] {
            let list = format!(
                "dev, /dev/null\nlib, /usr/lib/tegra/lib{name}.so.1\nsym, /usr/lib/tegra/lib{name}.so\n"
            );
            fs::write(at(&format!("{name}.csv")), list).unwrap();
        }
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let mut options = options(false);
        options.names.naming = vec![Naming::Index];
        options.find = Find {
            driver_root: dir.path().into(),
            ids: words(ids),
            csv: Csv {
                files: files.iter().map(|name| at(name)).collect(),
                ignore: words(ignored),
                ..Csv::default()
            },
            ..Find::new(Mode::Csv)
        };
        let made = generate(&options)?;
        let edits = made.spec.container_edits;
        let mounts = edits.mounts.into_iter().map(|mount| mount.container_path);
        let arguments = edits.hooks.into_iter().flat_map(|hook| hook.args);
        let links = arguments.filter(|word| word.contains("::"));
        Ok((mounts.collect(), links.collect()))
    }

    #[test]
    fn the_lists_can_be_chosen() {
        let (a, b) = ("/usr/lib/tegra/liba.so.1", "/usr/lib/tegra/libb.so.1");
        for (files, expected) in [
            (&["a.csv"][..], &[a][..]),
            (&["b.csv"], &[b]),
            (&["a.csv", "b.csv"], &[a, b]),
        ] {
            assert_eq!(content(files, &[]).unwrap().0, expected, "{files:?}");
        }
        assert_eq!(content(&["c.csv", "a.csv"], &[]).unwrap().0, [a]);
        let missing = content(&["c.csv"], &[]).unwrap_err().message();
        assert!(missing.starts_with("open failed: "), "{missing}");
        for ids in [&["none"][..], &["0", "none"]] {
            let refused = content_of(ids, &["a.csv"], &[]).unwrap_err().message();
            assert_eq!(refused, "unsupported device id: none", "{ids:?}");
        }
    }

    #[test]
    fn links_can_be_left_out() {
        let a = "liba.so.1::/usr/lib/tegra/liba.so";
        let b = "libb.so.1::/usr/lib/tegra/libb.so";
        for (ignored, expected) in [
            (&[][..], &[a, b][..]),
            (&["**/liba.so"], &[b]),
            (&["/usr/lib/tegra/libb.so"], &[a]),
            (&["**/lib?.so"], &[]),
            (&["/usr/*/tegra/lib[a].so"], &[b]),
            (
                &["/usr/lib/*.so", "/usr/*", "*", "/usr/**/liba.so/x"],
                &[a, b],
            ),
            (&["liba.so", "**/liba", "**/liba.so.1"], &[a, b]),
        ] {
            let (mounts, links) = content(&["a.csv", "b.csv"], ignored).unwrap();
            assert_eq!(links, expected, "{ignored:?}");
            assert_eq!(mounts.len(), 2, "{ignored:?}");
        }
    }
}
