//! Checks that what "one engine" replaced has not come back: a second engine of effects, second selectors, second ways
//! to say one thing.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// Files whose work another part does now.
const FILES: [&str; 20] = [
    // Effects of the hooks
    "toolkit/nvc-cdi-hook/src/volume.rs",
    "toolkit/nvc-cdi-hook/src/hooks/tmpfs.rs",
    "toolkit/nvc-cdi-hook/src/hooks/device_node_modification.rs",
    "toolkit/nvc-cdi-hook/src/hooks/application_profile.rs",
    "toolkit/nvc-cdi-hook/src/hooks/driver_proc.rs",
    "toolkit/nvc-cdi-hook/src/hooks/cuda_compat/note.rs",
    "toolkit/nvc-cdi-hook/src/hooks/cuda_compat/version.rs",
    // Facts that were guessed back
    "toolkit/nvc-runtime/src/demands.rs",
    "toolkit/nvc-runtime/src/automatic.rs",
    "libnvc/src/render/oci.rs",
    "libnvc/src/render/cdi.rs",
    // Rooms under one roof
    "toolkit/nvc-toolkit",
    "nvc-toolkit",
    "toolkit/nvc-runtime/src/legacy.rs",
    "toolkit/nvc-runtime/src/devices.rs",
    "toolkit/nvc-runtime/src/jetson.rs",
    "toolkit/nvc-runtime/src/merged.rs",
    // Second readers of ELF files
    "nvc-docker/src/plugin/volume/sections.rs",
    "fuzz/fuzz_targets/build_id.rs",
    // Second grammars of options
    "nvc-docker/src/plugin/arguments.rs",
];

/// Words of the code that went, each with the sources that may not have it.
const WORDS: &[(&str, &str)] = &[
    // Effects of the hooks; libnvc's inner parts
    ("mkdirat", "toolkit/nvc-cdi-hook"),
    ("nix::mount", "toolkit/nvc-cdi-hook"),
    ("pub use inroot::", "libnvc/src"),
    ("pub use mount_id::", "libnvc/src"),
    ("pub use read_file::", "libnvc/src"),
    ("is_kernel_file", "toolkit"),
    ("read_kernel_file", "toolkit"),
    // Facts that were guessed back
    ("fn restrict(", "toolkit"),
    ("fn restrict_links(", "toolkit"),
    ("fn is_graphics_file(", "toolkit"),
    ("fn check_node(", "toolkit"),
    ("fn written(", "toolkit/nvc-generate"),
    ("fn written(", "toolkit/nvc-runtime"),
    ("starts_with(\"GPU-", "toolkit/nvc-runtime"),
    ("starts_with(\"/dev/nvidia", "toolkit/nvc-runtime/src/modes"),
    ("enum Id ", "toolkit/nvc-generate"),
    ("fn select(", "libnvc/src/plan"),
    ("struct Wants", "libnvc/src"),
    ("struct Wish", "toolkit"),
    // Second ways to do one thing: system calls, errors, replaced files, mount tables, ELF notes, hashes
    ("seccompiler::", "libnvc/src"),
    ("rustix::", "toolkit"),
    ("rustix::", "libnvc/src"),
    ("rustix::", "nvc-docker"),
    ("hint: Option<", "toolkit"),
    ("hint: Option<", "nvc-docker"),
    ("hint: Option<", "nvc-cli"),
    ("with_extension(\"draft\")", "nvc-docker"),
    (".split_once(\" - \")", "toolkit"),
    ("goblin::", "toolkit"),
    ("goblin::", "nvc-docker"),
    ("0x100_0000_01b3", "libnvc/src"),
    ("0x0100_0000_01b3", "toolkit"),
    // The library's front page
    ("Result<QueryProcess>", "libnvc/src"),
    ("fn open_in(root: DriverRoot", "libnvc/src"),
    ("doc(hidden)", "libnvc/src"),
    // Words for limits that the field does not use
    ("const MOST_", "toolkit"),
    ("const LONGEST_", "toolkit"),
    ("const LARGEST_", "toolkit"),
    ("const MOST_", "libnvc/src"),
    ("const LONGEST_", "libnvc/src"),
    ("const LARGEST_", "libnvc/src"),
];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn files_are_gone() {
    for file in FILES {
        assert!(!top().join(file).exists(), "{file}");
    }
}

/// No feature of a crate is an inner wall: each program has the same code however it is built.
#[test]
fn features_are_gone() {
    for entry in fs::read_dir(top().join("toolkit")).unwrap() {
        let manifest = entry.unwrap().path().join("Cargo.toml");
        let text = fs::read_to_string(&manifest).unwrap();
        assert!(!text.contains("[features]"), "{}", manifest.display());
    }
}

#[test]
fn words_are_gone() {
    let mut read = 0;
    for (word, folder) in WORDS {
        for file in sources(&top().join(folder)) {
            read += 1;
            let text = fs::read_to_string(&file).unwrap();
            assert!(!text.contains(*word), "{word} in {}", file.display());
        }
    }
    assert!(read > 1000, "the sources are not read: {read}");
}

/// Returns the Rust files below a folder, without build outputs.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
    found
}
