//! Runs containers on a machine whose ldconfig is not /sbin/ldconfig: config.toml names it, in every mode.

use std::fs;

use nvc_testkit::profile::Profile;
use nvc_tests::bundle::Bundle;
use nvc_tests::world::World;

use super::machines::world;
use super::runtimes::Body;

/// Name and body of each test; the argument is the low-level runtime.
pub(crate) const TESTS: &[(&str, Body)] = &[("hooks_use_the_configured_ldconfig", configured)];

/// Returns the words of our hook in config.json, after a run in this mode with these lines about ldconfig.
fn words(runtime: &str, mode: &str, line: &str) -> String {
    let world: World = world(runtime, mode, &Profile::default());
    let file = world.path("config.toml");
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{error}"));
    let table = "[nvidia-container-cli]\n";
    let text = text.replace(table, &format!("{table}{line}\n"));
    fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
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
