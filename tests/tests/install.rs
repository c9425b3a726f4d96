//! Installs the build as `make install` does, and checks the paths, which the libraries expect.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use nvc_testkit::harness;
use nvc_testkit::harness::Need;
use nvc_testkit::machine::Scratch;
use nvc_tests::capi::{library_dir, repository};

fn main() -> ExitCode {
    harness::main(nvc_testkit::tests![&[Need::Command("readelf")];
        another_place_than_that_of_the_build_is_refused,
        the_libraries_are_where_they_are_expected,
    ])
}

/// Returns a path that the library was built for, by its name in the pkg-config file.
fn built(name: &str) -> String {
    let file = fs::read_to_string(library_dir().join("libnvidia-container.pc")).unwrap();
    let line = file.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().strip_prefix('=').unwrap().to_owned()
}

fn install(scratch: &Scratch, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(repository().join("scripts/build/install.sh"));
    for name in ["PREFIX", "LIBDIR", "LIBEXECDIR", "INCLUDEDIR"] {
        command.env_remove(name);
    }
    command
        .env("DESTDIR", scratch.path())
        .env("BUILD", library_dir())
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

/// The static library contains the path of its helper.
fn another_place_than_that_of_the_build_is_refused() {
    for variable in ["PREFIX", "LIBEXECDIR"] {
        let scratch = Scratch::new().unwrap();
        let output = install(&scratch, &[(variable, "/elsewhere")]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        let expected = format!("was built for {}, and not for", built("libexecdir"));
        assert!(text.contains(&expected), "{text}");
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}

/// A debug build has no manual pages, at which the script stops; by then the libraries are installed.
fn the_libraries_are_where_they_are_expected() {
    let scratch = Scratch::new().unwrap();
    let output = install(&scratch, &[]);
    let text = String::from_utf8(output.stderr).unwrap();
    let at = |path: &str| -> PathBuf { scratch.join(path.trim_start_matches('/')) };
    let helper = at(&built("libexecdir")).join("libnvidia-container/nvc-query");
    assert!(helper.is_file(), "{text}");
    let archive = fs::read(library_dir().join("libnvidia-container.a")).unwrap();
    let place = format!("{}/libnvidia-container", built("libexecdir"));
    let holds = archive
        .windows(place.len())
        .any(|bytes| bytes == place.as_bytes());
    assert!(holds, "{place}");
    for name in ["libnvidia-container", "libnvidia-container-go"] {
        let library = at(&built("libdir")).join(format!("{name}.so.1"));
        assert!(library.is_symlink(), "{text}");
        assert_eq!(soname(&library), format!("{name}.so.1"));
    }
    let empty = at(&built("libdir")).join("libnvidia-container-go.so.1");
    let symbols = Command::new("readelf")
        .args(["-W", "--dyn-syms"])
        .arg(&empty)
        .output()
        .unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    assert!(!symbols.contains("GLOBAL"), "{symbols}");
    assert!(fs::metadata(empty).unwrap().len() < 20_000);
}

fn soname(library: &Path) -> String {
    let output = Command::new("readelf")
        .args(["-W", "-d"])
        .arg(library)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("(SONAME)")).unwrap();
    let name = line.split_once('[').unwrap().1;
    name.trim_end_matches(']').to_owned()
}
