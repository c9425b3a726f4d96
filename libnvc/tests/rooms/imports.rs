//! Reads the modules of a crate and the modules that each imports, with `use` or by a path in the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of a crate: names like `apply/mount`, and their code. The root's name is empty.
pub(crate) struct Modules(BTreeMap<String, String>);

impl Modules {
    /// Reads all modules below a directory, except those of tests and of programs beside a library.
    pub(crate) fn read(source: &Path) -> Self {
        let root = ["lib.rs", "main.rs"].map(|name| source.join(name));
        let root = root.iter().find(|file| file.exists());
        let mut modules = BTreeMap::new();
        for file in files_below(source) {
            let relative = file.strip_prefix(source).unwrap().with_extension("");
            let name = relative.to_str().unwrap();
            let name = match name {
                _ if Some(&file) == root => "",
                "lib" | "main" => continue,
                name if name.starts_with("bin/") => continue,
                name => name,
            };
            modules.insert(name.to_owned(), code_of(&file));
        }
        Self(modules)
    }

    /// Returns the sets of modules that lead to each other by imports. A module needs its parts; they may use what it
    /// has.
    pub(crate) fn circles(&self) -> BTreeSet<Vec<String>> {
        let mut imports = self.imports();
        let is_part = |name: &str, of: &str| of.is_empty() || name.starts_with(&format!("{of}/"));
        for (name, imported) in &mut imports {
            imported.retain(|other| !name.is_empty() && !is_part(name, other));
            let parts = self.0.keys().filter(|other| is_part(other, name));
            imported.extend(parts.cloned());
        }
        imports.remove("");
        let all: BTreeMap<&str, _> = imports
            .keys()
            .map(|name| (*name, reached(&imports, name)))
            .collect();
        let circle = |(name, reached): (&&str, &BTreeSet<&String>)| {
            let is_back = |other: &&&String| all[other.as_str()].iter().any(|back| back == name);
            let circle = reached.iter().filter(is_back);
            circle.map(|name| (*name).clone()).collect::<Vec<_>>()
        };
        let circles = all.iter().map(circle);
        circles.filter(|circle| !circle.is_empty()).collect()
    }

    /// Returns the modules that each module imports.
    pub(crate) fn imports(&self) -> BTreeMap<&str, BTreeSet<String>> {
        let exported = self.exported();
        let of = |(name, code): (&'_ String, &String)| {
            let paths = uses(code).into_iter().map(|(_, path)| path);
            let paths = paths.chain(paths_in(code));
            let resolved = paths.filter_map(|path| self.resolve(name, &path));
            let modules = resolved.filter_map(|parts| self.module_of(&parts, &exported));
            modules.filter(|module| module != name).collect()
        };
        let all = self.0.iter();
        all.map(|(name, code)| (name.as_str(), of((name, code))))
            .collect()
    }

    /// Returns the re-exported names of modules, as (module, name), with the path of the original.
    fn exported(&self) -> BTreeMap<(String, String), Vec<String>> {
        let mut exported = BTreeMap::new();
        for (name, code) in &self.0 {
            for (_, path) in uses(code).into_iter().filter(|(is_public, _)| *is_public) {
                if let Some(parts) = self.resolve(name, &path) {
                    let last = parts.last().cloned().unwrap_or_default();
                    exported.insert((name.clone(), last), parts);
                }
            }
        }
        exported
    }

    /// Returns a path from the crate's root; None if it is another crate's.
    fn resolve(&self, module: &str, path: &str) -> Option<Vec<String>> {
        let mut here: Vec<&str> = module.split('/').filter(|part| !part.is_empty()).collect();
        let mut parts = path.split("::").peekable();
        match *parts.peek()? {
            "crate" => {
                here.clear();
                parts.next();
            }
            "self" => {
                parts.next();
            }
            "super" => {
                while parts.next_if_eq(&"super").is_some() {
                    here.pop();
                }
            }
            first
                if self
                    .0
                    .contains_key(&[&here[..], &[first]].concat().join("/")) => {}
            _ => return None,
        }
        Some(here.into_iter().chain(parts).map(str::to_owned).collect())
    }

    /// Returns the module that the object of a path belongs to, or that it is.
    fn module_of(
        &self,
        parts: &[String],
        exported: &BTreeMap<(String, String), Vec<String>>,
    ) -> Option<String> {
        let is_module = |length: &usize| self.0.contains_key(&parts[..*length].join("/"));
        let length = (0..=parts.len()).rev().find(is_module)?;
        let module = parts[..length].join("/");
        let next = parts.get(length).cloned().unwrap_or_default();
        match exported.get(&(module.clone(), next)) {
            Some(other) if other != parts => self.module_of(other, exported),
            _ => Some(module),
        }
    }
}

