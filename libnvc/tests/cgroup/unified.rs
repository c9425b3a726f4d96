//! Tests version 2 device filters with every attach mode.
//!
//! In most tests a process in the cgroup tries a forbidden device as fast as it can, meanwhile.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libnvc::container::CgroupVersion;
use libnvc::host::DeviceNumber;
use libnvc::testing::{
    AttachedPrograms, BPF_F_ALLOW_MULTI, BPF_F_ALLOW_OVERRIDE, BPF_F_REPLACE, Instruction,
    WantedDevice, allow_devices, attach, create_link, create_map, exchange_one_after_the_other,
    load_program, program_by_id, program_info, query,
};
use nix::errno::Errno;
use nvc_testkit::harness::{Need, Test};

use crate::group::{Group, warnings_about};
use crate::probe::Probe;

const NULL: (u32, u32) = (1, 3);
const ZERO: (u32, u32) = (1, 5);
const WANTED: [(u32, u32); 3] = [(195, 0), (195, 255), (510, 0)];
const ALL: [(u32, u32); 8] = [
    NULL,
    ZERO,
    (195, 0),
    (195, 1),
    (195, 255),
    (510, 0),
    (510, 1),
    (511, 0),
];

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = nvc_testkit::tests![&[Need::CgroupV2];
        the_only_program_is_replaced,
        an_overridable_program_is_replaced,
        one_of_several_is_replaced,
        three_of_several_are_replaced,
        a_linked_program_is_replaced,
        linked_and_attached_the_same_program_is_replaced_twice,
        several_linked_programs_are_replaced,
        half_of_an_access_becomes_a_whole_one,
        two_at_once_lose_nothing,
        only_programs_that_deny_are_replaced,
        rules_of_two_calls_are_taken_back_one_by_one,
        without_a_program_nothing_is_done,
        an_ancestors_program_is_named,
        an_ancestors_program_may_deny_what_is_not_vital,
        an_ancestors_program_counts_beside_our_own,
        an_ancestors_program_that_is_not_understood_is_named,
        an_ancestors_program_that_allows_is_not_mentioned,
        an_overridden_ancestor_is_not_mentioned,
        programs_that_cannot_be_loaded_again_are_refused,
        a_foreign_program_is_not_detached,
        all_or_nothing_while_a_runtime_updates_the_container,
        without_the_replace_flag_there_is_no_moment_without_a_filter,
        the_name_of_the_program_stays,
        many_devices_and_programs,
    ];
    tests.extend(nvc_testkit::tests![&[Need::CgroupV2, Need::UserNamespaces];
        in_a_user_namespace_it_is_not_permitted,
    ]);
    tests
}

/// Returns a filter that allows reading and writing some devices.
fn filter(devices: &[(u32, u32)]) -> Vec<Instruction> {
    let mut program = vec![
        Instruction::new(0x61, 2, 1, 0, 0),
        Instruction::new(0x74, 2, 0, 0, 16),
        Instruction::new(0x54, 2, 0, 0, 1),
        Instruction::new(0x61, 4, 1, 4, 0),
        Instruction::new(0x61, 5, 1, 8, 0),
    ];
    for (major, minor) in devices {
        program.extend([
            Instruction::new(0x55, 2, 0, 4, 0),
            Instruction::new(0x55, 4, 0, 3, major.cast_signed()),
            Instruction::new(0x55, 5, 0, 2, minor.cast_signed()),
            Instruction::new(0xb4, 0, 0, 0, 1),
            Instruction::new(0x95, 0, 0, 0, 0),
        ]);
    }
    program.extend([
        Instruction::new(0xb4, 0, 0, 0, 0),
        Instruction::new(0x95, 0, 0, 0, 0),
    ]);
    program
}

fn load(instructions: &[Instruction]) -> OwnedFd {
    let mut log = vec![0; 65536];
    load_program(instructions, *b"original\0\0\0\0\0\0\0\0", Some(&mut log))
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&log)))
}

fn attached(group: &Group) -> AttachedPrograms {
    query(group.fd(), false).unwrap()
}

