//! Checks that what "one engine" replaced has not come back: a second engine of effects, second selectors, second ways
//! to say one thing.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// Files whose work another part does now.
const FILES: [&str; 11] = [
    "toolkit/nvc-cdi-hook/src/volume.rs",
    "toolkit/nvc-cdi-hook/src/hooks/tmpfs.rs",
    "toolkit/nvc-cdi-hook/src/hooks/device_node_modification.rs",
    "toolkit/nvc-cdi-hook/src/hooks/application_profile.rs",
    "toolkit/nvc-cdi-hook/src/hooks/driver_proc.rs",
    "toolkit/nvc-cdi-hook/src/hooks/cuda_compat/note.rs",
    "toolkit/nvc-cdi-hook/src/hooks/cuda_compat/version.rs",
    "toolkit/nvc-runtime/src/demands.rs",
    "toolkit/nvc-runtime/src/automatic.rs",
    "libnvc/src/render/oci.rs",
    "libnvc/src/render/cdi.rs",
];

/// Words of the code that went, each with the sources that may not have it.
const WORDS: [(&str, &str); 13] = [
    ("fn restrict_links(", "toolkit"),
    ("fn is_graphics_file(", "toolkit"),
    ("fn check_node(", "toolkit/nvc-runtime"),
    ("struct Wants", "libnvc/src"),
    ("struct Wish", "toolkit"),
    ("pub use inroot::", "libnvc/src"),
    ("pub use mount_id::", "libnvc/src"),
    ("pub use read_file::", "libnvc/src"),
    ("is_kernel_file", "toolkit"),
    ("read_kernel_file", "toolkit"),
    ("seccompiler::", "libnvc/src"),
    ("rustix::", "toolkit"),
    ("doc(hidden)", "libnvc/src"),
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

#[test]
fn words_are_gone() {
    let mut read = 0;
    for (word, folder) in WORDS {
        for file in sources(&top().join(folder)) {
            read += 1;
            let text = fs::read_to_string(&file).unwrap();
            assert!(!text.contains(word), "{word} in {}", file.display());
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
