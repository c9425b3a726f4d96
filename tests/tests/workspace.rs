//! Checks the result of a plain `cargo build`.

use std::process::Command;

use serde_json::Value;

#[test]
fn a_plain_build_makes_all_programs() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--no-deps", "--offline", "--format-version=1"]);
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let output = command.output().expect("cargo starts");
    assert!(output.status.success(), "{output:?}");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let default = list(&metadata["workspace_default_members"]);
    let built = list(&metadata["packages"])
        .into_iter()
        .filter(|package| default.contains(&package["id"]))
        .flat_map(|package| list(&package["targets"]));
    let names: Vec<_> = built.map(|target| target["name"].clone()).collect();
    for name in ["nvidia-container-cli", "nvc-query", "nvidia_container"] {
        assert!(names.contains(&name.into()), "{name}: {names:?}");
    }
    // Programs for tests and measurements are not among them.
    assert!(!names.contains(&"nvc-bench".into()), "{names:?}");
}

/// TLS is rustls with ring: the others need a compiler for C and assembly of their own, and fixes from elsewhere.
#[test]
fn no_other_cryptography_is_locked() {
    let lock = include_str!("../../Cargo.lock");
    for name in [
        "aws-lc-rs",
        "aws-lc-sys",
        "openssl",
        "openssl-sys",
        "native-tls",
    ] {
        let line = format!("name = \"{name}\"");
        assert!(!lock.lines().any(|other| other == line), "{name}");
    }
    assert!(lock.contains("name = \"ring\""));
}
