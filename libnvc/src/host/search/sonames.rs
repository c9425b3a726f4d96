//! Adds to libraries the links by SONAME, by which the loader finds them.
//!
//! The name is read from the file. ldconfig would make the same links, but in a directory of an image it prefers the
//! newest file of a SONAME, which may be the image's.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::libraries::link;
use super::places::Places;
use crate::host::{DriverFile, FileClass};
use crate::path::HostPath;

/// Adds the links. If libraries of one directory have the same SONAME, the one gets it to which the host's own link
/// leads, or else the first. `for_compilers` adds the links without a version too, if the host has them.
pub(super) fn link_by_soname(
    files: &mut [DriverFile],
    places: &mut Places<'_>,
    for_compilers: bool,
) {
    let files = files.iter_mut();
    let files = files.filter(|file| file.class == FileClass::Library);
    let with_names = files.filter_map(|file| {
        let soname = places.headers(&file.path)?.soname.clone()?;
        Some((soname, file))
    });
    let mut libraries: Vec<(String, &mut DriverFile)> = with_names.collect();
    let known: HashSet<HostPath> = (libraries.iter())
        .map(|(_, file)| file.path.clone())
        .collect();
    let mut owners: HashMap<HostPath, HostPath> = HashMap::new();
    for (soname, file) in &libraries {
        match owners.entry(file.path.parent().join(soname)) {
            Entry::Vacant(place) => {
                place.insert(file.path.clone());
            }
            Entry::Occupied(mut place) => {
                let hosts = places.file(place.key());
                if let Some(hosts) = hosts.filter(|real| known.contains(real)) {
                    place.insert(hosts);
                }
            }
        }
    }
    for (soname, file) in &mut libraries {
        let directory = file.path.parent();
        let at = directory.join(&*soname);
        let name = file.path.file_name().to_string_lossy().into_owned();
        // A name of another of the files is no link's.
        if !known.contains(&at) && owners.get(&at) == Some(&file.path) {
            file.links.push(link(soname, &name));
        }
        let Some((stem, _)) = name.split_once(".so").filter(|_| for_compilers) else {
            continue;
        };
        let development = format!("{stem}.so");
        let is_new = development != *soname && development != name;
        if is_new && places.has_link(&directory, &development) {
            file.links.push(link(&development, soname));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::host::DriverRoot;
    use nvc_testkit::elf::{Machine, SharedObject};

    /// Returns the links of these libraries, each a name and its SONAME, on a host with these links.
    fn links(libraries: &[(&str, &str)], hosts: &[(&str, &str)]) -> Vec<String> {
        let tree = tempfile::tempdir().unwrap();
        let library = |(name, soname): &(&str, &str)| {
            let object = SharedObject::new(Machine::X86_64).soname(*soname);
            std::fs::write(tree.path().join(name), object.bytes()).unwrap();
            DriverFile::new(HostPath::new(format!("/{name}")), FileClass::Library)
        };
        let mut files: Vec<_> = libraries.iter().map(library).collect();
        for (name, target) in hosts {
            symlink(target, tree.path().join(name)).unwrap();
        }
        let root = DriverRoot::open(tree.path()).unwrap();
        link_by_soname(&mut files, &mut Places::new(&root, &[]), false);
        let all = files.iter().flat_map(|file| &file.links);
        all.map(|link| format!("{}->{}", link.name.display(), link.target.display()))
            .collect()
    }

    #[test]
    fn each_soname_leads_to_one_library() {
        let two = [("liba.so.1.1", "liba.so.1"), ("liba.so.1.2", "liba.so.1")];
        assert_eq!(links(&two, &[]), ["liba.so.1->liba.so.1.1"]);
        let host = [("liba.so.1", "liba.so"), ("liba.so", "liba.so.1.2")];
        assert_eq!(links(&two, &host), ["liba.so.1->liba.so.1.2"]);
        // A link of the former driver.
        let host = [("liba.so.1", "liba.so.1.0")];
        assert_eq!(links(&two[1..], &host), ["liba.so.1->liba.so.1.2"]);
    }

    #[test]
    fn no_link_has_the_name_of_a_library() {
        let odd = [
            ("libb.so.2", "libb.so.2"),
            ("libc.so.3", "libb.so.2"),
            ("libd.so.4", "../libd.so"),
            ("libe.so.5", ".."),
        ];
        assert!(links(&odd, &[]).is_empty());
    }
}
