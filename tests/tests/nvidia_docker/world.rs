//! Runs a script in the environment that world.sh sets up.

use std::path::PathBuf;
use std::process::Command;

use nvc_testkit::cli;
use nvc_testkit::driver::Builder;
use nvc_testkit::machine::Scratch;
use nvc_tests::debian_root;

const WORLD: &str = include_str!("world.sh");

/// Runs a script, which must succeed; returns what it printed.
#[track_caller]
pub(crate) fn run(script: &str) -> String {
    let scratch = Scratch::new().unwrap();
    let driver = Builder::default()
        .answering_cuda()
        .build(scratch.join("driver"))
        .unwrap();
    let image = debian_root().build(scratch.join("image")).unwrap();
    let world = scratch.join("world");
    std::fs::create_dir(&world).unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "--pid", "--net", "--fork", "--kill-child"])
        .args(["--propagation", "private", "bash", "-c", WORLD, "world.sh"])
        .args([driver.root(), &image, &world, &programs()])
        .arg(script)
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{}\n{script}\n{out}\n{err}",
        output.status
    );
    out.into_owned()
}

/// Returns the directory of the programs under test.
fn programs() -> PathBuf {
    let cli = cli::program().unwrap();
    cli.parent().unwrap().to_owned()
}
