//! Tests that no program of ours queries NVML as root: the runtime in each mode, nvidia-ctk, and the library's example,
//! which leaves the user to the library.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvc_testkit::driver::Driver;
use nvc_testkit::files;
use nvc_testkit::profile::Profile;
use nvc_tests::bundle::Bundle;
use nvc_tests::world::{World, printed};

use super::handover::install;
use super::runtimes::Body;

/// Name and body of each test; the argument is the low-level runtime.
pub(crate) const TESTS: &[(&str, Body)] = &[
    ("queries_nvml_as_nobody", modes),
    ("queries_nvml_as_nobody_for_documents", documents),
    ("queries_nvml_in_the_group_of_its_nodes", group),
];

/// The overflow user and group.
const NOBODY: &str = "65534:65534";

/// Users that have queried a driver: the simulated NVML records them.
struct Users(PathBuf);

impl Users {
    fn of(driver: &Driver) -> Self {
        let file = driver.path("/etc/nvidia-sim/users");
        files::file(&file, "", 0o666).unwrap_or_else(|error| panic!("{error}"));
        // Whatever the umask.
        let set = fs::set_permissions(&file, Permissions::from_mode(0o666));
        set.unwrap_or_else(|error| panic!("{error}"));
        Self(file)
    }

    /// Checks that NVML was queried since the last call, by one user only.
    #[track_caller]
    fn are(&self, expected: &str) {
        let text = fs::read_to_string(&self.0).unwrap_or_else(|error| panic!("{error}"));
        assert!(!text.is_empty(), "NVML was not queried");
        for user in text.lines() {
            assert_eq!(user, expected, "{text}");
        }
        fs::write(&self.0, "").unwrap_or_else(|error| panic!("{error}"));
    }
}

fn installed(world: &World) -> (Driver, Users) {
    let driver = install(world, "asked", &Profile::default().driver);
    let users = Users::of(&driver);
    (driver, users)
}

fn modes(runtime: &str) {
    for mode in ["legacy", "jit-cdi", "csv"] {
        let world = match mode {
            "csv" => World::jetson(runtime),
            _ => World::new(runtime, mode, ""),
        };
        let (_driver, users) = installed(&world);
        let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=all"], "true");
        printed(&mut bundle.run());
        users.are(NOBODY);
    }
}

/// Runs nvidia-ctk and the example with a driver.
fn ask(world: &World, driver: &Driver, runs: &dyn Fn()) {
    for mode in ["nvml", "csv"] {
        let mut generate = world.command("nvidia-ctk");
        let list = world.path("list.csv");
        files::file(&list, "dev, /dev/nvidia0\n", 0o644).unwrap_or_else(|error| panic!("{error}"));
        generate
            .args(["cdi", "generate", "--mode", mode, "--csv.file"])
            .arg(list)
            .arg("--driver-root")
            .arg(driver.root());
        printed(&mut generate);
        runs();
    }
    let container = nvc_tests::debian();
    let test = std::env::current_exe().unwrap_or_default();
    let target = test.parent().and_then(Path::parent);
    let example = target.unwrap_or(Path::new("/")).join("examples/plan");
    let mut plan = Command::new(example);
    plan.arg(container.pid().to_string())
        .arg(container.root())
        .arg("0")
        .arg(driver.root());
    printed(&mut plan);
    runs();
}

fn documents(runtime: &str) {
    let world = World::new(runtime, "legacy", "");
    let (driver, users) = installed(&world);
    ask(&world, &driver, &|| users.are(NOBODY));
}

/// On SUSE, only root and the group video may use the nodes.
fn group(runtime: &str) {
    let world = World::new(runtime, "legacy", "");
    let (driver, users) = installed(&world);
    let node = driver.path("/dev/nvidiactl");
    std::os::unix::fs::chown(&node, Some(0), Some(44)).unwrap_or_else(|error| panic!("{error}"));
    let set = fs::set_permissions(&node, Permissions::from_mode(0o660));
    set.unwrap_or_else(|error| panic!("{error}"));
    ask(&world, &driver, &|| users.are("65534:44"));
}
