//! Tests that the programs which write files of the host change nothing outside of a directory whose owner exchanges
//! names there for links as fast as possible.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{fs, io, thread};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::unistd::{Uid, setfsuid};
use nvc_testkit::cli::{Outcome, Run, beside};
use nvc_testkit::files;
use nvc_testkit::harness;
use nvc_testkit::harness::Need::Root;
use nvc_testkit::machine::{self, Scratch};

/// The user whose directory it is.
const USER: u32 = 4242;

/// What the files of the host are exchanged with.
const CANARIES: [&str; 3] = ["shadow", "daemon.json", "nvidiactl"];

fn main() -> ExitCode {
    harness::main(nvc_testkit::tests![&[Root];
        edited_files_are_refused,
        edited_files_under_exchanged_directories,
        new_files,
        device_nodes,
        links_to_device_nodes,
        mounted_files,
        files_in_a_user_namespace,
    ])
}

/// A directory of a user, beside one with files that must not change.
struct World {
    scratch: Scratch,
    before: Vec<String>,
}

impl World {
    fn new(owner: u32) -> Self {
        machine::driver();
        let scratch = Scratch::new().unwrap();
        let canary = scratch.join("etc");
        for name in CANARIES {
            files::file(&canary.join(name), "{}\n", 0o600).unwrap();
        }
        files::directory(&scratch.join("home/sub")).unwrap();
        for path in ["home", "home/sub"] {
            chown(scratch.join(path), Some(owner), Some(owner)).unwrap();
        }
        let before = state(&canary);
        Self { scratch, before }
    }

    fn home(&self, path: &str) -> PathBuf {
        self.scratch.join("home").join(path)
    }

    /// Runs a command again and again while `exchange` is called. Its argument is a free name in the directory.
    fn race(
        &self,
        user: u32,
        command: impl Fn() -> Run,
        exchange: impl Fn(&Path) -> Option<()> + Sync,
    ) -> Vec<Outcome> {
        let (stop, exchanges) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut outcomes = Vec::new();
        let mut run = || {
            for _ in 0..harness::cases(60, 3000) {
                outcomes.push(command().outcome()?);
                if self.is_changed() {
                    break;
                }
            }
            io::Result::Ok(())
        };
        let done = thread::scope(|scope| {
            scope.spawn(|| {
                // This thread's rights to files are the user's.
                setfsuid(Uid::from_raw(user));
                let free = self.home("..free");
                while !stop.load(Ordering::Relaxed) {
                    if exchange(&free).is_some() {
                        exchanges.fetch_add(1, Ordering::Relaxed);
                    }
                    let _ = fs::remove_file(&free);
                    // On a busy machine, no state lasts much longer than another one.
                    thread::yield_now();
                }
            });
            let done = run();
            stop.store(true, Ordering::Relaxed);
            done
        });
        done.unwrap();
        let changed = self.is_changed();
        assert!(
            !changed,
            "{:#?}\n{outcomes:#?}",
            state(&self.scratch.join("etc"))
        );
        println!("{} runs, {exchanges:?} exchanges", outcomes.len());
        outcomes
    }

    fn is_changed(&self) -> bool {
        state(&self.scratch.join("etc")) != self.before
    }

    /// Exchanges each new file in a directory for a link to one of the canaries.
    fn swap_drafts(&self, directory: &str, free: &Path) -> Option<()> {
        let entries = fs::read_dir(self.home(directory)).ok()?;
        let mut exchanged = None;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == "..free" || !entry.file_type().is_ok_and(|kind| !kind.is_symlink()) {
                continue;
            }
            let target = CANARIES.into_iter().find(|canary| *canary == name);
            let target = self.scratch.join("etc").join(target.unwrap_or("shadow"));
            symlink(target, free).ok()?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let _ = fs::remove_file(free);
                continue;
            }
            exchanged = swap(free, &entry.path()).or(exchanged);
            let _ = fs::remove_file(free);
        }
        exchanged
    }

    /// Exchanges the subdirectory for a link to the canaries, and back.
    fn swap_directory(&self, free: &Path) -> Option<()> {
        symlink("../etc", free).ok()?;
        swap(free, &self.home("sub"))?;
        thread::yield_now();
        swap(free, &self.home("sub"))
    }
}

