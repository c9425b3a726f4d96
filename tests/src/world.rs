//! Sets up the environment of an engine: our programs in a directory, a configuration, an image, the driver.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{fs, io};

use nvc_testkit::driver::{Builder, Driver};
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::profile::Profile;
use nvc_testkit::rootfs::{self, Layout};
use nvc_testkit::{cli, files};

/// Nodes of the simulated machine: two GPUs, control nodes, the second GPU's first MIG device.
pub const NODES: [&str; 4] = [
    "/dev/nvidia0",
    "/dev/nvidia1",
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
];

/// A shell's message for an allowed node: no driver is behind it.
pub const GRANTED: &str = "No such device or address";

/// The environment of an engine.
#[derive(Debug)]
pub struct World {
    scratch: Scratch,
    pub driver: &'static Driver,
}

impl World {
    /// Creates it with this mode, and additional lines in the configuration.
    pub fn new(runtime: &str, mode: &str, more: &str) -> Self {
        let world = Self {
            scratch: Scratch::new().unwrap_or_else(|error| panic!("{error}")),
            driver: machine::driver(),
        };
        world
            .fill(runtime, mode, more)
            .unwrap_or_else(|error| panic!("{error}"));
        world
    }

    /// Creates it in mode cdi, with a specification that `nvidia-ctk` generates with these options.
    pub fn with_specification(runtime: &str, options: &[&str]) -> Self {
        let world = Self::new(runtime, "cdi", "");
        world.specify(options);
        world
    }

    /// Generates a specification with these options, and configures its directory.
    pub fn specify(&self, options: &[&str]) {
        self.specify_as("nvidia.yaml", options);
    }

    /// Does so in a file of this name.
    pub fn specify_as(&self, name: &str, options: &[&str]) {
        let specifications = self.path("cdi");
        let dirs = specifications.display();
        self.set(&format!("modes.cdi.spec-dirs = [\"{dirs}\"]"));
        let mut generate = self.command("nvidia-ctk");
        generate
            .args(["cdi", "generate", "--driver-root"])
            .arg(self.driver.root())
            .arg("--output")
            .arg(specifications.join(name))
            .arg("--nvidia-cdi-hook-path")
            .arg(self.bin().join("nvidia-cdi-hook"))
            .args(options);
        printed(&mut generate);
    }

    /// Creates it in mode csv, with a Jetson's list of files: one GPU and a library.
    pub fn jetson(runtime: &str) -> Self {
        let list =
            "dev, /dev/nvidia0\ndev, /dev/nvidiactl\nlib, /usr/lib/*-linux-gnu/libcuda.so.*\n";
        Self::with_list(runtime, list).on_debian()
    }

    /// Creates it in mode csv, with this list of files.
    pub fn with_list(runtime: &str, list: &str) -> Self {
        let world = Self::new(runtime, "csv", "");
        let lists = world.path("host-files");
        fs::create_dir(&lists).unwrap_or_else(|error| panic!("{error}"));
        world.set_list(list);
        world.set(&format!(
            "modes.csv.mount-spec-path = \"{}\"",
            lists.display()
        ));
        world
    }

    /// Replaces the list of files.
    pub fn set_list(&self, list: &str) {
        let file = self.path("host-files/l4t.csv");
        fs::write(file, list).unwrap_or_else(|error| panic!("{error}"));
    }

    fn fill(&self, runtime: &str, mode: &str, more: &str) -> io::Result<()> {
        let bin = self.bin();
        files::directory(&bin)?;
        cli::copy_programs(&bin)?;
        record(&bin)?;
        for name in ["sim-runc", "sim-crun"] {
            files::copy_program(&cli::beside("nvc-simruntime")?, &bin.join(name))?;
        }
        let (bin, root) = (bin.display(), self.driver.root().display());
        let config = format!(
            "{more}\n[nvidia-container-cli]\nroot = \"{root}\"\npath = \"{bin}/nvidia-container-cli\"\n\
             [nvidia-container-runtime]\nmode = \"{mode}\"\nruntimes = [\"{bin}/sim-{runtime}\"]\n\
             debug = \"{}\"\n[nvidia-container-runtime-hook]\npath = \"{bin}/nvidia-container-runtime-hook\"\n",
            self.path("runtime.log").display()
        );
        files::file(&self.path("config.toml"), config, 0o644)
    }

