//! Runs the program with command lines that do not access the driver, and compares the output with upstream's.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

const NAME: &str = "nvidia-container-cli";

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvidia-container-cli"));
    command.arg0(NAME).args(args).env_clear();
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("output is UTF-8")
}

fn run(args: &[&str]) -> Output {
    program(args).output().expect("the program starts")
}

/// Checks that the command line fails with exactly this on standard error.
fn fails(args: &[&str], stderr: &str) {
    let output = run(args);
    assert_eq!(text(&output.stderr), stderr, "{args:?}");
    assert_eq!(text(&output.stdout), "", "{args:?}");
    assert_eq!(output.status.code(), Some(1), "{args:?}");
}

/// Checks that the command line fails with this line on standard error, possibly with a hint after it.
fn fails_with(args: &[&str], line: &str) {
    let output = run(args);
    let stderr = text(&output.stderr);
    let mut lines = stderr.lines();
    assert_eq!(lines.next(), Some(line), "{args:?}");
    assert!(lines.all(|line| line.starts_with("hint: ")), "{stderr}");
    assert_eq!(text(&output.stdout), "", "{args:?}");
    assert_eq!(output.status.code(), Some(1), "{args:?}");
}

#[test]
fn misuse_of_the_program() {
    let usage = "\
Usage: nvidia-container-cli [OPTION...] COMMAND [ARG...]
Try `nvidia-container-cli --help' or `nvidia-container-cli --usage' for more
information.
";
    fails(&[], usage);
    let hint = "hint: frobnicate is no command: it must be info, list or configure\n";
    fails(&["frobnicate"], &format!("{usage}{hint}"));
    let hint = "hint: lst is no command: did you mean list?\n";
    fails(&["lst"], &format!("{usage}{hint}"));
    fails(
        &["--frob", "info"],
        "\
nvidia-container-cli: unrecognized option '--frob'
Try `nvidia-container-cli --help' or `nvidia-container-cli --usage' for more
information.
",
    );
}

#[test]
fn misuse_of_info() {
    fails(
        &["--root=/nowhere", "info", "--frob"],
        "\
nvidia-container-cli info: unrecognized option '--frob'
Try `nvidia-container-cli info --help' or `nvidia-container-cli info --usage'
for more information.
",
    );
    fails(
        &["info", "x"],
        "\
nvidia-container-cli info: Too many arguments
Try `nvidia-container-cli info --help' or `nvidia-container-cli info --usage'
for more information.
",
    );
}

#[test]
fn a_misspelt_option_has_the_nearest_one() {
    for (args, near) in [
        (["--lod-kmods", "info"], "--load-kmods"),
        (["list", "--devise=0"], "--device"),
        (["configure", "--hepl"], "--help"),
    ] {
        let output = program(&args).output().expect("the program starts");
        let hint = format!("\nhint: did you mean {near}?\n");
        let stderr = text(&output.stderr);
        assert!(stderr.ends_with(&hint), "{args:?}: {stderr}");
        assert_eq!(output.status.code(), Some(1), "{args:?}");
    }
}

#[test]
fn misuse_of_configure() {
    fails(
        &["configure", "--utility", "--bogus", "/x"],
        "\
nvidia-container-cli configure: unrecognized option '--bogus'
Try `nvidia-container-cli configure --help' or `nvidia-container-cli configure
--usage' for more information.
",
    );
    fails(
        &["configure", "--pid=1", "--utility"],
        "\
Usage: nvidia-container-cli configure [OPTION...] ROOTFS
Try `nvidia-container-cli configure --help' or `nvidia-container-cli configure
--usage' for more information.
",
    );
}

#[test]
fn name_is_how_the_program_was_called() {
    let output = program(&["--frob"])
        .arg0("/usr/bin/nvidia-container-cli.real")
        .output()
        .expect("the program starts");
    assert_eq!(
        text(&output.stderr),
        "\
/usr/bin/nvidia-container-cli.real: unrecognized option '--frob'
Try `nvidia-container-cli.real --help' or `nvidia-container-cli.real --usage'
for more information.
"
    );
    let output = program(&["--user=no-such-user", "info"])
        .arg0("./a/b")
        .output()
        .expect("the program starts");
    assert!(text(&output.stderr).starts_with("b: input error: parse user/group failed: "));
}

