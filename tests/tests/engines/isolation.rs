//! Checks that a container with one GPU lacks another GPU's node, procfs entry, MIG capability and device rule, and the
//! parameter that allows creating nodes.
//!
//! Each check also runs in a container without protection, where it must find something: a check that never finds
//! anything proves nothing.

use nvc_testkit::driver::Driver;
use serde_json::json;

use super::runtimes::{Body, Bundle};
use super::world::{World, printed};

/// Name and body of each test.
pub(crate) const TESTS: &[(&str, Body)] = &[("isolates_in_legacy_mode", legacy)];

/// Returns the checks: a name, shell commands, and the expected output with protection.
fn looks(driver: &Driver) -> Vec<(&'static str, String, &'static str)> {
    let caps = driver.majors().caps;
    let bus = &driver.profile().gpus[1].bus_id;
    vec![
        ("node", "ls /dev | grep -x nvidia1".into(), ""),
        (
            "device rule",
            "mknod /tmp/n c 195 1; (exec 3</tmp/n) 2>&1 | grep -o 'No such device or address'"
                .into(),
            "",
        ),
        (
            "rule of a MIG capability",
            format!(
                "mknod /tmp/c c {caps} 148; (exec 3</tmp/c) 2>&1 | grep -o 'No such device or address'"
            ),
            "",
        ),
        (
            "procfs entry",
            format!("ls /proc/driver/nvidia/gpus | grep -ix '{}'", bus_name(bus)),
            "",
        ),
        (
            "file of a MIG capability",
            "ls /proc/driver/nvidia/capabilities/gpu1/mig 2>/dev/null | grep -c gi".into(),
            "0\n",
        ),
        (
            "advice to make nodes",
            "grep -x 'ModifyDeviceFiles: 1' /proc/driver/nvidia/params".into(),
            "",
        ),
    ]
}

/// Returns the name of a GPU's directory, with a four-digit domain.
fn bus_name(bus: &str) -> String {
    let digits = bus.find(':').unwrap_or(0);
    bus[digits.saturating_sub(4)..].to_ascii_lowercase()
}

fn script(looks: &[(&str, String, &str)]) -> String {
    let parts = looks
        .iter()
        .map(|(name, text, _)| format!("echo '[{name}]'; {text}"));
    parts.collect::<Vec<_>>().join("\n")
}

/// Returns the output of each check.
fn parts(output: &str, looks: &[(&'static str, String, &str)]) -> Vec<(&'static str, String)> {
    looks
        .iter()
        .map(|(name, ..)| {
            let heading = format!("[{name}]\n");
            let after = output.split_once(&heading).map_or("?", |(_, after)| after);
            let end = after.find('[').unwrap_or(after.len());
            (*name, after[..end].to_owned())
        })
        .collect()
}

fn legacy(runtime: &str) {
    isolates(runtime, "legacy");
}

fn isolates(runtime: &str, mode: &str) {
    let world = World::new(runtime, mode, "");
    let looks = looks(world.driver);
    let script = format!("{}\ntrue", script(&looks));
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=0"], &script);
    bundle.allow_mknod();
    let seen = printed(&mut bundle.run());
    for ((name, found), (_, _, expected)) in parts(&seen, &looks).iter().zip(&looks) {
        assert_eq!(found, expected, "{mode} under {runtime}: {name}\n{seen}");
    }

    // The same container without protection: the real runtime alone, every device allowed, the host's nodes.
    let world = World::new(runtime, mode, "");
    let bundle = Bundle::new(world, &[], &script);
    let mut spec = bundle.spec();
    spec["linux"]["resources"] = json!({"devices": [{"allow": true, "access": "rwm"}]});
    spec["linux"]["devices"] =
        json!([{"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1}]);
    bundle.write(&spec);
    bundle.allow_mknod();
    let seen = printed(&mut bundle.run_with(&format!("sim-{runtime}")));
    for ((name, found), (_, _, expected)) in parts(&seen, &looks).iter().zip(&looks) {
        assert_ne!(
            found, expected,
            "the look for the {name} finds nothing where it is\n{seen}"
        );
    }
}
