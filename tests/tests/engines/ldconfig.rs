//! Runs containers on a machine whose ldconfig is not /sbin/ldconfig: config.toml names it, in every mode.

use std::fs;

use nvc_testkit::profile::Profile;
use nvc_tests::bundle::Bundle;
use nvc_tests::world::World;

use super::machines::world;
use super::runtimes::Body;

/// Name and body of each test; the argument is the low-level runtime.
pub(crate) const TESTS: &[(&str, Body)] = &[
    ("hooks_use_the_configured_ldconfig", configured),
    ("specifications_have_the_configured_ldconfig", recorded),
];

/// Sets lines about ldconfig.
fn set(world: &World, line: &str) {
    let file = world.path("config.toml");
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{error}"));
    let table = "[nvidia-container-cli]\n";
    let text = text.replace(table, &format!("{table}{line}\n"));
    fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
}

/// Returns the words of our hook in config.json, after a run in this mode with these lines about ldconfig.
fn words(runtime: &str, mode: &str, line: &str) -> String {
    let world: World = world(runtime, mode, &Profile::default());
    set(&world, line);
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=all"], "true");
    // The hook may fail: there is no such program.
    let _ = bundle.run().output();
    let spec = bundle.spec();
    let hooks = spec["hooks"]["createContainer"].as_array();
    let mut hooks = hooks.into_iter().flatten();
    let hook = hooks.find(|hook| hook["args"].to_string().contains("library-path"));
    hook.map_or_else(String::new, |hook| hook["args"].to_string())
}

fn configured(runtime: &str) {
    for mode in ["jit-cdi", "csv"] {
        let chosen = words(runtime, mode, "ldconfig = \"@/opt/glibc/ldconfig\"");
        let option = "\"--ldconfig-path\",\"/opt/glibc/ldconfig\"";
        assert!(chosen.contains(option), "{mode}: {chosen}");
        // What packages write is no choice.
        let usual = words(runtime, mode, "ldconfig = \"@/sbin/ldconfig\"");
        let is_usual = !usual.is_empty() && !usual.contains("--ldconfig-path");
        assert!(is_usual, "{mode}: {usual}");
    }
}

/// `auto` has no word in a specification.
fn recorded(runtime: &str) {
    for (line, option, expected) in [
        ("", "", None),
        ("ldconfig = \"auto\"", "", None),
        ("ldconfig = \"@/opt/l\"", "", Some("/opt/l")),
        ("ldconfig = \"@/opt/l\"", "--ldconfig-path=auto", None),
        ("ldconfig = \"@/opt/l\"", "--ldconfig-path=@auto", None),
        ("ldconfig = \"@auto\"", "--ldconfig-path=/x/l", Some("/x/l")),
    ] {
        let world = world(runtime, "cdi", &Profile::default());
        set(&world, line);
        let mut command = world.command("nvidia-ctk");
        command.args(["cdi", "generate", "--mode=nvml", "--format=json", option]);
        command.arg("--config").arg(world.path("config.toml"));
        let output = command.output().unwrap_or_else(|error| panic!("{error}"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let what = format!(
            "{line} {option}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(text.contains("update-ldcache"), "{what}");
        let words: String = text.split_whitespace().collect();
        let option = expected.map(|path| format!("\"--ldconfig-path\",\"{path}\""));
        assert_eq!(
            words.contains("--ldconfig-path"),
            option.is_some(),
            "{what}"
        );
        assert!(
            option.is_none_or(|option| words.contains(&option)),
            "{what}"
        );
    }
}
