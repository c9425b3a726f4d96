//! Tests containers with volumes on /etc, /usr or /usr/lib, or read-only ones, as docs/ldconfig.md has it: no volume is
//! changed, the loader finds the driver without a change, or an error names the volume.
#![allow(clippy::unwrap_used)]

mod races;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode, Output};

use nvc_testkit::cli::{Outcome, Run};
use nvc_testkit::container::{self, Container};
use nvc_testkit::elf::SharedObject;
use nvc_testkit::harness::Need::Root;
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::rootfs::Layout;
use nvc_testkit::tree::Tree;
use nvc_testkit::{files, harness, rootfs};
use nvc_tests::{command_line, host_ldconfig, start};

/// A mount of the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The image's files, as in a new named volume.
    Copy,
    /// The same, read-only.
    ReadOnly,
    /// Nothing.
    Empty,
}

struct Case {
    name: &'static str,
    layout: Layout,
    volumes: &'static [(&'static str, Kind)],
    /// What the error says, each part; none if the container gets its GPU.
    error: &'static [&'static str],
}

const fn case(
    name: &'static str,
    volumes: &'static [(&'static str, Kind)],
    error: &'static [&'static str],
) -> Case {
    Case {
        name,
        layout: Layout::Debian,
        volumes,
        error,
    }
}

const USR: &[&str] = &["/usr is a volume, which may not be changed", "hint: "];
const USR_LIB: &[&str] = &["/usr/lib is a volume, which may not be changed", "hint: "];

const CASES: &[Case] = &[
    case("etc", &[("etc", Kind::Copy)], &[]),
    case("an_empty_etc", &[("etc", Kind::Empty)], &[]),
    case("a_read_only_etc", &[("etc", Kind::ReadOnly)], &[]),
    case("usr_lib", &[("usr/lib", Kind::Copy)], USR_LIB),
    case("usr", &[("usr", Kind::Copy)], USR),
    case("a_read_only_usr", &[("usr", Kind::ReadOnly)], USR),
    case(
        "etc_and_usr",
        &[("etc", Kind::Copy), ("usr", Kind::Copy)],
        USR,
    ),
    case("usr_bin", &[("usr/bin", Kind::Copy)], &[]),
    case(
        "a_volume_in_a_volume",
        &[("usr", Kind::Copy), ("usr/lib", Kind::Copy)],
        USR_LIB,
    ),
    // The loader of the machine, which the image has, is Debian's.
    Case {
        layout: Layout::Rhel,
        ..case(
            "etc_rhel",
            &[("etc", Kind::Copy)],
            &[
                "does not search /usr/lib64 by itself",
                "/etc is a volume",
                "hint: ",
            ],
        )
    },
    Case {
        layout: Layout::Rhel,
        ..case("usr_rhel", &[("usr", Kind::Copy)], USR)
    },
];

fn main() -> ExitCode {
    let mut tests = nvc_testkit::tests![&[Root];
        another_library_in_the_cache,
        an_entry_for_a_missing_library,
        a_prepared_volume,
        a_second_configuration,
        musl,
        a_list_that_leads_to_a_secret,
        a_list_that_is_a_secret,
    ];
    tests.push(harness::test("races", &[Root], races::races));
    for case in CASES {
        for ldconfig in ["auto", "host"] {
            let name = format!("{}_{ldconfig}", case.name);
            tests.push(harness::test(name, &[Root], move || check(case, ldconfig)));
        }
    }
    harness::main(tests)
}

