//! Checks ARCHITECTURE.md's claims about the rooms of libnvc: their imports, and the places with unsafe code.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// Rooms, and the imports forbidden in each.
const FORBIDDEN: &[(&str, &[&str])] = &[
    (
        "capability",
        &[
            "host",
            "container",
            "plan",
            "apply",
            "render",
            "kmods",
            "sys",
        ],
    ),
    (
        "request",
        &["container", "plan", "apply", "render", "kmods", "sys"],
    ),
    (
        "options",
        &[
            "host",
            "container",
            "plan",
            "apply",
            "render",
            "kmods",
            "sys",
        ],
    ),
    (
        "require",
        &["container", "plan", "apply", "render", "kmods", "sys"],
    ),
    (
        "select",
        &["container", "plan", "apply", "render", "kmods", "sys"],
    ),
    ("host", &["container", "plan", "apply", "render", "kmods"]),
    ("kmods", &["container", "plan", "apply", "render"]),
    ("container", &["host", "plan", "apply", "render", "kmods"]),
    (
        "plan",
        &[
            "apply",
            "render",
            "kmods",
            "sys",
            "inroot",
            "read_file",
            "directory",
        ],
    ),
    (
        "render",
        &["apply", "kmods", "sys", "inroot", "read_file", "directory"],
    ),
    ("apply", &["render", "kmods", "select", "require"]),
    (
        "sys",
        &[
            "host",
            "container",
            "plan",
            "apply",
            "render",
            "kmods",
            "request",
            "select",
        ],
    ),
];

/// Functions that read or write files, which planning and rendering must not call.
const EFFECTS: &[&str] = &[
    "std::fs",
    "std::process",
    "std::env",
    "use nix",
    "rustix::",
    "libc::",
];

#[test]
fn rooms_import_only_allowed_rooms() {
    for (room, forbidden) in FORBIDDEN {
        let files = files_of(room);
        assert!(!files.is_empty(), "{room}");
        for file in files {
            let code = code_of(&file);
            for other in *forbidden {
                for text in [format!("crate::{other}::"), format!("crate::{other};")] {
                    assert!(!code.contains(&text), "{} imports {other}", file.display());
                }
                for line in code.lines().filter(|line| line.contains("use crate::{")) {
                    let names = line.split(['{', '}', ',', ' ', ';']);
                    let mut roots = names.filter_map(|name| name.split("::").next());
                    assert!(
                        !roots.any(|root| root == *other),
                        "{}: {line}",
                        file.display()
                    );
                }
            }
        }
    }
}

#[test]
fn planning_and_rendering_have_no_effects() {
    for room in ["plan", "render"] {
        for file in files_of(room) {
            let code = code_of(&file);
            for effect in EFFECTS {
                assert!(!code.contains(effect), "{}: {effect}", file.display());
            }
        }
    }
}

#[test]
fn unsafe_code_is_in_sys_only() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for entry in fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() || ["lib.rs", "sys.rs", "testing.rs"].contains(&name.as_str()) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "{name}");
    }
}

/// Modules that import each other, the one that is closer to the front first. Undoing is part of what attaching a mount
/// means, so those of `mount` know the journal and it knows them.
const CIRCLES: &[[&str; 2]] = &[
    ["apply/journal", "apply/mount/legacy"],
    ["apply/mount/attach", "apply/mount/legacy"],
];

#[test]
fn modules_of_a_room_import_one_way() {
    for room in ["apply", "ldcache", "plan", "render", "container"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let name = |file: &Path| {
            let relative = file.strip_prefix(&source).unwrap().with_extension("");
            relative.to_str().unwrap().to_owned()
        };
        let modules: Vec<_> = files_of(room)
            .iter()
            .map(|file| (name(file), code_of(file)))
            .collect();
        let imports = |(from, code): &(String, String), (to, _): &(String, String)| {
            let path = to.replace('/', "::");
            let (parent, last) = path.rsplit_once("::").unwrap_or(("", &path));
            let is_sibling = Path::new(from).parent() == Path::new(to).parent();
            let mut words = vec![format!("crate::{path}::"), format!("crate::{path};")];
            if is_sibling {
                words.extend([format!("super::{last}::"), format!("super::{last};")]);
            }
            let all = format!("use crate::{parent}::{{");
            let listed = code.lines().filter(|line| line.starts_with(&all));
            let mut names = listed.flat_map(|line| line.split(['{', '}', ',', ' ', ':']));
            // A module imports its own parts, which is no circle.
            !to.starts_with(&format!("{from}/"))
                && (words.iter().any(|word| code.contains(word)) || names.any(|name| name == last))
        };
        for one in &modules {
            for other in modules.iter().filter(|other| other.0 > one.0) {
                let is_circle = imports(one, other) && imports(other, one);
                let is_known = CIRCLES.contains(&[one.0.as_str(), other.0.as_str()]);
                assert_eq!(is_circle, is_known, "{} and {}", one.0, other.0);
            }
        }
    }
}

/// Returns the files of a room, without its tests.
fn files_of(room: &str) -> Vec<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = vec![source.join(format!("{room}.rs"))];
    let mut directories = vec![source.join(room)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.file_name().is_some_and(|name| name != "tests.rs") {
                found.push(path);
            }
        }
    }
    found
}

/// Returns a file's text without comments, and without the tests at its end.
fn code_of(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let code = text
        .split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default();
    let code = code
        .split("#[cfg(test)]\n#[allow")
        .next()
        .unwrap_or_default();
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    code.lines().filter(is_code).collect::<Vec<_>>().join("\n")
}
