//! Runs containers as an engine does that applies a specification itself: it makes the mounts, on volumes too. The hooks
//! create nothing there, and say so if the loader cannot find the driver.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};
use nvc_testkit::tree::Tree;
use nvc_tests::bundle::Bundle;
use nvc_tests::world::{World, both};
use serde_json::{Value, json};

use super::runtimes::Body;
use super::volumes::volume;

pub(crate) const TESTS: &[(&str, Body)] = &[
    ("plain_cdi_gives_libraries", |runtime| {
        gives_libraries(runtime, &[]);
    }),
    ("plain_cdi_gives_libraries_merged", |runtime| {
        gives_libraries(runtime, &["--hooks=merged"]);
    }),
    ("plain_cdi_says_what_is_hidden", says_what_is_hidden),
];

/// Applies the specification to a bundle, without a look at its volumes.
fn apply(bundle: &Bundle, spec: &mut Value) {
    let file = bundle.world.path("cdi/nvidia.json");
    let text = fs::read(&file).unwrap_or_else(|error| panic!("{error}"));
    let specification: Value =
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{error}"));
    let devices = specification["devices"].as_array().into_iter().flatten();
    let device = devices.filter(|device| device["name"] == "0");
    let edits = device.map(|device| &device["containerEdits"]);
    for edits in edits.chain([&specification["containerEdits"]]) {
        let list = |name: &str| edits[name].as_array().cloned().unwrap_or_default();
        for mount in list("mounts") {
            push(
                spec,
                &["mounts"],
                json!({
                    "destination": mount["containerPath"], "source": mount["hostPath"],
                    "type": "bind", "options": mount["options"],
                }),
            );
        }
        for mut hook in list("hooks") {
            let stage = hook["hookName"].as_str().unwrap_or_default().to_owned();
            if let Some(hook) = hook.as_object_mut() {
                hook.remove("hookName");
            }
            push(spec, &["hooks", &stage], hook);
        }
        for node in list("deviceNodes") {
            let path = node["hostPath"]
                .as_str()
                .or(node["path"].as_str())
                .unwrap_or_default();
            let found = fs::metadata(path).unwrap_or_else(|error| panic!("{path}: {error}"));
            push(
                spec,
                &["linux", "devices"],
                json!({
                    "path": node["path"], "type": "c", "major": major(found.rdev()), "minor": minor(found.rdev()),
                    "fileMode": 0o666,
                }),
            );
        }
    }
    spec["linux"]["resources"]["devices"] = json!([{"allow": true, "access": "rwm"}]);
    if let Some(mounts) = spec["mounts"].as_array_mut() {
        let depth = |mount: &Value| {
            mount["destination"]
                .as_str()
                .map(|at| at.matches('/').count())
        };
        mounts.sort_by_key(depth);
    }
}

fn push(spec: &mut Value, path: &[&str], new: Value) {
    let list = path.iter().fold(spec, |value, name| &mut value[*name]);
    match list.as_array_mut() {
        Some(list) => list.push(new),
        None => *list = json!([new]),
    }
}

/// Returns a bundle with the specification applied, and with a volume at a place.
fn bundle(runtime: &str, options: &[&str], place: &str) -> (Bundle, PathBuf) {
    let world = World::new(runtime, "cdi", "").on_debian();
    world.specify_as("nvidia.json", options);
    let bundle = Bundle::new(world, &[], "");
    let volume = volume(&bundle, place);
    let mut spec = bundle.spec();
    push(
        &mut spec,
        &["mounts"],
        json!({
            "destination": place, "source": volume, "type": "bind", "options": ["rbind"],
        }),
    );
    apply(&bundle, &mut spec);
    // crun sends the output of hooks to /dev/null.
    spec["annotations"] = json!({"run.oci.hooks.stderr": "/proc/self/fd/2"});
    bundle.write(&spec);
    (bundle, volume)
}

fn run(bundle: &Bundle, runtime: &str, script: &str) -> (String, String) {
    let mut spec = bundle.spec();
    spec["process"]["args"][2] = script.into();
    bundle.write(&spec);
    both(&mut bundle.run_with(&format!("sim-{runtime}")))
}

/// The engine creates mount points on the volume; the hooks create nothing there. So the loader finds the libraries if the
/// volume is elsewhere than where they go.
fn gives_libraries(runtime: &str, options: &[&str]) {
    for place in ["/usr", "/usr/lib", "/etc"] {
        let (bundle, volume) = bundle(runtime, options, place);
        let before = Tree::of(&volume).unwrap_or_else(|error| panic!("{error}"));
        let list = bundle.world.driver.listing(0, &[]);
        let (seen, said) = run(&bundle, runtime, "nvidia-smi -L");
        if place == "/etc" {
            assert_eq!(seen, list, "{place}: {said}");
        } else {
            assert_eq!(seen, "", "{place}: {said}");
            assert!(
                said.contains(&format!("{place} is a volume")),
                "{place}: {said}"
            );
        }
        let after = Tree::of(&volume).unwrap_or_else(|error| panic!("{error}"));
        let changes = after.changes_since(&before);
        let ours = |change: &&String| !is_mount_point(change, &bundle, place);
        assert_eq!(changes.iter().find(ours), None, "{place}: {changes:#?}");
    }
}

/// Returns true if a change is a new mount point of the engine, or a directory above one.
fn is_mount_point(change: &str, bundle: &Bundle, place: &str) -> bool {
    let (spec, mut words) = (bundle.spec(), change.split(' '));
    let mut mounts = spec["mounts"].as_array().into_iter().flatten();
    let (Some("+"), Some(path), Some("d" | "f")) = (words.next(), words.next(), words.next())
    else {
        return false;
    };
    mounts.any(|mount| {
        let at = mount["destination"].as_str().unwrap_or_default();
        // The image's /lib is a link to usr/lib.
        let behind = format!("/usr{at}");
        let mut places = [at, &behind].into_iter().map(Path::new);
        places.any(|at| at.starts_with(Path::new(place).join(path)))
    })
}

/// A volume that is mounted after the libraries hides them: the hook says so, and the container does not start.
fn says_what_is_hidden(runtime: &str) {
    let (bundle, _) = bundle(runtime, &[], "/usr/lib");
    let mut spec = bundle.spec();
    if let Some(mounts) = spec["mounts"].as_array_mut() {
        mounts.sort_by_key(|mount| mount["destination"] == "/usr/lib");
    }
    bundle.write(&spec);
    let (seen, said) = run(&bundle, runtime, "echo started");
    assert_eq!(seen, "", "{said}");
    assert!(said.contains("hides it"), "{said}");
}
