//! Tests when the systemd units write the specification: the lines of the units themselves, with stand-ins of nvidia-ctk
//! and systemctl. scripts/test/units.sh runs the units under systemd.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use nvc_testkit::files;
use nvc_testkit::harness;
use nvc_testkit::machine::Scratch;

fn main() -> ExitCode {
    harness::main(nvc_testkit::tests![&[];
        a_deleted_specification_comes_back_once,
        a_disabled_refresh_stays_so,
        other_findings_start_the_refresh,
        the_file_at_the_former_place_goes,
    ])
}

/// Writes a specification unless it must fail, and notes that NVML was asked.
const CTK: &str = r#"#!/bin/sh
case "$*" in
'cdi generate') echo nvml >> LOG; [ ! -e TOP/fails ] && echo made > "$NVIDIA_CTK_CDI_OUTPUT_FILE_PATH" ;;
'cdi verify --quick --spec-dir='*) [ ! -e TOP/differs ] ;;
*'system create-'*) ;;
*) echo "nvidia-ctk $*" >> LOG; exit 1 ;;
esac
"#;

const SYSTEMCTL: &str = r#"#!/bin/sh
case "$*" in
'-q is-enabled nvidia-cdi-refresh.service') [ ! -e TOP/disabled ] ;;
'--no-block start nvidia-cdi-refresh.service') echo start >> LOG ;;
*) echo "systemctl $*" >> LOG; exit 1 ;;
esac
"#;

/// A machine's directories and programs.
struct Machine {
    scratch: Scratch,
}

impl Machine {
    fn new() -> Self {
        let machine = Self {
            scratch: Scratch::new().unwrap(),
        };
        for (name, text) in [("nvidia-ctk", CTK), ("systemctl", SYSTEMCTL)] {
            let log = machine.at("log").display().to_string();
            let text = text.replace("LOG", &log);
            let top = machine.scratch.path().to_str().unwrap();
            let path = machine.at(&format!("programs/{name}"));
            files::file(&path, text.replace("TOP", top), 0o755).unwrap();
        }
        for directory in ["state", "cdi", "etc"] {
            fs::create_dir(machine.at(directory)).unwrap();
        }
        machine
    }

    fn at(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// A marker that the stand-ins look for.
    fn set(&self, marker: &str) {
        fs::write(self.at(marker), "").unwrap();
    }

    fn unset(&self, marker: &str) {
        fs::remove_file(self.at(marker)).unwrap();
    }

    /// Runs the lines of a unit with these keys as systemd does; returns what the programs noted.
    fn run(&self, unit: &str, keys: &[&str], specification: &Path) -> (Vec<String>, String) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pkg/systemd");
        let text = fs::read_to_string(path.join(unit)).unwrap();
        let programs = self.at("programs").display().to_string();
        let log = self.at("log");
        let _ = fs::remove_file(&log);
        let mut said = String::new();
        for line in text.lines() {
            let Some((key, line)) = line.split_once('=') else {
                continue;
            };
            if !keys.contains(&key) {
                continue;
            }
            let line = line.replace(
                "/run/nvidia-cdi-refresh",
                self.at("state").to_str().unwrap(),
            );
            let line = line.replace("/usr/bin/nvidia-ctk", &format!("{programs}/nvidia-ctk"));
            // This kernel may have no modules.
            let line = line.replace("/proc/modules", "/dev/null");
            let may_fail = line.starts_with('-');
            let output = Command::new("timeout")
                .args(["30", "sh", "-c", line.trim_start_matches('-')])
                .env("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", specification)
                .env("PATH", format!("{programs}:/usr/bin:/bin"))
                .output()
                .unwrap();
            assert_ne!(output.status.code(), Some(124), "{line} hangs");
            said += &String::from_utf8(output.stdout).unwrap();
            said += &String::from_utf8(output.stderr).unwrap();
            if !output.status.success() && !may_fail {
                break;
            }
        }
        let log = fs::read_to_string(log).unwrap_or_default();
        (log.lines().map(Into::into).collect(), said)
    }