/// A container with volumes.
struct World {
    scratch: Scratch,
    container: Container,
    /// Names of the volumes, with their trees before.
    volumes: Vec<(&'static str, PathBuf, Tree)>,
}

impl World {
    fn new(root: rootfs::Builder, volumes: &[(&'static str, Kind)]) -> Self {
        Self::owned_by(0, root, volumes)
    }

    fn owned_by(owner: u32, root: rootfs::Builder, volumes: &[(&'static str, Kind)]) -> Self {
        // A mount point that the image has in any case is only made sure of.
        let root = volumes
            .iter()
            .fold(root, |root, (place, _)| root.directory(place));
        let mut world = Self {
            scratch: Scratch::new().unwrap(),
            container: start(container::Builder::new(root).owner(owner)),
            volumes: Vec::new(),
        };
        for (place, kind) in volumes {
            let volume = world.scratch.join(place.replace('/', "-"));
            fs::create_dir(&volume).unwrap();
            if *kind != Kind::Empty {
                let source = world.container.root().join(place).join(".");
                let mut copy = process::Command::new("cp");
                assert!(
                    copy.arg("-a")
                        .args([&source, &volume])
                        .status()
                        .unwrap()
                        .success()
                );
            }
            let at = world.container.point(place);
            let mount = |words: &[&str]| {
                let mut mount = world.container.enter("mount");
                assert!(
                    mount
                        .args(words)
                        .arg(&volume)
                        .arg(&at)
                        .status()
                        .unwrap()
                        .success()
                );
            };
            mount(&["--bind"]);
            if *kind == Kind::ReadOnly {
                mount(&["-o", "remount,bind,ro"]);
            }
            let before = Tree::of(&volume).unwrap();
            world.volumes.push((place, volume, before));
        }
        world
    }

    /// Returns the directory of a volume.
    fn volume(&self, name: &str) -> &Path {
        let found = self.volumes.iter().find(|(place, ..)| *place == name);
        &found.unwrap().1
    }

    /// Records the volumes as they are.
    fn look(&mut self) {
        for (_, volume, before) in &mut self.volumes {
            *before = Tree::of(volume).unwrap();
        }
    }

    /// Prepares `configure`.
    fn configure(&self, ldconfig: &str) -> Run {
        self.configure_with(ldconfig, &["--utility", "--compute"])
    }

    fn configure_with(&self, ldconfig: &str, capabilities: &[&str]) -> Run {
        let pid = format!("--pid={}", self.container.pid());
        let host = host_ldconfig();
        let ldconfig = match ldconfig {
            "auto" => "--ldconfig=auto",
            _ => &host,
        };
        let words = ["configure", ldconfig, "--no-cgroups", &pid, "--device=0"];
        let words = [&words[..], capabilities].concat();
        let mut line = command_line(machine::driver(), &words);
        line.push(self.container.root().into());
        Run::cli(line)
    }

    /// Configures, and expects an error with these parts and no effect.
    #[track_caller]
    fn refuses(&self, ldconfig: &str, parts: &[&str]) {
        let before = self.container.mounts().unwrap();
        let done = self.configure(ldconfig).outcome().unwrap();
        assert_eq!(done.status, Some(1), "{done:#?}");
        for part in parts {
            assert!(done.stderr.contains(part), "{part}: {done:#?}");
        }
        assert_eq!(self.container.mounts().unwrap(), before);
        self.volumes_are_unchanged();
    }

    /// Configures, perhaps with warnings about what has no place.
    #[track_caller]
    fn configures(&self) -> Outcome {
        let done = self.configure("auto").outcome().unwrap();
        assert_eq!(done.status, Some(0), "{done:#?}");
        self.volumes_are_unchanged();
        done
    }

    /// Runs a shell command in the container.
    fn run(&self, command: &str) -> Output {
        let mut shell = self.container.run(0, "sh");
        shell.args(["-c", command]).output().unwrap()
    }

    /// Checks that programs find the driver.
    #[track_caller]
    fn has_gpu(&self, program: &str) {
        let seen = self.run(&format!("{program} -L"));
        let text = String::from_utf8_lossy(&seen.stdout).into_owned();
        assert_eq!(text, machine::driver().listing(0, &[]), "{seen:?}");
    }

    #[track_caller]
    fn volumes_are_unchanged(&self) {
        for (name, volume, before) in &self.volumes {
            let after = Tree::of(volume).unwrap();
            assert_eq!(after.changes_since(before), [""; 0], "{name}");
        }
    }
}

fn root(layout: Layout) -> rootfs::Builder {
    match layout {
        Layout::Alpine => rootfs::Builder::new(layout),
        _ => rootfs::Builder::new(layout).programs(&["grep"]),
    }
}

fn check(case: &Case, ldconfig: &str) {
    let world = World::new(root(case.layout), case.volumes);
    if !case.error.is_empty() {
        world.refuses(ldconfig, case.error);
        return;
    }
    let done = world.configure(ldconfig).outcome().unwrap();
    assert_eq!(done.status, Some(0), "{done:#?}");
    world.volumes_are_unchanged();
    let (place, kind) = case.volumes[0];
    let warning = format!("/{place} is a volume, which may not be changed");
    assert!(done.stderr.contains(&warning), "{done:#?}");
    if place == "usr/bin" {
        let found = world.run("ldconfig -p | grep -c libcuda.so.1");
        assert_eq!(found.stdout, b"1\n", "{found:?}");
        return;
    }
    assert_eq!(done.stderr.matches("is a volume").count(), 1, "{done:#?}");
    world.has_gpu("nvidia-smi");
    let later = world.run("ldconfig");
    assert_eq!(later.status.success(), kind != Kind::ReadOnly, "{later:?}");
    world.has_gpu("nvidia-smi");
}

/// Adds another library of this SONAME to the root, in a directory of its configuration.
fn with_another(soname: &'static str) -> rootfs::Builder {
    root(Layout::Debian).edit(move |root| {
        let object = SharedObject::new(nvc_testkit::driver::NATIVE.1).soname(soname);
        files::file(&root.join("opt/other").join(soname), object.bytes(), 0o644)?;
        let configuration = root.join("etc/ld.so.conf.d/other.conf");
        files::file(&configuration, "/opt/other\n", 0o644)
    })
}

/// An entry of the volume's cache for another library would win over the loader's own directories.
fn another_library_in_the_cache() {
    let soname = "libnvidia-ml.so.1";
    let world = World::new(with_another(soname), &[("etc", Kind::Copy)]);
    let other = format!("/opt/other/{soname}");
    for ldconfig in ["auto", "host"] {
        world.refuses(ldconfig, &[&other, "/etc is a volume", "hint: "]);
    }
}

/// The loader ignores an entry whose file is missing.
fn an_entry_for_a_missing_library() {
    let soname = "libnvidia-ml.so.1";
    let world = World::new(with_another(soname), &[("etc", Kind::Copy)]);
    fs::remove_file(world.container.inside("opt/other").join(soname)).unwrap();
    world.configures();
    world.has_gpu("nvidia-smi");
}

/// A volume with all mount points is used as it is; without a link by which the loader finds a library it is not.
fn a_prepared_volume() {
    let place = "usr/lib/x86_64-linux-gnu";
    let other = start(container::Builder::new(root(Layout::Debian)));
    let words = [
        "configure",
        "--no-cgroups",
        "--utility",
        "--compute",
        "--device=0",
    ];
    let pid = format!("--pid={}", other.pid());
    let mut line = command_line(machine::driver(), &[&words[..], &[&pid]].concat());
    line.push(other.root().into());
    Run::cli(line).succeeds();
    let mut world = World::new(root(Layout::Debian), &[(place, Kind::Copy)]);
    world.refuses("auto", &["is a volume, which may not be changed"]);
    for entry in fs::read_dir(other.root().join(place)).unwrap() {
        let entry = entry.unwrap();
        let to = world.volume(place).join(entry.file_name());
        match fs::read_link(entry.path()) {
            _ if fs::symlink_metadata(&to).is_ok() => {}
            Ok(target) => symlink(target, to).unwrap(),
            Err(_) => fs::write(to, "").unwrap(),
        }
    }
    let link = world.volume(place).join("libcuda.so.1");
    let target = fs::read_link(&link).unwrap();
    fs::remove_file(&link).unwrap();
    world.look();
    for ldconfig in ["auto", "host"] {
        world.refuses(
            ldconfig,
            &["libcuda.so.1", "gnu is a volume, which may not be changed"],
        );
    }
    symlink(target, &link).unwrap();
    world.look();
    world.configures();
    world.has_gpu("nvidia-smi");
}

/// A second configuration finds the work of the first.
fn a_second_configuration() {
    let world = World::new(root(Layout::Debian), &[("etc", Kind::Copy)]);
    world.configures();
    let before = world.container.mounts().unwrap();
    world.configures();
    assert_eq!(world.container.mounts().unwrap(), before);
    let more = world.configure_with("auto", &["--utility", "--compute", "--video"]);
    assert_eq!(more.outcome().unwrap().status, Some(0));
    world.has_gpu("nvidia-smi");
    world.volumes_are_unchanged();
}

/// An image with musl's loader, and a list of directories unless that is empty.
fn musl_root(list: &'static str) -> rootfs::Builder {
    let arch = std::env::consts::ARCH;
    rootfs::Builder::new(Layout::Alpine).edit(move |root| {
        files::file(&root.join(format!("lib/ld-musl-{arch}.so.1")), "", 0o755)?;
        match list {
            "" => Ok(()),
            _ => files::file(&root.join(format!("etc/ld-musl-{arch}.path")), list, 0o644),
        }
    })
}

/// musl has a list of directories instead of a cache.
fn musl() {
    let library = machine::driver().fill("libnvidia-ml.so.VER");
    for list in ["", "/lib\n/usr/lib\n"] {
        let world = World::new(musl_root(list), &[("etc", Kind::Copy)]);
        world.configures();
        assert!(world.container.inside("usr/lib").join(&library).exists());
    }
    let world = World::new(musl_root("/lib\n"), &[("etc", Kind::Copy)]);
    world.refuses("auto", &[".path: /etc is a volume", "hint: "]);
    let world = World::new(musl_root(""), &[("usr/lib", Kind::Copy)]);
    world.refuses("auto", USR_LIB);
}

/// The image makes the list a link to a file on another volume that only root may read: no text of it is shown.
fn a_list_that_leads_to_a_secret() {
    let list = format!("etc/ld-musl-{}.path", std::env::consts::ARCH);
    let root = musl_root("").edit(move |root| symlink("/shared/secret", root.join(&list)));
    let world = World::new(root, &[("etc", Kind::Copy), ("shared", Kind::Empty)]);
    let secret = world.volume("shared").join("secret");
    files::file(&secret, "/secret/text\n", 0o600).unwrap();
    let done = world.configure("auto").outcome().unwrap();
    assert!(!done.stderr.contains("secret"), "{done:#?}");
    let seen = fs::metadata(world.container.inside("shared/secret")).unwrap();
    assert_eq!(seen.mode() & 0o777, 0o600, "{done:#?}");
}

/// The container's owner has a file of root as the list, in his root or on his volume: its text does not become his.
fn a_list_that_is_a_secret() {
    let list = format!("etc/ld-musl-{}.path", std::env::consts::ARCH);
    for volumes in [&[("etc", Kind::Copy)][..], &[]] {
        let world = World::owned_by(100_000, musl_root("/lib\n"), volumes);
        let path = world.container.inside(&list);
        files::file(&path, "/secret/text\n", 0o600).unwrap();
        chown(&path, Some(0), Some(0)).unwrap();
        let done = world.configure("auto").outcome().unwrap();
        for entry in fs::read_dir(path.parent().unwrap()).unwrap() {
            let entry = entry.unwrap();
            let facts = entry.metadata().unwrap();
            if facts.is_file() && facts.uid() != 0 {
                let text = fs::read(entry.path()).unwrap();
                let text = String::from_utf8_lossy(&text).into_owned();
                assert!(!text.contains("secret"), "{:?} {done:#?}", entry.path());
            }
        }
        assert_eq!(fs::read(&path).unwrap(), b"/secret/text\n", "{done:#?}");
    }
}
