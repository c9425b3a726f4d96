//! Runs containers with volumes on /etc, /usr and /usr/lib: in each mode the GPU works, and the volume stays as it is.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
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
    ("volumes_stay_cdi", |runtime| {
        volumes(World::with_specification(runtime, &[]), 0);
    }),
    ("volumes_stay_merged", |runtime| {
        volumes(World::with_specification(runtime, &["--hooks=merged"]), 0);
    }),
    ("volumes_stay_live", |runtime| {
        volumes(World::with_specification(runtime, &["--style=live"]), 0);
    }),
    ("volumes_in_volumes_stay_jit_cdi", |runtime| {
        nested(World::new(runtime, "jit-cdi", ""), 1);
    }),
    ("volumes_in_volumes_stay_cdi", |runtime| {
        nested(World::with_specification(runtime, &[]), 0);
    }),
    ("volumes_behind_links_stay_legacy", |runtime| {
        behind_links(World::new(runtime, "legacy", ""), 1);
    }),
    ("volumes_behind_links_stay_jit_cdi", |runtime| {
        behind_links(World::new(runtime, "jit-cdi", ""), 1);
    }),
    ("volumes_behind_links_stay_cdi", |runtime| {
        behind_links(World::with_specification(runtime, &[]), 0);
    }),
    ("volumes_behind_links_stay_merged", |runtime| {
        behind_links(World::with_specification(runtime, &["--hooks=merged"]), 0);
    }),
    ("volumes_behind_links_stay_live", |runtime| {
        behind_links(World::with_specification(runtime, &["--style=live"]), 0);
    }),
];

/// Another container can put a link in the place of a volume's mount point, if that is on another volume: then nobody
/// knows where the runtime will mount it, and the hook mounts the files. Nodes and everything else are given as usual.
#[allow(clippy::needless_pass_by_value)] // each test has its own world
fn nested(world: World, index: usize) {
    let gpu = match index {
        1 => "NVIDIA_VISIBLE_DEVICES=1",
        _ => "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0",
    };
    let bundle = Bundle::new(world, &[gpu], "");
    let (outer, inner) = (bundle.world.path("outer"), bundle.world.path("inner"));
    let made = fs::create_dir_all(&inner)
        .and_then(|()| fs::create_dir(&outer))
        .and_then(|()| symlink("/usr/lib", outer.join("in")));
    made.unwrap_or_else(|error| panic!("{error}"));
    let from = bundle.path().join("rootfs/usr/lib/.");
    let copied = Command::new("cp").arg("-a").args([&from, &inner]).status();
    assert!(copied.is_ok_and(|status| status.success()));
    let mut spec = bundle.spec();
    for (place, source) in [("/data", &outer), ("/data/in", &inner)] {
        if let Some(mounts) = spec["mounts"].as_array_mut() {
            mounts.push(json!({
                "destination": place, "source": source, "type": "bind", "options": ["rbind"],
            }));
        }
    }
    bundle.write(&spec);
    let before = [&outer, &inner].map(|volume| Tree::of(volume).ok());
    let (seen, said) = both_of(&bundle, &look());
    assert_eq!(seen, sight(bundle.world.driver, index), "{said}");
    for (volume, before) in [&outer, &inner].into_iter().zip(before) {
        let after = Tree::of(volume).unwrap_or_else(|error| panic!("{error}"));
        let changes = before.map(|before| after.changes_since(&before));
        assert_eq!(changes, Some(Vec::new()), "{}", volume.display());
    }
}

