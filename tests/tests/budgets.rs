//! Checks the number of foreign crates linked by programs that start with every container, and forbidden crates.

use std::collections::BTreeSet;
use std::process::Command;

/// Returns the crates that a package links, without procedural macros and their dependencies.
fn linked(package: &str) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "tree",
            "--offline",
            "--locked",
            "-e",
            "normal,no-proc-macro",
            "--prefix",
            "none",
        ])
        .args(["-p", package])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("cargo runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .filter_map(|line| Some(line.split_once(" v")?.0.to_owned()))
        .collect()
}

#[test]
fn programs_that_start_with_containers_link_few_crates() {
    for package in ["nvc-hook", "nvc-runtime", "nvc-cdi-hook"] {
        let is_ours = |name: &String| name == "libnvc" || name.starts_with("nvc-");
        let crates: Vec<_> = linked(package)
            .into_iter()
            .filter(|name| !is_ours(name))
            .collect();
        let count = crates.len();
        assert!(count > 5, "cargo tree printed something else: {crates:?}");
        assert!(count <= 40, "{package} links {count} crates: {crates:?}");
        for heavy in ["clap", "tokio", "regex", "env_logger"] {
            let is_linked = crates.iter().any(|name| name == heavy);
            assert!(!is_linked, "{package} links {heavy}");
        }
    }
}

#[test]
fn only_readers_of_specifications_read_yaml() {
    for package in ["nvc-runtime", "nvc-hook"] {
        assert!(linked(package).contains("saphyr-parser"), "{package}");
    }
    for package in ["nvc-cdi-hook", "nvc-cli"] {
        assert!(!linked(package).contains("saphyr-parser"), "{package}");
    }
}
