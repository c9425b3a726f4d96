//! Checks that the committed header matches the sources. `UPDATE=1` rewrites it.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::{env, fs};

/// In reading order.
const SOURCES: [&str; 10] = [
    "version",
    "config",
    "state",
    "imex",
    "context",
    "driver",
    "mig",
    "device",
    "nvcaps",
    "container",
];

fn generated(repository: &Path) -> String {
    let mut config = cbindgen::Config::from_file(repository.join("cbindgen.toml")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let (numbers, tag) = version.split_once('-').unwrap_or((version, ""));
    let mut parts = numbers.split('.');
    let quoted = if tag.is_empty() {
        String::new()
    } else {
        format!("\"{tag}\"")
    };
    let text = config.after_includes.take().unwrap();
    let text = text
        .replace("@MAJOR@", parts.next().unwrap())
        .replace("@MINOR@", parts.next().unwrap())
        .replace("@PATCH@", parts.next().unwrap())
        .replace(
            " @TAG@",
            &if tag.is_empty() {
                quoted
            } else {
                format!(" {quoted}")
            },
        )
        .replace("@VERSION@", &version.replace('-', "~"));
    config.after_includes = Some(text);
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(repository.join("capi").join(source).with_extension("rs"));
    }
    let mut bytes = Vec::new();
    builder.generate().unwrap().write(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

#[test]
fn the_header_is_up_to_date() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let path = repository.join("include/nvc.h");
    let generated = generated(repository);
    if env::var_os("UPDATE").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "include/nvc.h is out of date; write it with UPDATE=1 cargo test -p nvc-tests --test capi_header"
    );
}
