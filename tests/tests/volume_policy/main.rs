//! Tests containers with volumes on /etc, /usr or /usr/lib, or read-only ones: they get their GPU, no volume is changed,
//! and, except in the last resort, the container's own ldconfig still works and finds the driver.
#![allow(clippy::unwrap_used)]

mod packages;
mod races;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode, Output};

use nvc_testkit::cli::Run;
use nvc_testkit::container::{self, Container};
use nvc_testkit::elf::SharedObject;
use nvc_testkit::harness::Need::{Command, Root};
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

/// Whether the container's own ldconfig works afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Later {
    Works,
    /// There is a cover on the cache.
    IsBusy,
    /// Its /etc is read-only.
    IsReadOnly,
}

struct Case {
    name: &'static str,
    layout: Layout,
    volumes: &'static [(&'static str, Kind)],
    later: Later,
    /// Where the programs are, if not in the image's directory.
    program: &'static str,
}

const USUAL: &str = "/usr/bin/nvidia-smi";
const IN_PATH: &str = "/usr/local/sbin/nvidia-smi";

const fn case(
    name: &'static str,
    volumes: &'static [(&'static str, Kind)],
    later: Later,
    program: &'static str,
) -> Case {
    Case {
        name,
        layout: Layout::Debian,
        volumes,
        later,
        program,
    }
}

const CASES: &[Case] = &[
    case("etc", &[("etc", Kind::Copy)], Later::Works, USUAL),
    case("an_empty_etc", &[("etc", Kind::Empty)], Later::Works, USUAL),
    case(
        "a_read_only_etc",
        &[("etc", Kind::ReadOnly)],
        Later::IsReadOnly,
        USUAL,
    ),
    case("usr_lib", &[("usr/lib", Kind::Copy)], Later::Works, USUAL),
    case("usr", &[("usr", Kind::Copy)], Later::Works, IN_PATH),
    case(
        "a_read_only_usr",
        &[("usr", Kind::ReadOnly)],
        Later::Works,
        IN_PATH,
    ),
    case(
        "etc_and_usr",
        &[("etc", Kind::Copy), ("usr", Kind::Copy)],
        Later::IsBusy,
        IN_PATH,
    ),
    case(
        "usr_and_run",
        &[("usr", Kind::Copy), ("run", Kind::Empty)],
        Later::Works,
        IN_PATH,
    ),
    case(
        "usr_and_a_volume_in_the_place_of_our_tmpfs",
        &[("usr", Kind::Copy), ("run/nvidia-container", Kind::Empty)],
        Later::Works,
        IN_PATH,
    ),
    case(
        "usr_and_a_volume_below_run",
        &[("usr", Kind::Copy), ("run/lock", Kind::Empty)],
        Later::Works,
        IN_PATH,
    ),
    case(
        "etc_usr_and_run",
        &[
            ("etc", Kind::Copy),
            ("usr", Kind::Copy),
            ("run", Kind::Empty),
        ],
        Later::IsBusy,
        IN_PATH,
    ),
    case(
        "a_volume_in_a_volume",
        &[("usr", Kind::Copy), ("usr/lib", Kind::Copy)],
        Later::Works,
        IN_PATH,
    ),
    Case {
        layout: Layout::Rhel,
        ..case("etc_rhel", &[("etc", Kind::Copy)], Later::IsBusy, USUAL)
    },
    Case {
        layout: Layout::Rhel,
        ..case("usr_rhel", &[("usr", Kind::Copy)], Later::Works, IN_PATH)
    },
];

