//! Collects the GPUs of a Jetson from the file lists of its operating system, and a discrete one from the driver.

use std::io::ErrorKind as ErrorKindOfIo;
use std::path::{Path, PathBuf};

use libnvc::request::Request;
use libnvc::{Error, ErrorKind, Result};
use nvc_hostfile::system;
use nvc_program::hook_names;

use crate::content::Content;
use crate::csv::{self, ChosenGpu, Driver, RequestedGpus, list};
use crate::devices::empty_device;
use crate::draft::{Draft, DraftDevice};
use crate::driver::nodes;
use crate::{Naming, Options, VOID};

/// Directory of the lists.
const LISTS: &str = "/etc/nvidia-container-runtime/host-files-for-container.d";
const NAMES: [&str; 3] = ["devices.csv", "drivers.csv", "l4t.csv"];

pub(super) fn find(options: &Options, request: &Request) -> Result<Content> {
    let needs_nvml =
        is_enabled(hook_names::ENABLE_CUDA_COMPAT, options) || !options.flags.single_csv_device;
    let driver = if needs_nvml {
        Driver::ask(&options.driver_root, &options.query)
    } else {
        Driver::unasked(&options.driver_root, &options.query)
    };
    with_driver(options, request, &driver)
}

/// Works like [`find`], with NVML's answers.
pub(super) fn with_driver(
    options: &Options,
    request: &Request,
    driver: &Driver,
) -> Result<Content> {
    let wants_compat = is_enabled(hook_names::ENABLE_CUDA_COMPAT, options);
    let several = !options.flags.single_csv_device;
    let wanted = RequestedGpus::of(request.devices.ids.clone());
    let choice = csv::choose(&wanted, driver.listing(), several).map_err(|refusal| {
        let text = format!("there is no device {}", refusal.id);
        Error::new(ErrorKind::InvalidArgument, text).hint(refusal.hint)
    })?;
    let has_uuids = choice.devices.iter().any(|gpu| gpu.uuid().is_some());
    if options.naming == [Naming::Uuid] && !has_uuids && wanted != RequestedGpus::None {
        let text = "the GPU of a Jetson has no UUID: name it by index";
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let tree = csv::Tree {
        root: options.driver_root.clone(),
        ldconfig: options.ldconfig.clone(),
        nodes: nodes(options),
        compat: if wants_compat {
            driver.compat(&options.csv_compat_root)
        } else {
            Vec::new()
        },
    };
    let (entries, mut warnings) = entries(options)?;
    let found = csv::find(&tree, &entries, &choice, driver)?;
    warnings.extend(found.warnings);
    let is_empty = |draft: &Draft| draft.is_empty();
    if warnings.is_empty() && found.devices.iter().any(|(_, draft)| is_empty(draft)) {
        let what = if entries.is_empty() {
            "anything"
        } else {
            "a node"
        };
        warnings.push(format!("no list names {what} of this machine"));
    }
    let named = |(chosen, draft)| named(&chosen, draft, options);
    let mut devices: Vec<DraftDevice> = found.devices.into_iter().flat_map(named).collect();
    if wanted == RequestedGpus::None {
        devices.push(empty_device());
    }
    Ok(Content {
        devices,
        common: common(found.common, options),
        warnings,
        ..Content::default()
    })
}

/// Returns the edits for every container. The document says itself what other programs must not touch.
fn common(mut common: Draft, options: &Options) -> Draft {
    common.edits.env.retain(|variable| variable != VOID);
    common.hooks.retain(|hook| is_enabled(hook.name, options));
    common
}

/// Reads the lists, without the links to ignore; warns about those that do not exist.
///
/// # Errors
/// One cannot be read, or none of those that were named exists.
fn entries(options: &Options) -> Result<(Vec<csv::Entry>, Vec<String>)> {
    let files: Vec<PathBuf> = match options.csv_files.as_slice() {
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
        !(entry.kind == csv::Kind::Link && is_ignored(&options.csv_ignore, &entry.path))
    });
    let warnings = missing.iter().map(Error::message);
    Ok((entries, warnings.collect()))
}

/// Returns true unless the options disable a hook.
fn is_enabled(name: &str, options: &Options) -> bool {
    let hooks = &options.hooks;
    let is_off = hooks.disabled.contains(name) || hooks.disabled.contains("all");
    !is_off || hooks.enabled.contains(name)
}

/// Returns a GPU under each of its names.
fn named(chosen: &ChosenGpu, mut draft: Draft, options: &Options) -> Vec<DraftDevice> {
    draft.hooks.retain(|hook| is_enabled(hook.name, options));
    let index = chosen.index();
    let name = |naming: &Naming| match naming {
        Naming::Index => Some(index.to_string()),
        Naming::TypeIndex => Some(format!("gpu{index}")),
        Naming::Uuid => chosen.uuid().map(String::from),
    };
    let names = options.naming.iter().filter_map(name);
    let device = |name| DraftDevice::new(name, draft.clone());
    names.map(device).collect()
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
    use crate::{Mode, generate};

    /// Returns what a specification of a tree with two lists mounts and links.
    fn content(files: &[&str], ignored: &[&str]) -> Result<(Vec<String>, Vec<String>)> {
        let dir = tempfile::tempdir().unwrap();
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
        let made = generate(&Options {
            mode: Mode::Csv,
            naming: vec![Naming::Index],
            driver_root: dir.path().into(),
            csv_files: files.iter().map(|name| at(name)).collect(),
            csv_ignore: words(ignored),
            ..options(false)
        })?;
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
