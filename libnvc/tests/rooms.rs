//! Checks ARCHITECTURE.md's claims about the rooms of libnvc: their imports, and the places with unsafe code.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

#[path = "rooms/imports.rs"]
mod imports;

use imports::{Modules, code_of, files_below};

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
    (
        "host",
        &[
            "request",
            "require",
            "select",
            "survey",
            "container",
            "plan",
            "apply",
            "render",
            "kmods",
        ],
    ),
    (
        "survey",
        &["container", "plan", "apply", "render", "kmods", "sys"],
    ),
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
const EFFECTS: &[&str] = &["std::fs", "std::process", "std::env", "use nix", "libc::"];

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

/// rustix is a dependency for the sake of pathrs. The testkit sets flags of files with it, which nix lacks.
#[test]
fn nix_is_the_only_crate_for_system_calls() {
    let mut count = 0;
    for (name, source) in crates() {
        for file in files_below(&source) {
            count += 1;
            let is_testkit = source
                .components()
                .any(|part| part.as_os_str() == "nvc-testkit");
            let uses_rustix = code_of(&file).contains("rustix");
            assert!(is_testkit || !uses_rustix, "{name}: {}", file.display());
        }
    }
    assert!(count > 400, "{count}");
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

#[test]
fn modules_import_one_way() {
    imports::check_reading();
    let mut found = Vec::new();
    for (name, source) in crates() {
        for circle in Modules::read(&source).circles() {
            found.push(format!("{name}: {circle:?}"));
        }
    }
    assert!(found.is_empty(), "modules import each other: {found:#?}");
}

/// Returns the crates of the repository, with the directories of their modules.
fn crates() -> Vec<(String, PathBuf)> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = vec![("capi".to_owned(), repository.join("capi"))];
    for folder in ["", "nvc-cli", "toolkit", "shared", "pkg"] {
        for entry in fs::read_dir(repository.join(folder)).unwrap() {
            let directory = entry.unwrap().path();
            let source = directory.join("src");
            if !directory.join("Cargo.toml").exists() || !source.exists() {
                continue;
            }
            let name = directory
                .file_name()
                .unwrap()
                .to_string_lossy()
                .into_owned();
            // A program of several files, beside a library.
            let programs = fs::read_dir(source.join("bin")).into_iter().flatten();
            let programs = programs.map(|entry| entry.unwrap().path());
            let programs = programs.filter(|path| path.join("main.rs").exists());
            found.extend(programs.map(|path| {
                let program = path.file_name().unwrap().to_string_lossy().into_owned();
                (program, path)
            }));
            found.push((name, source));
        }
    }
    assert!(found.len() > 15, "{found:?}");
    found
}

/// Returns the files of a room, without its tests.
fn files_of(room: &str) -> Vec<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = files_below(&source.join(room));
    found.push(source.join(format!("{room}.rs")));
    found
}
