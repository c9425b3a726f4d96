//! Tests version 1 device rules.

use libnvc::container::CgroupVersion;
use nvc_testkit::harness::{Need, Test};

use crate::group::Group;
use crate::probe::Probe;

const ALL: [(u32, u32); 5] = [(1, 3), (1, 5), (195, 0), (195, 1), (195, 255)];

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = nvc_testkit::tests![&[Need::CgroupV1];
        missing_rules_come_and_go,
        access_that_was_there_stays,
        a_group_that_allows_everything_is_left_alone,
        a_parent_that_denies_stops_it_without_a_trace,
        an_ordinary_user_may_not,
    ];
    tests.extend(nvc_testkit::tests![&[Need::CgroupV1, Need::UserNamespaces];
        root_of_a_user_namespace_may_not,
    ]);
    tests
}

/// Creates a group as runtimes do.
fn restricted() -> Group {
    let group = Group::new(CgroupVersion::V1);
    group.write("devices.deny", "a");
    group.write("devices.allow", "c 1:3 rwm");
    group
}

fn missing_rules_come_and_go() {
    let group = restricted();
    assert_eq!(group.allowed(&ALL), [(1, 3)]);
    group.race((195, 1));
    let rules = group
        .allow(&[(195, 255), (195, 0), (1, 3), (195, 0)])
        .unwrap();
    assert_eq!(group.rules(), ["c 1:3 rwm", "c 195:255 rw", "c 195:0 rw"]);
    assert_eq!(group.allowed(&ALL), [(1, 3), (195, 0), (195, 255)]);
    assert!(!group.can_create((195, 0)));
    assert!(group.allow(&[(195, 0)]).unwrap().is_empty());
    rules.undo().unwrap();
    assert_eq!(group.rules(), ["c 1:3 rwm"]);
    assert_eq!(group.allowed(&ALL), [(1, 3)]);
    assert_eq!(group.halt(), "slipped through 0 times");
}

fn access_that_was_there_stays() {
    let group = restricted();
    for rule in ["c 195:0 r", "c 195:1 wm", "c 195:255 rwm"] {
        group.write("devices.allow", rule);
    }
    let before = group.rules();
    let rules = group.allow(&ALL).unwrap();
    assert_eq!(group.allowed(&ALL), ALL);
    assert!(group.can_create((195, 1)));
    rules.undo().unwrap();
    assert_eq!(group.rules(), before);

    group.write("devices.allow", "c 195:* rw");
    assert!(group.allow(&[(195, 0), (195, 7)]).unwrap().is_empty());
}

fn a_group_that_allows_everything_is_left_alone() {
    let group = Group::new(CgroupVersion::V1);
    assert_eq!(group.rules(), ["a *:* rwm"]);
    let rules = group.allow(&ALL).unwrap();
    assert!(rules.is_empty());
    rules.undo().unwrap();
    assert_eq!(group.rules(), ["a *:* rwm"]);
    assert_eq!(group.allowed(&ALL), ALL);
}

fn a_parent_that_denies_stops_it_without_a_trace() {
    let parent = restricted();
    parent.write("devices.allow", "c 195:0 rw");
    let group = parent.child();
    group.write("devices.deny", "c 195:0 rw");
    let before = group.rules();
    let error = group.allow(&[(195, 0), (195, 1)]).unwrap_err();
    assert_eq!(
        error.message(),
        format!(
            "failed to add device rules: write {}/devices.allow: operation not permitted",
            group.directory.display()
        )
    );
    assert!(error.cleanup().is_empty());
    assert_eq!(group.rules(), before);
    assert_eq!(group.allowed(&ALL), [(1, 3)]);
}

fn an_ordinary_user_may_not() {
    refused(Probe::start_as_nobody(), "open", "permission denied");
}

fn root_of_a_user_namespace_may_not() {
    refused(
        Probe::start_in_user_namespace(),
        "write",
        "operation not permitted",
    );
}

fn refused(mut probe: Probe, operation: &str, cause: &str) {
    let group = restricted();
    let before = group.rules();
    let directory = group.directory.display();
    let answer = probe.ask(&format!("allow 1 {directory}"));
    probe.stop();
    let (message, hint) = answer.split_once(" (hint: ").unwrap();
    assert_eq!(
        message,
        format!("failed to add device rules: {operation} {directory}/devices.allow: {cause}")
    );
    assert!(hint.contains("no-cgroups"));
    assert_eq!(group.rules(), before);
}