    /// A run of the timer's service; true if it starts the refresh.
    fn tick(&self, specification: &Path) -> bool {
        let (log, said) = self.run("nvidia-cdi-verify.service", &["ExecStart"], specification);
        assert_eq!(said, "");
        assert!(log.iter().all(|line| line == "start"), "{log:?}");
        !log.is_empty()
    }

    /// A run of the refresh; returns what it says.
    fn refresh(&self, specification: &Path) -> String {
        let keys = ["ExecStartPre", "ExecStart", "ExecStartPost"];
        let (log, said) = self.run("nvidia-cdi-refresh.service", &keys, specification);
        assert_eq!(log, ["nvml"]);
        said
    }
}

fn a_deleted_specification_comes_back_once() {
    let machine = Machine::new();
    let specification = machine.at("cdi/nvidia.yaml");
    // There has been none: NVML would be asked each minute on a machine that cannot have one.
    assert!(!machine.tick(&specification));
    assert_eq!(machine.refresh(&specification), "");
    assert!(!machine.tick(&specification));
    for _ in 0..2 {
        fs::remove_file(&specification).unwrap();
        assert!(machine.tick(&specification));
        assert_eq!(machine.refresh(&specification), "");
        assert!(!machine.tick(&specification));
    }
    // The GPUs are gone, and so is the file: one more refresh finds that out, or none if it has failed already.
    fs::remove_file(&specification).unwrap();
    assert!(machine.tick(&specification));
    assert!(!machine.tick(&specification));
    machine.refresh(&specification);
    machine.set("fails");
    machine.refresh(&specification);
    fs::remove_file(&specification).unwrap();
    assert!(!machine.tick(&specification));
}

fn a_disabled_refresh_stays_so() {
    let machine = Machine::new();
    let specification = machine.at("cdi/nvidia.yaml");
    machine.refresh(&specification);
    machine.set("disabled");
    fs::remove_file(&specification).unwrap();
    assert!(!machine.tick(&specification));
    machine.unset("disabled");
    assert!(!machine.tick(&specification));
}

fn other_findings_start_the_refresh() {
    let machine = Machine::new();
    let specification = machine.at("cdi/nvidia.yaml");
    machine.set("differs");
    machine.refresh(&specification);
    assert!(machine.tick(&specification));
    // Also of a file that was written by hand.
    fs::remove_file(machine.at("state/written")).unwrap();
    assert!(machine.tick(&specification));
}

/// It would go stale, and engines would refuse its devices, or prefer it.
fn the_file_at_the_former_place_goes() {
    let machine = Machine::new();
    let (old, new) = (machine.at("cdi/nvidia.yaml"), machine.at("cdi/other.yaml"));
    machine.refresh(&old);
    // Not before there is the new one.
    machine.set("fails");
    assert_eq!(machine.refresh(&new), "");
    assert!(old.exists());
    machine.unset("fails");
    let said = machine.refresh(&new);
    assert!(!old.exists() && new.exists());
    let removed = format!(
        "removed {}: the specification is {} now\n",
        old.display(),
        new.display()
    );
    assert_eq!(said, removed);
    // The same file by another name.
    std::os::unix::fs::symlink(machine.at("cdi"), machine.at("link")).unwrap();
    assert_eq!(machine.refresh(&machine.at("link/other.yaml")), "");
    // A file that somebody has changed, and one that this unit has not written.
    fs::write(&new, "mine").unwrap();
    let said = machine.refresh(&machine.at("etc/a.yaml"));
    assert!(said.contains("changed since: remove it"), "{said}");
    assert_eq!(fs::read_to_string(&new).unwrap(), "mine");
    fs::write(&old, "made\n").unwrap();
    let last = machine.at("etc/b.yaml");
    machine.refresh(&last);
    assert!(old.exists() && !machine.at("etc/a.yaml").exists());
    // Reading it would not end.
    fs::remove_file(&last).unwrap();
    nix::unistd::mkfifo(&last, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(machine.refresh(&new), "");
}
