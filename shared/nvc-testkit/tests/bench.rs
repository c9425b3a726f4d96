//! Checks that nvc-bench runs and writes its tables, whatever the figures.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, fs};

use nvc_testkit::cli;
use nvc_testkit::harness::Need::Root;
use nvc_testkit::harness::{self};
use nvc_testkit::machine::Scratch;

fn main() -> ExitCode {
    harness::main(nvc_testkit::tests![&[Root];
        the_page_gets_tables,
        an_unknown_option_is_refused,
    ])
}

fn bench(pages: &Path, options: &[&str]) -> std::process::Output {
    // Without the fixture and the images: on the simulated driver, which is always available.
    Command::new(env!("CARGO_BIN_EXE_nvc-bench"))
        .env("NVC_FIXTURE", pages)
        .env("NVC_BENCH_CACHE", pages)
        .args(["--runs", "1", "--write"])
        .arg(pages)
        .args(options)
        .arg(cli::program().unwrap())
        .output()
        .unwrap()
}

/// Returns the text between a mark and its end.
fn section<'a>(page: &'a str, mark: &str) -> &'a str {
    let start = format!("<!-- bench: {mark} -->\n");
    let rest = page.split_once(&start).unwrap().1;
    rest.split_once("<!-- end -->").unwrap().0
}

fn the_page_gets_tables() {
    let pages = Scratch::new().unwrap();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::create_dir(pages.join("docs")).unwrap();
    let page = "docs/performance.md";
    fs::copy(repository.join(page), pages.join(page)).unwrap();
    let commands = bench(pages.path(), &["--only", "commands"]);
    assert!(commands.status.success(), "{commands:?}");
    let scaling = bench(pages.path(), &["--only", "scaling", "--up-to", "1"]);
    assert!(scaling.status.success(), "{scaling:?}");

    let page = fs::read_to_string(pages.join(page)).unwrap();
    let table = section(&page, "commands");
    assert!(table.contains("1 runs of each command, in turn, on the simulated driver"));
    for command in [
        "/bin/true",
        "ldconfig alone",
        "baseline of info",
        "baseline of configure",
        "info",
        "list",
        "configure",
        "configure, builtin",
        "everything",
        "everything, builtin",
    ] {
        let start = format!("| {command} | ");
        let row = table.lines().find(|line| line.starts_with(&start));
        let row = row.unwrap_or_else(|| panic!("there is no row for {command}"));
        assert!(!row.contains("NaN") && !row.contains(" inf "), "{row}");
        // The program, the query and ldconfig.
        assert!(command != "configure" || row.contains(" | 3 | "), "{row}");
    }
    assert!(section(&page, "scaling").contains("| 1 | "), "{page}");
}

fn an_unknown_option_is_refused() {
    let pages = Scratch::new().unwrap();
    let refused = bench(pages.path(), &["--frob"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("'--frob'"));
}
