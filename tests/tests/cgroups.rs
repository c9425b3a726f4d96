//! Tests device cgroups of both versions: the kernel lets the container open exactly the chosen devices.
#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use nvc_testkit::cgroup::{Attach, DeviceCgroup};
use nvc_testkit::cli::{Run, lacks};
use nvc_testkit::container::Container;
use nvc_testkit::harness::Need::{self, CgroupV1, CgroupV2};
use nvc_testkit::harness::{self, cases, test};
use nvc_testkit::machine::{self, Scratch};
use nvc_tests::capi::{Check, Program, library_dir};
use nvc_tests::{State, command_line, debian, failing_ldconfig, host_ldconfig};

/// Every device of the simulated driver, `/dev/null` and `/dev/zero`.
const DEVICES: &str =
    "195:255 195:0 195:1 195:254 UVM:0 UVM:1 CAPS:1 CAPS:147 CAPS:148 CAPS:156 IMEX:0 1:3 1:5";

/// Name, arguments, and the devices allowed afterwards besides /dev/null.
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
    // Devices beside those of GPUs: the modeset node and IMEX channels.
    harness::on_debian();
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
        v2_on_an_ancestor_only,
        v2_on_an_ancestor_that_denies_only_displays,
        v2_that_cannot_be_extended,
        v2_without_a_program,
        v2_rolls_back,
        v2_repeated_runs_do_not_grow_the_program,
        v2_in_a_cgroup_namespace,
        v2_outside_of_the_cgroup_namespace,
    ]);
    if has_links() {
        tests.extend(nvc_testkit::tests![&[CgroupV2]; v2_held_by_links]);
    }
    tests.extend(nvc_testkit::tests![&[CgroupV1]; v1_no_foreign_access_is_allowed]);
    tests.extend(nvc_testkit::tests![&[CgroupV2]; v2_no_foreign_access_is_allowed]);
    tests.extend(nvc_testkit::tests![&[CgroupV1, Need::Command("gcc")]; v1_by_the_c_library]);
    tests.extend(nvc_testkit::tests![&[CgroupV2, Need::Command("gcc")]; v2_by_the_c_library]);
    harness::main(tests)
}

/// Returns true if the emulated kernel supports links to programs: since 5.7.
fn has_links() -> bool {
    !lacks()
        .iter()
        .any(|word| ["linux-4.18", "linux-5.4"].contains(&word.as_str()))
}

fn v2(how: Attach) -> DeviceCgroup {
    DeviceCgroup::v2().unwrap().attach(how, &["1:3"]).unwrap()
}

fn configure(container: &Container, arguments: &[&str]) -> Run {
    Run::cli(line(container, arguments))
}

fn line(container: &Container, arguments: &[&str]) -> Vec<OsString> {
    let (pid, ldconfig) = (format!("--pid={}", container.pid()), host_ldconfig());
    let mut words = vec!["configure", &ldconfig, &pid];
    words.extend(arguments);
    let mut line = command_line(machine::driver(), &words);
    line.push(container.root().into());
    line
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

/// Configures a container with a failing last step, after the rules were added.
fn fail_at_the_end(container: &Container) {
    let scratch = Scratch::new().unwrap();
    let option = failing_ldconfig(&scratch, &[]);
    configure(container, &["--utility", "--device=0", &option]).fails();
}

fn v1_rolls_back() {
    let container = container_in(DeviceCgroup::v1().unwrap());
    let before = State::of(&container);
    fail_at_the_end(&container);
    before.assert_unchanged(&container);
    assert_eq!(container.cgroup().unwrap().rules().unwrap(), ["c 1:3 rwm"]);
    assert_allowed(&container, "1:3");
}

/// Undoing a rule that was not needed would deny the device.
fn v1_that_allows_all_stays_so() {
    let container = container_in(DeviceCgroup::v1_allowing_all().unwrap());
    configure(&container, &["--utility", "--device=0"]).succeeds();
    fail_at_the_end(&container);
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
        fail_at_the_end(&container);
        before.assert_unchanged(&container);
        assert_allowed(&container, "1:3");
        assert_eq!(container.cgroup().unwrap().programs().unwrap(), 1);
    }
}