#[test]
fn bad_values() {
    for (args, line) in [
        (
            &["--user=no-such-user", "info"][..],
            "input error: parse user/group failed: no such file or directory",
        ),
        (
            &["configure", "--pid=abc", "/x"],
            "input error: parse pid failed: invalid argument",
        ),
        (
            &["configure", "run/rootfs"],
            "input error: invalid rootfs directory",
        ),
        (
            &[&["configure"][..], &["--require=cuda>=12.0"; 33], &["/x"]].concat(),
            "input error: too many requirements",
        ),
        (
            &["configure", "--imex-channel=zz", "/x"],
            "error parsing IMEX info: unsupported IMEX channel value: zz",
        ),
        (
            &["--root=", "info"],
            "initialization error: invalid argument",
        ),
    ] {
        fails_with(args, &format!("{NAME}: {line}"));
    }
}

#[test]
fn usage() {
    let output = run(&["info", "--usage"]);
    assert_eq!(
        text(&output.stdout),
        "Usage: nvidia-container-cli info [-?V] [--help] [--csv] [--usage] [--version]\n"
    );
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn version() {
    for args in [&["--version"][..], &["-V"], &["list", "--vers"]] {
        let output = run(args);
        let labels: Vec<&str> = text(&output.stdout)
            .lines()
            .map(|line| line.split_once(": ").expect("label and value").0)
            .collect();
        assert_eq!(
            labels,
            [
                "cli-version",
                "lib-version",
                "build date",
                "build revision",
                "build compiler",
                "build platform",
                "build flags"
            ]
        );
        let platform = format!("build platform: {}\n", std::env::consts::ARCH);
        assert!(text(&output.stdout).contains(&platform));
        assert_eq!(output.status.code(), Some(0));
    }
}

/// Every long option appears with a line of help, and there are examples to copy.
#[test]
fn help_teaches() {
    for (args, options) in [
        (
            &["-?"][..],
            &[
                "--debug <FILE>",
                "--load-kmods",
                "--user[=<UID[:GID]>]",
                "configure",
            ][..],
        ),
        (&["info", "--help"], &["--csv", "--format <FORMAT>"]),
        (&["list", "--help"], &["--device <ID>", "--no-gsp-firmware"]),
        (
            &["configure", "--help"],
            &["--require <EXPR>", "--cuda-compat-mode <MODE>", "--dry-run"],
        ),
    ] {
        let output = run(args);
        let help = text(&output.stdout);
        for option in options {
            assert!(help.contains(option), "{option} in {help}");
        }
        assert!(help.contains("Usage: nvidia-container-cli"));
        assert!(help.contains("Example: "));
        assert!(
            help.lines().all(|line| line.chars().count() <= 120),
            "{help}"
        );
        assert_eq!(text(&output.stderr), "");
        assert_eq!(output.status.code(), Some(0));
    }
}

#[test]
fn reader_that_leaves_early_is_no_failure() {
    let mut child = program(&["configure", "--help"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn full_disk_is_a_failure() {
    let full = std::fs::File::create("/dev/full").expect("/dev/full is there");
    let output = program(&["--version"])
        .stdout(full)
        .output()
        .expect("the program starts");
    assert_eq!(
        text(&output.stderr),
        "nvidia-container-cli: output error: write failed: standard output: no space left on device\n"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn debug_log_has_a_banner_and_is_appended_to() {
    let path = std::env::temp_dir().join(format!("nvc-cli-usage-{}.log", std::process::id()));
    let banner = "\n-- WARNING, the following logs are for debugging purposes only --\n\n";
    let option = format!("--debug={}", path.display());
    // The option has precedence over the environment.
    for _ in 0..2 {
        let output = program(&[&option, "--root=", "info"])
            .env("NVC_DEBUG_FILE", "/nonexistent/log")
            .output();
        assert_eq!(output.expect("the program starts").status.code(), Some(1));
    }
    let log = std::fs::read_to_string(&path);
    std::fs::remove_file(&path).expect("the log is there");
    assert_eq!(log.expect("the log is readable").matches(banner).count(), 2);
}

#[test]
fn debug_log_may_be_an_open_socket() {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let mut command = program(&["--debug=/dev/stderr", "--root=", "info"]);
    let status = command.stderr(std::os::fd::OwnedFd::from(theirs)).status();
    drop(command);
    assert_eq!(status.expect("the program starts").code(), Some(1));
    let said = std::io::read_to_string(ours).expect("its messages");
    assert!(said.starts_with("\n-- WARNING, "), "{said}");
}

#[test]
fn debug_log_that_cannot_be_written_is_a_warning() {
    let output = run(&["--debug=/nonexistent/log", "--root=", "info"]);
    let stderr = text(&output.stderr);
    let mut lines = stderr.lines();
    assert_eq!(
        lines.next(),
        Some(
            "nvidia-container-cli: warning: no debug log: open failed: /nonexistent/log: \
             no such file or directory"
        )
    );
    assert_eq!(
        lines.next(),
        Some("nvidia-container-cli: initialization error: invalid argument")
    );
}
