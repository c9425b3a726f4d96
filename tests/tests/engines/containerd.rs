//! Runs containers by containerd, with our runtime instead of runc.

use std::fs;
use std::process::Command;

use nvc_tests::world::{World, archive, complaint, look, printed, sight};

use super::daemon::Daemon;

/// Name and body of each test.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("containerd_gives_gpus_by_the_runtime", by_the_runtime),
    ("containerd_gives_gpus_to_pods", to_pods),
];

/// The image of pods and of their containers.
const IMAGE: &str = "docker.io/nvc/image:1";

/// Starts containerd with this plugin section; the runtime is registered as users do it.
fn start(section: &str) -> Daemon {
    let world = World::new("runc", "legacy", "");
    let path = |name: &str| world.path(name).display().to_string();
    let file = path("containerd.toml");
    let config = format!(
        "version = 2\nroot = \"{}\"\nstate = \"{}\"\n\
         [grpc]\naddress = \"{}\"\n[ttrpc]\naddress = \"{}\"\n{section}",
        path("containerd"),
        path("containerd-state"),
        path("c.sock"),
        path("t.sock")
    );
    fs::write(&file, config).unwrap_or_else(|error| panic!("{error}"));
    let runtime = world.bin().join("nvidia-container-runtime");
    // Print it, so that no undo record is written on this machine.
    let mut configure = world.command("nvidia-ctk");
    configure
        .args(["runtime", "configure", "--runtime=containerd"])
        .args(["--dry-run", "--drop-in-config="])
        .arg(format!("--config={file}"))
        .arg(format!("--nvidia-runtime-path={}", runtime.display()));
    let config = printed(&mut configure);
    fs::write(&file, config).unwrap_or_else(|error| panic!("{error}"));
    let arguments = ["--config".to_owned(), file];
    Daemon::start(world, "containerd", &arguments, |world| {
        let mut command = world.command("ctr");
        command.arg("--address").arg(world.path("c.sock"));
        command
    })
}

fn by_the_runtime() {
    let containerd = start("");
    let root = containerd.world.rootfs("rootfs");
    let runtime = containerd.world.bin().join("nvidia-container-runtime");
    for index in [0, 1] {
        let device = format!("NVIDIA_VISIBLE_DEVICES={index}");
        let mut command = containerd.client(&["run", "--rm", "--runc-binary"]);
        command
            .arg(&runtime)
            .args([
                "--env",
                &device,
                "--env",
                "PATH=/usr/bin:/bin:/sbin",
                "--rootfs",
            ])
            .arg(&root);
        // It is also the name of a cgroup, and all tests share that namespace.
        let name = format!("{}-{index}", containerd.world.name());
        command.args([&name, "sh", "-c", &look()]);
        assert_eq!(printed(&mut command), sight(containerd.world.driver, index));
    }
}

/// Writes an image in docker's format: one layer, its configuration, and a list of both.
fn save_image(world: &World) {
    archive(&world.rootfs("image"), &world.path("layer.tar"));
    let sum = printed(Command::new("sha256sum").arg(world.path("layer.tar")));
    let digest = format!("sha256:{}", sum.split(' ').next().unwrap_or_default());
    let files = [
        (
            "config.json",
            serde_json::json!({
                "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
                "os": "linux",
                "config": {"Env": ["PATH=/usr/bin:/bin:/sbin"], "Cmd": ["sleep", "1000"]},
                "rootfs": {"type": "layers", "diff_ids": [digest]},
            }),
        ),
        (
            "manifest.json",
            serde_json::json!([
                {"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}
            ]),
        ),
    ];
    for (name, content) in files {
        fs::write(world.path(name), content.to_string()).unwrap_or_else(|error| panic!("{error}"));
    }
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(world.path(""));
    tar.arg("-cf").arg(world.path("image.tar"));
    printed(tar.args(["manifest.json", "config.json", "layer.tar"]));
}

/// Uses the CRI, like a kubelet. Debian's own section names no runtime: ours must not replace the built-in one.
fn to_pods() {
    let section = format!(
        "[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{IMAGE}\"\nrestrict_oom_score_adj = true\n"
    );
    let containerd = start(&section);
    save_image(&containerd.world);
    let mut import = containerd.client(&["-n", "k8s.io", "images", "import"]);
    printed(import.arg(containerd.world.path("image.tar")));
    let run = |options: &[&str]| {
        let mut command = containerd.world.command(env!("CARGO_BIN_EXE_nvc-cri"));
        command.arg(containerd.world.path("c.sock")).arg("run");
        command.args(options).args([IMAGE, "sh", "-c", &look()]);
        command
    };
    for index in [0, 1] {
        let device = format!("NVIDIA_VISIBLE_DEVICES={index}");
        let mut command = run(&["--handler", "nvidia", "--env", &device]);
        assert_eq!(printed(&mut command), sight(containerd.world.driver, index));
    }
    let said = complaint(&mut run(&[
        "--handler",
        "nvidia",
        "--env",
        "NVIDIA_VISIBLE_DEVICES=7",
    ]));
    assert!(said.contains("unknown device"), "{said}");
    let mut plain = containerd.world.command(env!("CARGO_BIN_EXE_nvc-cri"));
    plain.arg(containerd.world.path("c.sock")).arg("run");
    let seen = printed(plain.args([IMAGE, "ls", "/dev"]));
    assert!(!seen.contains("nvidia"), "{seen}");
}
