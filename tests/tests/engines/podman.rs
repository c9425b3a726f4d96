//! Runs containers by podman: with a hooks.d file, and with our runtime.

use std::fs;
use std::process::Command;

use nvc_tests::world::{World, archive, complaint, look, printed, sight};

use super::handover;
use super::isolation::{AS_USER, USER};

/// Name and body of each test.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("podman_gives_gpus_by_the_hook", by_the_hook),
    ("podman_gives_gpus_by_the_runtime", by_the_runtime),
    (
        "podman_restarts_with_a_new_driver",
        restarts_with_a_new_driver,
    ),
    ("podman_files_of_images_stay_empty", files_of_images),
    (
        "podman_gives_gpus_rootless_by_the_hook",
        rootless_by_the_hook,
    ),
    (
        "podman_gives_gpus_rootless_by_the_runtime",
        rootless_by_the_runtime,
    ),
];

/// The user that calls podman.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    Root,
    Rootless,
}

pub(crate) struct Podman {
    pub(crate) world: World,
    user: User,
}

impl Podman {
    fn new() -> Self {
        Self::with("legacy", User::Root)
    }

    pub(crate) fn with(mode: &str, user: User) -> Self {
        Self::of(World::new("runc", mode, ""), user)
    }

    fn of(world: World, user: User) -> Self {
        for name in ["storage", "run", "tmp"] {
            let path = world.path(name);
            fs::create_dir(&path).unwrap_or_else(|error| panic!("{error}"));
            if user == User::Rootless {
                printed(Command::new("chown").arg(USER).arg(path));
            }
        }
        let podman = Self { world, user };
        let hook = podman.world.bin().join("nvidia-container-runtime-hook");
        let hooks = podman.world.path("hooks.d");
        fs::create_dir(&hooks).unwrap_or_else(|error| panic!("{error}"));
        let config = format!(
            "NVIDIA_CTK_CONFIG_FILE_PATH={}",
            podman.world.path("config.toml").display()
        );
        let file = serde_json::json!({
            "version": "1.0.0",
            "hook": {
                "path": hook,
                "args": ["nvidia-container-runtime-hook", "prestart"],
                "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", config],
            },
            "when": {"always": true},
            "stages": ["prestart"],
        });
        fs::write(hooks.join("oci-nvidia-hook.json"), file.to_string())
            .unwrap_or_else(|error| panic!("{error}"));
        archive(
            &podman.world.rootfs("image"),
            &podman.world.path("image.tar"),
        );
        let image = podman.world.path("image.tar");
        printed(
            podman
                .client("sim-runc")
                .arg("import")
                .arg(image)
                .arg("image"),
        );
        podman
    }

    pub(crate) fn client(&self, runtime: &str) -> Command {
        let dir = |name: &str| self.world.path(name).display().to_string();
        let mut command = match self.user {
            User::Root => self.world.command("podman"),
            User::Rootless => {
                let mut command = self.world.command("unshare");
                command.args(["--mount", "sh", "-c", AS_USER, "sh", &dir("proc"), "podman"]);
                command.args(["--storage-opt", "vfs.ignore_chown_errors=true"]);
                command
                    .env("XDG_RUNTIME_DIR", dir("tmp"))
                    .env("HOME", dir("tmp"));
                command.current_dir("/");
                command
            }
        };
        command
            .args([
                "--root",
                &dir("storage"),
                "--runroot",
                &dir("run"),
                "--tmpdir",
                &dir("tmp"),
            ])
            .args([
                "--storage-driver=vfs",
                "--cgroup-manager=cgroupfs",
                "--events-backend=file",
            ])
            .arg("--runtime")
            .arg(self.world.bin().join(runtime));
        command
    }

    /// Builds an image from the common one with `--annotation` options.
    pub(crate) fn build(&self, tag: &str, more: &str, annotations: &[&str]) {
        let file = self.world.path(tag);
        fs::write(&file, format!("FROM image\n{more}\n")).unwrap_or_else(|error| panic!("{error}"));
        let mut build = self.client("sim-runc");
        build.arg("build").args(annotations);
        build.args([&format!("--tag={tag}"), "--pull-never", "-f"]);
        build.arg(file).arg(self.world.path("hooks.d"));
        printed(&mut build);
    }

    /// Returns whether this podman gives containers the annotations of their images: 4.3 does, 5.4 does not.
    pub(crate) fn copies_annotations(&self) -> bool {
        let version = printed(self.client("sim-runc").arg("--version"));
        let number = version.split_whitespace().last().unwrap_or_default();
        matches!(number.split('.').next(), Some("3" | "4"))
    }

    fn run(&self, runtime: &str, global: &[&str], options: &[&str], script: &str) -> Command {
        self.run_image("image", runtime, global, options, script)
    }

    pub(crate) fn run_image(
        &self,
        image: &str,
        runtime: &str,
        global: &[&str],
        options: &[&str],
        script: &str,
    ) -> Command {
        let mut command = self.client(runtime);
        command
            .args(global)
            .args([
                "run",
                "--rm",
                "--net=none",
                "--ulimit=nofile=20000:20000",
                "--ulimit=nproc=4096:4096",
            ])
            .args(options)
            .args([image, "sh", "-c", script]);
        command
    }
}

