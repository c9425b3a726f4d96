//! Makes device cgroups of both versions and asks the kernel what they allow.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, io, thread};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::compile::{Source, compiled};
use crate::files;
use crate::helper::Helper;
use crate::machine::{Scratch, cgroup_hierarchy};
use crate::systemd::Change;

/// The attach mode of a device program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// Several programs, all of which must allow an access.
    Multi,
    /// One program, which a child cgroup may replace.
    Override,
    /// One program that cannot be replaced.
    Single,
    /// One of several, which allows nothing and cannot be reloaded because it calls a helper.
    Calls,
    /// The same, using a map.
    Maps,
}

/// A cgroup that restricts devices; removed on drop.
#[derive(Debug)]
pub struct DeviceCgroup {
    directory: PathBuf,
    version: u32,
    probe: PathBuf,
    scratch: Scratch,
    shown: std::cell::RefCell<Vec<PathBuf>>,
}

impl DeviceCgroup {
    /// Creates a version 1 cgroup that allows nothing but /dev/null.
    ///
    /// # Errors
    /// The hierarchy is missing or cannot be changed.
    pub fn v1() -> io::Result<Self> {
        let cgroup = Self::new(1)?;
        fs::write(cgroup.directory.join("devices.deny"), "a")?;
        fs::write(cgroup.directory.join("devices.allow"), "c 1:3 rwm")?;
        Ok(cgroup)
    }

    /// Creates a version 1 cgroup that allows everything.
    ///
    /// # Errors
    /// The hierarchy is missing or cannot be changed.
    pub fn v1_allowing_all() -> io::Result<Self> {
        Self::new(1)
    }

    /// Creates a version 2 cgroup without a device program.
    ///
    /// # Errors
    /// The hierarchy is missing or cannot be changed.
    pub fn v2() -> io::Result<Self> {
        Self::new(2)
    }

    /// Attaches another program, which allows only these devices (`1:3`).
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn attach(self, how: Attach, devices: &[&str]) -> io::Result<Self> {
        let how = match how {
            Attach::Multi => "multi",
            Attach::Override => "override",
            Attach::Single => "single",
            Attach::Calls => "calls",
            Attach::Maps => "maps",
        };
        let mut command = Command::new(&self.probe);
        output(
            command
                .arg("attach")
                .arg(&self.directory)
                .arg(how)
                .args(devices),
        )?;
        Ok(self)
    }

