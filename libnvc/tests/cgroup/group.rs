//! Creates cgroups to change, with a process inside that reports what they allow.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libnvc::Result;
use libnvc::container::CgroupVersion;
use libnvc::host::DeviceNumber;
use libnvc::testing::{DeviceRules, WantedDevice, allow_devices};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nvc_testkit::machine::{Scratch, cgroup_hierarchy};

use crate::probe::Probe;

/// A cgroup, removed on drop.
pub(crate) struct Group {
    pub(crate) directory: PathBuf,
    file: File,
    version: CgroupVersion,
    scratch: Scratch,
    probe: RefCell<Option<Probe>>,
}

impl Group {
    pub(crate) fn new(version: CgroupVersion) -> Self {
        let hierarchy = cgroup_hierarchy(match version {
            CgroupVersion::V1 => 1,
            CgroupVersion::V2 => 2,
        });
        Self::below(&hierarchy.unwrap(), version)
    }

    /// Creates a child cgroup.
    pub(crate) fn child(&self) -> Self {
        Self::below(&self.directory, self.version)
    }

    fn below(parent: &Path, version: CgroupVersion) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = parent.join(format!("nvc-test-{}-{number}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        Self {
            file: File::open(&directory).unwrap(),
            directory,
            version,
            scratch: Scratch::new().unwrap(),
            probe: RefCell::new(None),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Runs the code under test.
    pub(crate) fn allow(&self, devices: &[(u32, u32)]) -> Result<DeviceRules> {
        let devices: Vec<_> = devices
            .iter()
            .map(|&(major, minor)| WantedDevice {
                number: DeviceNumber { major, minor },
                is_vital: true,
            })
            .collect();
        allow_devices(self.fd(), self.version, &devices, &self.directory)
    }

    /// Returns the devices that a process in the cgroup can open.
    pub(crate) fn allowed(&self, devices: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let mut allowed = Vec::new();
        for device in devices {
            match self.open(*device).as_str() {
                "yes" => allowed.push(*device),
                "no" => {}
                other => panic!("{device:?}: {other}"),
            }
        }
        allowed
    }

    /// Returns whether a process in it can open a device: `yes`, `no`, or the results of reading, writing and both.
    pub(crate) fn open(&self, device: (u32, u32)) -> String {
        self.ask(&format!("open {}", self.node(device)))
    }

    /// Returns true if a process in it can create a node.
    pub(crate) fn can_create(&self, (major, minor): (u32, u32)) -> bool {
        let path = self.scratch.join(format!("new-{major}:{minor}"));
        let answer = self.ask(&format!("create {} {major} {minor}", path.display()));
        let _ = fs::remove_file(path);
        match answer.as_str() {
            "yes" => true,
            "no" => false,
            other => panic!("{other}"),
        }
    }

    /// Makes a process in it open a device repeatedly, until [`halt`](Self::halt).
    pub(crate) fn race(&self, device: (u32, u32)) {
        assert_eq!(self.ask(&format!("race {}", self.node(device))), "running");
    }

    /// Stops it and returns the result.
    pub(crate) fn halt(&self) -> String {
        self.ask("halt")
    }

    /// Returns the rules of a version 1 group.
    pub(crate) fn rules(&self) -> Vec<String> {
        let text = fs::read_to_string(self.directory.join("devices.list")).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Writes to a file of the group.
    pub(crate) fn write(&self, file: &str, text: &str) {
        fs::write(self.directory.join(file), text).unwrap();
    }

    fn ask(&self, order: &str) -> String {
        let mut probe = self.probe.borrow_mut();
        let probe = probe.get_or_insert_with(|| {
            let probe = Probe::start();
            self.write("cgroup.procs", &probe.pid().to_string());
            probe
        });
        probe.ask(order)
    }

    fn node(&self, (major, minor): (u32, u32)) -> String {
        let path = self.scratch.join(format!("{major}:{minor}"));
        if !path.exists() {
            let number = makedev(major.into(), minor.into());
            mknod(&path, SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, number).unwrap();
        }
        path.display().to_string()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(probe) = self.probe.take() {
            probe.stop();
        }
        // An ended process leaves with a delay.
        for _ in 0..3000 {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        eprintln!("cgroup left behind: {}", self.directory.display());
    }
}

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Recorder;

impl log::Log for Recorder {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() == log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            WARNINGS.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Records the library's warnings.
pub(crate) fn record_warnings() {
    log::set_logger(&Recorder).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
}

/// Returns the warnings that name a group.
pub(crate) fn warnings_about(group: &Group) -> Vec<String> {
    let name = format!("{} ", group.directory.display());
    let warnings = WARNINGS.lock().unwrap();
    warnings
        .iter()
        .filter(|w| w.contains(&name))
        .cloned()
        .collect()
}