/// Returns a group with programs that allow only some devices, all attached in one mode.
fn group_with(flags: u32, programs: &[&[(u32, u32)]]) -> Group {
    let group = Group::new(CgroupVersion::V2);
    for devices in programs {
        attach(group.fd(), load(&filter(devices)).as_fd(), flags, None).unwrap();
    }
    group
}

/// Checks that the rules are added and nothing else, that there is a filter at any time, that a second call changes
/// nothing, and that the rules can be removed.
fn turns_exactly_the_wanted(group: &Group) {
    let before = attached(group);
    assert_eq!(group.allowed(&ALL), [NULL]);
    group.race((195, 1));
    for _ in 0..150 {
        group.allow(&WANTED).unwrap().undo().unwrap();
    }
    assert_eq!(attached(group), before);
    let rules = group.allow(&WANTED).unwrap();
    assert!(!rules.is_empty());
    assert_eq!(group.halt(), "slipped through 0 times");
    assert_eq!(group.allowed(&ALL), [NULL, (195, 0), (195, 255), (510, 0)]);
    assert!(!group.can_create((195, 0)));

    let between = attached(group);
    assert_eq!(between.flags, before.flags);
    assert_eq!(between.programs.len(), before.programs.len());
    assert!(
        between
            .programs
            .iter()
            .all(|id| !before.programs.contains(id))
    );
    assert!(group.allow(&WANTED).unwrap().is_empty());
    assert_eq!(attached(group), between);

    rules.undo().unwrap();
    assert_eq!(attached(group), before);
    assert_eq!(group.allowed(&ALL), [NULL]);
}

fn the_only_program_is_replaced() {
    turns_exactly_the_wanted(&group_with(0, &[&[NULL]]));
}

fn an_overridable_program_is_replaced() {
    turns_exactly_the_wanted(&group_with(BPF_F_ALLOW_OVERRIDE, &[&[NULL]]));
}

fn one_of_several_is_replaced() {
    turns_exactly_the_wanted(&group_with(BPF_F_ALLOW_MULTI, &[&[NULL]]));
}

fn three_of_several_are_replaced() {
    let programs: [&[_]; 3] = [&[NULL, ZERO], &[NULL, (511, 0)], &[NULL]];
    turns_exactly_the_wanted(&group_with(BPF_F_ALLOW_MULTI, &programs));
}

