//! Queries another machine's plugin, and accepts only harmless parts of its answer.
//!
//! The answer crosses a network without protection, so options are constructed here from the driver's version, its
//! control nodes and at most as many GPUs as were asked for. Everything else is rejected, as is any status but 200.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libnvc::host::{DriverVersions, numbers};
use libnvc::request::MAX_NAMES;
use libnvc::{Error, ErrorKind, Result};
use nvc_program::json::Object;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::arguments::Classic;
use super::host::PluginHost;
use super::http::{body, is_whole, shortened};
use crate::VOLUME_DRIVER;
use crate::driver_volume::{self, MOUNT_POINT};

/// Time limit of one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The control nodes that a plugin names.
const CONTROL: [&str; 3] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];
/// Size limit of an answer: one about sixteen GPUs has 12 kB.
const MAX_SIZE: usize = 4 << 20;

/// The plugin of another machine.
#[derive(Debug)]
pub(super) struct Remote<'a>(pub(super) &'a PluginHost);

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PluginInfo {
    #[serde(default)]
    version: Object<InfoVersion>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct InfoVersion {
    driver: String,
    #[serde(rename = "CUDA")]
    cuda: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CommandLine {
    volume_driver: String,
    volumes: Option<Vec<String>>,
    devices: Vec<String>,
}

impl Remote<'_> {
    /// Returns the driver's versions.
    pub(super) fn versions(&self) -> Result<DriverVersions> {
        let info: PluginInfo = self.get("/gpu/info/json")?;
        let InfoVersion { driver, cuda } = info.version.0;
        Ok(DriverVersions { driver, cuda })
    }

    /// Returns devices and volumes for these ids and names of volumes.
    pub(super) fn classic(&self, ids: &[&str], volumes: &[String]) -> Result<Classic> {
        let volumes: Vec<&str> = volumes.iter().map(String::as_str).collect();
        let path = format!(
            "/docker/cli/json?vol={}&dev={}",
            query(&volumes),
            query(ids)
        );
        vetted(self.get(&path)?, ids)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let failed = |error: Error| error.context(format!("Get \"http://plugin{path}\""));
        let answer = match self.0 {
            PluginHost::Http { host, port } => over_tcp(host, *port, path),
            PluginHost::Ssh {
                user,
                host,
                ssh_port,
                port,
            } => over_ssh(user.as_deref(), host, *ssh_port, *port, path),
            PluginHost::Here => Err(Error::new(ErrorKind::InvalidArgument, "no remote host")),
        };
        let body = answer.and_then(|answer| body(&answer)).map_err(failed)?;
        self::answer(&body).map_err(|error| {
            failed(
                Error::new(
                    ErrorKind::Malformed,
                    format!("the answer is not the plugin's: {error}"),
                )
                .hint("does nvidia-docker-plugin listen there?"),
            )
        })
    }
}

/// Parses an answer, which is an object.
fn answer<T: DeserializeOwned>(body: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(body).map(|Object(answer)| answer)
}

/// Joins names for a query by the separator that the plugin decodes as spaces.
fn query(names: &[&str]) -> String {
    let one = |name: &&str| -> String {
        let byte = |b: u8| match b {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' | b'~' => {
                char::from(b).to_string()
            }
            b => format!("%{b:02X}"),
        };
        name.bytes().map(byte).collect()
    };
    names.iter().map(one).collect::<Vec<_>>().join("+")
}

/// Filters the plugin's answer for GPUs that were requested by these ids; all of them if there are none.
///
/// # Errors
/// `the plugin at the remote host asks for …, which is refused`.
fn vetted(line: CommandLine, ids: &[&str]) -> Result<Classic> {
    let refused = |what: &str| {
        Error::new(ErrorKind::Malformed, format!(
            "the plugin at the remote host asks for {}, which is refused",
            shortened(what)
        ))
        .hint("only the driver's control nodes, its volume, and the GPUs that NV_GPU names are accepted")
    };
    if line.volume_driver != VOLUME_DRIVER {
        return Err(refused(&format!("--volume-driver={}", line.volume_driver)));
    }
    if let Some(bad) = line.devices.iter().find(|path| !is_device(path)) {
        return Err(refused(&format!("--device={bad}")));
    }
    let gpus = line.devices.iter().filter(|path| is_gpu(path));
    let gpus: HashSet<&String> = gpus.collect();
    let most = match ids.iter().collect::<HashSet<_>>().len() {
        0 => MAX_NAMES,
        asked => asked,
    };
    if gpus.len() > most {
        let gpus = gpus.len();
        return Err(refused(&format!("{gpus} GPUs instead of {most}")));
    }
    let volumes = line.volumes.unwrap_or_default();
    let version = |bind: &String| {
        bind.strip_suffix(&format!(":{MOUNT_POINT}:ro"))
            .and_then(|name| driver_volume::version(name).ok())
            .filter(|version| driver_volume::is_version(version))
            .map(str::to_owned)
            .ok_or_else(|| refused(&format!("--volume={bind}")))
    };
    Ok(Classic {
        volumes: volumes.iter().map(version).collect::<Result<_>>()?,
        devices: line.devices,
    })
}

