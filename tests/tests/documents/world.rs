//! Runs scripts on a machine of their own: this one's files, with a simulated driver and our programs installed.

use std::fs;
use std::path::Path;
use std::process::Command;

use nvc_testkit::driver::{Builder, Driver};
use nvc_testkit::machine::Scratch;
use nvc_testkit::{cli, files};
use nvc_tests::debian_root;

const MACHINE: &str = include_str!("../nvidia_docker/world.sh");
const PROLOGUE: &str = include_str!("world.sh");

/// A machine; each script sees it as it was made.
#[derive(Debug)]
pub(crate) struct World {
    scratch: Scratch,
    pub(crate) driver: Driver,
}

/// Adds the manifests that a distribution's packages have.
fn manifests(root: &Path) -> std::io::Result<()> {
    for (path, text) in [
        (
            "usr/share/vulkan/icd.d/nvidia_icd.json",
            "{\"ICD\": {\"library_path\": \"libGLX_nvidia.so.0\"}}",
        ),
        (
            "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
            "{\"ICD\": {\"library_path\": \"libEGL_nvidia.so.0\"}}",
        ),
        (
            "usr/share/OpenCL/vendors/nvidia.icd",
            "libnvidia-opencl.so.1\n",
        ),
    ] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap())?;
        fs::write(path, text)?;
    }
    Ok(())
}

impl World {
    pub(crate) fn new() -> Self {
        let scratch = Scratch::new().unwrap();
        let driver = Builder::default().edit(manifests);
        let driver = driver.build(scratch.join("driver")).unwrap();
        debian_root().build(scratch.join("image")).unwrap();
        let world = Self { scratch, driver };
        world.install();
        world
    }

    /// Puts our programs where packages put them, and the driver's part of procfs where the script finds it.
    fn install(&self) {
        let bin = self.scratch.join("layer/usr/bin");
        fs::create_dir_all(&bin).unwrap();
        cli::copy_programs(&bin).unwrap();
        for (program, at) in [
            ("nvc-simruntime", "usr/lib/nvc-sim/nvc-simruntime"),
            ("nvidia-docker", "usr/bin/nvidia-docker"),
        ] {
            let to = self.scratch.join("layer").join(at);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            files::copy_program(&cli::beside(program).unwrap(), &to).unwrap();
        }
        let share = self
            .scratch
            .join("layer/usr/share/nvidia-container-toolkit");
        fs::create_dir_all(&share).unwrap();
        let ids = Command::new(repository().join("scripts/build/ids.sh"))
            .arg(&bin)
            .output()
            .unwrap();
        fs::write(share.join("build-ids"), ids.stdout).unwrap();
        let proc = self.scratch.join("layer/srv/sim");
        fs::create_dir_all(&proc).unwrap();
        let copied = Command::new("cp")
            .arg("-a")
            .arg(self.driver.path("proc"))
            .arg(proc)
            .status();
        assert!(copied.unwrap().success());
    }

    /// Runs a script, which must succeed; returns what it printed, standard error included.
    #[track_caller]
    pub(crate) fn run(&self, script: &str) -> String {
        let world = Scratch::new().unwrap();
        let programs = cli::program().unwrap();
        let output = Command::new("unshare")
            .args(["--mount", "--pid", "--net", "--ipc", "--uts", "--fork"])
            .args(["--kill-child", "--propagation", "private"])
            .args(["bash", "-c", MACHINE, "world.sh"])
            .args([self.driver.root(), &self.scratch.join("image")])
            .args([world.path(), programs.parent().unwrap()])
            .arg(format!("exec 2>&1\n{PROLOGUE}\n{script}"))
            .env("NVC_WORLD_LAYER", self.scratch.join("layer"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}\n{text}\n{errors}");
        text
    }
}

/// Returns the repository's directory.
pub(crate) fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
