//! Tests the machine under watch: events and faults of a simulated NVML become the health of the right GPU, and only that.
#![allow(clippy::unwrap_used)]

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use libnvc::host::query::QueryProgram;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvc_node::machine::{Health, Source, Watch, World, watched};
use nvc_testkit::cli;
use nvc_testkit::driver::{Builder, Driver};
use nvc_testkit::files;
use nvc_testkit::harness::{self, Need::Root};
use nvc_testkit::machine::Scratch;
use nvc_testkit::profile::Profile;

/// Far more than any answer takes.
const PATIENCE: Duration = Duration::from_secs(90);

const GPUS: &str = "\
    driver=580.159.04\n\
    cuda=13000\n\
    gpu minor=0 bus=0000:3b:00.0 cc=9.0 brand=14 mig=off uuid=GPU-10000000-0000-4000-8000-000000000000 name=NVIDIA H100\n\
    gpu minor=1 bus=0000:5e:00.0 cc=9.0 brand=14 mig=on uuid=GPU-10000000-0000-4000-8000-000000000001 name=NVIDIA H100\n\
    mig gpu=1 slot=0 gi=1 ci=0 uuid=MIG-20000000-0000-5000-8000-000000000001 name=1g.10gb\n\
    mig gpu=1 slot=1 gi=2 ci=0 uuid=MIG-20000000-0000-5000-8000-000000000002 name=2g.20gb\n";
const WHOLE: &str = "GPU-10000000-0000-4000-8000-000000000000";
const DIVIDED: &str = "GPU-10000000-0000-4000-8000-000000000001";
const MIG_1: &str = "MIG-20000000-0000-5000-8000-000000000001";
const MIG_2: &str = "MIG-20000000-0000-5000-8000-000000000002";

fn main() -> ExitCode {
    harness::main(nvc_testkit::tests![&[Root];
        an_xid_is_of_its_gpu_and_a_restart_does_not_heal,
        an_xid_of_a_mig_device_is_its_own,
        a_gpu_that_crashes_or_hangs_nvml_is_sick_alone,
        a_killed_watch_is_replaced,
        driver_and_mig_devices_change_underneath,
        a_driver_that_comes_later,
    ])
}

struct Machine {
    driver: Driver,
    scratch: Scratch,
}

impl Machine {
    fn new() -> Self {
        let scratch = Scratch::new().unwrap();
        let profile = Profile::parse(GPUS).unwrap();
        let driver = Builder::new(profile).build(scratch.join("driver")).unwrap();
        let machine = Self { driver, scratch };
        machine.write("events", "");
        machine
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.driver.path(format!("/etc/nvidia-sim/{name}"));
        files::file(&path, text, 0o644).unwrap();
    }

    fn event(&self, line: &str) {
        let path = self.driver.path("/etc/nvidia-sim/events");
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        writeln!(file, "{line}").unwrap();
    }

    /// Starts a watch, as a daemon does when it starts.
    fn watch(&self) -> Watch {
        self.watch_with(Duration::from_secs(1))
    }

    fn watch_with(&self, quiet: Duration) -> Watch {
        watched(Source {
            driver_root: self.driver.root().into(),
            dev_root: self.driver.root().into(),
            query: QueryProgram::Path(Ok(cli::beside("nvc-query").unwrap())),
            ignored_xids: Vec::new(),
            verdicts: self.scratch.join("health.json"),
            quiet,
        })
    }

