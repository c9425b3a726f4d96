//! Finds the files in a Jetson's lists.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use libnvc::host::{DriverRoot, FileClass};
use libnvc::plan::{CudaCompat, DriverProc, Intent, LibraryPath, Link, Place, ProcDevices, What};
use libnvc::{ContainerPath, HostPath, Result};
use nvc_cdi::nodes::HostNode;
use nvc_hostfile::programs::matches;
use nvc_oci::paths::clean;

use super::list::{Entry, Kind};
use crate::content::sort;
use crate::exposed::Exposure;
use crate::nodes::Nodes;

/// Locations of the files.
#[derive(Debug)]
pub struct Tree {
    /// Root of the operating system; `/` for the host's own.
    pub root: DriverRoot,
    /// Its device nodes.
    pub nodes: Nodes,
    /// The use of images' CUDA compatibility libraries.
    pub compat: Option<CudaCompat>,
}

/// A Jetson has it if its display driver, or that of another GPU, is loaded.
const DRIVER_PROC: &str = "/proc/driver/nvidia";

/// Tells programs that this is a Tegra system.
pub const RELEASE: &str = "/etc/nv_tegra_release";

/// Limit of followed links.
const MAX_LINKS: usize = 40;

impl Tree {
    /// Returns the intents for all entries but nodes, with those that isolate the container in procfs. Warns about files
    /// missing on the host.
    ///
    /// # Errors
    /// Another user could exchange a library.
    pub(super) fn common(&self, entries: &[Entry]) -> Result<(Vec<Intent>, Vec<String>)> {
        let mut found = CollectedFiles::default();
        for entry in entries.iter().filter(|entry| entry.kind != Kind::Device) {
            let paths = expand(&self.root, &entry.path);
            if paths.is_empty() {
                found.warnings.push(format!("{} is missing", entry.path));
            }
            for path in paths {
                self.add(entry.kind, &path, &mut found);
            }
        }
        if self.is_there(RELEASE, Path::is_file) {
            found.mounts.insert(RELEASE.into(), FileClass::Data);
        }
        let CollectedFiles {
            mounts,
            links,
            mut warnings,
        } = found;
        let depth = |path: &str| path.matches('/').count();
        let mut mounts: Vec<(String, FileClass)> = mounts.into_iter().collect();
        mounts.sort_by_cached_key(|(path, _)| depth(path));
        let directories = library_directories(&mounts);
        let mounts = mounts.iter().filter_map(|(path, class)| {
            let source = self.root.on_host(&HostPath::new(path))?;
            let place = Place::At(ContainerPath::new(path));
            Some(Intent::mount(source, place, *class))
        });
        let mut intents: Vec<Intent> = mounts.chain(links).collect();
        // The cache is updated after this has added a directory.
        let compat = self.compat.clone().map(What::CudaCompat);
        intents.extend(compat.map(Intent::best_effort));
        if !directories.is_empty() {
            intents.push(Intent::required(What::LibraryPath(LibraryPath {
                directories,
                after_hooks: false,
            })));
        }
        if Path::new(DRIVER_PROC).is_dir() {
            intents.push(Intent::required(What::DriverProc(DriverProc {
                no_new_nodes: true,
                devices: ProcDevices::Own,
            })));
        }
        intents.push(Intent::void());
        warnings.extend(Exposure::of(&mut intents)?);
        Ok((intents, warnings))
    }

    /// Returns the nodes in the entries that are wanted. Warns about those missing on the host.
    pub(super) fn listed_nodes(
        &self,
        entries: &[Entry],
        is_wanted: &dyn Fn(&str, &HostNode) -> bool,
    ) -> (Vec<Intent>, Vec<String>) {
        let mut nodes = Vec::new();
        let mut warnings = Vec::new();
        let root = DriverRoot::open(&self.nodes.root).ok();
        for entry in entries.iter().filter(|entry| entry.kind == Kind::Device) {
            let paths = root.as_ref().map(|root| expand(root, &entry.path));
            let paths = paths.unwrap_or_default();
            if paths.is_empty() {
                warnings.push(format!("{} is missing", entry.path));
            }
            for path in paths {
                let found = self.nodes.look_up(&path).and_then(|node| {
                    let is_wanted = is_wanted(&path, &node);
                    is_wanted.then(|| self.nodes.device(&path)).transpose()
                });
                match found {
                    Ok(device) => nodes.extend(device),
                    Err(error) => warnings.push(error.message()),
                }
            }
        }
        sort(&mut nodes);
        (nodes, warnings)
    }

