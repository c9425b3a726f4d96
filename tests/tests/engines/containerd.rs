//! Runs containers by containerd, with our runtime instead of runc.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::world::{World, look, printed, sight};

/// Name and body of each test.
pub(crate) const TESTS: &[(&str, fn())] =
    &[("containerd_gives_gpus_by_the_runtime", by_the_runtime)];

/// A running containerd; stopped on drop.
struct Containerd {
    daemon: Child,
    world: World,
}

impl Containerd {
    fn start() -> Self {
        let world = World::new("runc", "legacy", "");
        let path = |name: &str| world.path(name).display().to_string();
        let config = format!(
            "version = 2\nroot = \"{}\"\nstate = \"{}\"\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = \"{}\"\n[ttrpc]\naddress = \"{}\"\n",
            path("containerd"),
            path("containerd-state"),
            path("c.sock"),
            path("t.sock")
        );
        fs::write(world.path("containerd.toml"), config).unwrap_or_else(|error| panic!("{error}"));
        let log = fs::File::create(world.path("containerd.log"))
            .unwrap_or_else(|error| panic!("{error}"));
        let mut daemon = world.command("containerd");
        daemon.arg("--config").arg(world.path("containerd.toml"));
        daemon
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let daemon = daemon
            .spawn()
            .unwrap_or_else(|error| panic!("containerd: {error}"));
        let containerd = Self { daemon, world };
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let answer = containerd.client(&["version"]).output();
            if answer.is_ok_and(|output| output.status.success()) {
                return containerd;
            }
            let log =
                fs::read_to_string(containerd.world.path("containerd.log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "containerd did not start: {log}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn client(&self, words: &[&str]) -> Command {
        let mut command = self.world.command("ctr");
        command
            .arg("--address")
            .arg(self.world.path("c.sock"))
            .args(words);
        command
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = Command::new("kill")
            .arg(self.daemon.id().to_string())
            .status();
        let _ = self.daemon.wait();
    }
}

fn by_the_runtime() {
    let containerd = Containerd::start();
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
        command.args([&format!("c{index}"), "sh", "-c", &look()]);
        assert_eq!(printed(&mut command), sight(containerd.world.driver, index));
    }
}