fn v2_repeated_runs_do_not_grow_the_program() {
    let container = container_in(v2(Attach::Multi));
    for _ in 0..20 {
        configure(&container, &["--utility", "--device=0"]).succeeds();
    }
    configure(&container, &["--utility", "--device=1"]).succeeds();
    assert_allowed(&container, "1:3 195:255 195:0 195:1");
}

fn v2_held_by_links() {
    let cgroup = DeviceCgroup::v2().unwrap();
    let links = [
        cgroup.link(&["1:3"]).unwrap(),
        cgroup.link(&["1:3", "1:5"]).unwrap(),
    ];
    let container = container_in(cgroup);
    assert_allowed(&container, "1:3");
    configure(&container, &["--utility", "--device=0"]).succeeds();
    assert_allowed(&container, "1:3 195:255 195:0");
    assert_eq!(container.cgroup().unwrap().programs().unwrap(), 2);
    drop(links);
}

/// The ancestor's filter applies to other groups too, so it stays unchanged; the container could not use its GPU.
fn v2_on_an_ancestor_only() {
    let outer = v2(Attach::Multi);
    let container = container_in(outer.child().unwrap());
    let before = State::of(&container);
    let message = configure(&container, &["--utility", "--device=0"]).fails();
    let text = format!(
        "nvidia-container-cli: mount error: failed to add device rules: the device filter of cgroup {} denies 195:255, 195:0",
        outer.directory().display()
    );
    assert_eq!(message, text);
    before.assert_unchanged(&container);
    assert_allowed(&container, "1:3");
    assert_eq!(outer.programs().unwrap(), 1);
    assert_eq!(outer.allowed(&["1:3", "195:0"]).unwrap(), ["1:3"]);
}

/// The container works without nvidia-modeset.
fn v2_on_an_ancestor_that_denies_only_displays() {
    let outer = DeviceCgroup::v2().unwrap();
    let outer = outer
        .attach(Attach::Multi, &["1:3", "195:255", "195:0"])
        .unwrap();
    let container = container_in(outer.child().unwrap());
    let outcome = configure(&container, &["--display", "--device=0"])
        .outcome()
        .unwrap();
    assert_eq!(outcome.status, Some(0), "{outcome:#?}");
    let text = format!(
        "the device filter of cgroup {} also applies to the container and may deny 195:254",
        outer.directory().display()
    );
    assert!(outcome.stderr.contains(&text), "{outcome:#?}");
    assert_allowed(&container, "1:3 195:255 195:0");
}

fn v2_that_cannot_be_extended() {
    for (how, reason) in [
        (Attach::Calls, "it calls functions"),
        (Attach::Maps, "it uses maps"),
    ] {
        let container = container_in(v2(Attach::Multi).attach(how, &[]).unwrap());
        let before = State::of(&container);
        let message = configure(&container, &["--utility", "--device=0"]).fails();
        assert!(message.ends_with(reason), "{message}");
        before.assert_unchanged(&container);
        assert_allowed(&container, "");
        assert_eq!(container.cgroup().unwrap().programs().unwrap(), 2);
    }
}

/// Runs the program in a cgroup namespace rooted at a cgroup, with only that hierarchy mounted and the container's
/// cgroup file as the kernel shows it there.
fn in_namespace_of(root: &DeviceCgroup, container: &Container, scratch: &Scratch) -> Run {
    const SCRIPT: &str = r#"
echo $$ > "$1/cgroup.procs"
shift
exec unshare --cgroup --mount --propagation private sh -ec '
  pid=$1 scratch=$2
  shift 2
  ! grep -q " /proc/$pid/cgroup " /proc/self/mountinfo || umount "/proc/$pid/cgroup"
  grep ^0:: "/proc/$pid/cgroup" > "$scratch/cgroup"
  mount --bind "$scratch/cgroup" "/proc/$pid/cgroup"
  mount -t cgroup2 none "$scratch/hierarchy"
  exec "$@"' sh "$@"
"#;
    std::fs::create_dir(scratch.join("hierarchy")).unwrap();
    let mut command = Command::new("sh");
    command.args(["-ec", SCRIPT, "sh"]).arg(root.directory());
    command.arg(container.pid().to_string()).arg(scratch.path());
    Run::within(command, line(container, &["--utility", "--device=0"]))
}