    /// Adds a line to the table nvidia-container-runtime of the configuration.
    pub fn set(&self, line: &str) {
        const TABLE: &str = "[nvidia-container-runtime]\n";
        let file = self.path("config.toml");
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{error}"));
        let text = text.replace(TABLE, &format!("{TABLE}{line}\n"));
        fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Exchanges the driver for another one.
    pub fn use_driver(&mut self, builder: &Builder) {
        let built = builder.build(self.path("driver"));
        let driver = Box::leak(Box::new(built.unwrap_or_else(|error| panic!("{error}"))));
        self.set_root(self.driver.root(), driver.root());
        self.driver = driver;
    }

    /// Exchanges the driver for an ordinary package: with a modeset node, libraries in Debian's directories.
    #[must_use]
    pub fn on_debian(mut self) -> Self {
        self.use_driver(&Builder::new(Profile::default().on_debian()));
        self
    }

    /// Replaces the root of the driver.
    pub fn set_root(&self, old: &Path, root: &Path) {
        let file = self.path("config.toml");
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{error}"));
        let old = format!("root = \"{}\"", old.display());
        assert!(text.contains(&old), "{text}");
        let text = text.replace(&old, &format!("root = \"{}\"", root.display()));
        fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Adds lines before the first table of the configuration.
    pub fn set_at_top(&self, lines: &str) {
        let file = self.path("config.toml");
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{error}"));
        fs::write(&file, format!("{lines}\n{text}")).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Removes the record of build ids, so that our programs take each other for foreign.
    pub fn forget(&self) {
        let share = self.path("share");
        fs::remove_dir_all(share).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Returns a path in the scratch space.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Returns a unique name.
    pub fn name(&self) -> String {
        let own = self.scratch.path().file_name().unwrap_or_default();
        format!("nvc-test{}-{}", own.to_string_lossy(), std::process::id())
    }

    /// Returns a wrapper of our runtime for engines that do not pass on their environment.
    pub fn wrapped_runtime(&self) -> PathBuf {
        let (bin, config) = (self.bin(), self.path("config.toml"));
        let script = format!(
            "#!/bin/sh\nNVIDIA_CTK_CONFIG_FILE_PATH={} exec {}/nvidia-container-runtime \"$@\"\n",
            config.display(),
            bin.display()
        );
        let wrapper = bin.join("wrapped-runtime");
        files::file(&wrapper, script, 0o755).unwrap_or_else(|error| panic!("{error}"));
        wrapper
    }

    /// Returns the directory of our programs.
    pub fn bin(&self) -> PathBuf {
        self.path("bin")
    }

    /// Prepares a program of ours, or of the machine, with the configuration in its environment.
    pub fn command(&self, program: &str) -> Command {
        let own = self.bin().join(program);
        let program = if own.exists() { own } else { program.into() };
        let mut command = if std::ptr::eq(self.driver, machine::driver()) {
            Command::new(program)
        } else {
            self.showing_own_driver(&program)
        };
        let path = format!("{}:{}", self.bin().display(), cli::PATH);
        command
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.scratch.path())
            .env("NVC_SIM_PROC", self.driver.path("/proc/driver"))
            .env("NVIDIA_CTK_CONFIG_FILE_PATH", self.path("config.toml"));
        command
    }

    /// Prepares a program in a mount namespace where the kernel has this environment's own driver.
    fn showing_own_driver(&self, program: &Path) -> Command {
        let mut command = Command::new("unshare");
        let script = "for p in /proc/driver /proc/devices /sys/bus/pci/devices; do \
                      if [ -e \"$0$p\" ]; then mount --bind \"$0$p\" $p || exit; fi; done; exec \"$@\"";
        command
            .args(["--mount", "sh", "-c", script])
            .arg(self.driver.root())
            .arg(program);
        command
    }

    /// Builds a root for containers.
    pub fn rootfs(&self, name: &str) -> PathBuf {
        let root = self.path(name);
        let layout =
            rootfs::Builder::new(Layout::Debian).programs(&["mknod", "rm", "grep", "stat"]);
        layout
            .build(&root)
            .unwrap_or_else(|error| panic!("rootfs: {error}"))
    }

    /// Returns the log of our runtime.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("runtime.log")).unwrap_or_default()
    }
}

/// Returns shell commands that report a container's view, whose libraries are those of the machine's word size: `NODE: RESULT OF OPENING IT`, then the GPUs.
pub fn look() -> String {
    let nodes = NODES.join(" ");
    format!(
        "for n in {nodes}; do e=$( (exec 3<$n) 2>&1 ); echo \"$n: ${{e##*: }}\"; done; \
         ldconfig -p | grep -c 'libcuda.so.1 (libc6,'; nvidia-smi -L"
    )
}

/// Returns the output of [`look`] in a container with only GPU `index`.
pub fn sight(driver: &Driver, index: usize) -> String {
    let mut text = String::new();
    for node in NODES {
        let other = node == format!("/dev/nvidia{}", 1 - index);
        let word = if other { "No such file" } else { GRANTED };
        text += &format!("{node}: {word}\n");
    }
    format!("{text}1\n{}", driver.listing(index, &[]))
}

/// Returns the output of a command, which must succeed.
#[track_caller]
pub fn printed(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(status.success(), "{command:?}: {status}\n{out}\n{err}");
    out
}

/// Returns output and error output of a command, whether it succeeds or not.
#[track_caller]
pub fn both(command: &mut Command) -> (String, String) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Returns the error output of a command, which must fail.
#[track_caller]
pub fn complaint(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(!output.status.success(), "{command:?} succeeded");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Creates a tar archive of a directory.
pub fn archive(root: &Path, file: &Path) {
    printed(
        Command::new("tar")
            .arg("-C")
            .arg(root)
            .arg("-cf")
            .arg(file)
            .arg("."),
    );
}

/// Writes what packages record beside a directory of programs: their build ids.
///
/// # Errors
/// The file cannot be written.
pub fn record(bin: &Path) -> io::Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/build/ids.sh");
    let text = printed(Command::new(script).arg(bin));
    let file = bin.join("../share/nvidia-container-toolkit/build-ids");
    let parent = file.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent)?;
    fs::write(&file, text)
}