fn a_linked_program_is_replaced() {
    let group = Group::new(CgroupVersion::V2);
    let link = create_link(group.fd(), load(&filter(&[NULL])).as_fd()).unwrap();
    // Other groups, which must not be mistaken for it.
    let other = Group::new(CgroupVersion::V2);
    let program = program_by_id(attached(&group).programs[0]).unwrap();
    let other_link = create_link(other.fd(), program.as_fd()).unwrap();
    turns_exactly_the_wanted(&group);
    assert_eq!(other.allowed(&ALL), [NULL]);
    // The link holds the new program, as it held the old one: the program is freed with the link's last descriptor.
    // Another test that iterates over all links can briefly hold one.
    let rules = group.allow(&WANTED).unwrap();
    drop(link);
    assert_eq!(group.allowed(&ALL), [NULL, (195, 0), (195, 255), (510, 0)]);
    drop(rules);
    let gone = || attached(&group).programs.is_empty();
    for _ in 0..3000 {
        if gone() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(gone());
    drop(other_link);
}

fn linked_and_attached_the_same_program_is_replaced_twice() {
    let group = Group::new(CgroupVersion::V2);
    let program = load(&filter(&[NULL]));
    let link = create_link(group.fd(), program.as_fd()).unwrap();
    attach(group.fd(), program.as_fd(), BPF_F_ALLOW_MULTI, None).unwrap();
    let second = create_link(group.fd(), load(&filter(&[NULL, ZERO])).as_fd()).unwrap();
    assert_eq!(attached(&group).programs.len(), 3);
    turns_exactly_the_wanted(&group);
    drop((link, second));
}

fn several_linked_programs_are_replaced() {
    let group = Group::new(CgroupVersion::V2);
    let programs: [&[_]; 3] = [&[NULL, ZERO], &[NULL], &[NULL, (195, 1)]];
    let links =
        programs.map(|devices| create_link(group.fd(), load(&filter(devices)).as_fd()).unwrap());
    turns_exactly_the_wanted(&group);
    drop(links);
}

/// Returns a filter that allows reading devices but not writing them.
fn read_only(devices: &[(u32, u32)]) -> Vec<Instruction> {
    let mut program = filter(devices);
    // Change the tested access bit from mknod to write.
    program[2] = Instruction::new(0x54, 2, 0, 0, 4);
    program
}

fn half_of_an_access_becomes_a_whole_one() {
    let half = "yes/no/no";
    let others = [(195, 1), (511, 0)];
    for flags in [0, BPF_F_ALLOW_OVERRIDE, BPF_F_ALLOW_MULTI] {
        let group = Group::new(CgroupVersion::V2);
        let mut devices = WANTED.to_vec();
        devices.extend(others);
        attach(group.fd(), load(&read_only(&devices)).as_fd(), flags, None).unwrap();
        let is = |device| group.open(device);
        assert!(devices.iter().all(|device| is(*device) == half));
        let rules = group.allow(&WANTED).unwrap();
        assert!(WANTED.iter().all(|device| is(*device) == "yes"));
        assert!(others.iter().all(|device| is(*device) == half));
        assert_eq!(is(NULL), "no");
        rules.undo().unwrap();
        assert!(devices.iter().all(|device| is(*device) == half));
    }
}

/// The kernel reports a concurrent exchange, both for several programs and for linked ones.
fn two_at_once_lose_nothing() {
    for linked in [false, true] {
        for _ in 0..50 {
            let group = Group::new(CgroupVersion::V2);
            let program = load(&filter(&[NULL]));
            let link = linked.then(|| create_link(group.fd(), program.as_fd()).unwrap());
            if !linked {
                attach(group.fd(), program.as_fd(), BPF_F_ALLOW_MULTI, None).unwrap();
            }
            let (fd, name) = (group.fd(), group.directory.as_path());
            std::thread::scope(|scope| {
                for device in WANTED {
                    scope.spawn(move || allow(fd, name, device));
                }
            });
            assert_eq!(group.allowed(&ALL), [NULL, (195, 0), (195, 255), (510, 0)]);
            drop(link);
        }
    }
}

fn allow(group: BorrowedFd<'_>, name: &Path, (major, minor): (u32, u32)) {
    let device = WantedDevice {
        number: DeviceNumber { major, minor },
        is_vital: true,
    };
    let _kept = allow_devices(group, CgroupVersion::V2, &[device], name).unwrap();
}

fn only_programs_that_deny_are_replaced() {
    let lenient: Vec<_> = WANTED.into_iter().chain([NULL]).collect();
    let group = group_with(BPF_F_ALLOW_MULTI, &[&lenient, &[NULL, (195, 0)]]);
    let before = attached(&group);
    let length = |id| {
        let info = program_info(program_by_id(id).unwrap().as_fd()).unwrap();
        info.instructions.unwrap().len()
    };
    let rules = group.allow(&WANTED).unwrap();
    let after = attached(&group);
    assert_eq!(after.programs[0], before.programs[0]);
    assert_ne!(after.programs[1], before.programs[1]);
    // A prologue and two rules: one device was allowed.
    assert_eq!(
        length(after.programs[1]),
        length(before.programs[1]) + 5 + 2 * 4
    );
    assert_eq!(group.allowed(&ALL), [NULL, (195, 0), (195, 255), (510, 0)]);
    rules.undo().unwrap();
    assert_eq!(attached(&group), before);
}

fn rules_of_two_calls_are_taken_back_one_by_one() {
    let group = group_with(BPF_F_ALLOW_MULTI, &[&[NULL]]);
    let before = attached(&group);
    let first = group.allow(&[(195, 0)]).unwrap();
    let between = attached(&group);
    let second = group.allow(&[(195, 255), (195, 0)]).unwrap();
    assert_eq!(group.allowed(&ALL), [NULL, (195, 0), (195, 255)]);
    second.undo().unwrap();
    assert_eq!(attached(&group), between);
    assert_eq!(group.allowed(&ALL), [NULL, (195, 0)]);
    first.undo().unwrap();
    assert_eq!(attached(&group), before);
    assert_eq!(group.allowed(&ALL), [NULL]);
}

fn without_a_program_nothing_is_done() {
    let group = Group::new(CgroupVersion::V2);
    let rules = group.allow(&WANTED).unwrap();
    assert!(rules.is_empty());
    rules.undo().unwrap();
    assert!(attached(&group).programs.is_empty());
    assert_eq!(group.allowed(&ALL), ALL);
    assert_eq!(warnings_about(&group), [""; 0]);
    assert!(group.allow(&[]).unwrap().is_empty());
}

fn an_ancestors_program_is_named() {
    let outer = group_with(BPF_F_ALLOW_MULTI, &[&[NULL]]);
    let before = attached(&outer);
    let middle = outer.child();
    let inner = middle.child();
    let error = inner.allow(&WANTED).unwrap_err();
    let text = format!(
        "failed to add device rules: the device filter of cgroup {} denies 195:0, 195:255, 510:0",
        outer.directory.display()
    );
    assert_eq!(error.message(), text);
    assert!(error.advice().unwrap().contains("systemctl set-property"));
    assert_eq!(attached(&outer), before);
    assert_eq!(inner.allowed(&ALL), [NULL]);
    assert_eq!(warnings_about(&outer), [""; 0]);
    assert_eq!(warnings_about(&middle), [""; 0]);
}

fn an_ancestors_program_may_deny_what_is_not_vital() {
    let outer = group_with(BPF_F_ALLOW_MULTI, &[&[NULL, (195, 0)]]);
    let inner = outer.child();
    let device = |minor, is_vital| WantedDevice {
        number: DeviceNumber { major: 195, minor },
        is_vital,
    };
    let devices = [device(0, true), device(254, false)];
    let name = &inner.directory;
    let rules = allow_devices(inner.fd(), CgroupVersion::V2, &devices, name).unwrap();
    assert!(rules.is_empty());
    let text = format!(
        "the device filter of cgroup {} also applies to the container and may deny 195:254; leaving it unchanged",
        outer.directory.display()
    );
    assert_eq!(warnings_about(&outer), [text]);
}

fn an_ancestors_program_counts_beside_our_own() {
    let outer = group_with(BPF_F_ALLOW_MULTI, &[&[NULL]]);
    let before = attached(&outer);
    let inner = outer.child();
    attach(
        inner.fd(),
        load(&filter(&[NULL])).as_fd(),
        BPF_F_ALLOW_MULTI,
        None,
    )
    .unwrap();
    let own = attached(&inner);
    inner.allow(&WANTED).unwrap_err();
    assert_eq!(attached(&outer), before);
    assert_eq!(attached(&inner), own);
    assert_eq!(inner.allowed(&ALL), [NULL]);
}

fn an_ancestors_program_that_is_not_understood_is_named() {
    let outer = Group::new(CgroupVersion::V2);
    // get_current_uid_gid, then allows everything: the interpreter cannot know that.
    let allow = [
        Instruction::new(0x85, 0, 0, 0, 15),
        Instruction::new(0xb7, 0, 0, 0, 1),
        Instruction::new(0x95, 0, 0, 0, 0),
    ];
    attach(outer.fd(), load(&allow).as_fd(), BPF_F_ALLOW_MULTI, None).unwrap();
    let before = attached(&outer);
    let inner = outer.child();
    let program = load(&filter(&[NULL]));
    attach(inner.fd(), program.as_fd(), BPF_F_ALLOW_MULTI, None).unwrap();
    turns_exactly_the_wanted(&inner);
    assert_eq!(attached(&outer), before);
    assert!(!warnings_about(&outer).is_empty());
}

fn an_ancestors_program_that_allows_is_not_mentioned() {
    let lenient: Vec<_> = WANTED.into_iter().chain([NULL]).collect();
    let outer = group_with(BPF_F_ALLOW_MULTI, &[&lenient]);
    let inner = outer.child();
    attach(
        inner.fd(),
        load(&filter(&[NULL])).as_fd(),
        BPF_F_ALLOW_MULTI,
        None,
    )
    .unwrap();
    turns_exactly_the_wanted(&inner);
    assert_eq!(warnings_about(&outer), [""; 0]);
}

fn an_overridden_ancestor_is_not_mentioned() {
    let outer = group_with(BPF_F_ALLOW_OVERRIDE, &[&[ZERO]]);
    let inner = outer.child();
    attach(
        inner.fd(),
        load(&filter(&[NULL])).as_fd(),
        BPF_F_ALLOW_OVERRIDE,
        None,
    )
    .unwrap();
    turns_exactly_the_wanted(&inner);
    assert_eq!(warnings_about(&outer), [""; 0]);
}

fn programs_that_cannot_be_loaded_again_are_refused() {
    let map = create_map().unwrap();
    let deny = [
        Instruction::new(0xb7, 0, 0, 0, 0),
        Instruction::new(0x95, 0, 0, 0, 0),
    ];
    let mut with_map = vec![
        Instruction::new(0x18, 2, 1, 0, map.as_raw_fd()),
        Instruction::default(),
    ];
    with_map.extend(deny);
    // get_current_uid_gid
    let mut with_helper = vec![Instruction::new(0x85, 0, 0, 0, 15)];
    with_helper.extend(deny);
    let with_function = vec![
        Instruction::new(0x85, 0, 1, 0, 2),
        Instruction::new(0xb7, 0, 0, 0, 0),
        Instruction::new(0x95, 0, 0, 0, 0),
        Instruction::new(0xb7, 0, 0, 0, 0),
        Instruction::new(0x95, 0, 0, 0, 0),
    ];
    for (program, reason) in [
        (with_map, "it uses maps"),
        (with_helper, "it calls functions"),
        (with_function, "it calls functions"),
    ] {
        // The first one could be replaced, but must not be.
        let group = group_with(BPF_F_ALLOW_MULTI, &[&[NULL]]);
        attach(group.fd(), load(&program).as_fd(), BPF_F_ALLOW_MULTI, None).unwrap();
        let before = attached(&group);
        let error = group.allow(&WANTED).unwrap_err();
        let expected = format!(
            "failed to add device rules: unable to generate new device filter program: device filter {} cannot be extended: {reason}",
            before.programs[1]
        );
        assert_eq!(error.message(), expected);
        assert!(error.advice().unwrap().contains("no-cgroups"));
        assert_eq!(attached(&group), before);
    }
}

fn a_foreign_program_is_not_detached() {
    for flags in [0, BPF_F_ALLOW_OVERRIDE, BPF_F_ALLOW_MULTI] {
        let group = group_with(flags, &[&[NULL]]);
        let rules = group.allow(&WANTED).unwrap();
        // As a runtime does when it updates a container.
        let ours = program_by_id(attached(&group).programs[0]).unwrap();
        let theirs = load(&filter(&[ZERO]));
        let (flags, replaced) = if flags == BPF_F_ALLOW_MULTI {
            (flags | BPF_F_REPLACE, Some(ours.as_fd()))
        } else {
            (flags, None)
        };
        attach(group.fd(), theirs.as_fd(), flags, replaced).unwrap();
        rules.undo().unwrap();
        let id = program_info(theirs.as_fd()).unwrap().id;
        assert_eq!(attached(&group).programs, [id]);
    }
}

fn all_or_nothing_while_a_runtime_updates_the_container() {
    let group = group_with(BPF_F_ALLOW_MULTI, &[&[NULL], &[NULL]]);
    let first = attached(&group).programs[0];
    let (cgroup, stop) = (group.fd(), AtomicBool::new(false));
    let runtime = || {
        let flags = BPF_F_ALLOW_MULTI | BPF_F_REPLACE;
        let theirs = [load(&filter(&[NULL])), load(&filter(&[NULL]))];
        for new in theirs.iter().cycle() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            // The program in the second place, whoever attached it; it can vanish at each step.
            let id = query(cgroup, false).unwrap().programs[1];
            if let Ok(old) = program_by_id(id) {
                let _ = attach(cgroup, new.as_fd(), flags, Some(old.as_fd()));
            }
        }
    };
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(runtime);
        let outcomes = (0..300).map(|_| {
            let outcome = group.allow(&WANTED).map(libnvc::testing::DeviceRules::undo);
            (outcome, attached(&group))
        });
        let outcomes = outcomes.collect();
        stop.store(true, Ordering::Relaxed);
        outcomes
    });
    for (outcome, after) in outcomes {
        match outcome {
            Ok(undone) => undone.unwrap(),
            Err(error) => {
                assert_eq!(error.errno(), Some(Errno::ENOENT), "{}", error.message());
                assert!(error.cleanup().is_empty());
            }
        }
        assert_eq!((after.programs[0], after.programs.len()), (first, 2));
    }
}

