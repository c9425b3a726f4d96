//! Tests what `--load-kmods` leaves on the host: an image can name IMEX channels, whose nodes stay in the host's /dev.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use nvc_testkit::cli::Run;
use nvc_testkit::container::{Builder, Container};
use nvc_testkit::driver::{self, Driver};
use nvc_testkit::harness;
use nvc_testkit::harness::Need::Root;
use nvc_testkit::machine::Scratch;
use nvc_tests::{State, command_line, debian, debian_root, failing_ldconfig, host_ldconfig, start};

fn main() -> ExitCode {
    harness::main(nvc_testkit::tests![&[Root];
        channels_are_created_and_stay,
        a_failure_before_the_container_leaves_none,
        a_failure_in_the_container_leaves_them,
        a_request_has_a_limit_of_channels,
        a_channel_that_the_driver_does_not_have,
        a_dry_run_leaves_none,
        a_list_creates_them,
    ])
}

/// A driver root of its own, with loaded modules, in the place of the host.
struct Host {
    driver: Driver,
    _scratch: Scratch,
}

impl Host {
    fn new() -> Self {
        let scratch = Scratch::new().unwrap();
        let driver = driver::Builder::default().build(scratch.path()).unwrap();
        let modules = ["nvidia", "nvidia_uvm", "nvidia_modeset"];
        let modules = modules.map(|name| format!("{name} 1 0 - Live 0x0\n"));
        fs::write(driver.path("/proc/modules"), modules.concat()).unwrap();
        fs::create_dir_all(driver.path("/dev/char")).unwrap();
        let host = Self {
            driver,
            _scratch: scratch,
        };
        // The nodes that do not depend on a request.
        host.run(&["list", "--ipcs"]).succeeds();
        host
    }

    fn run(&self, words: &[&str]) -> Run {
        let mut line = command_line(&self.driver, words);
        line.insert(0, "--load-kmods".into());
        Run::cli(line)
    }

    fn configure(&self, container: &Container, words: &[&str]) -> Run {
        let pid = format!("--pid={}", container.pid());
        let root = container.root().to_str().unwrap();
        let before: &[&str] = &["configure", &pid, "--utility"];
        self.run(&[before, words, &[root]].concat())
    }

    /// Returns the names below /dev and /dev/char.
    fn nodes(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut directories = vec![self.driver.path("/dev")];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).unwrap() {
                let entry = entry.unwrap();
                names.push(entry.path().display().to_string());
                if entry.file_type().unwrap().is_dir() {
                    directories.push(entry.path());
                }
            }
        }
        names.sort();
        names
    }

    fn channel(&self, number: u32) -> PathBuf {
        let name = format!("/dev/nvidia-caps-imex-channels/channel{number}");
        self.driver.path(&name)
    }
}

fn channels_are_created_and_stay() {
    let (host, container) = (Host::new(), debian());
    let options = ["--device=0", "--imex-channel=7,9", "--no-cgroups"];
    host.configure(&container, &options).succeeds();
    let major = host.driver.majors().imex;
    for number in [7, 9] {
        assert!(host.channel(number).exists());
        let link = host.driver.path(format!("/dev/char/{major}:{number}"));
        assert!(link.is_symlink());
        let name = format!("/dev/nvidia-caps-imex-channels/channel{number}");
        assert!(container.inside(&name).exists());
    }
    // Nodes that exist are used again.
    let before = host.nodes();
    host.configure(&debian(), &options).succeeds();
    assert_eq!(host.nodes(), before);
}

/// Whatever can fail without them fails first: request, container, plan, sources.
fn a_failure_before_the_container_leaves_none() {
    let host = Host::new();
    let channels = "--imex-channel=100,101,102,103";
    let cases: [(&str, &[&str], &str); 6] = [
        ("device", &["--device=99"], ""),
        ("mig", &["--device=0", "--mig-config=0"], ""),
        ("requirement", &["--device=0", "--require=cuda>=99"], ""),
        ("ldconfig", &["--device=0", "--ldconfig=@/sbin/nope"], ""),
        ("other channel", &["--device=0", "--imex-channel=2048"], ""),
        ("source", &["--device=0"], "/dev/nvidia0"),
    ];
    for (name, words, broken) in cases {
        let container = debian();
        let state = State::of(&container);
        let hidden = host.driver.path("/hidden");
        if !broken.is_empty() {
            fs::rename(host.driver.path(broken), &hidden).unwrap();
            // Otherwise it would be created again.
            fs::create_dir(host.driver.path(broken)).unwrap();
        }
        let before = host.nodes();
        let words = [&["--no-cgroups", channels][..], words].concat();
        host.configure(&container, &words).fails();
        assert_eq!(host.nodes(), before, "{name}");
        state.assert_unchanged(&container);
        if !broken.is_empty() {
            fs::remove_dir(host.driver.path(broken)).unwrap();
            fs::rename(&hidden, host.driver.path(broken)).unwrap();
        }
    }
}

/// They cannot be removed: another container may use them by then.
fn a_failure_in_the_container_leaves_them() {
    let host = Host::new();
    let scratch = Scratch::new().unwrap();
    let container = start(Builder::new(debian_root().no_programs()));
    let state = State::of(&container);
    let ldconfig = failing_ldconfig(&scratch, &[]);
    let options = ["--device=0", "--imex-channel=7", "--no-cgroups", &ldconfig];
    host.configure(&container, &options).fails();
    state.assert_unchanged(&container);
    assert!(host.channel(7).exists());
}

fn a_request_has_a_limit_of_channels() {
    let host = Host::new();
    let before = host.nodes();
    let all: Vec<String> = (0..1025).map(|channel| channel.to_string()).collect();
    let option = format!("--imex-channel={}", all.join(","));
    let text = host.configure(&debian(), &["--device=0", &option]).fails();
    assert!(text.ends_with("too many IMEX channels: 1025"), "{text}");
    assert_eq!(host.nodes(), before);
}

fn a_channel_that_the_driver_does_not_have() {
    let host = Host::new();
    let params = host.driver.path("/proc/driver/nvidia/params");
    fs::remove_file(&params).unwrap();
    fs::write(&params, "ModifyDeviceFiles: 1\nImexChannelCount: 4\n").unwrap();
    let before = host.nodes();
    for list in ["4", "3,1048575"] {
        let option = format!("--imex-channel={list}");
        let text = host.configure(&debian(), &["--device=0", &option]).fails();
        let last = list.rsplit(',').next().unwrap();
        let expected = format!("mount error: unsupported IMEX channel value: {last}");
        assert!(text.ends_with(&expected), "{text}");
        assert_eq!(host.nodes(), before);
    }
    let options = ["--device=0", "--imex-channel=3", "--no-cgroups"];
    host.configure(&debian(), &options).succeeds();
    assert!(host.channel(3).exists());
}

fn a_dry_run_leaves_none() {
    let host = Host::new();
    fs::remove_file(host.driver.path("/dev/nvidia-modeset")).unwrap();
    let before = host.nodes();
    let container = debian();
    let options = ["--device=0", "--dry-run", &host_ldconfig()];
    host.configure(&container, &options).succeeds();
    let with_channel = [&options[..], &["--imex-channel=7"]].concat();
    host.configure(&container, &with_channel).fails();
    assert_eq!(host.nodes(), before);
}

/// Its caller wants them, and no image.
fn a_list_creates_them() {
    let host = Host::new();
    host.run(&["list", "--imex-channel=5,2048", "--ipcs"])
        .succeeds();
    assert!(host.channel(5).exists());
    assert!(!host.channel(2048).exists());
}
