//! Tests invalid inputs: each is rejected with a message that names it, and changes nothing.
#![allow(clippy::unwrap_used)]

use std::process::{Command, ExitCode};

use nvc_testkit::cli::Run;
use nvc_testkit::container::{Builder, Container};
use nvc_testkit::harness::Need::Root;
use nvc_testkit::harness::{self, Test, test};
use nvc_testkit::machine;
use nvc_tests::{State, command_line, debian, debian_root, host_ldconfig, on_driver, start};

/// Name, arguments after `configure --utility --no-cgroups --ldconfig=…` (`ROOT` and `PID` are the container's), and
/// the message without the program's name; a trailing `…` matches any rest.
const CONFIGURE: &[(&str, &[&str], &str)] = &[
    (
        "rootfs_relative",
        &["--pid=PID", "run/rootfs"],
        "input error: invalid rootfs directory",
    ),
    (
        "rootfs_is_the_hosts",
        &["--pid=PID", "/"],
        "input error: invalid rootfs directory",
    ),
    (
        "rootfs_is_the_hosts_by_another_path",
        &["--pid=PID", "/../"],
        "input error: invalid rootfs directory",
    ),
    (
        "rootfs_empty",
        &["--pid=PID", ""],
        "input error: invalid rootfs directory",
    ),
    (
        "rootfs_missing",
        &["--pid=PID", "ROOT/nonexistent"],
        "container error: …",
    ),
    (
        "rootfs_is_a_file",
        &["--pid=PID", "ROOT/etc/passwd"],
        "container error: …",
    ),
    (
        "pid_no_number",
        &["--pid=abc", "ROOT"],
        "input error: parse pid failed: invalid argument",
    ),
    (
        "pid_too_large",
        &["--pid=99999999999999999999", "ROOT"],
        "input error: parse pid failed: numerical result out of range",
    ),
    ("pid_gone", &["--pid=4194000", "ROOT"], "container error: …"),
    (
        "pid_zero_without_a_process",
        &["--pid=0", "ROOT"],
        "container error: …",
    ),
    (
        "device_unknown",
        &["--pid=PID", "--device=9", "ROOT"],
        "device error: 9: unknown device",
    ),
    (
        "device_partial_uuid",
        &["--pid=PID", "--device=GPU-51a", "ROOT"],
        "device error: GPU-51a: unknown device",
    ),
    (
        "device_hexadecimal",
        &["--pid=PID", "--device=0x1", "ROOT"],
        "device error: 0x1: unknown device",
    ),
    (
        "mig_device_unknown",
        &["--pid=PID", "--device=1:5", "ROOT"],
        "device error: 1:5: unknown device",
    ),
    (
        "mig_device_of_a_gpu_without",
        &["--pid=PID", "--device=0:0", "ROOT"],
        "device error: 0:0: unknown device",
    ),
    (
        "mig_config_of_one",
        &["--pid=PID", "--mig-config=0", "ROOT"],
        "mig-config error: 0: only 'all' devices are currently supported",
    ),
    (
        "mig_config_and_mig_devices",
        &["--pid=PID", "--device=1:0", "--mig-config=all", "ROOT"],
        "mig-config error: all: cannot enable mig-config with specific MIG devices selected",
    ),
    (
        "imex_no_number",
        &["--pid=PID", "--imex-channel=zz", "ROOT"],
        "error parsing IMEX info: unsupported IMEX channel value: zz",
    ),
    (
        "imex_too_large",
        &["--pid=PID", "--imex-channel=1048576", "ROOT"],
        "error parsing IMEX info: unsupported IMEX channel value: 1048576",
    ),
    (
        "requirement_unmet",
        &["--pid=PID", "--device=0", "--require=cuda>=99", "ROOT"],
        "requirement error: unsatisfied condition: cuda>=99, please update your driver to a newer version, or use an earlier cuda container",
    ),
    (
        "requirement_of_a_brand",
        &["--pid=PID", "--device=0", "--require=brand=Tesla", "ROOT"],
        "requirement error: unsatisfied condition: brand=Tesla",
    ),
    (
        "requirement_malformed",
        &["--pid=PID", "--require=cuda", "ROOT"],
        "requirement error: invalid expression",
    ),
    (
        "requirement_unknown",
        &["--pid=PID", "--require=foo>=1", "ROOT"],
        "requirement error: invalid expression",
    ),
];

