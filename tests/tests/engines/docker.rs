//! Runs containers by dockerd: with `--gpus`, and with our runtime.

use std::fs;
use std::process::Command;
use std::thread;

use nvc_testkit::tree::Tree;
use nvc_tests::world::{World, archive, both, complaint, look, printed, sight};

use super::daemon::Daemon;
use super::handover;

/// Name and body of each test.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("docker_gives_gpus_by_the_hook", by_the_hook),
    ("docker_gives_gpus_by_the_runtime", by_the_runtime),
    ("docker_shows_what_is_wrong", shows_the_problem),
    ("docker_keeps_gpus", keeps_gpus),
    (
        "docker_restarts_with_a_new_driver",
        restarts_with_a_new_driver,
    ),
    ("docker_starts_thirty_at_once", thirty_at_once),
    ("docker_gives_gpus_by_nvidia_docker", by_nvidia_docker),
    ("docker_keeps_volumes", keeps_volumes),
];

/// A running dockerd with an image; stopped on drop.
struct Docker {
    daemon: Daemon,
}

impl Docker {
    fn start() -> Self {
        let world = World::new("runc", "legacy", "");
        let bin = world.bin();
        let configuration = serde_json::json!({
            "default-runtime": "plain",
            "runtimes": {
                "plain": {"path": bin.join("sim-runc")},
                "nvidia": {"path": bin.join("nvidia-container-runtime")},
            },
        });
        fs::write(world.path("daemon.json"), configuration.to_string())
            .unwrap_or_else(|error| panic!("{error}"));
        let mut arguments = vec![
            "--iptables=false".to_owned(),
            "--ip6tables=false".into(),
            "--bridge=none".into(),
            "--storage-driver=vfs".into(),
            "--cgroup-parent=/nvc-test-docker".into(),
            format!("--host={}", address(&world)),
        ];
        for (option, name) in [
            ("data-root", "docker"),
            ("exec-root", "docker-exec"),
            ("pidfile", "docker.pid"),
            ("config-file", "daemon.json"),
        ] {
            arguments.push(format!("--{option}={}", world.path(name).display()));
        }
        let daemon = Daemon::start(world, "dockerd", &arguments, |world| {
            let mut command = world.command("docker");
            command.arg("--host").arg(address(world));
            command
        });
        let (root, tar) = (daemon.world.rootfs("image"), daemon.world.path("image.tar"));
        archive(&root, &tar);
        printed(daemon.client(&["import"]).arg(tar).arg("image"));
        Self { daemon }
    }

    /// Prepares `docker run` without a network.
    fn run(&self, options: &[&str], script: &str) -> Command {
        let mut command = self.daemon.client(&["run", "--net=none"]);
        command.args(options).args(["image", "sh", "-c", script]);
        command
    }
}

/// Returns the address of the daemon.
fn address(world: &World) -> String {
    format!("unix://{}", world.path("d.sock").display())
}

impl Drop for Docker {
    fn drop(&mut self) {
        // A leftover container would keep the scratch space busy.
        let all = self.daemon.client(&["ps", "-aq"]).output();
        let ids = all.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        for id in ids.unwrap_or_default().split_whitespace() {
            let _ = self.daemon.client(&["rm", "-f", id]).output();
        }
    }
}

fn by_the_hook() {
    let docker = Docker::start();
    for index in [0, 1] {
        let device = format!("device={index}");
        let seen = printed(&mut docker.run(&["--rm", "--gpus", &device], &look()));
        assert_eq!(seen, sight(docker.daemon.world.driver, index));
    }
    let seen = printed(&mut docker.run(&["--rm"], "ls /dev"));
    assert!(!seen.contains("nvidia"), "{seen}");
}

/// New named volumes on directories of the driver, by the hook and by the runtime: only one on /etc leaves a place for the
/// libraries.
fn keeps_volumes() {
    let docker = Docker::start();
    let list = docker.daemon.world.driver.listing(0, &[]);
    let data = docker.daemon.world.path("docker/volumes");
    for (number, place) in ["/etc", "/usr", "/usr/lib"].into_iter().enumerate() {
        let name = format!("v{number}");
        let volume = format!("--volume={name}:{place}");
        // docker copies the image's files into it when it is first used.
        printed(&mut docker.run(&["--rm", &volume], "true"));
        let before = Tree::of(&data.join(&name)).unwrap_or_else(|error| panic!("{error}"));
        for way in [
            ["--gpus", "device=0", "--rm"],
            ["--runtime=nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=0"],
        ] {
            let mut run = docker.run(&[&[&*volume][..], &way].concat(), "nvidia-smi -L");
            let output = run.output().unwrap_or_else(|error| panic!("{error}"));
            let [seen, said] = [output.stdout, output.stderr]
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            if place == "/etc" {
                assert_eq!(seen, list, "{place} {way:?}: {said}");
            } else {
                assert!(
                    said.contains(&format!("{place} is a volume")),
                    "{way:?}: {seen}{said}"
                );
            }
            let after = Tree::of(&data.join(&name)).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(after.changes_since(&before), [""; 0], "{place} {way:?}");
        }
    }
}

