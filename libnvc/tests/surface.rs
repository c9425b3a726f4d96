//! Prints what a user of libnvc sees, so that the library's interface stays one that a person can learn:
//! `cargo test -p libnvc --test surface -- --nocapture`. An item more is no failure, if it is needed.
//!
//! Counted are types, traits, functions, constants, and the public functions and constants of these types: each once,
//! however many paths lead to it. Fields, variants, modules and trait implementations do not count; nor does the module
//! `testing`, which no release has. The sources are read, not the documentation: rustdoc's JSON needs a nightly
//! compiler. That works because each item begins its line, and because rustc refuses `pub` for what cannot be reached.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module's code, and the names that it lets out.
#[derive(Default)]
struct Module {
    is_public: bool,
    /// Public items, and the functions and constants of types as (type, name).
    items: Vec<String>,
    members: Vec<(String, String)>,
    /// The last parts of the paths of `pub use`.
    exports: Vec<String>,
}

#[test]
fn the_interface_is_printed() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut modules = BTreeMap::new();
    read(&source.join("lib.rs"), "libnvc", true, &mut modules);
    assert!(modules.len() > 80, "{}", modules.len());
    // A module that is exported under another path is as public as its path.
    let exported: BTreeSet<String> = (modules.values())
        .filter(|module| module.is_public)
        .flat_map(|module| module.exports.iter().cloned())
        .collect();
    for (path, module) in &mut modules {
        let name = path.rsplit("::").next().unwrap();
        module.is_public |= exported.contains(name) && path.starts_with("libnvc::sys::");
    }
    let visible = |module: &Module, item: &String| module.is_public || exported.contains(item);
    let types: BTreeSet<String> = modules
        .values()
        .flat_map(|module| module.items.iter().filter(|item| visible(module, item)))
        .cloned()
        .collect();
    let mut count = 0;
    for (path, module) in &modules {
        let items = module.items.iter().filter(|item| visible(module, item));
        let members = module.members.iter().filter(|(of, _)| types.contains(of));
        let names: Vec<String> = items
            .cloned()
            .chain(members.map(|(of, name)| format!("{of}::{name}")))
            .collect();
        if !names.is_empty() {
            println!("{:4} {path}: {}", names.len(), names.join(" "));
        }
        count += names.len();
    }
    println!("{count} public items");
    assert!(count > 100, "the sources are not read: {count}");
}

/// Nothing public is hidden from the documentation.
#[test]
fn nothing_is_hidden() {
    let mut modules = BTreeMap::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for path in read(&source.join("lib.rs"), "libnvc", true, &mut modules) {
        let text = fs::read_to_string(&path).unwrap();
        let hidden = text.lines().filter(|line| line.contains("doc(hidden)"));
        assert_eq!(hidden.count(), 0, "{}", path.display());
    }
}

/// Reads a module and those below it; returns their files.
fn read(
    file: &Path,
    path: &str,
    is_public: bool,
    modules: &mut BTreeMap<String, Module>,
) -> Vec<PathBuf> {
    let text = fs::read_to_string(file).unwrap();
    let mut module = Module {
        is_public,
        ..Module::default()
    };
    let mut files = vec![file.to_owned()];
    let directory = if path == "libnvc" {
        file.with_file_name("")
    } else {
        file.with_extension("")
    };
    let (mut of, mut is_test, mut is_use) = (None, false, false);
    for line in text.lines() {
        if line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(any(test, feature") {
            is_test = true;
            continue;
        }
        if line.starts_with("#[") {
            continue;
        }
        let public = line.trim_start().strip_prefix("pub ");
        let inner = line
            .strip_prefix("pub(")
            .and_then(|rest| rest.split_once(") "));
        let declared = public.or(inner.map(|(_, rest)| rest)).unwrap_or(line);
        let declared = declared.strip_prefix("mod ");
        if let Some(name) = declared.and_then(|rest| rest.strip_suffix(';')) {
            if !is_test && name != "testing" {
                let is_public = is_public && public.is_some();
                let below = directory.join(name).with_extension("rs");
                files.extend(read(&below, &format!("{path}::{name}"), is_public, modules));
            }
        } else if declared.is_some() && is_test {
            break; // the unit tests, at the end
        }
        is_test = false;
        if line == "}" {
            of = None;
        } else if let Some(name) = implemented(line) {
            of = Some(name);
        }
        if is_use || public.is_some_and(|rest| rest.starts_with("use ")) {
            is_use = !line.ends_with(';');
            let line = line.trim().trim_start_matches("pub use ");
            let names = line.split(['{', '}', ',', ';', ' ']);
            let names = names.filter_map(|name| name.rsplit("::").next());
            let names = names.filter(|name| !name.is_empty()).map(str::to_owned);
            module.exports.extend(names);
            continue;
        }
        if let Some(name) = public.and_then(defined) {
            match &of {
                Some(of) => module.members.push((String::clone(of), name)),
                None => module.items.push(name),
            }
        }
    }
    modules.insert(path.to_owned(), module);
    files
}

/// Returns the type of a line that begins an inherent `impl`.
fn implemented(line: &str) -> Option<String> {
    let rest = line.strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        Some(generic) => generic.split_once("> ")?.1,
        None => rest,
    };
    let name = rest.trim().split([' ', '<', '{']).next()?;
    Some(name.to_owned())
}

/// Returns the name of the item that the words after `pub` define.
fn defined(words: &str) -> Option<String> {
    let words = words.trim_start_matches("unsafe ");
    let words = words.strip_prefix("const fn ").map_or(words, |rest| rest);
    let kinds = [
        "fn ", "struct ", "enum ", "trait ", "const ", "static ", "type ",
    ];
    let name = kinds
        .iter()
        .find_map(|kind| words.strip_prefix(kind))
        .unwrap_or(words);
    let end = name.find(|c: char| c != '_' && !c.is_alphanumeric())?;
    let is_item = name.len() < words.len() || name[end..].starts_with('(');
    (end > 0 && is_item && !name[end..].starts_with("::")).then(|| name[..end].to_owned())
}