fn main() -> ExitCode {
    let mut tests: Vec<Test> = CONFIGURE
        .iter()
        .map(|&(name, arguments, message)| test(name, &[Root], move || refused(arguments, message)))
        .collect();
    for (name, what) in [
        (
            "fifo_where_a_program_goes",
            "mkfifo \"$1\"/usr/bin/nvidia-smi",
        ),
        (
            "device_where_a_program_goes",
            "mknod \"$1\"/usr/bin/nvidia-smi c 1 3",
        ),
        (
            "link_loop_where_a_program_goes",
            "ln -s nvidia-smi \"$1\"/usr/bin/nvidia-smi",
        ),
        (
            "link_to_a_missing_file",
            "ln -s /nowhere/at/all \"$1\"/usr/bin/nvidia-smi",
        ),
        (
            "link_out_of_the_root",
            "ln -s ../../../../../../../../etc/nvc-evil \"$1\"/usr/bin/nvidia-smi",
        ),
        (
            "directory_link_out_of_the_root",
            "rm -r \"$1\"/usr/bin; ln -s ../../../../../../../../etc \"$1\"/usr/bin",
        ),
    ] {
        tests.push(test(name, &[Root], move || odd_target(what)));
    }
    tests.extend(nvc_testkit::tests![&[Root];
        no_proc_in_the_container,
        rootfs_with_slashes_at_the_end,
        usage_errors,
        surplus_and_missing_words,
        a_root_without_a_driver,
        the_proc_of_another_pid_namespace,
        not_root,
    ]);
    harness::main(tests)
}

fn run(container: &Container, arguments: &[&str]) -> Run {
    let (root, pid) = (
        container.root().to_str().unwrap(),
        container.pid().to_string(),
    );
    let filled: Vec<_> = arguments
        .iter()
        .map(|word| word.replace("ROOT", root).replace("PID", &pid))
        .collect();
    let ldconfig = host_ldconfig();
    let mut words = vec!["configure", "--utility", "--no-cgroups", &ldconfig];
    words.extend(filled.iter().map(String::as_str));
    Run::cli(command_line(machine::driver(), &words))
}

fn refused(arguments: &[&str], expected: &str) {
    let container = debian();
    let before = State::of(&container);
    let message = run(&container, arguments).fails();
    let expected = format!("nvidia-container-cli: {expected}");
    match expected.strip_suffix('…') {
        Some(start) => assert!(
            message.starts_with(start) && message.len() > start.len(),
            "{message}"
        ),
        None => assert_eq!(message, expected),
    }
    before.assert_unchanged(&container);
}

/// Either the mount lands inside the image, or nothing changes, whatever the image has there. The host's files stay
/// unchanged.
fn odd_target(what: &'static str) {
    let builder = debian_root().no_programs().edit(move |root| {
        let status = Command::new("sh")
            .args(["-c", what, "sh"])
            .arg(root)
            .status()?;
        assert!(status.success());
        Ok(())
    });
    let container = start(Builder::new(builder));
    let before = State::of(&container);
    let outcome = run(&container, &["--device=0", "--pid=PID", "ROOT"])
        .outcome()
        .unwrap();
    assert_eq!(outcome.orphans, [""; 0]);
    match outcome.status {
        Some(0) => before.assert_host_unchanged(&container),
        Some(1) => {
            assert!(
                outcome
                    .message()
                    .starts_with("nvidia-container-cli: mount error: "),
                "{outcome:#?}"
            );
            before.assert_unchanged(&container);
        }
        _ => panic!("{outcome:#?}"),
    }
    assert!(!std::path::Path::new("/etc/nvc-evil").exists());
    assert!(!std::path::Path::new("/etc/nvidia-smi").exists());
}

