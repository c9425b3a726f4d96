//! Tests what `configure` tells systemd about a container's devices, on real cgroups, by a systemd that is simulated on
//! its socket. scripts/test/engines boots the real ones.
#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Command, ExitCode};

use nvc_testkit::cgroup::{Attach, DeviceCgroup};
use nvc_testkit::cli::{Outcome, Run};
use nvc_testkit::container::Container;
use nvc_testkit::harness;
use nvc_testkit::harness::Need::{CgroupV1, CgroupV2};
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::systemd::{self, Entry, Manner, Systemd, Unit};
use nvc_tests::{State, command_line, debian, failing_ldconfig, host_ldconfig};

const SCOPE: &str = "docker-1.scope";
/// The chosen devices, and the others that the tests try.
const CHOSEN: [&str; 2] = ["195:255", "195:0"];
/// Behind `auto`: there is a list all the same, which closes the other devices.
const WITH_LIST: &str = " with a list";
const TRIED: [&str; 5] = ["1:3", "195:255", "195:0", "195:1", "1:5"];

fn main() -> ExitCode {
    let mut tests = nvc_testkit::tests![&[CgroupV2];
        v2_a_scope,
        v2_a_scope_above,
        v2_a_scope_above_that_systemd_does_not_extend,
        v2_a_slice_above,
        v2_another_process_in_the_scope,
        v2_another_process_above,
        v2_a_unit_that_restricts_nothing,
        v2_a_unit_with_a_list_but_no_policy,
        v2_a_container_that_has_its_devices,
        v2_a_failure_restores_the_list,
        v2_no_answer,
        v2_by_the_bus,
        v2_inside_the_container,
    ];
    tests.extend(nvc_testkit::tests![&[CgroupV1];
        v1_systemd_comes_first,
        v1_a_failure_restores_the_list,
    ]);
    harness::main(tests)
}

/// A container in a scope, and its systemd.
struct Stage {
    // Groups are removed in this order, the inner ones first.
    container: Container,
    scope: Option<DeviceCgroup>,
    _slice: DeviceCgroup,
    systemd: Systemd,
    run: Scratch,
}

impl Stage {
    /// `is_nested`: the container is in a subgroup of the scope, as crun makes one.
    fn new(slice: DeviceCgroup, is_nested: bool, policy: &str, manner: Manner) -> Self {
        Self::with(slice, is_nested, policy, manner, "systemd/private")
    }

    fn with(
        slice: DeviceCgroup,
        is_nested: bool,
        policy: &str,
        manner: Manner,
        socket: &str,
    ) -> Self {
        let filtered = |cgroup: DeviceCgroup| match cgroup.programs() {
            Ok(_) => cgroup.attach(Attach::Multi, &["1:3"]).unwrap(),
            Err(_) => cgroup,
        };
        let scope = filtered(slice.named_child(SCOPE).unwrap());
        let change = scope.change();
        let (scope, own) = if is_nested {
            let inner = filtered(scope.named_child("container").unwrap());
            (Some(scope), inner)
        } else {
            (None, scope)
        };
        let mut container = debian();
        container.join(own).unwrap();
        let unit = Unit {
            name: SCOPE.into(),
            control_group: control_group(&container),
            policy: policy.trim_end_matches(WITH_LIST).into(),
            allowed: match policy {
                "auto" => Vec::new(),
                _ => entries(&["1:3"]),
            },
        };
        let run = Scratch::new().unwrap();
        systemd::run_directory(run.path()).unwrap();
        let change = (!policy.starts_with("auto")).then_some(change);
        let systemd = Systemd::start(&run.join(socket), unit, manner, change).unwrap();
        Self {
            container,
            scope,
            _slice: slice,
            systemd,
            run,
        }
    }

    /// Starts a process that is not the container's.
    fn another(&self, group: &Path) -> Another {
        let process = Command::new("sleep").arg("1000").spawn().unwrap();
        std::fs::write(group.join("cgroup.procs"), process.id().to_string()).unwrap();
        Another(process)
    }

