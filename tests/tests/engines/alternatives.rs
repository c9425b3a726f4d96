//! Runs containers on a host of Debian's, whose programs are links by way of /etc/alternatives: `PATH` finds them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nvc_testkit::driver::Builder;
use nvc_testkit::profile::Profile;
use nvc_tests::bundle::Bundle;
use nvc_tests::world::{World, printed};

use super::runtimes::Body;

/// Name and body of each test; the argument is the low-level runtime.
pub(crate) const TESTS: &[(&str, Body)] = &[("finds_programs_that_are_links", |runtime| {
    for mode in ["jit-cdi", "cdi"] {
        check(runtime, mode);
    }
})];

/// Makes nvidia-smi two links in a row, as Debian's packages do.
fn alternatives(root: &Path) -> std::io::Result<()> {
    let current = root.join("usr/lib/nvidia/current");
    fs::create_dir_all(&current)?;
    fs::create_dir_all(root.join("etc/alternatives"))?;
    let program = root.join("usr/bin/nvidia-smi");
    fs::rename(&program, current.join("nvidia-smi"))?;
    let between = "/etc/alternatives/nvidia--nvidia-smi";
    symlink(between, &program)?;
    symlink(
        "/usr/lib/nvidia/current/nvidia-smi",
        root.join(&between[1..]),
    )
}

fn check(runtime: &str, mode: &str) {
    let mut world = World::new(runtime, mode, "");
    world.use_driver(&Builder::new(Profile::default().on_debian()).edit(alternatives));
    if mode == "cdi" {
        world.specify(&[]);
    }
    let script = "command -v nvidia-smi && nvidia-smi -L";
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=0"], script);
    let seen = printed(&mut bundle.run());
    let gpu = bundle.world.driver.listing(0, &[]);
    assert_eq!(seen, format!("/usr/bin/nvidia-smi\n{gpu}"), "{mode}");
}
