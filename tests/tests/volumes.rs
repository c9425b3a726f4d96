//! Tests volumes: mounts in a container that belong to the host or another container. Nothing is created, replaced or
//! restored there with privileges that the container's own root lacks, whatever the image's links.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use nvc_testkit::cli::{self, Run};
use nvc_testkit::container::{self, Container};
use nvc_testkit::driver;
use nvc_testkit::harness::Need::Root;
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::profile::Profile;
use nvc_testkit::tree::Tree;
use nvc_testkit::{files, harness, rootfs};
use nvc_tests::{
    command_line, configure, configure_on, debian_root, failing_ldconfig, host_ldconfig, start,
};

fn main() -> ExitCode {
    let mut tests = nvc_testkit::tests![&[Root];
        a_library_directory_on_a_volume,
        a_library_directory_on_a_volume_that_is_prepared,
        a_link_to_a_volume_for_a_program,
        the_hosts_cache_stays,
        the_hosts_cache_stays_with_the_builtin_ldconfig,
        the_hosts_cache_stays_for_an_ordinary_user,
        links_on_a_volume_stay,
        another_tenants_links_stay,
        the_hosts_run,
        the_hosts_dev,
        a_tmpfs_of_the_hosts_in_part,
        the_session_of_an_engine,
        a_tmpfs_for_the_profile,
        a_file_over_the_profile,
        compat_libraries_where_nothing_may_be_executed,
    ];
    for kernel in ["linux-4.18", "linux-5.10"] {
        let name = format!("links_on_a_volume_stay_on_{kernel}");
        tests.push(harness::test(name, &[Root], move || {
            links_on_a_volume(Some(kernel));
        }));
    }
    harness::main(tests)
}

/// Files that their owner has mounted noexec are not executable elsewhere.
fn compat_libraries_where_nothing_may_be_executed() {
    let root = debian_root().no_programs().compat("575.57.08");
    let container = start(container::Builder::new(root));
    let compat = container.point("usr/local/cuda/compat");
    let library = container.inside("/usr/lib/x86_64-linux-gnu/libcuda.so.575.57.08");
    for flags in [&["--bind"][..], &["-o", "remount,bind,noexec"]] {
        let mut mount = container.enter("mount");
        assert!(
            mount
                .args(flags)
                .args([&compat, &compat])
                .status()
                .unwrap()
                .success()
        );
    }
    let outcome = configure(&container, &USUAL).outcome().unwrap();
    assert_eq!(outcome.status, Some(0), "{outcome:?}");
    assert!(
        outcome
            .stderr
            .contains("libcuda.so.575.57.08: its file system is mounted noexec"),
        "{outcome:?}"
    );
    assert!(!library.exists());
}

const USUAL: [&str; 3] = ["--utility", "--compute", "--device=0"];

/// A directory of the host with a layout worth attacking, and a container with it as a volume.
struct Shared {
    scratch: Scratch,
    container: Container,
}

impl Shared {
    /// Uses a root without programs, with the volume at this path.
    fn at(place: &'static str, edit: impl Fn(rootfs::Builder) -> rootfs::Builder) -> Self {
        Self::owned(0, place, edit)
    }

    fn owned(
        owner: u32,
        place: &'static str,
        edit: impl Fn(rootfs::Builder) -> rootfs::Builder,
    ) -> Self {
        let root = edit(debian_root().no_programs().directory(place));
        let shared = Self {
            scratch: Scratch::new().unwrap(),
            container: start(container::Builder::new(root).owner(owner)),
        };
        fs::create_dir(shared.volume()).unwrap();
        shared.mount(&["--bind"], &shared.volume(), place);
        shared
    }

    /// Returns the host's directory.
    fn volume(&self) -> PathBuf {
        self.scratch.join("volume")
    }

    fn mount(&self, flags: &[&str], source: &Path, place: &str) {
        let at = self.container.point(place);
        let mut mount = self.container.enter("mount");
        let done = mount.args(flags).arg(source).arg(at).status().unwrap();
        assert!(done.success());
    }