fn without_the_replace_flag_there_is_no_moment_without_a_filter() {
    let group = group_with(BPF_F_ALLOW_MULTI, &[&[NULL]]);
    let old = program_by_id(attached(&group).programs[0]).unwrap();
    let new = load(&filter(&[NULL, (195, 0)]));
    group.race((195, 1));
    for _ in 0..150 {
        exchange_one_after_the_other(group.fd(), old.as_fd(), new.as_fd()).unwrap();
        exchange_one_after_the_other(group.fd(), new.as_fd(), old.as_fd()).unwrap();
    }
    exchange_one_after_the_other(group.fd(), old.as_fd(), new.as_fd()).unwrap();
    assert_eq!(group.halt(), "slipped through 0 times");
    let id = program_info(new.as_fd()).unwrap().id;
    assert_eq!(attached(&group).programs, [id]);
    assert_eq!(group.allowed(&ALL), [NULL, (195, 0)]);
    // The program to replace is not attached, so the new one must not stay.
    let third = load(&filter(&[ZERO]));
    exchange_one_after_the_other(group.fd(), old.as_fd(), third.as_fd()).unwrap_err();
    assert_eq!(attached(&group).programs, [id]);
}

fn the_name_of_the_program_stays() {
    let group = group_with(0, &[&[NULL]]);
    let rules = group.allow(&WANTED).unwrap();
    let program = program_by_id(attached(&group).programs[0]).unwrap();
    assert_eq!(
        &program_info(program.as_fd()).unwrap().name[..9],
        b"original\0"
    );
    drop(rules);
}

