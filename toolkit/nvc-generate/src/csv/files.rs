//! Finds the files in a Jetson's lists, and creates CDI edits.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use libnvc::Result;
use nvc_cdi::nodes::HostNode;
use nvc_cdi::{Edits, Mount};
use nvc_hostfile::programs::matches;
use nvc_oci::paths::clean;
use nvc_program::hook_names;

use super::list::{Entry, Kind};
use crate::VOID;
use crate::draft::{Draft, repeated};
use crate::exposed::Exposure;
use crate::gated::READ_ONLY;
use crate::nodes::Nodes;

/// Locations of the files.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Root of the operating system; `/` for the host's own.
    pub root: PathBuf,
    /// Its device nodes.
    pub nodes: Nodes,
    /// Arguments of enable-cuda-compat; empty for no such hook.
    pub compat: Vec<String>,
    /// The host's ldconfig, if one is chosen.
    pub ldconfig: Option<String>,
}

/// A Jetson has it if its display driver, or that of another GPU, is loaded.
const DRIVER_PROC: &str = "/proc/driver/nvidia";

/// Limit of followed links.
const MAX_LINKS: usize = 40;

impl Tree {
    /// Returns the edits for all entries but nodes, with the hooks that isolate the container in procfs. Warns about
    /// files missing on the host.
    ///
    /// # Errors
    /// Another user could exchange a library.
    pub(super) fn common(&self, entries: &[Entry]) -> Result<(Draft, Vec<String>)> {
        let mut found = CollectedFiles::default();
        for entry in entries.iter().filter(|entry| entry.kind != Kind::Device) {
            let paths = expand(&self.root, &entry.path);
            if paths.is_empty() {
                found.warnings.push(format!("{} is missing", entry.path));
            }
            for path in paths {
                self.add(entry.kind, &path, &mut found)?;
            }
        }
        if self.on_host("/etc/nv_tegra_release").is_file() {
            self.mount(Kind::Link, "/etc/nv_tegra_release", &mut found)?;
        }
        let CollectedFiles {
            mut edits,
            links,
            mut warnings,
            exposure,
            ..
        } = found;
        warnings.extend(exposure.warnings());
        edits.mounts.sort_by(|one, other| {
            let depth = |mount: &Mount| mount.container_path.matches('/').count();
            (depth(one), &one.container_path).cmp(&(depth(other), &other.container_path))
        });
        let folders = library_directories(&edits.mounts);
        let mut draft = Draft::from(edits);
        add_links(links, &mut draft);
        // Before the cache is updated, because it adds a directory.
        if !self.compat.is_empty() {
            draft.add_hook(hook_names::ENABLE_CUDA_COMPAT, self.compat.clone());
        }
        if !folders.is_empty() {
            let ldconfig = repeated("--ldconfig-path", self.ldconfig.clone());
            let folders = repeated("--folder", folders);
            draft.add_hook(hook_names::UPDATE_LDCACHE, [ldconfig, folders].concat());
        }
        if Path::new(DRIVER_PROC).is_dir() {
            draft.add_hook(hook_names::DISABLE_NODE_MODIFICATION, []);
            draft.add_hook(hook_names::FILTER_DRIVER_PROC, []);
        }
        draft.add_variable(VOID);
        Ok((draft, warnings))
    }

    /// Returns the nodes in the entries that are wanted. Warns about those missing on the host.
    pub(super) fn listed_nodes(
        &self,
        entries: &[Entry],
        is_wanted: &dyn Fn(&str, &HostNode) -> bool,
    ) -> (Edits, Vec<String>) {
        let mut edits = Edits::default();
        let mut warnings = Vec::new();
        for entry in entries.iter().filter(|entry| entry.kind == Kind::Device) {
            let paths = expand(&self.nodes.root, &entry.path);
            if paths.is_empty() {
                warnings.push(format!("{} is missing", entry.path));
            }
            for path in paths {
                let node = self.nodes.look_up(&path);
                let added = node.and_then(|node| {
                    if is_wanted(&path, &node) {
                        self.nodes.add(&path, &mut edits)
                    } else {
                        Ok(())
                    }
                });
                if let Err(error) = added {
                    warnings.push(error.message());
                }
            }
        }
        sort(&mut edits);
        (edits, warnings)
    }