    /// Returns `configure` on a machine with this systemd.
    fn run(&self, arguments: &[&str]) -> Run {
        let (pid, ldconfig) = (format!("--pid={}", self.container.pid()), host_ldconfig());
        let mut words = vec!["configure", &ldconfig, &pid, "--utility", "--device=0"];
        words.extend(arguments);
        let mut line = command_line(machine::driver(), &words);
        line.push(self.container.root().into());
        self.within(line)
    }

    fn within(&self, line: Vec<OsString>) -> Run {
        let script = "mount --bind \"$1\" /run && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--propagation",
            "slave",
            "sh",
            "-ec",
            script,
            "sh",
        ]);
        command.arg(self.run.path());
        Run::within(command, line)
    }

    fn fails_at_the_end(&self) -> String {
        let scratch = Scratch::new().unwrap();
        self.run(&[&failing_ldconfig(&scratch, &[])]).fails()
    }

    fn succeeds(&self) -> Outcome {
        let outcome = self.run(&[]).outcome().unwrap();
        assert_eq!(outcome.status, Some(0), "{outcome:#?}");
        outcome
    }

    fn allowed(&self) -> Vec<&'static str> {
        self.container.cgroup().unwrap().allowed(&TRIED).unwrap()
    }

    fn changes(&self) -> Vec<String> {
        let mut calls = self.systemd.calls();
        calls.retain(|call| call.starts_with("SetUnitProperties"));
        calls
    }

    fn list(&self) -> Vec<Entry> {
        self.systemd.unit().allowed
    }
}

/// A process that ends with the test.
struct Another(Child);

