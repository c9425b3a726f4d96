//! Tests that a hook's warnings and errors are printed and are in the system's log.

use std::fs;
use std::os::unix::net::UnixDatagram;

use nvc_testkit::cli::{self, Outcome, Run};
use nvc_testkit::files;
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::rootfs::{self, Layout};

/// Runs a hook of this program on an image whose list of directories for musl's loader is no file, with a socket of the
/// test's as /dev/log; returns the lines that it got.
fn run(program: &[&str], hook: &str) -> (Outcome, Vec<String>) {
    machine::driver();
    let scratch = Scratch::new().unwrap();
    let root = scratch.join("root");
    let alpine = rootfs::Builder::new(Layout::Alpine).edit(|root| {
        let arch = std::env::consts::ARCH;
        let loader = root.join(format!("lib/ld-musl-{arch}.so.1"));
        files::file(&loader, "", 0o755)?;
        fs::create_dir_all(root.join(format!("etc/ld-musl-{arch}.path")))?;
        fs::create_dir_all(root.join("opt/lib"))
    });
    alpine.build(&root).unwrap();
    let state = format!(r#"{{"id": "c1", "root": "{}"}}"#, root.display());
    fs::write(scratch.join("state.json"), state).unwrap();
    let journal = UnixDatagram::bind(scratch.join("socket")).unwrap();
    journal.set_nonblocking(true).unwrap();
    let script = format!(
        "cd {scratch} && mount --bind root root && mount -t tmpfs dev /dev && mknod -m 666 /dev/null c 1 3 && \
         touch /dev/log && mount --bind socket /dev/log && exec {program} {words} {hook} < state.json",
        scratch = scratch.path().display(),
        program = cli::beside(program[0]).unwrap().display(),
        words = program[1..].join(" "),
    );
    let namespace = ["--mount", "--propagation", "private", "sh", "-c", &script];
    let outcome = Run::other("unshare").args(namespace).outcome().unwrap();
    let mut lines = Vec::new();
    let mut buffer = vec![0; 9999];
    while let Ok(length) = journal.recv(&mut buffer) {
        lines.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    (outcome, lines)
}

/// libnvc gives its warnings to a logger.
pub(super) fn warnings_of_the_library() {
    for program in [
        &["nvidia-cdi-hook"][..],
        &["nvidia-cdi-hook", "--debug"],
        &["nvidia-ctk", "hook"],
        &["nvidia-ctk", "--debug", "hook"],
    ] {
        let (outcome, lines) = run(program, "update-ldcache --folder /opt/lib");
        assert_eq!(outcome.status, Some(0), "{outcome:#?}");
        let arch = std::env::consts::ARCH;
        let text =
            format!("leaving /etc/ld-musl-{arch}.path alone: it is not a list of directories");
        let printed = outcome.stderr.lines();
        let printed: Vec<_> = printed.filter(|line| line.contains(&text)).collect();
        assert_eq!(printed.len(), 1, "{outcome:#?}");
        assert!(printed[0].contains("level=warning"), "{outcome:#?}");
        let expected = format!("<28>nvidia-cdi-hook: container c1: {text}");
        assert_eq!(lines, [expected], "{outcome:#?}");
    }
    let (outcome, lines) = run(
        &["nvidia-cdi-hook", "--quiet"],
        "update-ldcache --folder /opt/lib",
    );
    assert_eq!(outcome.stderr, "", "{outcome:#?}");
    assert_eq!(lines, [""; 0]);
}

/// Steps, which many arguments make many, leave room for it.
pub(super) fn the_reason_of_a_failure() {
    let links: String = (0..100)
        .map(|n| format!(" --link t::/etc/{n}{}", "y".repeat(100)))
        .collect();
    let hook = format!("create-symlinks{links} --link t::/opt/lib");
    for program in [
        &["nvidia-cdi-hook", "--debug"][..],
        &["nvidia-ctk", "--debug", "hook"],
    ] {
        let (outcome, lines) = run(program, &hook);
        assert_eq!(outcome.status, Some(1), "{outcome:#?}");
        assert!(outcome.stderr.len() <= 4096, "{outcome:#?}");
        assert!(
            outcome.stderr.matches("level=debug").count() > 9,
            "{outcome:#?}"
        );
        let last = outcome.stderr.lines().last().unwrap_or_default();
        assert!(
            last.contains("level=error") && last.contains("/opt/lib: "),
            "{outcome:#?}"
        );
        let [line] = lines.as_slice() else {
            panic!("{lines:#?} {outcome:#?}");
        };
        assert!(
            line.starts_with("<27>nvidia-cdi-hook: container c1: "),
            "{line}"
        );
        assert!(line.contains("/opt/lib: "), "{line}");
    }
}
