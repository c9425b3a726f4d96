//! Installs a package with a library in the container, as apt-get does: dpkg unpacks it, and its trigger runs ldconfig.

use std::fs;
use std::path::Path;
use std::process::Command;

use nvc_testkit::driver::NATIVE;
use nvc_testkit::elf::SharedObject;
use nvc_testkit::files;
use nvc_testkit::rootfs::{self, Layout};

use super::{CASES, Case, Kind, Later, World, root};

/// What dpkg executes.
const PROGRAMS: [&str; 9] = [
    "dpkg",
    "dpkg-deb",
    "dpkg-split",
    "dpkg-query",
    "tar",
    "rm",
    "diff",
    "start-stop-daemon",
    "cat",
];

const LIBRARY: &str = "libpackaged.so.1";

/// The package of ldconfig's trigger, and one with a library.
const PACKAGES: [&str; 2] = ["libc-bin", "libpackaged1"];

/// Programs find the driver and the library afterwards. With a cover on the cache the installation fails, which a
/// warning has said.
pub(super) fn are_installed() {
    for case in CASES {
        // Nothing can be installed on a read-only volume.
        let is_read_only = |(_, kind): &(_, Kind)| *kind == Kind::ReadOnly;
        if matches!(case.layout, Layout::Debian) && !case.volumes.iter().any(is_read_only) {
            installs(case);
        }
    }
}

fn installs(case: &Case) {
    let root = root(Layout::Debian).programs(&PROGRAMS);
    let world = World::new(with_packages(root), case.volumes);
    world.configures();
    let files = PACKAGES.map(|name| format!("/root/{name}.deb")).join(" ");
    let done = world.run(&format!("dpkg --force-unsafe-io -i {files}"));
    let text = format!("{}: {done:?}", case.name);
    assert_eq!(done.status.success(), case.later == Later::Works, "{text}");
    if case.later == Later::Works {
        let found = world.run(&format!("ldconfig -p | grep -c {LIBRARY}"));
        assert_eq!(found.stdout, b"1\n", "{text} {found:?}");
    }
    world.has_gpu("nvidia-smi");
}

/// Adds dpkg's database and the packages.
fn with_packages(root: rootfs::Builder) -> rootfs::Builder {
    root.edit(|root| {
        for directory in ["info", "updates", "triggers"] {
            fs::create_dir_all(root.join("var/lib/dpkg").join(directory))?;
        }
        files::file(&root.join("var/lib/dpkg/status"), "", 0o644)?;
        files::file(&root.join("var/lib/dpkg/available"), "", 0o644)?;
        fs::create_dir_all(root.join("root"))?;
        let [ldconfig, library] = PACKAGES;
        let postinst = "#!/bin/sh\n[ \"$1\" != triggered ] || exec ldconfig\n";
        package(root, ldconfig, "interest-noawait ldconfig\n", |tree| {
            files::file(&tree.join("DEBIAN/postinst"), postinst, 0o755)
        })?;
        package(root, library, "activate-noawait ldconfig\n", |tree| {
            let object = SharedObject::new(NATIVE.1).soname(LIBRARY);
            let directory = tree.join("usr/lib").join(NATIVE.0);
            files::file(&directory.join(LIBRARY), object.bytes(), 0o644)
        })
    })
}

/// Builds a package in the root.
fn package(
    root: &Path,
    name: &str,
    triggers: &str,
    fill: impl Fn(&Path) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let tree = root.join("root").join(name);
    let control = format!(
        "Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: tests\nDescription: test\n"
    );
    files::file(&tree.join("DEBIAN/control"), control, 0o644)?;
    files::file(&tree.join("DEBIAN/triggers"), triggers, 0o644)?;
    fill(&tree)?;
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Znone", "--build"]);
    let built = build.arg(&tree).arg(tree.with_extension("deb")).output()?;
    assert!(built.status.success(), "{built:?}");
    fs::remove_dir_all(&tree)
}