    /// Checks that `configure` fails with this text, and does not change the host's directory.
    #[track_caller]
    fn refused(&self, arguments: &[&str], expected: &str) {
        let before = Tree::of(&self.volume()).unwrap();
        let message = configure(&self.container, arguments).fails();
        assert!(message.contains(expected), "{message}");
        self.unchanged(&before);
    }

    #[track_caller]
    fn unchanged(&self, before: &Tree) {
        let after = Tree::of(&self.volume()).unwrap();
        assert_eq!(after.changes_since(before), [""; 0]);
    }
}

/// The libraries have no place.
fn a_library_directory_on_a_volume() {
    let place = "usr/lib/x86_64-linux-gnu";
    let shared = Shared::at(place, |root| root);
    shared.refused(
        &USUAL,
        "x86_64-linux-gnu is a volume, which may not be changed",
    );
}

/// If all mount points exist, nothing must be created, and the container gets its GPU.
fn a_library_directory_on_a_volume_that_is_prepared() {
    let place = "usr/lib/x86_64-linux-gnu";
    let shared = Shared::at(place, |root| root);
    // Another container's run created them.
    let other = start(container::Builder::new(debian_root().no_programs()));
    configure(&other, &USUAL).succeeds();
    let made = other.root().join(place);
    for entry in fs::read_dir(made).unwrap().map(Result::unwrap) {
        let to = shared.volume().join(entry.file_name());
        match fs::read_link(entry.path()) {
            Ok(text) => symlink(text, to).unwrap(),
            Err(_) if entry.path().is_file() => fs::write(to, "").unwrap(),
            Err(_) => {}
        }
    }
    let before = Tree::of(&shared.volume()).unwrap();
    configure(&shared.container, &USUAL).succeeds();
    shared.unchanged(&before);
    let table = shared.container.mounts().unwrap();
    let at = shared.container.point(place);
    let libraries = table
        .iter()
        .filter(|mount| mount.point.starts_with(&at) && mount.point != at);
    assert!(libraries.count() > 3, "{table:#?}");
}

/// Finding 3a: the image chooses directories by a link in the path.
fn a_link_to_a_volume_for_a_program() {
    let shared = Shared::at("data", |root| {
        root.link(
            "usr/bin/nvidia-smi",
            "/data/systemd/cron.service.d/owned.conf",
        )
    });
    let before = Tree::of(&shared.volume()).unwrap();
    // The program is best effort.
    let run = configure(&shared.container, &USUAL).outcome().unwrap();
    assert_eq!(run.status, Some(0), "{run:?}");
    let warning = "/data is a volume, which may not be changed\n";
    assert!(run.stderr.ends_with(warning), "{run:?}");
    shared.unchanged(&before);
}

/// Finding 3b: /etc is a link to a volume with the host's ld.so.cache.
fn the_hosts_cache_stays() {
    hosts_cache(0, &USUAL);
}

fn the_hosts_cache_stays_with_the_builtin_ldconfig() {
    hosts_cache(
        0,
        &["--ldconfig=builtin", "--utility", "--compute", "--device=0"],
    );
}

/// Finding 3c: the container's process is an unprivileged user, who could not write there.
fn the_hosts_cache_stays_for_an_ordinary_user() {
    hosts_cache(1000, &USUAL);
    hosts_cache(
        1000,
        &["--ldconfig=builtin", "--utility", "--compute", "--device=0"],
    );
}

#[track_caller]
fn hosts_cache(owner: u32, arguments: &[&str]) {
    let shared = Shared::owned(owner, "hostetc", |root| {
        root.edit(|root| {
            // As `/etc -> /hostetc` in the image; its own /etc is on the tests' volume.
            fs::rename(root.join("etc"), root.join("etc.image"))?;
            symlink("hostetc", root.join("etc"))
        })
    });
    for entry in fs::read_dir(shared.container.root().join("etc.image")).unwrap() {
        let entry = entry.unwrap();
        if entry.path().is_file() {
            fs::copy(entry.path(), shared.volume().join(entry.file_name())).unwrap();
        }
    }
    let cache = shared.volume().join("ld.so.cache");
    if !cache.exists() {
        fs::write(&cache, "the host's").unwrap();
    }
    shared.refused(arguments, "hostetc is a volume, which may not be changed");
}