fn main() -> ExitCode {
    let mut tests = nvc_testkit::tests![&[Root];
        another_library_in_the_cache,
        no_cache_to_cover,
        programs_without_an_empty_directory,
        a_second_configuration,
        musl,
    ];
    tests.push(harness::test("races", &[Root], races::races));
    let needs = [Root, Command("dpkg-deb")];
    tests.push(harness::test("packages", &needs, packages::are_installed));
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
        // A mount point that the image has in any case is only made sure of.
        let root = volumes
            .iter()
            .fold(root, |root, (place, _)| root.directory(place));
        let mut world = Self {
            scratch: Scratch::new().unwrap(),
            container: start(container::Builder::new(root)),
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

    /// Configures, perhaps with warnings about what has no place.
    #[track_caller]
    fn configures(&self) {
        let done = self.configure("auto").outcome().unwrap();
        assert_eq!(done.status, Some(0), "{done:#?}");
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
    let builder = rootfs::Builder::new(layout).directory("usr/local/sbin");
    match layout {
        Layout::Alpine => builder,
        _ => builder.programs(&["grep"]),
    }
}

fn check(case: &Case, ldconfig: &str) {
    let world = World::new(root(case.layout), case.volumes);
    let done = world.configure(ldconfig).outcome().unwrap();
    assert_eq!(done.status, Some(0), "{done:#?}");
    world.volumes_are_unchanged();
    world.has_gpu("nvidia-smi");
    world.has_gpu(case.program);
    let is_covered = done.stderr.contains("ldconfig, and so apt-get install");
    assert_eq!(is_covered, case.later == Later::IsBusy, "{done:#?}");
    let later = world.run("ldconfig");
    let text = String::from_utf8_lossy(&later.stderr).into_owned();
    match case.later {
        Later::Works => assert!(later.status.success(), "{later:?}"),
        Later::IsBusy => assert!(text.contains("busy"), "{later:?}"),
        Later::IsReadOnly => assert!(text.contains("Read-only file system"), "{later:?}"),
    }
    world.has_gpu("nvidia-smi");
}

/// An entry of the volume's cache for another libcuda would win over the loader's own directories.
fn another_library_in_the_cache() {
    let soname = "libnvidia-ml.so.1";
    let root = root(Layout::Debian).edit(move |root| {
        let object = SharedObject::new(nvc_testkit::driver::NATIVE.1).soname(soname);
        files::file(&root.join("opt/other").join(soname), object.bytes(), 0o644)?;
        files::file(
            &root.join("etc/ld.so.conf.d/other.conf"),
            "/opt/other\n",
            0o644,
        )
    });
    let world = World::new(root, &[("etc", Kind::Copy)]);
    let done = world.configure("auto").outcome().unwrap();
    assert_eq!(done.status, Some(0), "{done:#?}");
    assert!(done.stderr.contains("/etc/ld.so.cache"), "{done:#?}");
    world.has_gpu("nvidia-smi");
    world.volumes_are_unchanged();
}

/// Without a cache on the volume there is nothing to mount over: the error names the mount and a way out.
fn no_cache_to_cover() {
    let world = World::new(
        root(Layout::Debian),
        &[("etc", Kind::Empty), ("usr", Kind::Copy)],
    );
    let before = world.container.mounts().unwrap();
    for ldconfig in ["auto", "host"] {
        let done = world.configure(ldconfig).outcome().unwrap();
        assert_eq!(done.status, Some(1), "{done:#?}");
        for text in ["/etc is a volume", "hint: ", "run ldconfig once"] {
            assert!(done.stderr.contains(text), "{text}: {done:#?}");
        }
        world.volumes_are_unchanged();
        let after = world.container.mounts().unwrap();
        assert_eq!(after.len(), before.len(), "{after:#?}");
        assert!(!world.container.inside("run/nvidia-container").exists());
    }
}

/// The log says where the programs are.
fn programs_without_an_empty_directory() {
    let world = World::new(rootfs::Builder::new(Layout::Debian), &[("usr", Kind::Copy)]);
    fs::write(world.volumes[0].1.join("sbin/x"), "").unwrap();
    let done = world.configure("auto").outcome().unwrap();
    assert_eq!(done.status, Some(0), "{done:#?}");
    let place = "/run/nvidia-container/usr/bin";
    assert!(done.stderr.contains(place), "{done:#?}");
    world.has_gpu(&format!("{place}/nvidia-smi"));
}

/// A second configuration finds the work of the first.
fn a_second_configuration() {
    for volumes in [
        &[("usr", Kind::Copy)][..],
        &[("etc", Kind::Copy), ("usr", Kind::Copy)],
    ] {
        let world = World::new(root(Layout::Debian), volumes);
        world.configures();
        let before = world.container.mounts().unwrap();
        world.configures();
        let after = world.container.mounts().unwrap();
        assert_eq!(after, before);
        let more = world.configure_with("auto", &["--utility", "--compute", "--video"]);
        assert_eq!(more.outcome().unwrap().status, Some(0));
        let found = world.run("ldconfig -p | grep -c libnvcuvid.so.1");
        assert_eq!(found.stdout, b"1\n", "{found:?}");
        world.has_gpu("nvidia-smi");
        world.volumes_are_unchanged();
    }
}

/// musl has a list of directories instead of a cache.
fn musl() {
    let loader = format!("lib/ld-musl-{}.so.1", std::env::consts::ARCH);
    let list = format!("etc/ld-musl-{}.path", std::env::consts::ARCH);
    let library = machine::driver().fill("libnvidia-ml.so.VER");
    let root = || {
        let loader = loader.clone();
        rootfs::Builder::new(Layout::Alpine)
            .edit(move |root| files::file(&root.join(&loader), "", 0o755))
    };
    let read =
        |world: &World| fs::read_to_string(world.container.inside(&list)).unwrap_or_default();
    let places = ["usr/lib", "run/nvidia-container/usr/lib"];
    let has = |world: &World, place: &str| {
        world
            .container
            .inside(Path::new(place).join(&library))
            .exists()
    };

    let world = World::new(root(), &[("etc", Kind::Copy)]);
    world.configures();
    assert!(has(&world, places[0]));
    assert_eq!(read(&world), "");
    world.volumes_are_unchanged();

    let world = World::new(root(), &[("usr/lib", Kind::Copy)]);
    world.configures();
    assert!(has(&world, places[1]));
    assert!(
        read(&world).starts_with("/run/nvidia-container/usr/lib\n"),
        "{}",
        read(&world)
    );
    world.volumes_are_unchanged();

    let both = [("etc", Kind::Copy), ("usr/lib", Kind::Copy)];
    let world = World::new(root(), &both);
    let done = world.configure("auto").outcome().unwrap();
    assert_eq!(done.status, Some(1), "{done:#?}");
    assert!(done.stderr.contains("hint: "), "{done:#?}");
    world.volumes_are_unchanged();

    let name = list.clone();
    let with_list =
        root().edit(move |root| files::file(&root.join(&name), "/lib\n/usr/lib\n", 0o644));
    let world = World::new(with_list, &both);
    world.configures();
    assert_eq!(
        read(&world),
        "/run/nvidia-container/usr/lib\n/lib\n/usr/lib\n"
    );
    world.volumes_are_unchanged();
}