    fn add(&self, kind: Kind, path: &str, found: &mut CollectedFiles) {
        match kind {
            Kind::Device => {}
            Kind::Directory => {
                if self.is_there(path, Path::is_dir) {
                    found.mounts.insert(path.into(), FileClass::DataDir);
                } else {
                    found.warnings.push(format!("{path} is not a directory"));
                }
            }
            Kind::Library => match self.resolve(path).0 {
                Some(file) => self.mount(file, found),
                None => found.warnings.push(format!("{path} leads nowhere")),
            },
            Kind::Link => {
                let (file, chain) = self.resolve(path);
                for link in chain {
                    if !found.links.contains(&link) {
                        found.links.push(link);
                    }
                }
                match file {
                    Some(file) => self.mount(file, found),
                    None => found.warnings.push(format!("{path} leads nowhere")),
                }
            }
        }
    }

    fn mount(&self, path: String, found: &mut CollectedFiles) {
        let class = if self.is_there(&path, Path::is_dir) {
            FileClass::DataDir
        } else if is_library(&path) {
            FileClass::Library
        } else {
            FileClass::Data
        };
        found.mounts.entry(path).or_insert(class);
    }

    /// Resolves a path inside the tree; returns the file, and the links in the path.
    fn resolve(&self, named: &str) -> (Option<String>, Vec<Intent>) {
        let mut path = clean(named);
        let mut chain = Vec::new();
        for _ in 0..MAX_LINKS {
            match name(&self.root, &path).map(fs::read_link) {
                Some(Ok(target)) => {
                    let target = target.to_string_lossy().into_owned();
                    chain.push(link(PathBuf::from(&target), ContainerPath::new(&path)));
                    let directory = Path::new(&path).parent().unwrap_or(Path::new("/"));
                    let next = directory.join(&target);
                    path = clean(&next.to_string_lossy());
                }
                Some(Err(_)) | None => {
                    // As it is named: another user's link may lead there.
                    let there = self.is_there(named, Path::exists);
                    return (there.then_some(path), chain);
                }
            }
        }
        (None, chain)
    }

    /// Returns true if a path of the tree, with its links resolved there, is of a kind.
    fn is_there(&self, path: &str, kind: impl Fn(&Path) -> bool) -> bool {
        let found = self.root.on_host(&HostPath::new(path));
        found.is_some_and(|path| kind(path.as_path()))
    }
}