fn swap(one: &Path, other: &Path) -> Option<()> {
    renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE).ok()
}

/// Returns everything about the files of a directory.
fn state(directory: &Path) -> Vec<String> {
    let mut found: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let facts = path.symlink_metadata().unwrap();
            let content = fs::read_to_string(&path);
            let attributes = files::extended_attributes(&path).unwrap();
            format!(
                "{} {:o} {} {} {} {attributes:?} {content:?}",
                path.display(),
                facts.mode(),
                facts.uid(),
                facts.gid(),
                facts.ino()
            )
        })
        .collect();
    found.sort();
    found
}

fn ctk(words: &[&str]) -> Run {
    Run::other(beside("nvidia-ctk").unwrap()).args(words)
}

fn option(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

/// Returns the commands that edit a file, with the options that name it.
fn edits(directory: &Path) -> Vec<Vec<String>> {
    let daemon = directory.join("daemon.json");
    let mut commands = Vec::new();
    for words in [
        vec!["runtime", "configure", "--runtime=docker", "--config"],
        vec![
            "runtime",
            "configure",
            "--runtime=docker",
            "--remove",
            "--config",
        ],
        vec![
            "runtime",
            "configure",
            "--runtime=crio",
            "--drop-in-config=",
            "--config",
        ],
        vec![
            "runtime",
            "configure",
            "--runtime=containerd",
            "--drop-in-config",
        ],
        vec!["config", "--in-place", "--config-file"],
    ] {
        let mut words: Vec<String> = words.into_iter().map(String::from).collect();
        let last = words.pop().unwrap();
        words.push(format!("{last}={}", daemon.display()));
        commands.push(words);
    }
    commands
}

fn edited_files_are_refused() {
    let world = World::new(USER);
    for words in edits(&world.home("")) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let daemon = world.home("daemon.json");
        let renew = || {
            // Moved there, because the user may have put a link there.
            let fresh = world.scratch.join("fresh");
            fs::write(&fresh, "{}\n").unwrap();
            chown(&fresh, Some(USER), Some(USER)).unwrap();
            fs::rename(&fresh, &daemon).unwrap();
            ctk(&words)
        };
        let outcomes = world.race(USER, renew, |free| world.swap_drafts("", free));
        for outcome in outcomes {
            assert_eq!(outcome.status, Some(1), "{words:?}: {outcome:#?}");
            let expected = format!("belongs to the user {USER}");
            assert!(
                outcome.stderr.contains(&expected),
                "{words:?}: {outcome:#?}"
            );
            assert!(outcome.stderr.contains("sudo -u"), "{outcome:#?}");
        }
    }
}

fn edited_files_under_exchanged_directories() {
    let world = World::new(USER);
    for words in edits(&world.home("sub")) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let outcomes = world.race(USER, || ctk(&words), |free| world.swap_directory(free));
        assert!(outcomes.iter().all(|outcome| outcome.status == Some(1)));
    }
}

fn new_files() {
    let world = World::new(USER);
    let specification = world.scratch.join("in.yaml");
    let text = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: all\n  containerEdits:\n    env: [A=b]\n";
    fs::write(&specification, text).unwrap();
    let input = option("input", &specification);
    for directory in ["", "sub"] {
        let to = |name, file| option(name, &world.home(directory).join(file));
        for words in [
            vec!["config".into(), to("output", "daemon.json")],
            vec![
                "config".into(),
                "default".into(),
                to("output", "daemon.json"),
            ],
            vec![
                "runtime".into(),
                "configure".into(),
                "--runtime=crio".into(),
                "--config-mode=oci-hook".into(),
                to("oci-hook-path", "daemon.json"),
            ],
            vec![
                "cdi".into(),
                "transform".into(),
                "root".into(),
                "--from=/x".into(),
                "--to=/y".into(),
                input.clone(),
                to("output", "daemon.json"),
            ],
        ] {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let exchange = |free: &Path| match directory {
                "" => world.swap_drafts("", free),
                _ => world.swap_directory(free),
            };
            let outcomes = world.race(USER, || ctk(&words), exchange);
            let done = outcomes.iter().filter(|outcome| outcome.status == Some(0));
            assert!(done.count() > 0, "{words:?}: {outcomes:#?}");
        }
    }
    // Without a race.
    let output = world.home("fresh.toml");
    ctk(&["config", "default", &option("output", &output)]).succeeds();
    assert_eq!(output.metadata().unwrap().uid(), 0);
}