/// Returns true if a path is a node that a plugin may name. Directories are refused: docker would add all nodes in
/// them.
fn is_device(path: &str) -> bool {
    CONTROL.contains(&path) || is_gpu(path)
}

/// Returns true if a path is the node of a GPU.
fn is_gpu(path: &str) -> bool {
    let minor = path.strip_prefix("/dev/nvidia").unwrap_or_default();
    numbers::canonical(minor).is_some()
}

fn request(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.0\r\nHost: localhost\r\nUser-Agent: nvidia-docker\r\nConnection: close\r\n\r\n"
    )
}

fn over_tcp(host: &str, port: u16, path: &str) -> Result<Vec<u8>> {
    let end = Instant::now() + TIMEOUT;
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let place = |what: &str, error: &std::io::Error| {
        Error::new(ErrorKind::System, format!("{what} {host}:{port}: {error}"))
            .hint("is nvidia-docker-plugin running there, and does it listen on that address (-l)?")
    };
    let addresses = (name, port)
        .to_socket_addrs()
        .map_err(|error| place("look up", &error))?;
    let mut refusal = None;
    for address in addresses {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(mut stream) => {
                let written = stream.write_all(request(path).as_bytes());
                written.map_err(|error| place("write to", &error))?;
                return read_until(&mut stream, end).map_err(|error| place("read from", &error));
            }
            Err(error) => refusal = Some(place(&format!("dial {address}, for"), &error)),
        }
    }
    Err(refusal.unwrap_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("{host}:{port} has no address"))
    }))
}

/// Uses the machine's own ssh, which has the hosts and keys and asks for passwords.
fn over_ssh(
    user: Option<&str>,
    host: &str,
    ssh_port: u16,
    port: u16,
    path: &str,
) -> Result<Vec<u8>> {
    let mut command = Command::new("ssh");
    if let Some(user) = user {
        command.args(["-l", user]);
    }
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let mut child = command
        .args(["-p", &ssh_port.to_string()])
        .args(["-W", &format!("localhost:{port}"), "--", name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| {
            Error::new(ErrorKind::System, format!("ssh: {error}"))
                .hint("is an ssh client installed?")
        })?;
    let answer = exchange(&mut child, path);
    // It may have ended by itself, with its own message on standard error.
    let _ = child.kill();
    let status = child.wait().map(|status| status.to_string());
    match answer {
        Ok(answer) if !answer.is_empty() => Ok(answer),
        Ok(_) => {
            Err(Error::new(ErrorKind::System, "ssh: no answer").hint(status.unwrap_or_default()))
        }
        Err(error) => Err(Error::new(ErrorKind::System, format!("ssh: {error}"))),
    }
}

/// Waits as long as ssh does, because the user may have to type a password.
fn exchange(child: &mut Child, path: &str) -> std::io::Result<Vec<u8>> {
    if let Some(stdin) = &mut child.stdin {
        stdin.write_all(request(path).as_bytes())?;
    }
    let mut answer = Vec::new();
    if let Some(stdout) = &mut child.stdout {
        stdout.take(MAX_SIZE as u64).read_to_end(&mut answer)?;
    }
    Ok(answer)
}

fn read_until(stream: &mut TcpStream, end: Instant) -> std::io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(answer),
            Ok(length) => answer.extend(buffer.iter().take(length)),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if answer.len() > MAX_SIZE {
            return Err(std::io::Error::other("the answer is too long"));
        }
        if is_whole(&answer) {
            return Ok(answer);
        }
    }
}