/// The paths in /proc/PID/cgroup and in mountinfo are relative to the reader's namespace.
fn v2_in_a_cgroup_namespace() {
    let outer = DeviceCgroup::v2().unwrap();
    let inner = outer.child().unwrap();
    let container = container_in(inner.attach(Attach::Multi, &["1:3"]).unwrap());
    let scratch = Scratch::new().unwrap();
    in_namespace_of(&outer, &container, &scratch).succeeds();
    assert_allowed(&container, "1:3 195:255 195:0");
}

/// A group that cannot be reached from there is not mistaken for another one.
fn v2_outside_of_the_cgroup_namespace() {
    let (here, there) = (DeviceCgroup::v2().unwrap(), v2(Attach::Multi));
    let name = there.directory().file_name().unwrap().to_owned();
    let container = container_in(there);
    let before = State::of(&container);
    let scratch = Scratch::new().unwrap();
    let message = in_namespace_of(&here, &container, &scratch).fails();
    let text = format!(
        "nvidia-container-cli: container error: failed to get device cgroup root path: relative path in cgroup entry: /../{}",
        name.display()
    );
    assert_eq!(message, text);
    before.assert_unchanged(&container);
    assert_allowed(&container, "1:3");
}

/// While a container is configured, and while that is undone, a process in it can never open a device that was not
/// chosen.
fn no_foreign_access_is_allowed(cgroup: DeviceCgroup, undo_first: bool) {
    let container = container_in(cgroup);
    let race = |device| container.cgroup().unwrap().race(device).unwrap();
    let races = [race("195:1"), race("1:5")];
    if undo_first {
        fail_at_the_end(&container);
        assert_allowed(&container, "1:3");
    }
    configure(&container, &["--utility", "--device=0"]).succeeds();
    for race in races {
        assert_eq!(race.end().unwrap(), "0");
    }
    assert_allowed(&container, "1:3 195:255 195:0");
}

fn v1_no_foreign_access_is_allowed() {
    for number in 0..cases(2, 50) {
        no_foreign_access_is_allowed(DeviceCgroup::v1().unwrap(), number % 2 == 0);
    }
}

fn v2_no_foreign_access_is_allowed() {
    for number in 0..cases(1, 50) {
        for how in [Attach::Single, Attach::Override, Attach::Multi] {
            no_foreign_access_is_allowed(v2(how), number % 2 == 0);
        }
        let several = v2(Attach::Multi).attach(Attach::Multi, &["1:3", "195:1"]);
        no_foreign_access_is_allowed(several.unwrap(), number % 2 == 0);
        if has_links() {
            let cgroup = DeviceCgroup::v2().unwrap();
            let link = cgroup.link(&["1:3"]).unwrap();
            no_foreign_access_is_allowed(cgroup, number % 2 == 0);
            drop(link);
        }
    }
}

fn by_the_c_library(cgroup: DeviceCgroup) {
    let program = Program::compile("gcc", "tests/c/repeat.c", Check::Plain);
    let container = container_in(cgroup);
    let script = r#"echo "$3 $4 0" | "$1" "$2" "supervised utility compute""#;
    let text = Run::other("sh")
        .args(["-c", script, "sh"])
        .args([&program.path()])
        .args([machine::driver().root()])
        .args([container.pid().to_string()])
        .args([container.root()])
        .env("LD_LIBRARY_PATH", library_dir())
        .succeeds();
    // Numbers, not an error.
    assert_eq!(text.split(' ').count(), 3, "{text}");
    assert_allowed(&container, "1:3 195:255 195:0 UVM:0 UVM:1");
}

fn v1_by_the_c_library() {
    by_the_c_library(DeviceCgroup::v1().unwrap());
}

fn v2_by_the_c_library() {
    by_the_c_library(v2(Attach::Single));
}
