use std::path::Path;

use nvc_testkit::systemd::{Manner, Systemd, Unit as Fake, message};

use super::*;

const GROUP: &str = "/system.slice/docker-1.scope";

fn device(major: u32, minor: u32) -> DeviceNumber {
    DeviceNumber { major, minor }
}

fn entry(path: &str, access: &str) -> Entry {
    (path.to_owned(), access.to_owned())
}

fn unit(policy: &str) -> Fake {
    Fake {
        name: "docker-1.scope".into(),
        control_group: GROUP.into(),
        policy: policy.into(),
        allowed: vec![entry("/dev/char/1:3", "rwm"), entry("/dev/char/195:1", "m")],
    }
}

/// A directory with sockets.
struct Machine {
    directory: tempfile::TempDir,
    sockets: Sockets,
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let sockets = Sockets {
            booted: directory.path().to_owned(),
            private: directory.path().join("private"),
            bus: directory.path().join("bus"),
        };
        Self { directory, sockets }
    }

    fn serve(&self, socket: &Path, unit: Fake, manner: Manner) -> Systemd {
        Systemd::start(socket, unit, manner, None).unwrap()
    }

    fn private(unit: Fake, manner: Manner) -> (Self, Systemd) {
        let machine = Self::new();
        let systemd = machine.serve(&machine.sockets.private, unit, manner);
        (machine, systemd)
    }

    fn find(&self, group: &str) -> Option<Unit> {
        self.sockets.find(Path::new(group), |_| Ok(Others::Nothing))
    }
}

const WANTED: [DeviceNumber; 3] = [
    DeviceNumber { major: 1, minor: 3 },
    DeviceNumber {
        major: 195,
        minor: 0,
    },
    DeviceNumber {
        major: 195,
        minor: 1,
    },
];

#[test]
fn one_call_adds_what_is_missing_and_one_takes_it_back() {
    for (policy, group) in [
        ("closed", GROUP.to_owned()),
        ("strict", format!("{GROUP}/container")),
    ] {
        let (machine, systemd) = Machine::private(unit(policy), Manner::Honest);
        let extended = machine.find(&group).unwrap().allow(&WANTED).unwrap();
        let set = |lists: &str| format!("SetUnitProperties docker-1.scope runtime=1 {lists}");
        let calls = systemd.calls();
        assert_eq!(calls.len(), 4, "{calls:?}");
        assert_eq!(calls[0], "Get org.freedesktop.systemd1.Scope ControlGroup");
        assert_eq!(calls[3], set("[/dev/char/195:0 rw, /dev/char/195:1 rwm]"));
        let allowed = [
            entry("/dev/char/1:3", "rwm"),
            entry("/dev/char/195:1", "rwm"),
            entry("/dev/char/195:0", "rw"),
        ];
        assert_eq!(systemd.unit().allowed, allowed);
        // Everything is there already.
        assert!(machine.find(&group).unwrap().allow(&WANTED).is_none());
        extended.undo().unwrap();
        assert_eq!(systemd.unit(), unit(policy));
        let last = systemd.calls().pop().unwrap();
        assert_eq!(last, set("[] [/dev/char/1:3 rwm, /dev/char/195:1 m]"));
    }
}

#[test]
fn an_empty_list_becomes_empty_again() {
    let mut empty = unit("strict");
    empty.allowed.clear();
    let (machine, systemd) = Machine::private(empty.clone(), Manner::Honest);
    let extended = machine.find(GROUP).unwrap().allow(&WANTED).unwrap();
    assert_eq!(systemd.unit().allowed.len(), 3);
    extended.undo().unwrap();
    assert_eq!(systemd.unit(), empty);
}

#[test]
fn thousands_of_devices_fit() {
    let mut full = unit("closed");
    let devices: Vec<_> = (0..4000).map(|minor| device(234, minor)).collect();
    let own = (0..4000).map(|minor| entry(&format!("/dev/char/240:{minor}"), "rwm"));
    full.allowed = own.collect();
    let (machine, systemd) = Machine::private(full.clone(), Manner::Honest);
    let extended = machine.find(GROUP).unwrap().allow(&devices).unwrap();
    assert_eq!(systemd.unit().allowed.len(), 8000);
    extended.undo().unwrap();
    assert_eq!(systemd.unit(), full);
}