    /// Lets an event happen until it is noticed: a watch that just started may miss the first.
    fn insist(&self, watch: &Watch, event: &str, expected: &[&str]) {
        let start = Instant::now();
        while sick(&watch.borrow()) != expected {
            assert!(start.elapsed() < PATIENCE, "{event}: {:?}", watch.borrow());
            self.event(event);
            thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Returns the UUIDs of what is sick.
fn sick(world: &World) -> Vec<String> {
    let machine = world.as_ref().unwrap();
    let all = machine.gpus.iter().flat_map(|gpu| {
        let migs = gpu.migs.iter().map(|mig| (&mig.uuid, &mig.health));
        [(&gpu.uuid, &gpu.health)].into_iter().chain(migs)
    });
    let sick = all.filter(|(_, health)| !health.is_well());
    sick.map(|(uuid, _)| uuid.clone()).collect()
}

fn wait(watch: &Watch, what: &str, is_there: impl Fn(&World) -> bool) {
    let start = Instant::now();
    while !is_there(&watch.borrow()) {
        assert!(start.elapsed() < PATIENCE, "{what}: {:?}", watch.borrow());
        thread::sleep(Duration::from_millis(20));
    }
}

fn an_xid_is_of_its_gpu_and_a_restart_does_not_heal() {
    let machine = Machine::new();
    let watch = || machine.watch_with(Duration::from_secs(3600));
    let first = watch();
    let gpu = first.borrow().as_ref().as_ref().unwrap().gpus[0].clone();
    assert_eq!((gpu.minor, gpu.compute), (0, (9, 0)));
    assert_eq!(
        (gpu.busid.as_str(), gpu.brand.as_str()),
        ("0000:3b:00.0", "Nvidia")
    );
    assert_eq!(sick(&first.borrow()), [""; 0]);
    // The program's own error is none of the GPU's.
    machine.event(&format!("xid gpu={WHOLE} code=31"));
    machine.insist(&first, &format!("xid gpu={WHOLE} code=79"), &[WHOLE]);
    // A restart, with a GPU that answers, with one that does not, and again.
    assert_eq!(sick(&watch().borrow()), [WHOLE]);
    machine.write("readings", "total.0=!15\n");
    let later = watch();
    let found = later.borrow().as_ref().as_ref().unwrap().gpus[0]
        .health
        .clone();
    let Health::Sick { reason, xid } = found else {
        panic!("well");
    };
    assert_eq!((reason.as_str(), xid), ("nvml: GPU is lost", Some(79)));
    wait(&first, "the poll", |world| {
        let health = &world.as_ref().unwrap().gpus[0].health;
        matches!(health, Health::Sick { reason, .. } if reason == "nvml: GPU is lost")
    });
    // It was reset.
    machine.write("readings", "");
    wait(&first, "recovery", |world| sick(world).is_empty());
    assert_eq!(sick(&watch().borrow()), [""; 0]);
}

fn an_xid_of_a_mig_device_is_its_own() {
    let machine = Machine::new();
    let watch = machine.watch();
    let divided = watch.borrow().as_ref().as_ref().unwrap().gpus[1].clone();
    assert!(divided.is_divided);
    let mig = &divided.migs[1];
    assert_eq!(
        (mig.profile.as_str(), mig.placement.profile),
        ("2g.20gb", 14)
    );
    assert_eq!((mig.placement.start, mig.placement.size), (1, 2));
    assert_eq!(mig.attributes.memory << 20, 20 << 30);
    machine.insist(
        &watch,
        &format!("xid gpu={DIVIDED} code=63 gi=2 ci=0"),
        &[MIG_2],
    );
    // It stayed quiet.
    wait(&watch, "quiet", |world| sick(world).is_empty());
    // What the driver says that a GPU needs.
    machine.write("readings", "recovery.1=1\n");
    machine.event(&format!("recovery gpu={DIVIDED}"));
    wait(&watch, "a reset is needed", |world| {
        sick(world) == [DIVIDED]
    });
}

fn a_gpu_that_crashes_or_hangs_nvml_is_sick_alone() {
    let machine = Machine::new();
    let watch = machine.watch();
    for fault in ["crash", "hang"] {
        machine.write("readings", &format!("total.0={fault}\n"));
        wait(&watch, fault, |world| sick(world) == [WHOLE]);
        machine.write("readings", "");
        wait(&watch, "well again", |world| sick(world).is_empty());
    }
}

fn a_killed_watch_is_replaced() {
    let machine = Machine::new();
    let watch = machine.watch();
    for code in [63, 79] {
        for task in fs::read_dir("/proc/self/task").unwrap() {
            let children = task.unwrap().path().join("children");
            let children = fs::read_to_string(children).unwrap_or_default();
            for child in children.split_whitespace() {
                let _ = kill(Pid::from_raw(child.parse().unwrap()), Signal::SIGKILL);
            }
        }
        machine.insist(&watch, &format!("xid gpu={WHOLE} code={code}"), &[WHOLE]);
        if code == 63 {
            wait(&watch, "quiet", |world| sick(world).is_empty());
        }
    }
}

fn driver_and_mig_devices_change_underneath() {
    let machine = Machine::new();
    let watch = machine.watch();
    let uuids = |world: &World| -> Vec<String> {
        let migs = world.as_ref().unwrap().gpus[1].migs.iter();
        migs.map(|mig| mig.uuid.clone()).collect()
    };
    assert_eq!(uuids(&watch.borrow()), [MIG_1, MIG_2]);
    let mut profile = Profile::parse(GPUS).unwrap();
    profile.mig_devices.remove(0);
    machine.driver.answer(&profile).unwrap();
    machine.event(&format!("mig gpu={DIVIDED}"));
    wait(&watch, "MIG", |world| uuids(world) == [MIG_2]);
    profile.driver = "590.1".into();
    machine.driver.answer(&profile).unwrap();
    let version = machine.driver.path("/proc/driver/nvidia/version");
    let text = fs::read_to_string(&version).unwrap();
    files::file(&version, text + "\n", 0o444).unwrap();
    wait(&watch, "driver", |world| {
        world.as_ref().unwrap().driver == "590.1"
    });
    // The poll sees what no event tells.
    profile.gpus.remove(0);
    profile.mig_devices.clear();
    machine.driver.answer(&profile).unwrap();
    wait(&watch, "a GPU is gone", |world| {
        world.as_ref().unwrap().gpus.len() == 1
    });
}

fn a_driver_that_comes_later() {
    let machine = Machine::new();
    let nodes = machine.driver.path("/dev/nvidiactl");
    let away = machine.scratch.join("nvidiactl");
    fs::rename(&nodes, &away).unwrap();
    let watch = machine.watch();
    assert!(watch.borrow().is_err());
    fs::rename(&away, &nodes).unwrap();
    wait(&watch, "a driver", |world| world.is_ok());
    fs::rename(&nodes, &away).unwrap();
    wait(&watch, "no driver", |world| world.is_err());
}