fn by_the_hook() {
    let podman = Podman::new();
    let hooks = podman.world.path("hooks.d").display().to_string();
    let global = ["--hooks-dir", hooks.as_str()];
    for index in [0, 1] {
        let device = format!("NVIDIA_VISIBLE_DEVICES={index}");
        let mut command = podman.run("sim-runc", &global, &["-e", &device], &look());
        assert_eq!(printed(&mut command), sight(podman.world.driver, index));
    }
    let seen = printed(&mut podman.run("sim-runc", &global, &[], "ls /dev"));
    assert!(!seen.contains("nvidia"), "{seen}");
    let said = complaint(&mut podman.run(
        "sim-runc",
        &global,
        &["-e", "NVIDIA_VISIBLE_DEVICES=7"],
        "true",
    ));
    assert!(said.contains("7: unknown device"), "{said}");
}

fn by_the_runtime() {
    let podman = Podman::new();
    podman.world.wrapped_runtime();
    for index in [0, 1] {
        let device = format!("NVIDIA_VISIBLE_DEVICES={index}");
        let mut command = podman.run("wrapped-runtime", &[], &["-e", &device], &look());
        assert_eq!(printed(&mut command), sight(podman.world.driver, index));
    }
}

/// A restart gives the driver that is there then, and queries it once.
fn restarts_with_a_new_driver() {
    let podman = Podman::new();
    podman.world.wrapped_runtime();
    let before = handover::install(&podman.world, "before", "570.124.06");
    let podman_with = |words: &[&str]| {
        let mut command = podman.client("wrapped-runtime");
        command.args(words);
        command
    };
    printed(&mut podman_with(&[
        "create",
        "--name=kept",
        "--net=none",
        "--ulimit=nofile=20000:20000",
        "--ulimit=nproc=4096:4096",
        "--env=NVIDIA_VISIBLE_DEVICES=1",
        "image",
        "sh",
        "-c",
        handover::SCRIPT,
    ]));
    let sight = |driver| {
        format!(
            "/dev/nvidia1 /dev/nvidia-caps/* {}\n",
            handover::libcuda(driver)
        )
    };
    let start = || printed(&mut podman_with(&["start", "--attach", "kept"]));
    assert_eq!(start(), sight(&before));
    let after = handover::replace(&podman.world, &before, "after", "570.133.20");
    let queries = handover::Queries::of(&podman.world, &after);
    assert_eq!(start(), sight(&after));
    assert_eq!(queries.count(), 1);
}

/// crun gives hooks a file of the image's choice as standard output and standard error. They print nothing then, even
/// if the container does not start; our runtime removes the annotations, so that crun opens no file.
fn files_of_images() {
    for mode in ["legacy", "jit-cdi"] {
        let podman = Podman::of(World::new("crun", mode, ""), User::Root);
        podman.world.wrapped_runtime();
        let chosen = podman.world.path("chosen");
        let annotations = ["stdout", "stderr"]
            .map(|stream| format!("--annotation=run.oci.hooks.{stream}={}", chosen.display()));
        let mut image = "image";
        let mut words: Vec<&str> = annotations.iter().map(String::as_str).collect();
        if podman.copies_annotations() {
            podman.build("annotated", "", &words);
            (image, words) = ("annotated", Vec::new());
        }
        let hooks = podman.world.path("hooks.d").display().to_string();
        for (runtime, global) in [
            ("sim-crun", &["--hooks-dir", hooks.as_str()][..]),
            ("wrapped-runtime", &[]),
        ] {
            for (variable, starts) in [
                ("NVIDIA_VISIBLE_DEVICES=0", true),
                ("NVIDIA_VISIBLE_DEVICES=0,x\n* * * * * root id\n", false),
                ("NVIDIA_VISIBLE_DEVICES=\u{1b}[31m$(id)", false),
                ("NVIDIA_REQUIRE_X=\n* * * * * root id\n", false),
            ] {
                let mut options = vec!["-e", "NVIDIA_VISIBLE_DEVICES=all", "-e", variable];
                options.extend(&words);
                let mut command = podman.run_image(image, runtime, global, &options, "true");
                let output = command.output().unwrap_or_else(|error| panic!("{error}"));
                let case = format!("{mode}, {runtime}, {variable}: {output:?}");
                // In jit-cdi nothing checks requirements.
                if variable.starts_with("NVIDIA_VISIBLE") || runtime == "sim-crun" {
                    assert_eq!(output.status.success(), starts, "{case}");
                }
                let written = fs::read_to_string(&chosen);
                match runtime {
                    "sim-crun" => assert_eq!(
                        written.unwrap_or_else(|e| panic!("{case}: {e}")),
                        "",
                        "{case}"
                    ),
                    _ => assert!(written.is_err(), "{case}"),
                }
                let _ = fs::remove_file(&chosen);
            }
        }
    }
}

fn rootless_by_the_hook() {
    let podman = Podman::with("legacy", User::Rootless);
    let hooks = podman.world.path("hooks.d").display().to_string();
    let global = ["--hooks-dir", hooks.as_str()];
    gives_each_gpu(&podman, "sim-runc", &global);
}

fn rootless_by_the_runtime() {
    for mode in ["auto", "legacy"] {
        let podman = Podman::with(mode, User::Rootless);
        podman.world.wrapped_runtime();
        gives_each_gpu(&podman, "wrapped-runtime", &[]);
    }
}

fn gives_each_gpu(podman: &Podman, runtime: &str, global: &[&str]) {
    for index in [0, 1] {
        let device = format!("NVIDIA_VISIBLE_DEVICES={index}");
        let mut command = podman.run(runtime, global, &["-e", &device], &look());
        assert_eq!(printed(&mut command), sight(podman.world.driver, index));
    }
}
