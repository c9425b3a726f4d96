//! Runs nvidia-ctk on files that need no driver.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the program with this configuration.
fn ctk(config: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvidia-ctk"));
    command
        .args(words)
        .env("NVIDIA_CTK_CONFIG_FILE_PATH", config);
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Two files may define a device, but not where engines read them.
#[test]
fn a_device_is_defined_once_where_engines_read() {
    for are_read in [false, true] {
        // Where no other user could exchange a file.
        let directory = tempfile::tempdir_in("/var/lib")
            .or_else(|_| tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")))
            .unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("usr/lib/tegra")).unwrap();
        fs::write(at("usr/lib/tegra/liba.so.1"), "").unwrap();
        fs::write(
            at("list.csv"),
            "dev, /dev/null\nlib, /usr/lib/tegra/liba.so.1\n",
        )
        .unwrap();
        let directories = if are_read { at("") } else { "/no/such".into() };
        let line = format!("modes.cdi.spec-dirs = [\"{}\"]", directories.display());
        let text = format!("[nvidia-container-runtime]\n{line}\n");
        fs::write(at("config.toml"), text).unwrap();
        let outputs = ["one", "two"].map(|name| {
            let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
            let words = [
                option("csv.file", &at("list.csv")),
                option("driver-root", directory.path()),
                option("output", &at(&format!("{name}.yaml"))),
            ];
            let words = words.iter().map(String::as_str);
            let first = ["cdi", "generate", "--mode=csv", "--dev-root=/"];
            let words: Vec<&str> = first.into_iter().chain(words).collect();
            ctk(&at("config.toml"), &words)
        });
        let [one, two] = &outputs;
        assert!(one.status.success(), "{}", said(one));
        assert_eq!(two.status.success(), !are_read, "{}", said(two));
        assert_eq!(at("two.yaml").exists(), !are_read);
        assert_eq!(
            said(two).contains("engines would drop the device"),
            are_read
        );
    }
}

/// Scripts pass one set of options for each engine.
#[test]
fn docker_has_no_command_as_a_source() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("daemon.json");
    fs::write(&file, "{\"a\": 1}\n").unwrap();
    let option = format!("--config={}", file.display());
    let words = [
        "runtime",
        "configure",
        "--runtime=docker",
        "--config-source=command",
        "--dry-run",
        &option,
    ];
    let output = ctk(Path::new("/no/such"), &words);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("--config-source=command is ignored"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("\"a\": 1") && text.contains("\"nvidia\""),
        "{text}"
    );
}

/// A bug report has a line for what is not installed, too, and its JSON has the same facts.
#[test]
fn info_and_list_are_for_people_and_programs() {
    let none = Path::new("/no/such");
    let printed = |words: &[&str]| {
        let output = ctk(none, words);
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = printed(&["info", "--no-gpus"]);
    let json: serde_json::Value =
        serde_json::from_str(&printed(&["info", "--no-gpus", "--format=json"])).unwrap();
    for name in [
        "version",
        "kernel",
        "distribution",
        "kernel driver",
        "dockerd",
        "podman",
        "nvidia-ctk",
    ] {
        let fact = json.get(name).unwrap_or_else(|| panic!("{name}: {json}"));
        let fact = fact.as_str().unwrap_or("not installed");
        assert!(text.contains(&format!("{name}: {fact}\n")), "{text}");
    }
    assert!(json.get("GPU").is_none());
    assert!(said(&ctk(none, &["info"])).contains("--no-gpus leaves them alone"));
    assert!(!ctk(none, &["info", "--format=xml"]).status.success());

    let directory = tempfile::tempdir().unwrap();
    let spec = r#"{"cdiVersion": "0.5.0", "kind": "v.com/gpu", "devices": [{"name": "0", "containerEdits": {"env": ["A=b"]}}]}"#;
    fs::write(directory.path().join("a.json"), spec).unwrap();
    let option = format!("--spec-dir={}", directory.path().display());
    let list: serde_json::Value =
        serde_json::from_str(&printed(&["cdi", "list", "--format=json", &option])).unwrap();
    assert_eq!(list["devices"][0]["name"], "v.com/gpu=0");
    assert_eq!(
        list["devices"][0]["file"],
        directory.path().join("a.json").to_str().unwrap()
    );
}
