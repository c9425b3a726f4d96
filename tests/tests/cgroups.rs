//! Device cgroups of both versions: the kernel lets the container open exactly the chosen devices.
#![allow(clippy::unwrap_used)]

use std::process::ExitCode;

use nvc_testkit::cgroup::{Attach, DeviceCgroup};
use nvc_testkit::cli::Run;
use nvc_testkit::container::Container;
use nvc_testkit::harness::Need::{CgroupV1, CgroupV2};
use nvc_testkit::harness::{self, test};
use nvc_testkit::machine;
use nvc_tests::{State, command_line, debian, host_ldconfig};

/// Every device of the simulated driver, `/dev/null` and `/dev/zero`.
const DEVICES: &str =
    "195:255 195:0 195:1 195:254 UVM:0 UVM:1 CAPS:1 CAPS:147 CAPS:148 CAPS:156 IMEX:0 1:3 1:5";

/// Name, arguments, and the devices that are allowed afterwards beside /dev/null.
const CASES: &[(&str, &[&str], &str)] = &[
    ("utility", &["--utility", "--device=0"], "195:255 195:0"),
    (
        "compute",
        &["--compute", "--device=1"],
        "195:255 195:1 UVM:0 UVM:1",
    ),
    (
        "display",
        &["--display", "--device=0"],
        "195:255 195:0 195:254",
    ),
    (
        "mig",
        &["--utility", "--device=1:0"],
        "195:255 195:1 CAPS:147 CAPS:148",
    ),
    (
        "mig_config",
        &["--utility", "--device=1", "--mig-config=all"],
        "195:255 195:1 CAPS:1 CAPS:147 CAPS:148 CAPS:156",
    ),
    (
        "imex",
        &["--utility", "--device=0", "--imex-channel=0"],
        "195:255 195:0 IMEX:0",
    ),
    (
        "no_devbind",
        &["--utility", "--device=0", "--no-devbind"],
        "195:255 195:0",
    ),
];

fn main() -> ExitCode {
    let mut tests = Vec::new();
    for &(name, arguments, allowed) in CASES {
        tests.push(test(format!("v1_{name}"), &[CgroupV1], move || {
            allows(DeviceCgroup::v1().unwrap(), arguments, allowed);
        }));
        tests.push(test(format!("v2_{name}"), &[CgroupV2], move || {
            allows(v2(Attach::Multi), arguments, allowed);
        }));
    }
    for (name, how) in [("override", Attach::Override), ("single", Attach::Single)] {
        tests.push(test(
            format!("v2_attached_{name}"),
            &[CgroupV2],
            move || {
                allows(v2(how), &["--utility", "--device=0"], "195:255 195:0");
            },
        ));
    }
    tests.extend(nvc_testkit::tests![&[CgroupV1];
        v1_rolls_back,
        v1_that_allows_all_stays_so,
    ]);
    tests.extend(nvc_testkit::tests![&[CgroupV2];
        v2_several_programs,
        v2_without_a_program,
        v2_rolls_back,
        v2_again_does_not_grow,
    ]);
    harness::main(tests)
}

fn v2(how: Attach) -> DeviceCgroup {
    DeviceCgroup::v2().unwrap().attach(how, &["1:3"]).unwrap()
}

fn configure(container: &Container, arguments: &[&str]) -> Run {
    let (pid, ldconfig) = (format!("--pid={}", container.pid()), host_ldconfig());
    let mut words = vec!["configure", &ldconfig, &pid];
    words.extend(arguments);
    let mut line = command_line(machine::driver(), &words);
    line.push(container.root().into());
    Run::cli(line)
}

fn container_in(cgroup: DeviceCgroup) -> Container {
    let mut container = debian();
    container.join(cgroup).unwrap();
    container
}

#[track_caller]
fn assert_allowed(container: &Container, expected: &str) {
    let driver = machine::driver();
    let (devices, expected) = (driver.fill(DEVICES), driver.fill(expected));
    let devices: Vec<_> = devices.split(' ').collect();
    let found = container.cgroup().unwrap().allowed(&devices).unwrap();
    let expected: Vec<_> = devices
        .iter()
        .copied()
        .filter(|device| expected.split(' ').any(|word| word == *device))
        .collect();
    assert_eq!(found, expected);
}

fn allows(cgroup: DeviceCgroup, arguments: &[&str], allowed: &str) {
    let container = container_in(cgroup);
    assert_allowed(&container, "1:3");
    configure(&container, arguments).succeeds();
    assert_allowed(&container, &format!("1:3 {allowed}"));
    if let Ok(programs) = container.cgroup().unwrap().programs() {
        assert_eq!(programs, 1);
    }
}

/// The step that fails comes last: the rules had been made.
const FAILING: &[&str] = &["--utility", "--device=0", "--ldconfig=@/bin/false"];

fn v1_rolls_back() {
    let container = container_in(DeviceCgroup::v1().unwrap());
    let before = State::of(&container);
    configure(&container, FAILING).fails();
    before.assert_unchanged(&container);
    assert_eq!(container.cgroup().unwrap().rules().unwrap(), ["c 1:3 rwm"]);
    assert_allowed(&container, "1:3");
}

/// Undoing a rule that was not needed would deny the device.
fn v1_that_allows_all_stays_so() {
    let container = container_in(DeviceCgroup::v1_allowing_all().unwrap());
    configure(&container, &["--utility", "--device=0"]).succeeds();
    configure(&container, FAILING).fails();
    assert_eq!(container.cgroup().unwrap().rules().unwrap(), ["a *:* rwm"]);
    assert_allowed(&container, DEVICES);
}

fn v2_several_programs() {
    let cgroup = v2(Attach::Multi)
        .attach(Attach::Multi, &["1:3", "1:5"])
        .unwrap();
    let container = container_in(cgroup);
    configure(&container, &["--utility", "--device=0"]).succeeds();
    assert_allowed(&container, "1:3 195:255 195:0");
    assert_eq!(container.cgroup().unwrap().programs().unwrap(), 2);
}

fn v2_without_a_program() {
    let container = container_in(DeviceCgroup::v2().unwrap());
    configure(&container, &["--utility", "--device=0"]).succeeds();
    assert_eq!(container.cgroup().unwrap().programs().unwrap(), 0);
    assert_allowed(&container, DEVICES);
}

fn v2_rolls_back() {
    for how in [Attach::Multi, Attach::Override, Attach::Single] {
        let container = container_in(v2(how));
        let before = State::of(&container);
        configure(&container, FAILING).fails();
        before.assert_unchanged(&container);
        assert_allowed(&container, "1:3");
        assert_eq!(container.cgroup().unwrap().programs().unwrap(), 1);
    }
}

fn v2_again_does_not_grow() {
    let container = container_in(v2(Attach::Multi));
    for _ in 0..20 {
        configure(&container, &["--utility", "--device=0"]).succeeds();
    }
    configure(&container, &["--utility", "--device=1"]).succeeds();
    assert_allowed(&container, "1:3 195:255 195:0 195:1");
}