/// Links of the image lead to a volume: for its directory of libraries, and for its programs.
#[allow(clippy::needless_pass_by_value)] // each test has its own world
fn behind_links(world: World, index: usize) {
    let gpu = match index {
        1 => "NVIDIA_VISIBLE_DEVICES=1",
        _ => "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0",
    };
    let bundle = Bundle::new(world, &[gpu, "NVIDIA_DRIVER_CAPABILITIES=all"], "");
    let root = bundle.path().join("rootfs");
    let volume = bundle.world.path("volume");
    let libraries = format!("usr/lib/{}", NATIVE.0);
    let made = fs::create_dir(&volume)
        .and_then(|()| fs::create_dir_all(root.join("usr/local/sbin")))
        .and_then(|()| fs::create_dir_all(root.join("etc/vulkan")))
        .and_then(|()| fs::rename(root.join(&libraries), volume.join("lib")))
        .and_then(|()| symlink("/data/lib", root.join(&libraries)))
        .and_then(|()| symlink("/data/icd", root.join("etc/vulkan/icd.d")))
        .and_then(|()| symlink("../../data/smi", root.join("usr/bin/nvidia-smi")));
    made.unwrap_or_else(|error| panic!("{error}"));
    let mut spec = bundle.spec();
    if let Some(mounts) = spec["mounts"].as_array_mut() {
        mounts.push(json!({
            "destination": "/data", "source": volume, "type": "bind", "options": ["rbind"],
        }));
    }
    // A mount point that is created is seen on the host, too.
    spec["linux"]["rootfsPropagation"] = "rshared".into();
    bundle.write(&spec);
    let before = Tree::of(&volume).unwrap_or_else(|error| panic!("{error}"));
    let script = "ldconfig -p | grep libcuda.so.1; echo /run/nvidia-container/*/*/*/libcuda.so.1; \
                  ls -d /run/nvidia-container/usr/bin /usr/local/sbin/nvidia-smi";
    let (seen, said) = both_of(&bundle, script);
    assert!(seen.contains("libcuda.so.1 ("), "{seen}{said}");
    assert!(
        seen.contains("/run/nvidia-container/usr/lib"),
        "{seen}{said}"
    );
    let after = Tree::of(&volume).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(after.changes_since(&before), [""; 0]);
}

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
    let script = format!("{}; ldconfig && nvidia-smi -L", look());
    let bundle = Bundle::new(world, &[gpu], &script);
    fs::create_dir_all(bundle.path().join("rootfs/usr/local/sbin"))
        .unwrap_or_else(|error| panic!("{error}"));
    let original = bundle.spec();
    for (place, option) in [
        ("/etc", "rw"),
        ("/usr", "rw"),
        ("/usr/lib", "rw"),
        ("/etc", "ro"),
    ] {
        let volume = match bundle
            .world
            .path(&format!("volume{}", place.replace('/', "-")))
        {
            known if known.exists() => known,
            _ => volume(&bundle, place),
        };
        let mut spec = original.clone();
        if let Some(mounts) = spec["mounts"].as_array_mut() {
            mounts.push(json!({
                "destination": place, "source": volume, "type": "bind", "options": ["rbind", option],
            }));
        }
        bundle.write(&spec);
        let before = Tree::of(&volume).unwrap_or_else(|error| panic!("{error}"));
        let expected = sight(bundle.world.driver, index);
        let list = bundle.world.driver.listing(index, &[]);
        let (seen, said) = both_of(&bundle, &look());
        assert!(seen.ends_with(&list), "{place} {option}: {seen}{said}");
        let after = Tree::of(&volume).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(after.changes_since(&before), [""; 0], "{place} {option}");
        bundle.write(&spec);
        let (seen, said) = both_of(&bundle, &script);
        let looked = seen
            .strip_suffix(&list)
            .filter(|looked| looked.ends_with(&list));
        match (place, option) {
            // The cache on /etc stays, so `ldconfig -p` lists no driver.
            ("/etc", "ro") => assert!(seen.ends_with(&list), "{place} {option}: {seen}{said}"),
            ("/etc", _) => {
                assert!(looked.is_some(), "{place}: {seen}{said}");
                // The container's own ldconfig has written to it.
                fs::remove_dir_all(&volume).unwrap_or_else(|error| panic!("{error}"));
                continue;
            }
            _ => assert_eq!(looked, Some(&*expected), "{place}: {said}"),
        }
        let after = Tree::of(&volume).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(after.changes_since(&before), [""; 0], "{place} {option}");
    }
}

/// Runs the bundle to its end; the container's own ldconfig may fail.
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