/// Returns the modules to which a module's imports lead.
fn reached<'a>(imports: &'a BTreeMap<&str, BTreeSet<String>>, from: &str) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&String> = imports[from].iter().collect();
    while let Some(name) = next.pop() {
        if reached.insert(name) {
            next.extend(&imports[name.as_str()]);
        }
    }
    reached
}

/// Returns the paths of all `use` items, each with whether it is public.
fn uses(code: &str) -> Vec<(bool, String)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let line = code[..at].rsplit('\n').next().unwrap_or_default().trim();
        if !line.is_empty() && !line.starts_with("pub") {
            continue;
        }
        let item = code[at + 4..].split(';').next().unwrap_or_default();
        let item = item.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut paths = Vec::new();
        expand("", &item, &mut paths);
        found.extend(paths.into_iter().map(|path| (!line.is_empty(), path)));
    }
    found
}

/// Expands the braces of a `use` item.
fn expand(before: &str, item: &str, paths: &mut Vec<String>) {
    let Some((start, rest)) = item.split_once('{') else {
        let path = item.split(" as ").next().unwrap_or_default().trim();
        let path = format!("{before}{path}");
        paths.push(path.trim_end_matches("::self").to_owned());
        return;
    };
    let inner = rest.rsplit_once('}').unwrap_or((rest, "")).0;
    let before = format!("{before}{}", start.trim());
    let (mut depth, mut from) = (0, 0);
    for (at, letter) in inner.char_indices().chain([(inner.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = inner[from..at].trim();
                if !part.is_empty() {
                    expand(&before, part, paths);
                }
                from = at + 1;
            }
            _ => {}
        }
    }
}

/// Returns the paths in the code that start at the crate's root or at a parent; not those of `use` with braces, which
/// [`uses`] expands.
fn paths_in(code: &str) -> Vec<String> {
    let starts = ["crate::", "super::"];
    let starts = starts.iter().flat_map(|start| code.match_indices(start));
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let path = |(at, _): (usize, &str)| {
        let rest = &code[at..];
        let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        let has_braces = rest[end..].starts_with('{') && rest[..end].ends_with("::");
        (!has_braces).then(|| rest[..end].trim_end_matches(':').to_owned())
    };
    starts.filter_map(path).collect()
}

/// Returns the files below a directory, without tests.
pub(crate) fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
    found
}

/// Returns a file's text without comments, and without the tests at its end.
pub(crate) fn code_of(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let mut code = text.as_str();
    for tests in ["#[cfg(test)]\nmod tests", "#[cfg(test)]\n#[allow"] {
        code = code.split(tests).next().unwrap_or_default();
    }
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    code.lines().filter(is_code).collect::<Vec<_>>().join("\n")
}

/// Finds what the checks rely on in a small crate.
pub(crate) fn check_reading() {
    let modules = [
        ("", "mod a;\nmod d;\npub use a::C;\npub struct Own;\n"),
        ("a", "mod b;\nmod c;\npub use b::{B, Other as C};\n"),
        (
            "a/b",
            "use super::c::{self,\n    X};\nfn f() { crate::d::e::g() }",
        ),
        ("a/c", "use crate::a::B;\nuse std::fmt;\n"),
        ("d/e", "pub(crate) use crate::{a::{B, c::X}, z};\n"),
        ("d/f", "use crate::{C, Own, d::e::X};"),
        ("p", "mod q;\nuse q::Q;"),
        ("p/q", "use super::P;\nuse crate::s::S;"),
        ("s", "use crate::p::P;"),
    ];
    let modules = modules.map(|(name, code)| (name.to_owned(), code.to_owned()));
    let modules = Modules(modules.into());
    let imports = modules.imports();
    let of = |name| imports[name].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(of("a"), ["a/b"]);
    assert_eq!(of("a/b"), ["a/c", "d/e"]);
    assert_eq!(of("a/c"), ["a/b"]);
    assert_eq!(of("d/e"), ["", "a/b", "a/c"]);
    let circles: Vec<_> = modules.circles().into_iter().collect();
    assert_eq!(circles, [["a/b", "a/c", "d/e"], ["p", "p/q", "s"]]);
}