/// Passes an answer to the parsers, for fuzzing.
pub(super) fn parse(bytes: &[u8]) {
    let _ = is_whole(bytes);
    let body = body(bytes);
    for body in [body.as_deref().unwrap_or(bytes), bytes] {
        let line =
            answer(body).map_err(|error| Error::new(ErrorKind::Malformed, error.to_string()));
        if let Ok(classic) = line.and_then(|line| vetted(line, &["0"])) {
            let gpus = classic.devices.iter().filter(|path| is_gpu(path));
            assert!(gpus.collect::<HashSet<_>>().len() <= 1);
            assert!(classic.devices.iter().all(|path| is_device(path)));
            assert!(classic.volumes.iter().all(|v| driver_volume::is_version(v)));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn line(driver: &str, volume: &str, device: &str) -> CommandLine {
        CommandLine {
            volume_driver: driver.into(),
            volumes: Some(vec![volume.into()]),
            devices: vec!["/dev/nvidiactl".into(), device.into()],
        }
    }

    const VOLUME: &str = "nvidia_driver_375.66:/usr/local/nvidia:ro";

    #[test]
    fn answers_are_objects() {
        let line = br#"{"VolumeDriver": "d", "Volumes": null, "Devices": [], "New": 1}"#;
        assert_eq!(answer::<CommandLine>(line).unwrap().volume_driver, "d");
        assert!(answer::<CommandLine>(br#"["d", null, []]"#).is_err());
        let info = answer::<PluginInfo>(br#"{"Version": {"Driver": "1"}}"#);
        assert_eq!(info.unwrap().version.0.driver, "1");
        assert!(answer::<PluginInfo>(br#"{"Version": ["1", "2"]}"#).is_err());
    }

    #[test]
    fn known_arguments_are_accepted() {
        let of = |device: &str| vetted(line("nvidia-docker", VOLUME, device), &["0"]);
        let classic = of("/dev/nvidia15").unwrap();
        assert_eq!(classic.volumes, ["375.66"]);
        assert_eq!(classic.devices, ["/dev/nvidiactl", "/dev/nvidia15"]);
        for control in CONTROL {
            assert!(of(control).is_ok(), "{control}");
        }
    }

    /// Nothing protects the answer on its way.
    #[test]
    fn gpus_are_those_that_were_asked_for() {
        let of = |gpus: &[u32], ids: &[&str]| {
            let mut line = line("nvidia-docker", VOLUME, "/dev/nvidia-uvm");
            let gpus = gpus.iter().map(|gpu| format!("/dev/nvidia{gpu}"));
            line.devices.extend(gpus);
            vetted(line, ids).map_err(|failure| failure.message())
        };
        for (gpus, ids) in [
            (&[0, 1, 2][..], &[][..]),
            (&[7], &["0"]),
            (&[7, 7], &["0"]),
            (&[], &["0"]),
            (&[1, 0], &["0", "GPU-8"]),
        ] {
            assert!(of(gpus, ids).is_ok(), "{gpus:?} {ids:?}");
        }
        let expected =
            "the plugin at the remote host asks for 2 GPUs instead of 1, which is refused";
        for ids in [&["0"][..], &["0", "0"]] {
            assert_eq!(of(&[0, 1], ids).unwrap_err(), expected);
        }
        let all: Vec<u32> = (0..2000).collect();
        assert!(of(&all, &[]).is_err());
    }

    #[test]
    fn other_arguments_are_rejected() {
        for (driver, volume, device) in [
            ("local", VOLUME, "/dev/nvidia0"),
            ("nvidia-docker", "/:/usr/local/nvidia:ro", "/dev/nvidia0"),
            ("nvidia-docker", "nvidia_driver_375.66:/:ro", "/dev/nvidia0"),
            (
                "nvidia-docker",
                "nvidia_driver_375.66:/usr/local/nvidia",
                "/dev/nvidia0",
            ),
            (
                "nvidia-docker",
                "nvidia_driver_..:/usr/local/nvidia:ro",
                "/dev/nvidia0",
            ),
            ("nvidia-docker", VOLUME, "/dev/sda"),
            ("nvidia-docker", VOLUME, "/dev/nvidia0:/dev/x:rwm"),
            ("nvidia-docker", VOLUME, "/dev/nvidia/../sda"),
            ("nvidia-docker", VOLUME, "/dev/nvidia0 --privileged"),
            ("nvidia-docker", VOLUME, "/dev/nvidia-caps"),
            ("nvidia-docker", VOLUME, "/dev/nvidia-caps/nvidia-cap1"),
            ("nvidia-docker", VOLUME, "/dev/nvidia-caps-imex-channels"),
            ("nvidia-docker", VOLUME, "/dev/nvidia-fs0"),
            ("nvidia-docker", VOLUME, "/dev/nvidia-modeset"),
            ("nvidia-docker", VOLUME, "/dev/nvidia"),
            ("nvidia-docker", VOLUME, "/dev/nvidia00"),
            ("nvidia-docker", VOLUME, "/dev"),
        ] {
            let failure = vetted(line(driver, volume, device), &[]).unwrap_err();
            assert!(failure.message().ends_with("which is refused"), "{failure}");
        }
    }

    #[test]
    fn queries_are_escaped() {
        assert_eq!(query(&[]), "");
        assert_eq!(query(&["1", "0"]), "1+0");
        assert_eq!(
            query(&["GPU-83", "a b&c=d/é"]),
            "GPU-83+a%20b%26c%3Dd%2F%C3%A9"
        );
    }
}
