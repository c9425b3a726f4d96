//! nvidia-ctk asks other programs: they end in time together with what they started, also if it was killed.
#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nvc_testkit::cli::beside;
use nvc_testkit::files;
use nvc_testkit::harness;
use nvc_testkit::machine::Scratch;

/// Longer than a loaded machine takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    harness::main(nvc_testkit::tests![&[];
        they_end_even_if_it_was_killed,
        ignored_signals_stay_ignored,
        they_get_no_home_that_others_may_change,
        one_that_others_may_exchange_is_passed_over,
    ])
}

/// Starts nvidia-ctk, which asks a program that answers late; returns it, and the numbers of the program and of its child.
fn started(scratch: &Scratch, before: &str, answer: &str) -> (std::process::Child, [u32; 2]) {
    let program = scratch.join("containerd");
    let pids = scratch.join("pids");
    let text = format!(
        "#!/bin/sh\nsleep 1000 & echo $$ $! > {0}.new; mv {0}.new {0}\n{answer}\n",
        pids.display()
    );
    files::file(&program, &text, 0o755).unwrap();
    let line = format!(
        "{before} exec {} runtime configure --runtime=containerd --config={} --dry-run --executable-path={}",
        beside("nvidia-ctk").unwrap().display(),
        scratch.join("config.toml").display(),
        program.display(),
    );
    // A shell cannot catch signals that it found ignored, as in a script's background job.
    let mut command = Command::new("env");
    let command = command.args(["--default-signal=HUP,INT,QUIT,TERM", "sh", "-c", &line]);
    let command = command.stdin(Stdio::null());
    let child = command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = child.spawn().unwrap();
    let numbers = wait_for(|| {
        let text = fs::read_to_string(&pids).ok()?;
        let mut numbers = text.split_whitespace().map(|pid| pid.parse().unwrap());
        Some([numbers.next()?, numbers.next()?])
    });
    (child, numbers)
}

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "it does not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|text| !text.contains(") Z "))
}

fn send(signal: &str, pid: u32) {
    let status = Command::new("kill")
        .args(["-s", signal, &pid.to_string()])
        .status();
    assert!(status.unwrap().success());
}

fn they_end_even_if_it_was_killed() {
    let scratch = Scratch::new().unwrap();
    let (mut ctk, others) = started(&scratch, "", "wait");
    send("KILL", ctk.id());
    assert_eq!(ctk.wait().unwrap().signal(), Some(9));
    wait_for(|| others.iter().all(|pid| !is_running(*pid)).then_some(()));
}

/// As `nohup` starts a program.
fn ignored_signals_stay_ignored() {
    let scratch = Scratch::new().unwrap();
    let answer = "until [ -e $0.go ]; do sleep 0.01; done; kill $!";
    let (mut ctk, [_, child]) = started(&scratch, "trap '' HUP;", answer);
    send("HUP", ctk.id());
    files::file(&scratch.join("containerd.go"), "", 0o644).unwrap();
    assert_eq!(ctk.wait().unwrap().code(), Some(0));
    wait_for(|| (!is_running(child)).then_some(()));
}

/// docker executes plugins that lie there.
fn they_get_no_home_that_others_may_change() {
    let scratch = Scratch::new().unwrap();
    let home = scratch.join("home");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, Permissions::from_mode(0o777)).unwrap();
    let program = scratch.join("containerd");
    let text = "#!/bin/sh\necho ${HOME-none} ${DOCKER_CONFIG-none} ${DOCKER_HOST-none} > $0.got\n";
    files::file(&program, text, 0o755).unwrap();
    let got = |home: &Path| {
        let status = Command::new(beside("nvidia-ctk").unwrap())
            .args(["runtime", "configure", "--runtime=containerd", "--dry-run"])
            .arg(format!(
                "--config={}",
                scratch.join("config.toml").display()
            ))
            .arg(format!("--executable-path={}", program.display()))
            .env("HOME", home)
            .env("DOCKER_CONFIG", home.join(".docker"))
            .env("DOCKER_HOST", home)
            .output()
            .unwrap()
            .status;
        assert!(status.success());
        fs::read_to_string(scratch.join("containerd.got")).unwrap()
    };
    assert_eq!(got(&home), format!("none none {}\n", home.display()));
    assert_eq!(got(Path::new("/usr")), "/usr /usr/.docker /usr\n");
}

/// Root asks by PATH, which need not be root's.
fn one_that_others_may_exchange_is_passed_over() {
    let scratch = Scratch::new().unwrap();
    let directory = scratch.join("bin");
    fs::create_dir(&directory).unwrap();
    let text = "#!/bin/sh\n: > $0.ran\n";
    files::file(&directory.join("containerd"), text, 0o755).unwrap();
    let said = |mode: u32| {
        fs::set_permissions(&directory, Permissions::from_mode(mode)).unwrap();
        let output = Command::new(beside("nvidia-ctk").unwrap())
            .args(["runtime", "configure", "--runtime=containerd", "--dry-run"])
            .arg(format!("--config={}", scratch.join("c.toml").display()))
            .env("PATH", format!("{}:/usr/bin:/bin", directory.display()))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let ran = directory.join("containerd.ran");
    let text = said(0o777);
    let reason = format!(
        "passing over {}/containerd: every user",
        directory.display()
    );
    assert!(text.contains(&reason) && !ran.exists(), "{text}");
    let text = said(0o755);
    assert!(!text.contains("passing over") && ran.exists(), "{text}");
}