fn many_devices_and_programs() {
    // The kernel accepts 64 programs and, with that many, replaces none. The instructions exceed the first buffer.
    let devices: Vec<_> = (0..600).map(|minor| (240, minor)).collect();
    let group = group_with(BPF_F_ALLOW_MULTI, &[[NULL].as_slice(); 63]);
    let before = attached(&group);
    assert_eq!(before.programs.len(), 63);
    let rules = group.allow(&devices).unwrap();
    assert_eq!(
        group.allowed(&[NULL, (240, 0), (240, 599), (240, 600)]),
        [NULL, (240, 0), (240, 599)]
    );
    assert!(group.allow(&devices).unwrap().is_empty());
    rules.undo().unwrap();
    assert_eq!(attached(&group), before);
}

fn in_a_user_namespace_it_is_not_permitted() {
    let group = group_with(BPF_F_ALLOW_MULTI, &[&[NULL]]);
    let mut probe = Probe::start_in_user_namespace();
    let answer = probe.ask(&format!("allow 2 {}", group.directory.display()));
    probe.stop();
    let (message, hint) = answer.split_once(" (hint: ").unwrap();
    assert_eq!(
        message,
        "failed to add device rules: unable to find any existing device filters attached to the cgroup: \
         bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted"
    );
    assert!(hint.contains("no-cgroups"));
}
