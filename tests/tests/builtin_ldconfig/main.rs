//! Tests `configure` with the builtin ldconfig: same result as ldconfig, and the loader finds the libraries.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use nvc_testkit::cli::Run;
use nvc_testkit::container::{Builder, Container};
use nvc_testkit::driver::NATIVE;
use nvc_testkit::elf::{Machine, SharedObject};
use nvc_testkit::harness::Need::{Images, Root, UserNamespaces};
use nvc_testkit::machine::Scratch;
use nvc_testkit::{files, harness, machine, rootfs, userland};
use nvc_tests::{State, command_line, configure, start};

use images::real_images;
use later::in_a_user_namespace;

mod agreement;
mod fallback;
mod images;
mod later;
mod musl;
mod words;

fn main() -> ExitCode {
    // The caches of both word sizes are compared.
    harness::on_debian();
    let mut tests = agreement::tests();
    tests.extend(later::tests());
    tests.extend(fallback::tests());
    tests.extend(words::tests());
    tests.extend(musl::tests());
    tests.extend(nvc_testkit::tests![&[Root, Images]; real_images]);
    tests.extend(nvc_testkit::tests![&[Root, UserNamespaces]; in_a_user_namespace]);
    harness::main(tests)
}

const EVERYTHING: &[&str] = &[
    "--utility",
    "--compute",
    "--graphics",
    "--video",
    "--display",
    "--ngx",
    "--device=all",
];

/// Prepares `configure` with an automatic choice of ldconfig.
fn automatic(container: &Container, arguments: &[&str]) -> Run {
    let pid = format!("--pid={}", container.pid());
    let words = [&["configure", "--no-cgroups", &pid], arguments].concat();
    let mut line = command_line(machine::driver(), &words);
    line.push(container.root().into());
    Run::cli(line)
}

/// Configures a container; returns the log.
#[track_caller]
fn builtin(container: &Container, arguments: &[&str]) -> String {
    let scratch = Scratch::new().unwrap();
    let log = scratch.join("log");
    done(automatic(container, arguments).env("NVC_DEBUG_FILE", &log));
    fs::read_to_string(log).unwrap()
}

/// Runs `configure`, perhaps with a warning that ldconfig will prefer a file of the image.
#[track_caller]
fn done(run: Run) {
    let done = run.outcome().unwrap();
    let mut warnings = done.stderr.lines();
    let is_known = warnings.all(|line| line.contains("the next ldconfig in this container"));
    assert!(done.status == Some(0) && is_known, "{done:#?}");
}

/// Returns the reason if a log reports that the host's ldconfig ran.
fn fallback(log: &str) -> Option<&str> {
    let (_, reason) = log.split_once("not the builtin ldconfig: ")?;
    assert!(log.contains("executing /sbin/ldconfig"), "{log}");
    reason.lines().next()
}

/// Returns the entries of a container's cache, in order.
fn listed(root: &Path) -> Vec<String> {
    let output = Command::new(userland::host_ldconfig())
        .args(["-p", "-C"])
        .arg(root.join("etc/ld.so.cache"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter(|line| line.contains(" => "));
    lines.map(str::to_owned).collect()
}

/// Checks that equal containers become equal with and without ldconfig; returns the cache's entries.
#[track_caller]
fn agree(
    root: impl Fn() -> rootfs::Builder,
    edit: impl Fn(&Path),
    arguments: &[&str],
) -> Vec<String> {
    agree_with(&nvc_tests::host_ldconfig(), root, edit, arguments)
}

/// Does the same with the ldconfig named by an argument.
#[track_caller]
fn agree_with(
    ldconfig: &str,
    root: impl Fn() -> rootfs::Builder,
    edit: impl Fn(&Path),
    arguments: &[&str],
) -> Vec<String> {
    let outcome = |with: &dyn Fn(&Container)| {
        let container = start(Builder::new(root()));
        edit(container.root());
        let before = State::of(&container);
        with(&container);
        let mut files = before.new_files(&container);
        // ldconfig's auxiliary cache.
        files.retain(|line| !line.contains("var/cache/ldconfig"));
        (listed(container.root()), files)
    };
    let expected = outcome(&|container| {
        let outcome = configure(container, &[arguments, &[ldconfig]].concat()).outcome();
        assert_eq!(outcome.unwrap().status, Some(0));
    });
    let found = outcome(&|container| {
        let log = builtin(container, arguments);
        assert_eq!(fallback(&log), None);
        assert!(log.contains("writing /etc/ld.so.cache"), "{log}");
    });
    let surplus: Vec<_> = found
        .0
        .iter()
        .filter(|line| !expected.0.contains(line))
        .collect();
    let missing: Vec<_> = expected
        .0
        .iter()
        .filter(|line| !found.0.contains(line))
        .collect();
    assert!(
        surplus.is_empty() && missing.is_empty(),
        "+ {surplus:#?} - {missing:#?}"
    );
    assert_eq!(found.0, expected.0, "another order");
    assert_eq!(found.1, expected.1, "files");
    found.0
}

/// Returns the first bytes of a cache.
fn format_of(root: &Path) -> Vec<u8> {
    let mut bytes = fs::read(root.join("etc/ld.so.cache")).unwrap();
    bytes.truncate(11);
    bytes
}

/// Writes a library and its directory.
fn library(at: &Path, machine: Machine, soname: &str) {
    let object = SharedObject::new(machine)
        .soname(soname)
        .needed("libc.so.6");
    files::file(at, object.bytes(), 0o644).unwrap();
}

fn native(root: &Path, at: &str, soname: &str) {
    let at = machine::driver().fill(at);
    library(&files::below(root, Path::new(&at)), NATIVE.1, soname);
}

/// Runs ldconfig in a root, like the last step of building an image.
fn ldconfig(root: &Path, arguments: &[&str]) {
    let status = Command::new(userland::host_ldconfig())
        .arg("-r")
        .arg(root)
        .args(arguments)
        .status();
    assert!(status.unwrap().success());
}