/// ldconfig creates links in the directories of the image's configuration, but not on a volume.
fn links_on_a_volume_stay() {
    links_on_a_volume(None);
}

fn links_on_a_volume(kernel: Option<&'static str>) {
    let shared = Shared::at("vol", |root| {
        root.file("etc/ld.so.conf", "/vol\n", 0o644)
            .file("deep/er/file", "", 0o644)
    });
    let library = machine::driver().library("libnvidia-ml");
    fs::copy(library, shared.volume().join("libnvidia-ml.so.99")).unwrap();
    symlink("libgone.so.2", shared.volume().join("libgone.so.1")).unwrap();
    // A second volume in the first one, with a blank in its name.
    let inner = shared.scratch.join("inner");
    fs::create_dir(&inner).unwrap();
    fs::create_dir(shared.volume().join("in ner")).unwrap();
    shared.mount(&["--bind"], &inner, "vol/in ner");
    let before = Tree::of(&shared.volume()).unwrap();
    let run = match kernel {
        None => configure(&shared.container, &USUAL),
        Some(kernel) => {
            let pid = format!("--pid={}", shared.container.pid());
            let ldconfig = host_ldconfig();
            let words = ["configure", &ldconfig, "--no-cgroups", &pid];
            let mut line = command_line(machine::driver(), &[&words[..], &USUAL[..]].concat());
            line.push(shared.container.root().into());
            let mut shim = Command::new(cli::beside("nvc-without").unwrap());
            shim.args([kernel, "--"]);
            Run::within(shim, line)
        }
    };
    let outcome = run.outcome().unwrap();
    assert_eq!(outcome.status, Some(0), "{outcome:#?}");
    // The volume's copy is the newer one, which the next ldconfig prefers.
    let warning = "/vol/libnvidia-ml.so.1: the next ldconfig in this container";
    assert!(outcome.stderr.contains(warning), "{outcome:#?}");
    shared.unchanged(&before);
    // Links in the root itself were created.
    let made = machine::driver().fill("LIB/libnvidia-ml.so.1");
    assert!(fs::symlink_metadata(shared.container.point(made)).is_ok());
}

/// Finding 5: another tenant's changes to a shared volume while ldconfig runs are not undone when ldconfig fails.
fn another_tenants_links_stay() {
    let shared = Shared::at("vol", |root| root.file("etc/ld.so.conf", "/vol\n", 0o644));
    let volume = shared.volume();
    let lines = tenant(&shared, &volume);
    assert_eq!(
        lines,
        [
            "current v2",
            "libx.so.1 libx.so.1.2",
            FAR[0],
            FAR[1],
            "new v2"
        ]
    );
    // In the root itself, where ldconfig writes: changes that cannot be its own stay too.
    let image = Shared::at("vol", |root| {
        root.file("etc/ld.so.conf", "/opt/own\n", 0o644)
            .directory("opt/own")
    });
    let own = image.container.root().join("opt/own");
    let lines = tenant(&image, &own);
    assert_eq!(
        lines,
        [
            "current v2",
            "libx.so.1 libx.so.1.1",
            FAR[0],
            FAR[1],
            "new v2"
        ]
    );
}

/// Links that ldconfig cannot have made, because they lead to another directory.
const FAR: [&str; 2] = ["liby.so.1 ../liby.so.1.2", "libz.so.1 ../libz.so.1.2"];