impl Drop for Another {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the path of the scope in the hierarchy.
fn control_group(container: &Container) -> String {
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", container.pid())).unwrap();
    let path = groups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .find(|path| path.contains(SCOPE))
        .unwrap();
    let end = path.find(SCOPE).unwrap() + SCOPE.len();
    path[..end].to_owned()
}

fn entries(devices: &[&str]) -> Vec<Entry> {
    let entry = |device: &&str| (format!("/dev/char/{device}"), "rw".to_owned());
    devices.iter().map(entry).collect()
}

const ADDED: &str =
    "SetUnitProperties docker-1.scope runtime=1 [/dev/char/195:255 rw, /dev/char/195:0 rw]";
const RESTORED: &str = "SetUnitProperties docker-1.scope runtime=1 [] [/dev/char/1:3 rw]";

fn v2() -> DeviceCgroup {
    DeviceCgroup::v2().unwrap()
}

fn v2_a_scope() {
    let stage = Stage::new(v2(), false, "strict", Manner::Honest);
    assert_eq!(stage.allowed(), ["1:3"]);
    let outcome = stage.succeeds();
    assert!(!outcome.stderr.contains("systemd"), "{outcome:#?}");
    assert_eq!(stage.changes(), [ADDED]);
    assert_eq!(stage.list(), entries(&["1:3", "195:255", "195:0"]));
    assert_eq!(stage.allowed(), ["1:3", "195:255", "195:0"]);
    // systemd applies its list again, and the container keeps its devices.
    stage.container.cgroup().unwrap().change()(&stage.list());
    assert_eq!(stage.allowed(), ["1:3", "195:255", "195:0"]);
    stage.succeeds();
    assert_eq!(stage.changes(), [ADDED]);
}

/// podman with crun: one filter is attached to the scope, another to the container's own group.
fn v2_a_scope_above() {
    let stage = Stage::new(v2(), true, "strict", Manner::Honest);
    stage.succeeds();
    assert_eq!(stage.changes(), [ADDED]);
    assert_eq!(stage.allowed(), ["1:3", "195:255", "195:0"]);
    let scope = stage.scope.as_ref().unwrap();
    assert_eq!(scope.programs().unwrap(), 1);
    assert_eq!(stage.container.cgroup().unwrap().programs().unwrap(), 1);
}

/// systemd's own filter is not changed by us.
fn v2_a_scope_above_that_systemd_does_not_extend() {
    let stage = Stage::new(v2(), true, "strict", Manner::ReadOnly);
    let before = State::of(&stage.container);
    let outcome = stage.run(&[]).outcome().unwrap();
    assert_eq!(outcome.status, Some(1), "{outcome:#?}");
    let text = format!(
        "nvidia-container-cli: mount error: failed to add device rules: the device filter of cgroup {} denies 195:255, 195:0\n",
        stage.scope.as_ref().unwrap().directory().display()
    );
    assert!(outcome.stderr.contains(&text), "{outcome:#?}");
    before.assert_unchanged(&stage.container);
    assert_eq!(stage.allowed(), ["1:3"]);
}

/// A slice is not a container's, so that only its administrator changes it.
fn v2_a_slice_above() {
    let slice = v2().attach(Attach::Multi, &["1:3", "195:255"]).unwrap();
    let directory = slice.directory().to_owned();
    let stage = Stage::new(slice, false, "strict", Manner::Honest);
    let before = State::of(&stage.container);
    let outcome = stage.run(&[]).outcome().unwrap();
    let text = format!(
        "the device filter of cgroup {} denies 195:0",
        directory.display()
    );
    assert!(outcome.message().ends_with(&text), "{outcome:#?}");
    let hint = "systemctl set-property --runtime UNIT DeviceAllow='/dev/char/195:0 rw'";
    assert!(outcome.stderr.contains(hint), "{outcome:#?}");
    before.assert_unchanged(&stage.container);
    assert_eq!(stage.changes(), [ADDED, RESTORED]);
    assert_eq!(stage.list(), entries(&["1:3"]));
}

/// A service whose own process is beside the container's: systemd would give it the devices for as long as it runs.
fn v2_another_process_in_the_scope() {
    let stage = Stage::new(v2(), false, "strict", Manner::Honest);
    let another = stage.another(stage.container.cgroup().unwrap().directory());
    let outcome = stage.succeeds();
    let text = format!(
        "systemd's unit docker-1.scope is left alone, because process {} of it is not the container's; the container \
         may lose its devices",
        another.0.id()
    );
    assert!(outcome.stderr.contains(&text), "{outcome:#?}");
    assert_eq!(stage.changes(), [""; 0]);
    assert_eq!(stage.allowed(), ["1:3", "195:255", "195:0"]);
    // The next hook of the same container.
    drop(another);
    stage.container.cgroup().unwrap().change()(&entries(&["1:3"]));
    let outcome = stage.succeeds();
    assert!(!outcome.stderr.contains("systemd"), "{outcome:#?}");
    assert_eq!(stage.changes(), [ADDED]);
}

/// A worker that starts a container below itself, and its other jobs.
fn v2_another_process_above() {
    let stage = Stage::new(v2(), true, "strict", Manner::Honest);
    let scope = stage.scope.as_ref().unwrap();
    let job = scope.named_child("job").unwrap();
    let below = job.named_child("step").unwrap();
    for group in [scope.directory(), job.directory(), below.directory()] {
        let before = State::of(&stage.container);
        let _another = stage.another(group);
        let outcome = stage.run(&[]).outcome().unwrap();
        assert_eq!(outcome.status, Some(1), "{outcome:#?}");
        for text in [
            "docker-1.scope is left alone",
            "docker-1.scope denies 195:255, 195:0\n",
            "systemctl set-property --runtime docker-1.scope DeviceAllow='/dev/char/195:255 rw' ",
        ] {
            assert!(outcome.stderr.contains(text), "{text}: {outcome:#?}");
        }
        before.assert_unchanged(&stage.container);
        assert_eq!(stage.changes(), [""; 0]);
        assert_eq!(stage.allowed(), ["1:3"]);
    }
    // Empty groups are nobody's.
    stage.succeeds();
    assert_eq!(stage.changes(), [ADDED]);
}

/// A privileged container, or one made by hand in a login session: an entry would deny all other devices.
fn v2_a_unit_that_restricts_nothing() {
    let stage = Stage::new(v2(), false, "auto", Manner::Honest);
    let outcome = stage.succeeds();
    assert!(!outcome.stderr.contains("systemd"), "{outcome:#?}");
    assert_eq!(stage.changes(), [""; 0]);
    assert_eq!(stage.list(), entries(&[]));
    assert_eq!(stage.allowed(), ["1:3", "195:255", "195:0"]);
}

fn v2_a_unit_with_a_list_but_no_policy() {
    let policy = format!("auto{WITH_LIST}");
    let stage = Stage::new(v2(), false, &policy, Manner::Honest);
    let outcome = stage.succeeds();
    let text = "systemd's unit docker-1.scope has DevicePolicy=auto and is left alone; ";
    assert!(outcome.stderr.contains(text), "{outcome:#?}");
    assert_eq!(stage.changes(), [""; 0]);
    assert_eq!(stage.list(), entries(&["1:3"]));
}

/// The runtime has given the devices, and systemd knows them by it.
fn v2_a_container_that_has_its_devices() {
    let stage = Stage::new(v2(), false, "strict", Manner::Honest);
    stage.container.cgroup().unwrap().change()(&entries(&CHOSEN));
    stage.succeeds();
    assert_eq!(stage.systemd.calls(), [""; 0]);
}

fn v2_a_failure_restores_the_list() {
    for is_nested in [false, true] {
        let stage = Stage::new(v2(), is_nested, "closed", Manner::Honest);
        let before = State::of(&stage.container);
        stage.fails_at_the_end();
        before.assert_unchanged(&stage.container);
        assert_eq!(stage.changes(), [ADDED, RESTORED]);
        assert_eq!(stage.list(), entries(&["1:3"]));
        assert_eq!(stage.allowed(), ["1:3"]);
    }
}

/// The container gets its devices; what systemd will do to them is said.
fn v2_no_answer() {
    for manner in [Manner::Rejects, Manner::ReadOnly, Manner::Signals] {
        let stage = Stage::new(v2(), false, "strict", manner.clone());
        let outcome = stage.succeeds();
        assert!(
            outcome.stderr.contains("unit docker-1.scope: ") && outcome.stderr.contains("reloaded"),
            "{manner:?}: {outcome:#?}"
        );
        assert_eq!(stage.list(), entries(&["1:3"]));
        assert_eq!(stage.allowed(), ["1:3", "195:255", "195:0"], "{manner:?}");
    }
}

fn v2_by_the_bus() {
    let socket = "dbus/system_bus_socket";
    let stage = Stage::with(v2(), false, "strict", Manner::Honest, socket);
    stage.succeeds();
    assert_eq!(stage.systemd.calls()[0], "Hello");
    assert_eq!(stage.changes(), [ADDED]);
}

/// A caller in the container's namespace would find the socket that the image has put there.
fn v2_inside_the_container() {
    let stage = Stage::new(v2(), false, "strict", Manner::Honest);
    let file = stage.container.inside("run/systemd/private");
    std::fs::create_dir_all(file.parent().unwrap().join("system")).unwrap();
    let unit = stage.systemd.unit();
    let images = Systemd::start(&file, unit, Manner::Honest, None).unwrap();
    stage.succeeds();
    assert_eq!(images.calls(), [""; 0]);
    assert_eq!(stage.changes(), [ADDED]);
}

fn v1() -> DeviceCgroup {
    DeviceCgroup::v1_allowing_all().unwrap()
}

/// Stage for version 1: the scope allows /dev/null only.
fn v1_stage() -> Stage {
    let stage = Stage::new(v1(), false, "strict", Manner::Honest);
    stage.container.cgroup().unwrap().change()(&entries(&["1:3"]));
    assert_eq!(stage.allowed(), ["1:3"]);
    stage
}

/// systemd writes its list again when it is told: rules written before would be lost.
fn v1_systemd_comes_first() {
    let stage = v1_stage();
    stage.succeeds();
    assert_eq!(stage.changes(), [ADDED]);
    assert_eq!(stage.allowed(), ["1:3", "195:255", "195:0"]);
    stage.container.cgroup().unwrap().change()(&stage.list());
    assert_eq!(stage.allowed(), ["1:3", "195:255", "195:0"]);
}

fn v1_a_failure_restores_the_list() {
    let stage = v1_stage();
    let before = State::of(&stage.container);
    stage.fails_at_the_end();
    before.assert_unchanged(&stage.container);
    assert_eq!(stage.changes(), [ADDED, RESTORED]);
    assert_eq!(
        stage.container.cgroup().unwrap().rules().unwrap(),
        ["c 1:3 rw"]
    );
    assert_eq!(stage.allowed(), ["1:3"]);
}