fn no_proc_in_the_container() {
    let container = start(Builder::new(debian_root().no_programs()).no_proc());
    let before = State::of(&container);
    let message = run(&container, &["--device=0", "--pid=PID", "ROOT"]).fails();
    assert!(
        message.starts_with("nvidia-container-cli: mount error: "),
        "{message}"
    );
    assert!(message.contains("/proc/driver/nvidia"), "{message}");
    before.assert_unchanged(&container);
}

fn rootfs_with_slashes_at_the_end() {
    let container = debian();
    let before = State::of(&container);
    run(&container, &["--device=0", "--pid=PID", "ROOT///"]).succeeds();
    let new = before.new_mounts(&container);
    assert!(
        new.iter()
            .any(|line| line.starts_with("usr/bin/nvidia-smi ")),
        "{new:#?}"
    );
}

fn usage_errors() {
    let run = |arguments: &[&str]| Run::cli(arguments).fails();
    assert_eq!(
        run(&[]),
        "Usage: nvidia-container-cli [OPTION...] COMMAND [ARG...]"
    );
    assert_eq!(
        run(&["frobnicate"]),
        "Usage: nvidia-container-cli [OPTION...] COMMAND [ARG...]"
    );
    assert!(run(&["--frob", "info"]).ends_with(": unrecognized option '--frob'"));
    assert!(run(&["info", "--frob"]).ends_with(" info: unrecognized option '--frob'"));
    let user = on_driver(&["--user=no-such-user", "info"]).fails();
    assert_eq!(
        user,
        "nvidia-container-cli: input error: parse user/group failed: no such file or directory"
    );
}

fn surplus_and_missing_words() {
    let message = on_driver(&["info", "more"]).fails();
    assert!(message.ends_with(" info: Too many arguments"), "{message}");
    let message = on_driver(&["configure"]).fails();
    assert_eq!(
        message,
        "Usage: nvidia-container-cli configure [OPTION...] ROOTFS"
    );
}

fn a_root_without_a_driver() {
    let container = debian();
    let root = format!("--root={}", container.root().display());
    let message = Run::cli([root.as_str(), "info"]).fails();
    assert_eq!(
        message,
        "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: \
         cannot open shared object file: no such file or directory"
    );
    let message = Run::cli(["--root=/nonexistent", "info"]).fails();
    let text = "initialization error: change root failed: /nonexistent: no such file or directory";
    assert_eq!(message, format!("nvidia-container-cli: {text}"));
}

/// There a process id means another process than the caller's, or none.
fn the_proc_of_another_pid_namespace() {
    let container = debian();
    let before = State::of(&container);
    let said = |prepare: &str| {
        let mut command = Command::new("unshare");
        let script = format!("{prepare} exec \"$@\"");
        command.args(["--mount", "--pid", "--fork", "sh", "-c", &script, "sh"]);
        let words = ["configure", "--utility", "--no-cgroups", "--pid=1"];
        let mut line = command_line(machine::driver(), &words);
        line.push(container.root().into());
        Run::within(command, line).outcome().unwrap().stderr
    };
    let refused = said("");
    let text = "container error: open failed: /proc/1/root/: /proc belongs to another pid namespace\n\
                hint: mount -t proc proc /proc\n";
    assert!(refused.ends_with(text), "{refused}");
    let repaired = said("mount -t proc proc /proc &&");
    assert!(!repaired.contains("pid namespace"), "{repaired}");
    before.assert_unchanged(&container);
}

fn not_root() {
    let container = debian();
    let before = State::of(&container);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=1000", "--regid=1000", "--clear-groups", "--"]);
    let pid = format!("--pid={}", container.pid());
    let mut line = command_line(
        machine::driver(),
        &["configure", "--utility", "--no-cgroups", &pid],
    );
    line.push(container.root().into());
    let message = Run::within(command, line).fails();
    let text = "permission error: capability change failed: operation not permitted";
    assert_eq!(message, format!("nvidia-container-cli: {text}"));
    before.assert_unchanged(&container);
}
