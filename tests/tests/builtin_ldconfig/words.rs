//! Tests the arguments that select an ldconfig, and a dry run's report of the choice.

use std::fs;

use nvc_testkit::cli::Run;
use nvc_testkit::container::{Builder, Container};
use nvc_testkit::harness::Need::Root;
use nvc_testkit::harness::Test;
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::rootfs::{self, Layout};
use nvc_tests::{command_line, configure, debian, start};

use super::{automatic, builtin};

pub(crate) fn tests() -> Vec<Test> {
    nvc_testkit::tests![&[Root];
        plans_say_so,
        a_path_of_that_name,
        the_default_is_auto,
        an_image_without_etc,
    ]
}

/// Returns the output of `configure --dry-run`.
pub(crate) fn dry_run(container: &Container, ldconfig: &str, format: &str) -> String {
    dry_run_line(container, ldconfig, format).succeeds()
}

pub(crate) fn dry_run_line(container: &Container, ldconfig: &str, format: &str) -> Run {
    let ldconfig = format!("--ldconfig={ldconfig}");
    let pid = format!("--pid={}", container.pid());
    let format = format!("--format={format}");
    let words = [
        "configure",
        "--utility",
        "--no-cgroups",
        "--dry-run",
        &ldconfig,
        &pid,
        &format,
    ];
    let mut line = command_line(machine::driver(), &words);
    line.push(container.root().into());
    Run::cli(line)
}

fn plans_say_so() {
    let container = debian();
    let text = dry_run(&container, "builtin", "text");
    assert!(text.contains(" by the builtin ldconfig"), "{text}");
    let json = dry_run(&container, "builtin", "json");
    assert!(json.contains("\"builtin\""), "{json}");
    // A step that will not be done is not reported.
    fs::remove_file(container.root().join("etc/ld.so.cache")).unwrap();
    let text = dry_run(&container, "builtin", "text");
    assert!(text.contains(" by /sbin/ldconfig of the host"), "{text}");
}

fn a_path_of_that_name() {
    let container = debian();
    let message = dry_run(&container, "@builtin", "text");
    assert!(message.contains(" by the builtin ldconfig"), "{message}");
    let message = configure(&container, &["--utility", "--ldconfig=@./builtin"]).fails();
    assert!(
        message.contains("open failed: ./builtin: no such file"),
        "{message}"
    );
    let scratch = Scratch::new().unwrap();
    let log = scratch.join("log");
    let run = configure(&container, &["--utility", "--ldconfig=./builtin"]);
    run.env("NVC_DEBUG_FILE", &log).succeeds();
    let log = fs::read_to_string(log).unwrap();
    assert!(
        log.contains("the image has no /builtin") || log.contains("/./builtin"),
        "{log}"
    );
}

/// No ldconfig argument is equivalent to `auto`.
fn the_default_is_auto() {
    let container = debian();
    let log = builtin(&container, &["--utility"]);
    assert!(log.contains("writing /etc/ld.so.cache"), "{log}");
    for word in ["auto", "@auto", "builtin", "@builtin"] {
        let text = dry_run(&container, word, "text");
        assert!(text.contains(" by the builtin ldconfig"), "{word}: {text}");
    }
    // A named program is used.
    let text = dry_run(&container, "@/sbin/ldconfig", "text");
    assert!(text.contains(" by /sbin/ldconfig of the host"), "{text}");
}

/// As in images built from scratch: nothing reads a cache, but programs may look for libraries by their SONAME.
fn an_image_without_etc() {
    let container = || {
        let root =
            rootfs::Builder::new(Layout::Empty).edit(|root| fs::remove_dir(root.join("etc")));
        start(Builder::new(root))
    };
    let words = &["--utility", "--compute", "--device=0"];
    type Start<'a> = &'a dyn Fn(&Container) -> Run;
    let ways: [(&str, Start<'_>); 2] = [
        ("builtin", &|container| automatic(container, words)),
        ("program", &|container| configure(container, words)),
    ];
    for (way, run) in ways {
        let container = container();
        let scratch = Scratch::new().unwrap();
        let log = scratch.join("log");
        run(&container).env("NVC_DEBUG_FILE", &log).succeeds();
        let log = fs::read_to_string(log).unwrap();
        let line = "not updating the ld.so.cache: the image has no /etc";
        assert!(log.contains(line), "{way}: {log}");
        assert_eq!(log.contains("executing"), way == "program", "{log}");
        assert!(!container.root().join("etc").exists(), "{way}");
        assert!(
            container.inside("/usr/lib64/libcuda.so.1").exists(),
            "{way}"
        );
    }
}