/// Changes links while ldconfig runs, which then fails; returns the remaining links.
fn tenant(shared: &Shared, directory: &Path) -> Vec<String> {
    for (name, text) in [
        ("current", "v1"),
        ("old", "v1"),
        ("libx.so.1", "libx.so.1.1"),
        ("liby.so.1", "liby.so.1.1"),
    ] {
        symlink(text, directory.join(name)).unwrap();
    }
    let scratch = Scratch::new().unwrap();
    let ldconfig = failing_ldconfig(&scratch, &["-DUNTIL=\"/etc/changed\"".into()]);
    let pid = format!("--pid={}", shared.container.pid());
    let words = [&["configure", &ldconfig, "--no-cgroups", &pid][..], &USUAL].concat();
    let mut line = command_line(machine::driver(), &words);
    line.push(shared.container.root().into());
    let running = thread::spawn(move || Run::cli(line).fails());
    let cache = shared.container.root().join("etc/ld.so.cache");
    let runs = || fs::read(&cache).is_ok_and(|content| content == b"useless");
    let started = Instant::now();
    while !runs() {
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "it did not run"
        );
        thread::sleep(Duration::from_millis(1));
    }
    for (name, text) in [
        ("current", "v2"),
        ("new", "v2"),
        ("libx.so.1", "libx.so.1.2"),
        ("liby.so.1", "../liby.so.1.2"),
        ("libz.so.1", "../libz.so.1.2"),
    ] {
        let _ = fs::remove_file(directory.join(name));
        symlink(text, directory.join(name)).unwrap();
    }
    fs::remove_file(directory.join("old")).unwrap();
    fs::write(shared.container.root().join("etc/changed"), "").unwrap();
    let message = running.join().unwrap();
    assert!(message.contains("failed with error code"), "{message}");
    let mut lines: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .filter_map(|entry| {
            let entry = entry.unwrap();
            let text = fs::read_link(entry.path()).ok()?;
            Some(format!(
                "{} {}",
                entry.file_name().to_string_lossy(),
                text.display()
            ))
        })
        .collect();
    lines.sort();
    lines
}

/// -v /run:/run is the host's, also if the host's /run is a tmpfs; existing files are enough.
fn the_hosts_run() {
    let host = HostTmpfs::new();
    let container = start(container::Builder::new(
        debian_root().no_programs().directory("run"),
    ));
    host.bind(&container, "", "run");
    let before = Tree::of(&host.path()).unwrap();
    // A driver with both sockets, which are best effort.
    let scratch = Scratch::new().unwrap();
    let driver = driver::Builder::new(Profile::default().on_debian());
    let driver = driver.build(scratch.path()).unwrap();
    let run = || configure_on(&driver, &container, &USUAL);
    let refused = run().outcome().unwrap();
    assert_eq!(refused.status, Some(0), "{refused:?}");
    let warnings = refused.stderr.matches("/run is a volume").count();
    assert_eq!(warnings, 2, "{refused:?}");
    assert_eq!(
        Tree::of(&host.path()).unwrap().changes_since(&before),
        [""; 0]
    );
    for socket in ["nvidia-persistenced/socket", "nvidia-fabricmanager/socket"] {
        files::file(&host.path().join(socket), "", 0o644).unwrap();
    }
    run().succeeds();
}

/// -v /dev:/dev is the host's.
fn the_hosts_dev() {
    let host = HostTmpfs::new();
    let container = start(container::Builder::new(debian_root().no_programs()));
    host.bind(&container, "", "dev");
    let message = configure(&container, &USUAL).fails();
    assert!(message.contains("/dev is a volume"), "{message}");
    assert_eq!(fs::read_dir(host.path()).unwrap().count(), 0);
}

/// A directory of a tmpfs is a volume even if the caller does not have that tmpfs mounted any more.
fn a_tmpfs_of_the_hosts_in_part() {
    let host = HostTmpfs::new();
    let container = start(container::Builder::new(debian_root().no_programs()));
    fs::create_dir(host.path().join("part")).unwrap();
    let held = fs::File::open(host.path().join("part")).unwrap();
    host.bind(&container, "part", "dev");
    drop(host);
    let message = configure(&container, &USUAL).fails();
    assert!(message.contains("/dev is a volume"), "{message}");
    let name = format!("/proc/self/fd/{}", held.as_raw_fd());
    assert_eq!(fs::read_dir(name).unwrap().count(), 0);
}