/// Returns the paths that match a pattern; a plain path if it exists, including links.
fn expand(root: &DriverRoot, pattern: &str) -> Vec<String> {
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

fn step(root: &DriverRoot, directory: &str, part: &str) -> Vec<String> {
    if !part.contains(['*', '?', '[']) {
        let path = format!("{directory}/{part}");
        let there = name(root, &path).is_some_and(|path| fs::symlink_metadata(path).is_ok());
        return there.then_some(path).into_iter().collect();
    }
    let directory_there = root.on_host(&HostPath::new(directory));
    let Some(Ok(entries)) = directory_there.map(|there| fs::read_dir(there.as_path())) else {
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

/// Returns the host's path of a name in the tree: a file, or a link itself. A link on the way to it does not lead out.
fn name(root: &DriverRoot, path: &str) -> Option<PathBuf> {
    let path = HostPath::new(path);
    let directory = root.on_host(&path.parent())?;
    Some(directory.join(path.file_name()).as_path().to_owned())
}

#[derive(Default)]
struct CollectedFiles {
    mounts: BTreeMap<String, FileClass>,
    links: Vec<Intent>,
    warnings: Vec<String>,
}

/// Returns the intent for a link.
pub(super) fn link(target: PathBuf, at: ContainerPath) -> Intent {
    let at = Place::At(at);
    Intent::best_effort(What::Link(Link {
        at,
        target,
        replaces: true,
    }))
}

/// The lists have one type for libraries and other files.
fn is_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.starts_with("lib") && (name.ends_with(".so") || name.contains(".so."))
}

/// Returns the library directories of mounts, without duplicates.
fn library_directories(mounts: &[(String, FileClass)]) -> Vec<Place> {
    let mut directories = Vec::new();
    for (path, _) in mounts {
        let directory = Place::At(ContainerPath::new(path).parent());
        if is_library(path) && !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    directories
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;

    use libnvc::plan::Mount;

    use super::super::list::parse;
    use super::*;

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
            root: DriverRoot::open(dir).unwrap(),
            nodes: Nodes::new("/".into()),
            compat: None,
        }
    }

    #[test]
    fn links_are_followed_inside_the_tree() {
        let dir = crate::scratch();
        let tree = tree(dir.path());
        let entries = parse(
            "sym, /usr/lib/tegra/liba.so\nlib, /usr/lib/tegra/libb*.so\ndir, /usr/lib/tegra/firmware\n\
             lib, /usr/lib/tegra/loop\nlib, /missing\ndev, /dev/null\n",
        );
        let (intents, warnings) = tree.common(&entries).unwrap();
        let places: Vec<String> = intents
            .iter()
            .filter_map(|intent| match &intent.what {
                What::Mount(Mount {
                    place: Place::At(place),
                    class,
                    ..
                }) => Some(format!("{class:?} {place}")),
                _ => None,
            })
            .collect();
        assert_eq!(
            places,
            [
                "DataDir /usr/lib/tegra/firmware",
                "Library /usr/lib/tegra/liba.so.1.2",
                "Library /usr/lib/tegra/libb.so",
                "Library /usr/lib/tegra/libb2.so"
            ]
        );
        let made = |target: &str, at: &str| link(target.into(), ContainerPath::new(at));
        let links = [
            made("liba.so.1", "/usr/lib/tegra/liba.so"),
            made("/usr/lib/tegra/liba.so.1.2", "/usr/lib/tegra/liba.so.1"),
        ];
        assert_eq!(intents[4..6], links);
        let libraries = What::LibraryPath(LibraryPath {
            directories: vec![Place::At(ContainerPath::new("/usr/lib/tegra"))],
            after_hooks: false,
        });
        assert_eq!(intents[6].what, libraries);
        assert_eq!(
            warnings,
            ["/usr/lib/tegra/loop leads nowhere", "/missing is missing"]
        );
        let (nodes, warnings) = tree.listed_nodes(&entries, &|_, _| true);
        assert_eq!((nodes.len(), warnings.len()), (1, 0));
        let (nodes, _) = tree.listed_nodes(&entries, &|path, _| path != "/dev/null");
        assert!(nodes.is_empty());
    }

    /// A tree's absolute links are those of its own operating system.
    #[test]
    fn directories_behind_links_are_those_of_the_tree() {
        let dir = crate::scratch();
        let tree = tree(dir.path());
        let at = |path: &str| dir.path().join(path);
        symlink("/usr/lib/tegra", at("usr/lib/vendor")).unwrap();
        symlink("/usr/lib/tegra/firmware", at("usr/lib/firmware")).unwrap();
        symlink("/proc", at("usr/lib/away")).unwrap();
        symlink("../../../../../../../../../../proc", at("usr/lib/above")).unwrap();
        fs::create_dir_all(at("etc")).unwrap();
        symlink("/proc/version", at("etc/nv_tegra_release")).unwrap();
        let entries = parse(
            "lib, /usr/lib/vendor/libb.so\nlib, /usr/lib/vendor/liba.so*\ndir, /usr/lib/firmware\n\
             lib, /usr/lib/away/version\nlib, /usr/lib/above/ver*\ndir, /usr/lib/away\ndir, /usr/lib/above\n",
        );
        let (intents, warnings) = tree.common(&entries).unwrap();
        let mounts: Vec<String> = intents
            .iter()
            .filter_map(|intent| match &intent.what {
                What::Mount(Mount {
                    source,
                    place: Place::At(place),
                    ..
                }) => Some(format!(
                    "{} {place}",
                    source.as_path().strip_prefix(dir.path()).unwrap().display()
                )),
                _ => None,
            })
            .collect();
        assert_eq!(
            mounts,
            [
                "usr/lib/tegra/firmware /usr/lib/firmware",
                "usr/lib/tegra/liba.so.1.2 /usr/lib/tegra/liba.so.1.2",
                "usr/lib/tegra/liba.so.1.2 /usr/lib/vendor/liba.so.1.2",
                "usr/lib/tegra/libb.so /usr/lib/vendor/libb.so",
            ]
        );
        assert_eq!(
            warnings,
            [
                "/usr/lib/away/version is missing",
                "/usr/lib/above/ver* is missing",
                "/usr/lib/away is not a directory",
                "/usr/lib/above is not a directory"
            ]
        );
    }
}
