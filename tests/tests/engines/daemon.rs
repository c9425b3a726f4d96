//! Runs an engine's daemon for the duration of a test.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nvc_tests::world::World;

/// A running daemon; stopped on drop.
pub(crate) struct Daemon {
    process: Child,
    pub world: World,
    /// Prepares its client.
    client: fn(&World) -> Command,
}

impl Daemon {
    /// Starts a program of the machine with these arguments, and waits until its client gets an answer.
    pub(crate) fn start(
        world: World,
        program: &str,
        arguments: &[String],
        client: fn(&World) -> Command,
    ) -> Self {
        let path = world.path(&format!("{program}.log"));
        let log = fs::File::create(&path).unwrap_or_else(|error| panic!("{error}"));
        let process = world
            .command(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}"));
        let daemon = Self {
            process,
            world,
            client,
        };
        let deadline = Instant::now() + Duration::from_secs(180);
        loop {
            let answer = daemon.client(&["version"]).output();
            if answer.is_ok_and(|output| output.status.success()) {
                return daemon;
            }
            let log = fs::read_to_string(&path).unwrap_or_default();
            assert!(Instant::now() < deadline, "{program} did not start: {log}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn client(&self, words: &[&str]) -> Command {
        let mut command = (self.client)(&self.world);
        command.args(words);
        command
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = self.process.id().to_string();
        let _ = Command::new("kill").arg(pid).status();
        let _ = self.process.wait();
    }
}