    fn add(&self, kind: Kind, path: &str, found: &mut CollectedFiles) -> Result<()> {
        let file = match kind {
            Kind::Device => return Ok(()),
            Kind::Directory if self.on_host(path).is_dir() => Some(path.to_owned()),
            Kind::Directory => {
                found.warnings.push(format!("{path} is not a directory"));
                return Ok(());
            }
            Kind::Library => self.resolve(path).0,
            Kind::Link => {
                let (file, chain) = self.resolve(path);
                for link in chain {
                    if !found.links.contains(&link) {
                        found.links.push(link);
                    }
                }
                file
            }
        };
        match file {
            Some(file) => self.mount(kind, &file, found),
            None => {
                found.warnings.push(format!("{path} leads nowhere"));
                Ok(())
            }
        }
    }

    fn mount(&self, kind: Kind, path: &str, found: &mut CollectedFiles) -> Result<()> {
        if !found.mounted.insert(path.to_owned()) {
            return Ok(());
        }
        let on_host = self.on_host(path);
        if kind == Kind::Library {
            found.exposure.must_name(&on_host)?;
        } else if !found.exposure.may_name(&on_host) {
            return Ok(());
        }
        found.edits.mounts.push(Mount {
            host_path: on_host.to_string_lossy().into_owned(),
            container_path: path.to_owned(),
            options: READ_ONLY.map(str::to_owned).to_vec(),
            kind: String::new(),
        });
        Ok(())
    }

    /// Resolves a path inside the tree; returns the file, and the links in the path as `TARGET::LINK`.
    fn resolve(&self, path: &str) -> (Option<String>, Vec<String>) {
        let mut path = clean(path);
        let mut chain = Vec::new();
        for _ in 0..MAX_LINKS {
            match fs::read_link(self.on_host(&path)) {
                Ok(target) => {
                    let target = target.to_string_lossy().into_owned();
                    chain.push(format!("{target}::{path}"));
                    let directory = Path::new(&path).parent().unwrap_or(Path::new("/"));
                    let next = directory.join(&target);
                    path = clean(&next.to_string_lossy());
                }
                Err(_) => {
                    let there = self.on_host(&path).exists();
                    return (there.then_some(path), chain);
                }
            }
        }
        (None, chain)
    }

    fn on_host(&self, path: &str) -> PathBuf {
        on_host(&self.root, path)
    }
}

/// Returns the paths that match a pattern; a plain path if it exists, including links.
fn expand(root: &Path, pattern: &str) -> Vec<String> {
    let pattern = clean(pattern);
    let mut found = vec![String::new()];
    for part in pattern.split('/').skip(1) {
        found = found
            .iter()
            .flat_map(|directory| step(root, directory, part))
            .collect();
    }
    found
}

fn step(root: &Path, directory: &str, part: &str) -> Vec<String> {
    if !part.contains(['*', '?', '[']) {
        let path = format!("{directory}/{part}");
        let there = fs::symlink_metadata(on_host(root, &path)).is_ok();
        return there.then_some(path).into_iter().collect();
    }
    let Ok(entries) = fs::read_dir(on_host(root, directory)) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| matches(part, name) && (part.starts_with('.') || !name.starts_with('.')))
        .map(|name| format!("{directory}/{name}"))
        .collect();
    names.sort();
    names
}

fn on_host(root: &Path, path: &str) -> PathBuf {
    root.join(path.strip_prefix('/').unwrap_or(path))
}

#[derive(Default)]
struct CollectedFiles {
    edits: Edits,
    mounted: HashSet<String>,
    links: Vec<String>,
    warnings: Vec<String>,
    exposure: Exposure,
}

/// Adds a hook for links, given as `TARGET::LINK`, if there are any.
pub(super) fn add_links(links: Vec<String>, draft: &mut Draft) {
    if !links.is_empty() {
        draft.add_hook(hook_names::CREATE_SYMLINKS, repeated("--link", links));
    }
}