#[test]
fn the_bus_is_asked_where_the_private_socket_does_not_answer() {
    for manner in [None, Some(Manner::Rejects)] {
        let machine = Machine::new();
        let private =
            manner.map(|manner| machine.serve(&machine.sockets.private, unit("closed"), manner));
        let systemd = machine.serve(&machine.sockets.bus, unit("closed"), Manner::Honest);
        let extended = machine.find(GROUP).unwrap().allow(&WANTED).unwrap();
        assert_eq!(systemd.calls()[0], "Hello");
        assert_eq!(systemd.unit().allowed.len(), 3);
        extended.undo().unwrap();
        assert_eq!(systemd.unit(), unit("closed"));
        assert!(private.is_none_or(|private| private.calls().is_empty()));
    }
}

#[test]
fn other_units_are_left_alone() {
    let mut elsewhere = unit("closed");
    elsewhere.control_group = "/user.slice/docker-1.scope".into();
    for (unit, group) in [
        (unit("auto"), GROUP),
        (elsewhere, GROUP),
        // The unit is two levels above.
        (unit("closed"), "/system.slice/docker-1.scope/init.scope/x"),
    ] {
        let (machine, systemd) = Machine::private(unit.clone(), Manner::Honest);
        assert!(machine.find(group).is_none(), "{unit:?}");
        assert_eq!(systemd.unit(), unit);
    }
}

#[test]
fn only_names_of_units_lead_to_systemd() {
    let machine = Machine::new();
    let may_know = |group: &str| machine.sockets.may_know(Path::new(group));
    for group in [GROUP, "/a/b.service/payload", "/a/_b.scope"] {
        assert!(may_know(group), "{group}");
    }
    for group in [
        "/",
        "/docker/1",
        "/a.scope/b/c",
        "/kubepods.slice",
        "/a.slice/b",
    ] {
        assert!(!may_know(group), "{group}");
    }
    let none = Sockets {
        booted: machine.directory.path().join("none"),
        ..Sockets::default()
    };
    assert!(!none.may_know(Path::new(GROUP)));
}

#[test]
fn a_refused_change_needs_no_undo() {
    let (machine, systemd) = Machine::private(unit("closed"), Manner::ReadOnly);
    assert!(machine.find(GROUP).unwrap().allow(&WANTED).is_none());
    assert_eq!(systemd.unit(), unit("closed"));
}

/// The change may have been made, so it is taken back.
#[test]
fn a_change_without_an_answer_is_taken_back() {
    let (machine, systemd) = Machine::private(unit("closed"), Manner::SilentAboutChanges);
    let mut found = machine.find(GROUP).unwrap();
    found.connection.limit(Duration::from_millis(50));
    let extended = found.allow(&WANTED).unwrap();
    let error = extended.undo().unwrap_err();
    assert_eq!(
        error.message(),
        "restoring the devices of systemd's unit docker-1.scope: no answer in time"
    );
    assert_eq!(systemd.unit(), unit("closed"));
}

#[test]
fn hostile_answers_end_in_time() {
    let endless = [message(2, 1, "v", &[])[..8].to_vec(), vec![0xff; 8]].concat();
    for manner in [
        Manner::Silent,
        Manner::Signals,
        Manner::Says(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        Manner::Says(endless),
        // Replies to calls that were not made; a value of another type; no value.
        Manner::Says(message(2, 77, "", &[]).repeat(40)),
        Manner::Says(message(2, 1, "u", &[1, 0, 0, 0])),
        Manner::Says(message(2, 1, "v", &[])),
        Manner::Says(message(2, 0, "v", &[1, b'v', 0])),
    ] {
        let (machine, _systemd) = Machine::private(unit("closed"), manner.clone());
        let time = Duration::from_millis(300);
        let connection = Connection::private(&machine.sockets.private, time);
        let answer =
            connection.and_then(|mut bus| ask(&mut bus, "docker-1.scope", Path::new(GROUP)));
        assert!(answer.is_err(), "{manner:?}");
    }
}

#[test]
fn entries_that_exist_are_not_added() {
    let wanted = [device(195, 0)];
    let added = |entries: &[(&str, &str)]| {
        let entries: Vec<_> = entries.iter().map(|(p, a)| entry(p, a)).collect();
        missing(&entries, &wanted)
    };
    let path = "/dev/char/195:0";
    assert_eq!(added(&[]), [entry(path, "rw")]);
    assert_eq!(added(&[(path, "r")]), [entry(path, "rw")]);
    assert_eq!(added(&[(path, "wm")]), [entry(path, "rwm")]);
    assert_eq!(
        added(&[("/dev/char/195:00", "rw"), ("char-*", "m")]),
        [entry(path, "rw")]
    );
    assert_eq!(added(&[(path, "rw")]), []);
    assert_eq!(added(&[("char-*", "rwm")]), []);
}
