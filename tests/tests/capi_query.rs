//! Tests how the built C library starts the query process: where it finds its program, and its fallbacks.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use nvc_testkit::harness;
use nvc_testkit::harness::Need::{self, Root};
use nvc_testkit::machine::{self, Scratch};
use nvc_tests::capi::{Check, Program, library_dir, shared_object};

fn main() -> ExitCode {
    harness::main(nvc_testkit::tests![&[Root, Need::Command("gcc")];
        any_prefix,
        a_missing_program_is_a_clear_error,
        one_thread_needs_no_program,
        a_narrow_bounding_set,
        a_narrow_bounding_set_and_threads,
        the_images_program_is_not_run,
    ])
}

/// Installs the library below a directory.
fn install(prefix: &Path, lib: &str, libexec: Option<&str>) -> PathBuf {
    let lib = prefix.join(lib);
    fs::create_dir_all(&lib).unwrap();
    // By a separate process: if another test forked while this one had the file open for writing, executing it would
    // fail with ETXTBSY.
    let copy = |from: &Path, to: &Path| {
        let status = Command::new("cp").args([from, to]).status().unwrap();
        assert!(status.success());
    };
    copy(&shared_object(), &lib.join("libnvidia-container.so.9.9.9"));
    symlink(
        "libnvidia-container.so.9.9.9",
        lib.join("libnvidia-container.so.1"),
    )
    .unwrap();
    if let Some(libexec) = libexec {
        let libexec = prefix.join(libexec);
        fs::create_dir_all(&libexec).unwrap();
        copy(&library_dir().join("nvc-query"), &libexec);
    }
    lib
}

fn any_prefix() {
    let program = Program::compile("gcc", "tests/c/ask.c", Check::Plain);
    for (lib, libexec) in [
        ("opt/x/lib", "opt/x/libexec/libnvidia-container"),
        (
            "usr/lib/x86_64-linux-gnu",
            "usr/libexec/libnvidia-container",
        ),
        ("usr/lib64", "usr/lib64/libnvidia-container"),
        ("build", "build"),
    ] {
        let scratch = Scratch::new().unwrap();
        let lib = install(scratch.path(), lib, Some(libexec));
        let run = program.run().env("LD_LIBRARY_PATH", lib);
        let text = run.args([machine::driver().root()]).succeeds();
        assert_eq!(text, "570.124.06 12.8 2\n");
    }
}

const SEEN: &str = "570.124.06 2\n570.124.06 2\n";

fn narrowed() -> Program {
    Program::compile("gcc", "tests/c/narrowed.c", Check::Plain)
}

fn a_missing_program_is_a_clear_error() {
    let program = narrowed();
    let scratch = Scratch::new().unwrap();
    let lib = install(scratch.path(), "usr/lib", None);
    let run = program.run().env("LD_LIBRARY_PATH", &lib);
    let run = run.args([machine::driver().root().as_os_str()]);
    let message = run.args(["wide", "2"]).fails();
    assert!(
        message.starts_with("process creation failed: nvc-query: in none of "),
        "{message}"
    );
    assert!(
        message.contains("/usr/lib/libnvidia-container, "),
        "{message}"
    );
}

/// As if only the library had been copied (the GPU Operator does so).
fn one_thread_needs_no_program() {
    let program = narrowed();
    let scratch = Scratch::new().unwrap();
    let lib = install(scratch.path(), "usr/lib", None);
    for user in ["65534", "0", "1234"] {
        let run = program.run().env("LD_LIBRARY_PATH", &lib);
        let run = run.args([machine::driver().root().as_os_str()]);
        assert_eq!(run.args(["wide", "1", user]).succeeds(), SEEN);
    }
}

/// As upstream's command line does before it initialises the library.
fn a_narrow_bounding_set() {
    let program = narrowed();
    for user in ["65534", "0", "1234"] {
        let run = program.run().args([machine::driver().root().as_os_str()]);
        assert_eq!(run.args(["narrow", "1", user]).succeeds(), SEEN);
    }
}

fn a_narrow_bounding_set_and_threads() {
    let program = narrowed();
    let run = |user| {
        let run = program.run().args([machine::driver().root().as_os_str()]);
        run.args(["narrow", "2", user]).fails()
    };
    let text = |missing| {
        format!(
            "process creation failed: the bounding set lacks {missing}: initialise the library before narrowing it, \
             or before starting threads"
        )
    };
    assert_eq!(run("65534"), text("CAP_SETGID, CAP_SETUID, CAP_SYS_CHROOT"));
    assert_eq!(run("0"), text("CAP_SYS_CHROOT"));
}

/// A library loaded by a relative name, and a caller that has changed into a container's root.
fn the_images_program_is_not_run() {
    let scratch = Scratch::new().unwrap();
    let host = scratch.join("host");
    install(&host, "lib", Some("lib/libnvidia-container"));
    let image = scratch.join("image");
    let theirs = install(&image, "lib", None).join("libnvidia-container");
    fs::create_dir(&theirs).unwrap();
    let mark = scratch.join("mark");
    let script = format!("#!/bin/sh\ntouch {}\n", mark.display());
    nvc_testkit::files::file(&theirs.join("nvc-query"), script, 0o755).unwrap();
    let program = narrowed();
    // With threads, so that it must be executed.
    let run = nvc_testkit::cli::Run::other("env")
        .env("LD_LIBRARY_PATH", "lib")
        .args([Path::new("-C"), &host, &program.path()])
        .args([machine::driver().root().as_os_str()])
        .args(["wide", "2", "65534"])
        .args([&image]);
    let outcome = run.outcome().unwrap();
    assert!(!mark.exists(), "the image's program was run: {outcome:#?}");
    assert_eq!(outcome.stdout, SEEN, "{outcome:#?}");
}