fn by_the_runtime() {
    let docker = Docker::start();
    for index in [0, 1] {
        let device = format!("NVIDIA_VISIBLE_DEVICES={index}");
        let seen = printed(&mut docker.run(&["--rm", "--runtime=nvidia", "-e", &device], &look()));
        assert_eq!(seen, sight(docker.daemon.world.driver, index));
    }
    // With both options the hook still runs once.
    let seen =
        printed(&mut docker.run(&["--rm", "--runtime=nvidia", "--gpus", "device=0"], &look()));
    assert_eq!(seen, sight(docker.daemon.world.driver, 0));
    // A node that the container creates itself stays denied.
    let script = "mknod /tmp/n c 195 1; (: </tmp/n) 2>&1; mknod /tmp/m c 195 0; (: </tmp/m) 2>&1";
    let options = [
        "--rm",
        "--runtime=nvidia",
        "-e",
        "NVIDIA_VISIBLE_DEVICES=0",
        "--cap-add=MKNOD",
    ];
    let (seen, _) = both(&mut docker.run(&options, script));
    let lines: Vec<&str> = seen.lines().collect();
    assert!(lines[0].contains("Operation not permitted"), "{seen}");
    assert!(lines[1].contains("No such device or address"), "{seen}");
}

fn by_nvidia_docker() {
    let docker = Docker::start();
    let program =
        nvc_testkit::cli::beside("nvidia-docker").unwrap_or_else(|error| panic!("{error}"));
    let nvidia_docker = |variables: &[(&str, &str)], words: &[&str]| {
        let mut command = docker.daemon.world.command(&program.display().to_string());
        let docker_words = format!("docker --host {}", address(&docker.daemon.world));
        command.env("NV_DOCKER", docker_words);
        command.envs(variables.iter().copied()).args(words);
        command
    };
    let look = look();
    let run = ["run", "--net=none", "--rm", "image", "sh", "-c", &look];
    for index in [0, 1] {
        let expected = sight(docker.daemon.world.driver, index);
        let number = index.to_string();
        // The engine has the runtime configured.
        let seen = printed(&mut nvidia_docker(&[("NV_GPU", &number)], &run));
        assert_eq!(seen, expected);
        let variables = [("NV_GPU", number.as_str()), ("NV_BACKEND", "gpus")];
        assert_eq!(printed(&mut nvidia_docker(&variables, &run)), expected);
    }
    let variables = [("NV_GPU", "0"), ("NV_DRY_RUN", "1")];
    let line = printed(&mut nvidia_docker(&variables, &run));
    assert!(
        line.contains("--runtime=nvidia --env=NVIDIA_VISIBLE_DEVICES=0 image"),
        "{line}"
    );
    // This image does not request GPUs.
    let words = ["run", "--net=none", "--rm", "image", "ls", "/dev"];
    let seen = printed(&mut nvidia_docker(&[], &words));
    assert!(!seen.contains("nvidia"), "{seen}");
    printed(&mut nvidia_docker(&[], &["ps", "-a"]));
}

fn shows_the_problem() {
    let docker = Docker::start();
    let said = complaint(&mut docker.run(&["--rm", "--gpus", "device=7"], "true"));
    assert!(said.contains("7: unknown device"), "{said}");
    let options = [
        "--rm",
        "--runtime=nvidia",
        "-e",
        "NVIDIA_VISIBLE_DEVICES=0",
        "-e",
        "NVIDIA_DRIVER_CAPABILITIES=frob",
    ];
    let said = complaint(&mut docker.run(&options, "true"));
    assert!(
        said.contains("unsupported capabilities found in 'frob'")
            && said.contains("NVIDIA_DRIVER_CAPABILITIES takes all, or"),
        "{said}"
    );
}

/// Options of a container with GPU 1 that stays.
const KEPT: [&str; 5] = [
    "-d",
    "--name=kept",
    "--runtime=nvidia",
    "-e",
    "NVIDIA_VISIBLE_DEVICES=1",
];

fn keeps_gpus() {
    let docker = Docker::start();
    let script = format!("{}; exec sleep 1000", look());
    printed(&mut docker.run(&KEPT, &script));
    let expected = sight(docker.daemon.world.driver, 1);
    let look_again = || printed(&mut docker.daemon.client(&["exec", "kept", "sh", "-c", &look()]));
    assert_eq!(look_again(), expected);
    printed(&mut docker.daemon.client(&["restart", "-t", "0", "kept"]));
    assert_eq!(look_again(), expected);
    printed(
        &mut docker
            .daemon
            .client(&["update", "--cpu-shares", "512", "kept"]),
    );
    assert_eq!(look_again(), expected);
}

/// A restart gives the driver that is there then, and queries it once.
fn restarts_with_a_new_driver() {
    let docker = Docker::start();
    let world = &docker.daemon.world;
    let before = handover::install(world, "before", "570.124.06");
    printed(&mut docker.run(&KEPT, "exec sleep 1000"));
    let look = ["exec", "kept", "sh", "-c", handover::SCRIPT];
    let sight = |driver| {
        format!(
            "/dev/nvidia1 /dev/nvidia-caps/* {}\n",
            handover::libcuda(driver)
        )
    };
    let look = || printed(&mut docker.daemon.client(&look));
    assert_eq!(look(), sight(&before));
    let after = handover::replace(world, &before, "after", "570.133.20");
    let queries = handover::Queries::of(world, &after);
    printed(&mut docker.daemon.client(&["restart", "-t", "0", "kept"]));
    assert_eq!(look(), sight(&after));
    assert_eq!(queries.count(), 1);
}

fn thirty_at_once() {
    let docker = Docker::start();
    let expected = sight(docker.daemon.world.driver, 0);
    thread::scope(|scope| {
        for _ in 0..30 {
            scope.spawn(|| {
                let options = ["--rm", "--runtime=nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=0"];
                assert_eq!(printed(&mut docker.run(&options, &look())), expected);
            });
        }
    });
}