    /// Holds a program that allows only these devices by a link, until the value is dropped.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn link(&self, devices: &[&str]) -> io::Result<Helper> {
        let mut command = Command::new(&self.probe);
        command.arg("link").arg(&self.directory).args(devices);
        Helper::start(&mut command, "attached")
    }

    /// Makes a child cgroup with a name of its own, as a unit of systemd has.
    ///
    /// # Errors
    /// As of the system calls.
    pub fn named_child(&self, name: &str) -> io::Result<Self> {
        Self::at(self.directory.join(name), self.version, Scratch::new()?)
    }

    /// Returns what systemd does with a list of devices for this cgroup: its rules, or its first program, are replaced by
    /// those of the list and nothing else.
    pub fn change(&self) -> Change {
        let (probe, directory) = (self.probe.clone(), self.directory.clone());
        let version = self.version;
        Box::new(move |list| {
            let devices = list.iter().filter_map(|(path, access)| {
                let number = path.strip_prefix("/dev/char/")?;
                Some((number, access))
            });
            if version == 1 {
                let write = |file: &str, line: &str| fs::write(directory.join(file), line);
                write("devices.deny", "a").expect("rules can be removed");
                for (number, access) in devices {
                    let line = format!("c {number} {access}");
                    write("devices.allow", &line).expect("the parent has the rules");
                }
            } else {
                let mut command = Command::new(&probe);
                command.arg("attach").arg(&directory).arg("again");
                command.args(devices.map(|(number, _)| number));
                output(&mut command).expect("the program can be replaced");
            }
        })
    }

    /// Makes a child cgroup.
    ///
    /// # Errors
    /// As of the system calls.
    pub fn child(&self) -> io::Result<Self> {
        Self::below(&self.directory, self.version)
    }

    /// Makes a process in the cgroup try to open a device (`195:1`) in every mode repeatedly; the first attempt has
    /// failed when this returns. Its last line is the number of successful opens.
    ///
    /// # Errors
    /// The device can be opened.
    pub fn race(&self, device: &str) -> io::Result<Helper> {
        let nodes = self.scratch.join("nodes");
        files::directory(&nodes)?;
        let mut command = Command::new(&self.probe);
        command.arg("race").arg(&self.directory);
        Helper::start(command.arg(nodes).arg(device), "denied")
    }

    fn new(version: u32) -> io::Result<Self> {
        let hierarchy = cgroup_hierarchy(version).ok_or(io::ErrorKind::Unsupported)?;
        Self::below(&hierarchy, version)
    }

    fn below(parent: &Path, version: u32) -> io::Result<Self> {
        let scratch = Scratch::new()?;
        let name = scratch
            .path()
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let directory = parent.join(format!("nvc-tests-{}-{name}", std::process::id()));
        Self::at(directory, version, scratch)
    }

    fn at(directory: PathBuf, version: u32, scratch: Scratch) -> io::Result<Self> {
        let probe = probe(&scratch)?;
        fs::create_dir(&directory)?;
        Ok(Self {
            directory,
            version,
            probe,
            scratch,
            shown: std::cell::RefCell::default(),
        })
    }

    /// Returns its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Moves a process into it. On machines with both hierarchies, the process's cgroup file then shows only the
    /// version 2 group, because a version 1 devices line would have precedence.
    ///
    /// # Errors
    /// As of the system calls.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        fs::write(self.directory.join("cgroup.procs"), pid.to_string())?;
        if self.version == 2 && cgroup_hierarchy(1).is_some() {
            let file = PathBuf::from(format!("/proc/{pid}/cgroup"));
            let shown = self.scratch.join(format!("cgroup-of-{pid}"));
            let lines = fs::read_to_string(&file)?;
            let unified = lines.lines().find(|line| line.starts_with("0::"));
            fs::write(&shown, unified.unwrap_or_default())?;
            mount(
                Some(&shown),
                &file,
                None::<&str>,
                MsFlags::MS_BIND,
                None::<&str>,
            )?;
            self.shown.borrow_mut().push(file);
        }
        Ok(())
    }

    /// Returns the devices among these (`195:0`) that a process in the cgroup may open for reading and writing.
    ///
    /// # Errors
    /// The probe fails, or only one of reading and writing is allowed.
    pub fn allowed<'a>(&self, devices: &[&'a str]) -> io::Result<Vec<&'a str>> {
        let nodes = self.scratch.join("nodes");
        files::directory(&nodes)?;
        let mut command = Command::new(&self.probe);
        let text = output(
            command
                .arg("try")
                .arg(&self.directory)
                .arg(&nodes)
                .args(devices),
        )?;
        let mut allowed = Vec::new();
        for (device, line) in devices.iter().zip(text.lines()) {
            if line.contains(" read=yes write=yes ") {
                allowed.push(*device);
            } else if !line.contains(" read=no write=no ") {
                return Err(io::Error::other(line.to_owned()));
            }
        }
        Ok(allowed)
    }

    /// Returns the number of device programs attached to it directly.
    ///
    /// # Errors
    /// The probe fails.
    pub fn programs(&self) -> io::Result<usize> {
        let text = output(Command::new(&self.probe).arg("count").arg(&self.directory))?;
        text.trim().parse().map_err(io::Error::other)
    }

    /// Returns the version 1 rules.
    ///
    /// # Errors
    /// It is of version 2.
    pub fn rules(&self) -> io::Result<Vec<String>> {
        let text = fs::read_to_string(self.directory.join("devices.list"))?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

impl Drop for DeviceCgroup {
    fn drop(&mut self) {
        for file in self.shown.borrow().iter() {
            // Already gone if the process has ended.
            let _ = umount2(file, MntFlags::MNT_DETACH);
        }
        let procs = self.directory.join("cgroup.procs");
        let parent = self.directory.parent().unwrap_or(Path::new("/"));
        for pid in fs::read_to_string(procs).unwrap_or_default().lines() {
            let _ = fs::write(parent.join("cgroup.procs"), pid);
        }
        // An ending process leaves its cgroup with a delay.
        for _ in 0..1500 {
            if fs::remove_dir(&self.directory).is_ok() || !self.directory.exists() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        eprintln!("cgroup left behind: {}", self.directory.display());
    }
}

/// Returns the number of loaded device programs that this process has attached, including their replacements.
///
/// # Errors
/// The probe fails.
pub fn loaded_programs() -> io::Result<usize> {
    let scratch = Scratch::new()?;
    let text = output(Command::new(probe(&scratch)?).arg("loaded"))?;
    text.trim().parse().map_err(io::Error::other)
}

fn probe(scratch: &Scratch) -> io::Result<PathBuf> {
    let probe = scratch.join("device-probe");
    let program = compiled(Source::DeviceProbe, &[])?;
    files::file(&probe, &program[..], 0o755)?;
    Ok(probe)
}

fn output(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{command:?}: {output:?}")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
