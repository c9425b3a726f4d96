//! Runs containers with volumes on /etc, /usr and /usr/lib in each mode whose files our hook mounts: the volume stays as
//! it is; with one on /etc the GPU works, with the others the container does not start, and an error names the volume.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvc_testkit::driver::NATIVE;
use nvc_testkit::tree::Tree;
use nvc_tests::bundle::Bundle;
use nvc_tests::world::{World, look, sight};
use serde_json::json;

use super::runtimes::Body;

pub(crate) const TESTS: &[(&str, Body)] = &[
    ("volumes_stay_legacy", |runtime| {
        volumes(World::new(runtime, "legacy", ""), 1);
    }),
    ("volumes_stay_jit_cdi", |runtime| {
        volumes(World::new(runtime, "jit-cdi", ""), 1);
    }),
    ("volumes_stay_live", |runtime| {
        volumes(World::with_specification(runtime, &["--style=live"]), 0);
    }),
];

/// Copies a directory of the image, as an engine does for a new named volume.
pub(crate) fn volume(bundle: &Bundle, place: &str) -> PathBuf {
    let volume = bundle
        .world
        .path(&format!("volume{}", place.replace('/', "-")));
    let from = bundle.path().join("rootfs").join(&place[1..]).join(".");
    fs::create_dir(&volume).unwrap_or_else(|error| panic!("{error}"));
    let copied = Command::new("cp").arg("-a").args([&from, &volume]).status();
    assert!(copied.is_ok_and(|status| status.success()));
    volume
}

/// GPU 1 is requested by its index, GPU 0 by its CDI name: the other one is in MIG mode, and has none.
#[allow(clippy::needless_pass_by_value)] // each test has its own world
fn volumes(world: World, index: usize) {
    let gpu = match index {
        1 => "NVIDIA_VISIBLE_DEVICES=1",
        _ => "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0",
    };
    let bundle = Bundle::new(world, &[gpu], "");
    // Before a run has made mount points in the image.
    for place in ["/usr", "/usr/lib"] {
        check(&bundle, place, &volume(&bundle, place), "rw", index);
    }
    // The image's directory of libraries is a link to a volume.
    let (source, root) = (bundle.world.path("volume"), bundle.path().join("rootfs"));
    let libraries = root.join(format!("usr/lib/{}", NATIVE.0));
    let made = fs::create_dir(&source)
        .and_then(|()| fs::rename(&libraries, source.join("lib")))
        .and_then(|()| symlink("/data/lib", &libraries));
    made.unwrap_or_else(|error| panic!("{error}"));
    check(&bundle, "/data", &source, "rw", index);
    let back =
        fs::remove_file(&libraries).and_then(|()| fs::rename(source.join("lib"), &libraries));
    back.unwrap_or_else(|error| panic!("{error}"));
    let source = volume(&bundle, "/etc");
    for option in ["rw", "ro"] {
        check(&bundle, "/etc", &source, option, index);
    }
}

/// Runs the container with a volume at a place.
fn check(bundle: &Bundle, place: &str, source: &Path, option: &str, index: usize) {
    let original = bundle.spec();
    let mut spec = original.clone();
    if let Some(mounts) = spec["mounts"].as_array_mut() {
        mounts.push(json!({
            "destination": place, "source": source, "type": "bind", "options": ["rbind", option],
        }));
    }
    // A mount point that is created is seen on the host, too.
    spec["linux"]["rootfsPropagation"] = "rshared".into();
    // crun sends the output of hooks to /dev/null.
    spec["annotations"] = json!({"run.oci.hooks.stderr": "/proc/self/fd/2"});
    bundle.write(&spec);
    let before = Tree::of(source).unwrap_or_else(|error| panic!("{error}"));
    let (seen, said) = both_of(bundle, &look());
    bundle.write(&original);
    let after = Tree::of(source).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(after.changes_since(&before), [""; 0], "{place} {option}");
    if place == "/etc" {
        let list = bundle.world.driver.listing(index, &[]);
        assert!(seen.ends_with(&list), "{place} {option}: {seen}{said}");
        // The cache on /etc stays, so `ldconfig -p` lists no driver.
        assert_ne!(seen, sight(bundle.world.driver, index), "{place} {option}");
    } else {
        assert_eq!(seen, "", "{place}: {said}");
        assert!(
            said.contains(&format!("{place} is a volume")),
            "{place}: {said}"
        );
    }
}

/// Runs the bundle to its end.
fn both_of(bundle: &Bundle, script: &str) -> (String, String) {
    let mut spec = bundle.spec();
    spec["process"]["args"][2] = script.into();
    bundle.write(&spec);
    let output = bundle
        .run()
        .output()
        .unwrap_or_else(|error| panic!("{error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}