/// A container has the host's /dev as a volume; its root may make nodes and links there.
fn device_nodes() {
    let world = World::new(0);
    fs::rename(world.home("sub"), world.home("dev")).unwrap();
    let root = option("root", &world.home(""));
    let words = ["system", "create-device-nodes", "--control-devices", &root];
    let renew = || {
        for entry in fs::read_dir(world.home("dev")).unwrap() {
            let _ = fs::remove_file(entry.unwrap().path());
        }
        ctk(&words)
    };
    world.race(0, renew, |free| world.swap_drafts("dev", free));
    for entry in fs::read_dir(world.home("dev")).unwrap() {
        let _ = fs::remove_file(entry.unwrap().path());
    }
    ctk(&words).succeeds();
    let facts = world.home("dev/nvidiactl").metadata().unwrap();
    assert_eq!(facts.mode() & 0o7777, 0o666);
}

fn links_to_device_nodes() {
    let world = World::new(0);
    let program = beside("nvidia-ctk").unwrap();
    let path = option("dev-char-path", &world.home("sub"));
    // Its own /dev, because the machine's is everybody's. A container may have made the other nodes.
    let script = "mount -t tmpfs none /dev && mknod /dev/nvidiactl c 195 255 && mknod /dev/nvidia0 c 195 1 && \
                  mknod /dev/nvidia-mem c 1 1 && exec \"$@\"";
    let command = || {
        let run = Run::other("unshare").args(["-m", "sh", "-c", script, "sh"]);
        run.args([&program])
            .args(["system", "create-dev-char-symlinks", &path])
    };
    world.race(0, command, |free| world.swap_directory(free));
    command().outcome().unwrap();
    assert!(world.home("sub/195:255").is_symlink());
    assert!(!world.home("sub/195:1").is_symlink());
    assert!(!world.home("sub/1:1").is_symlink());
}

/// The kernel does not let anybody replace a mount point.
fn mounted_files() {
    let world = World::new(0);
    let (file, program) = (world.home("sub/config.toml"), beside("nvidia-ctk").unwrap());
    fs::write(&file, "disable-require = false\n").unwrap();
    let script = "mount --bind \"$1\" \"$1\" && exec \"$2\" config --in-place --config-file=\"$1\" --set=disable-require=true";
    let run = Run::other("unshare").args(["-m", "sh", "-c", script, "sh"]);
    let outcome = run.args([&file, &program]).outcome().unwrap();
    assert_eq!(outcome.status, Some(1), "{outcome:?}");
    let said = &outcome.stderr;
    assert!(said.contains("something is mounted on this file"), "{said}");
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        "disable-require = false\n"
    );
}

/// In a user namespace of an ordinary user, `/` belongs to no user whom the namespace knows.
fn files_in_a_user_namespace() {
    let world = World::new(USER);
    let program = world.scratch.join("nvidia-ctk");
    let copied = Run::other("cp").args([&beside("nvidia-ctk").unwrap(), &program]);
    copied.succeeds();
    let (uid, gid) = (format!("--reuid={USER}"), format!("--regid={USER}"));
    // The pipe is the user's own, so that it can be opened by name.
    let run = |words: &[&str]| {
        let identity = ["--clear-groups", uid.as_str(), gid.as_str()];
        let run = Run::other("setpriv").args(identity);
        let run = run.args(["unshare", "-Ur", "bash", "-o", "pipefail", "-c"]);
        let run = run.args(["\"$0\" \"$@\" | cat"]).args([&program]);
        let outcome = run.args(words).outcome().unwrap();
        assert_eq!(outcome.status, Some(0), "{outcome:?}");
        outcome.stdout
    };
    let file = world.home("sub/daemon.json");
    let config = option("config", &file);
    run(&["runtime", "configure", "--runtime=docker", &config]);
    assert!(fs::read_to_string(&file).unwrap().contains("nvidia"));
    assert_eq!(file.metadata().unwrap().uid(), USER);
    let shown = run(&["config", "--output=/dev/stdout"]);
    assert!(shown.contains("nvidia-container-runtime"), "{shown:?}");
}
