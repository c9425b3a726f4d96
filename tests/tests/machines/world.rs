//! A machine on which programs run: its root is theirs, with our programs, a configuration and a bundle in it.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nvc_testkit::driver::{Builder, Driver, NATIVE, free_majors};
use nvc_testkit::machine::Scratch;
use nvc_testkit::profile::Profile;
use nvc_testkit::{cli, files, userland};
use serde_json::{Value, json};

/// Our programs on the machine.
pub(crate) const BIN: &str = "/opt/nvc/bin";

/// Makes a directory the root, with the kernel's files of its driver, in it a container's root, and executes a program.
const ENTER: &str = "set -e; mount --bind \"$0\" \"$0\"
    for p in driver devices; do [ ! -e \"$0/proc/$p\" ] || mount --bind \"$0/proc/$p\" /proc/$p; done
    mkdir -p \"$0/proc\"; mount --rbind /proc \"$0/proc\"
    r=\"$0/bundle/rootfs\"; mount --bind \"$r\" \"$r\"; mount --rbind /proc \"$r/proc\"; exec chroot \"$0\" \"$@\"";

/// A machine.
pub(crate) struct World {
    pub(crate) driver: Driver,
    _scratch: Scratch,
}

/// What a program did.
pub(crate) struct Done {
    pub(crate) succeeded: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl World {
    pub(crate) fn new(profile: &Profile) -> Self {
        let scratch = Scratch::new().unwrap();
        let driver = Builder::new(profile.clone())
            .majors(free_majors())
            .build(scratch.join("machine"))
            .unwrap();
        let bin = driver.path(BIN);
        cli::copy_programs(&bin).unwrap();
        // The runtime needs our hook program; nvidia-container-cli is replaced.
        let record = bin.join("../share/nvidia-container-toolkit/build-ids");
        nvc_tests::world::record(&bin).unwrap();
        let ids = fs::read_to_string(&record).unwrap();
        let ids = ids
            .lines()
            .filter(|line| line.ends_with(" nvidia-cdi-hook"));
        fs::write(&record, ids.collect::<String>() + "\n").unwrap();
        // What nvc-query needs is a part of every host.
        let libraries = format!("/lib/{}", NATIVE.0);
        userland::install_needed(driver.root(), &bin.join("nvc-query"), &libraries).unwrap();
        // It stands for runc; the runtime has already edited config.json.
        files::file(&bin.join("runc"), "#!/bin/sh\nexit 0\n", 0o755).unwrap();
        // It shows what the hook asks of nvidia-container-cli.
        files::file(&bin.join("arguments"), "#!/bin/sh\necho \"$*\"\n", 0o755).unwrap();
        userland::install(driver.root(), &["ldconfig"], &libraries).unwrap();
        for directory in ["tmp", "run"] {
            files::directory(&driver.path(directory)).unwrap();
        }
        let world = Self {
            driver,
            _scratch: scratch,
        };
        world.renew_container();
        world
    }

    /// Makes a new root for a container: the directories of a Debian image.
    pub(crate) fn renew_container(&self) {
        let root = self.container();
        let _ = fs::remove_dir_all(&root);
        let libraries = format!("usr/lib/{}", NATIVE.0);
        for directory in ["etc", "proc", "dev", "sys", &libraries] {
            files::directory(&root.join(directory)).unwrap();
        }
        files::file(&root.join("etc/debian_version"), "12\n", 0o644).unwrap();
    }

    /// Returns the container's root.
    pub(crate) fn container(&self) -> PathBuf {
        self.driver.path("/bundle/rootfs")
    }

    /// Returns the driver root that the toolkit is told.
    pub(crate) fn told(&self) -> &str {
        let told = self.driver.profile().layout.driver_root.as_deref();
        told.unwrap_or("/")
    }

    /// Writes config.toml with this mode; `cli` is the program that the hook calls.
    pub(crate) fn configure(&self, mode: &str, cli: &str) {
        let root = self.told();
        let text = format!(
            "[nvidia-container-cli]\nroot = \"{root}\"\npath = \"{BIN}/{cli}\"\nload-kmods = false\nno-cgroups = true\n\
             [nvidia-ctk]\npath = \"{BIN}/nvidia-cdi-hook\"\n\
             [nvidia-container-runtime]\nmode = \"{mode}\"\nruntimes = [\"{BIN}/runc\"]\n\
             [nvidia-container-runtime-hook]\npath = \"{BIN}/nvidia-container-runtime-hook\"\n"
        );
        let file = self
            .driver
            .path("/etc/nvidia-container-runtime/config.toml");
        files::file(&file, text, 0o644).unwrap();
    }

    /// Writes the bundle's config.json, with a request for GPUs.
    pub(crate) fn request(&self, devices: &str) -> Value {
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "args": ["sh"],
                "cwd": "/",
                "user": { "uid": 0, "gid": 0 },
                "env": [
                    "PATH=/usr/bin:/bin",
                    format!("NVIDIA_VISIBLE_DEVICES={devices}"),
                    "NVIDIA_DRIVER_CAPABILITIES=all",
                ],
            },
            "root": { "path": "rootfs" },
            "linux": { "namespaces": [{ "type": "mount" }, { "type": "pid" }] },
        });
        fs::write(self.bundle(), config.to_string()).unwrap();
        config
    }

    /// Returns the bundle's config.json.
    pub(crate) fn config(&self) -> Value {
        serde_json::from_slice(&fs::read(self.bundle()).unwrap()).unwrap()
    }

    fn bundle(&self) -> PathBuf {
        self.driver.path("/bundle/config.json")
    }

    /// Runs a program on the machine.
    pub(crate) fn run(&self, words: &[&str]) -> Done {
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", ENTER])
            .arg(self.driver.root())
            .args(words)
            .env_clear()
            .env("PATH", format!("{BIN}:{}", cli::PATH))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let [out, err] = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Done {
            succeeded: output.status.success(),
            out,
            err,
        }
    }
}