/// As Apptainer with `--contain`: /dev is a directory of a tmpfs that is mounted elsewhere in the engine's own mount
/// namespace too. It is the container's if only root can reach it.
fn the_session_of_an_engine() {
    for (who, is_own) in [
        ("true", true),
        (
            "setpriv --reuid=1000 --regid=1000 --clear-groups sleep 60",
            false,
        ),
        ("unshare --mount sleep 60", false),
    ] {
        let scratch = Scratch::new().unwrap();
        let root = debian_root()
            .no_programs()
            .build(scratch.join("root"))
            .unwrap();
        let session = scratch.join("session");
        fs::create_dir(&session).unwrap();
        let script = format!(
            "set -e; root=$1 session=$2; shift 2; mount --bind \"$root\" \"$root\"
            mount -t tmpfs -o mode=1777 session \"$session\"; mkdir \"$session/dev\"
            mount --bind \"$session/dev\" \"$root/dev\"; mount --rbind /proc \"$root/proc\"
            {who} & sleep 0.5; code=0; \"$@\" || code=$?; kill $! 2>/dev/null || true
            ls \"$session/dev\"; exit $code"
        );
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            &script,
            "sh",
        ]);
        command.args([&root, &session]);
        let words = ["configure", "--no-cgroups", "--device=0", "--utility"];
        let mut line = command_line(machine::driver(), &words);
        line.push(root.into());
        let run = Run::within(command, line).outcome().unwrap();
        assert_eq!(run.status == Some(0), is_own, "{who}: {run:?}");
        assert_eq!(run.stdout.contains("nvidiactl"), is_own, "{who}: {run:?}");
        assert!(
            is_own || run.stderr.contains("/dev is a volume"),
            "{who}: {run:?}"
        );
    }
}

/// A tmpfs of the host that looks like one of an earlier run is not written to: another is mounted over it.
fn a_tmpfs_for_the_profile() {
    let place = "etc/nvidia/nvidia-application-profiles-rc.d";
    let host = HostTmpfs::new();
    let container = start(container::Builder::new(
        debian_root().no_programs().directory(place),
    ));
    host.bind(&container, "", place);
    configure(&container, &["--graphics", "--device=0"]).succeeds();
    assert_eq!(fs::read_dir(host.path()).unwrap().count(), 0);
    let profile = container.inside(place).join("10-container.conf");
    assert!(profile.exists());
}

/// A file of the host in place of one of an earlier run.
fn a_file_over_the_profile() {
    let place = "etc/nvidia/nvidia-application-profiles-rc.d";
    let container = start(container::Builder::new(debian_root().no_programs()));
    configure(&container, &["--graphics", "--device=0"]).succeeds();
    let scratch = Scratch::new().unwrap();
    let file = scratch.join("file");
    fs::write(&file, "the host's").unwrap();
    let mut mount = container.enter("mount");
    mount.arg("--bind").arg(&file);
    mount.arg(container.point(place).join("10-container.conf"));
    assert!(mount.status().unwrap().success());
    // With another GPU it would be rewritten.
    let _ = configure(&container, &["--graphics", "--device=1"]).outcome();
    assert_eq!(fs::read_to_string(&file).unwrap(), "the host's");
}

/// A tmpfs mounted on the host.
struct HostTmpfs(Scratch);

impl HostTmpfs {
    fn new() -> Self {
        let scratch = Scratch::new().unwrap();
        let at = scratch.join("tmpfs");
        fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "nosuid,nodev,noexec,mode=755", "tmpfs"]);
        assert!(mount.arg(&at).status().unwrap().success());
        Self(scratch)
    }

    fn path(&self) -> PathBuf {
        self.0.join("tmpfs")
    }

    /// Binds it, or a directory of it, in a container that was started later.
    fn bind(&self, container: &Container, part: &str, place: &str) {
        let mut mount = container.enter("mount");
        mount.arg("--bind").arg(self.path().join(part));
        assert!(
            mount
                .arg(container.point(place))
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for HostTmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .args(["-l"])
            .arg(self.path())
            .status();
    }
}