/// Returns the library directories of mounts, without duplicates.
fn library_directories(mounts: &[Mount]) -> Vec<String> {
    let mut directories = Vec::new();
    for mount in mounts {
        let Some((directory, name)) = mount.container_path.rsplit_once('/') else {
            continue;
        };
        let is_library =
            name.starts_with("lib") && (name.ends_with(".so") || name.contains(".so."));
        if is_library && !directories.iter().any(|known| known == directory) {
            directories.push(directory.to_owned());
        }
    }
    directories
}

/// Sorts nodes by depth, then by name.
pub(super) fn sort(edits: &mut Edits) {
    let depth = |path: &str| path.matches('/').count();
    edits
        .device_nodes
        .sort_by_cached_key(|node| (depth(&node.path), node.path.clone()));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::list::parse;
    use super::*;
    use crate::draft::DraftHook;

    fn words(hook: &DraftHook) -> Vec<String> {
        [&[hook.name.to_owned()], &hook.arguments[..]].concat()
    }

    /// Creates a tree with libraries, links and firmware.
    fn tree(dir: &Path) -> Tree {
        let at = |path: &str| dir.join(path);
        fs::create_dir_all(at("usr/lib/tegra/firmware")).unwrap();
        for name in ["liba.so.1.2", "libb.so", "libb2.so"] {
            fs::write(at("usr/lib/tegra").join(name), "").unwrap();
        }
        symlink("liba.so.1", at("usr/lib/tegra/liba.so")).unwrap();
        symlink("/usr/lib/tegra/liba.so.1.2", at("usr/lib/tegra/liba.so.1")).unwrap();
        symlink("loop", at("usr/lib/tegra/loop")).unwrap();
        Tree {
            ldconfig: None,
            root: dir.into(),
            nodes: Nodes::new("/".into(), true),
            compat: vec!["--host-cuda-version=12.6".into()],
        }
    }

    #[test]
    fn links_are_followed_inside_the_tree() {
        let dir = tempfile::tempdir().unwrap();
        let tree = tree(dir.path());
        let entries = parse(
            "sym, /usr/lib/tegra/liba.so\nlib, /usr/lib/tegra/libb*.so\ndir, /usr/lib/tegra/firmware\n\
             lib, /usr/lib/tegra/loop\nlib, /missing\ndev, /dev/null\n",
        );
        let (draft, warnings) = tree.common(&entries).unwrap();
        let places: Vec<&str> = draft
            .edits
            .mounts
            .iter()
            .map(|mount| mount.container_path.as_str())
            .collect();
        assert_eq!(
            places,
            [
                "/usr/lib/tegra/firmware",
                "/usr/lib/tegra/liba.so.1.2",
                "/usr/lib/tegra/libb.so",
                "/usr/lib/tegra/libb2.so"
            ]
        );
        assert_eq!(
            words(&draft.hooks[0]),
            [
                "create-symlinks",
                "--link",
                "liba.so.1::/usr/lib/tegra/liba.so",
                "--link",
                "/usr/lib/tegra/liba.so.1.2::/usr/lib/tegra/liba.so.1"
            ]
        );
        assert_eq!(
            words(&draft.hooks[1]),
            ["enable-cuda-compat", "--host-cuda-version=12.6"]
        );
        assert_eq!(
            words(&draft.hooks[2]),
            ["update-ldcache", "--folder", "/usr/lib/tegra"]
        );
        assert_eq!(
            warnings,
            ["/usr/lib/tegra/loop leads nowhere", "/missing is missing"]
        );
        assert!(draft.edits.device_nodes.is_empty());
        let chosen = Tree {
            ldconfig: Some("/opt/ldconfig".into()),
            ..tree.clone()
        };
        let (draft, _) = chosen.common(&entries).unwrap();
        let update = words(&draft.hooks[2]).join(" ");
        let expected = "update-ldcache --ldconfig-path /opt/ldconfig --folder /usr/lib/tegra";
        assert_eq!(update, expected);
        let (edits, warnings) = tree.listed_nodes(&entries, &|_, _| true);
        assert_eq!((edits.device_nodes.len(), warnings.len()), (1, 0));
        let (edits, _) = tree.listed_nodes(&entries, &|path, _| path != "/dev/null");
        assert!(edits.device_nodes.is_empty());
    }
}
