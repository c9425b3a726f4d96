//! Tests the search on synthetic hosts: each source, each layout, requests and specifications.

#![allow(clippy::unwrap_used)]
#![cfg(target_arch = "x86_64")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use nvc_testkit::elf::{Machine, SharedObject};

use super::*;
use crate::ldcache::format;

mod requests;
mod sources;
mod specifications;

const X64: i32 = 0x303;
const I386: i32 = 3;
const MULTIARCH: &str = "/usr/lib/x86_64-linux-gnu";
const V: &str = "550.1";

/// A host below a temporary directory.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn root(&self) -> DriverRoot {
        DriverRoot::open(self.0.path()).unwrap()
    }

    fn file(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = HostPath::new(path).below(self.0.path());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn link(&self, target: &str, path: &str) {
        let path = HostPath::new(path).below(self.0.path());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// Adds 64-bit libraries of version [`V`], by their stems: `libcuda`.
    fn libraries(&self, directory: &str, stems: &[&str]) {
        for stem in stems {
            self.library(&format!("{directory}/{stem}.so.{V}"), &object());
        }
    }

    fn library(&self, path: &str, object: &SharedObject) {
        self.file(path, object.bytes());
    }

    fn program(&self, path: &str, content: &[u8]) {
        self.file(path, content);
        let path = HostPath::new(path).below(self.0.path());
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn cache(&self, entries: &[(i32, &str, &str)]) {
        self.file("/etc/ld.so.cache", format::tests::build(entries));
    }

    /// Returns what a request can have, of a class.
    fn requested(&self, wanted: &FileSearch, class: FileClass) -> Vec<String> {
        let info = find(&self.root(), Some(V), wanted).unwrap();
        lines(info.of_class(class))
    }

    /// Returns the libraries of a request without options.
    fn catalogue(&self) -> Vec<String> {
        self.requested(&request(), FileClass::Library)
    }

    fn all(&self) -> DriverInfo {
        find(&self.root(), Some(V), &FileSearch::new(Contents::All)).unwrap()
    }
}

fn request() -> FileSearch {
    FileSearch::new(Contents::Catalogue(DriverOptions::empty()))
}

/// A 64-bit library that needs what the driver's legacy GL and TLS libraries must have.
fn object() -> SharedObject {
    SharedObject::new(Machine::X86_64)
        .needed("libnvidia-glcore.so.550.1")
        .abi_tag([0, 2, 3, 99])
}

fn narrow() -> SharedObject {
    SharedObject::new(Machine::I386)
}

/// Describes files: path, `32` if it is for 32-bit programs, place in a container, links.
fn lines<'a>(files: impl Iterator<Item = &'a DriverFile>) -> Vec<String> {
    let line = |file: &DriverFile| {
        let mut line = file.path.to_string();
        if file.abi == Abi::Compat32 {
            line += " 32";
        }
        if let Some(at) = &file.at {
            line += &format!(" at {at}");
        }
        for link in &file.links {
            line += &format!(" {}->{}", link.name.display(), link.target.display());
        }
        line
    };
    files.map(line).collect()
}

fn paths(of: &[&str]) -> Vec<HostPath> {
    of.iter().map(HostPath::new).collect()
}
