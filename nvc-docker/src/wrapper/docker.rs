//! Calls docker: queries the client, the engine and an image, and finally executes it.
//!
//! Every call is prefixed with the words of NV_DOCKER and the global options of the command line, so the queried engine
//! is the one that will run the container.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::{Child, Command, Output, Stdio};

use libnvc::{Error, ErrorKind, Result};
use nvc_program::json::Object;
use serde::Deserialize;

/// How to call docker.
#[derive(Clone, Debug)]
pub(super) struct Docker {
    program: OsString,
    words: Vec<OsString>,
}

/// Properties of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Engine {
    /// Version of its API, or the client's if that is older.
    pub(super) api: (u32, u32),
    /// Names of its runtimes.
    pub(super) runtimes: Vec<String>,
    /// Names of the CDI devices it has found.
    pub(super) cdi_devices: Vec<String>,
    /// Its directories of CDI specifications; empty if it uses none.
    pub(super) cdi_directories: Vec<String>,
    /// The client's context, if it has contexts.
    pub(super) context: Option<String>,
}

/// An image's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Configuration {
    pub(super) labels: Option<BTreeMap<String, String>>,
    pub(super) env: Option<Vec<String>>,
}

/// A call of docker that runs. Dropping it ends it, because this process becomes docker, which would not reap it.
#[derive(Debug)]
pub(super) struct DockerCall(Option<Child>);

#[derive(Deserialize)]
struct Versions {
    #[serde(rename = "Client")]
    client: Option<Object<OneVersion>>,
    #[serde(rename = "Server")]
    server: Option<Object<OneVersion>>,
}

#[derive(Deserialize)]
struct OneVersion {
    #[serde(rename = "ApiVersion", alias = "APIVersion")]
    api: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EngineInfo {
    #[serde(rename = "Runtimes")]
    runtimes: Option<BTreeMap<String, serde_json::Value>>,
    #[serde(rename = "DiscoveredDevices")]
    devices: Option<Vec<Object<DiscoveredDevice>>>,
    #[serde(rename = "CDISpecDirs")]
    cdi_directories: Option<Vec<String>>,
    #[serde(rename = "ClientInfo")]
    client: Option<Object<ClientInfo>>,
}

#[derive(Deserialize)]
struct DiscoveredDevice {
    #[serde(rename = "Source", default)]
    source: String,
    #[serde(rename = "ID", default)]
    id: String,
}

#[derive(Deserialize)]
struct ClientInfo {
    #[serde(rename = "Context")]
    context: Option<String>,
}

#[derive(Deserialize)]
struct ImageDetails {
    #[serde(rename = "Config")]
    configuration: Option<Object<Configuration>>,
}

impl Docker {
    /// Uses docker as named by NV_DOCKER, with the global options of the command line.
    pub(super) fn new(nv_docker: &str, globals: &[OsString]) -> Self {
        let mut words = nv_docker.split_whitespace().map(OsString::from);
        let program = words.next().unwrap_or_else(|| "docker".into());
        Self {
            program,
            words: words.chain(globals.iter().cloned()).collect(),
        }
    }

    /// Returns docker's words followed by these.
    pub(super) fn line(&self, words: &[OsString]) -> Vec<OsString> {
        let program = std::iter::once(&self.program);
        program.chain(&self.words).chain(words).cloned().collect()
    }

    /// Starts a query; several can run in parallel.
    pub(super) fn ask(&self, words: &[&str]) -> Result<DockerCall> {
        Command::new(&self.program)
            .args(&self.words)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map(DockerCall::of)
            .map_err(|error| not_run(&self.program, &error))
    }

    /// Pulls an image, with its progress on standard error.
    pub(super) fn pull(&self, image: &str, platform: Option<&str>) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(&self.words).arg("pull");
        if let Some(platform) = platform {
            command.arg(format!("--platform={platform}"));
        }
        let child = command
            .arg(image)
            .stdin(Stdio::null())
            .stdout(std::io::stderr())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| not_run(&self.program, &error))?;
        DockerCall::of(child).answer().map(drop)
    }

    /// Executes docker; returns only on failure.
    pub(super) fn exec(&self, words: &[OsString]) -> Error {
        let words = self.words.iter().chain(words);
        let Err(error) = libnvc::execute(&self.program, words, None);
        not_run(&self.program, &error)
    }
}

impl DockerCall {
    fn of(child: Child) -> Self {
        Self(Some(child))
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// Docker's own message.
    pub(super) fn answer(mut self) -> Result<Vec<u8>> {
        let child = self.0.take().expect("only this function takes it");
        let Output {
            status,
            stdout,
            stderr,
        } = child.wait_with_output().map_err(|error| {
            Error::new(ErrorKind::System, "failed to run docker command").hint(error.to_string())
        })?;
        if status.success() {
            return Ok(stdout);
        }
        let text = String::from_utf8_lossy(&stderr);
        let lines = text.lines().map(str::trim);
        // A message of ours is one line.
        let text = lines.filter(|line| !line.is_empty());
        let text = text.collect::<Vec<_>>().join("; ");
        Err(match text.strip_prefix("Error: ").unwrap_or(&text) {
            "" => Error::new(ErrorKind::System, "failed to run docker command")
                .hint(status.to_string()),
            text => Error::new(ErrorKind::System, text),
        })
    }
}

impl Drop for DockerCall {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // Fails if it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn not_run(program: &OsString, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::System, "failed to run docker command")
        .hint(format!("{}: {error}", program.to_string_lossy()))
}

/// Parses an engine from `docker version` and `docker info` as JSON; without the latter it is an old one.
pub(super) fn engine(version: &[u8], info: Option<&[u8]>) -> Result<Engine> {
    let Object(versions): Object<Versions> = serde_json::from_slice(version).map_err(|error| {
        Error::new(ErrorKind::Malformed, "docker's version cannot be parsed")
            .hint(error.to_string())
    })?;
    let api = |one: Option<Object<OneVersion>>| one.and_then(|one| api_version(&one.0.api?));
    let (client, server) = (api(versions.client), api(versions.server));
    let Object(info): Object<EngineInfo> = info
        .and_then(|info| serde_json::from_slice(info).ok())
        .unwrap_or_default();
    let devices = info.devices.unwrap_or_default();
    Ok(Engine {
        api: match (client, server) {
            (Some(client), Some(server)) => client.min(server),
            (client, server) => server.or(client).unwrap_or_default(),
        },
        runtimes: info.runtimes.unwrap_or_default().into_keys().collect(),
        cdi_devices: devices
            .into_iter()
            .filter(|Object(device)| device.source == "cdi")
            .map(|Object(device)| device.id)
            .collect(),
        cdi_directories: info.cdi_directories.unwrap_or_default(),
        context: info.client.and_then(|client| client.0.context),
    })
}

/// Parses the configuration of the only image in an answer of `docker inspect`.
pub(super) fn configuration(inspected: &[u8]) -> Result<Configuration> {
    let images: Vec<Object<ImageDetails>> = serde_json::from_slice(inspected).map_err(|error| {
        Error::new(
            ErrorKind::Malformed,
            "docker's answer about the image cannot be parsed",
        )
        .hint(error.to_string())
    })?;
    let first = images.into_iter().next();
    Ok(first
        .and_then(|image| image.0.configuration)
        .unwrap_or_default()
        .0)
}

fn api_version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn engines() {
        let old = br#"{"Client":{"ApiVersion":"1.27"},"Server":{"ApiVersion":"1.41"}}"#;
        assert_eq!(engine(old, None).unwrap().api, (1, 27));
        let version = br#"{"Client":{"APIVersion":"1.50"},"Server":{"ApiVersion":"1.50"}}"#;
        let info = br#"{"Runtimes":{"runc":{},"nvidia":{"path":"x"}},"CDISpecDirs":["/etc/cdi"],
            "DiscoveredDevices":[{"Source":"cdi","ID":"nvidia.com/gpu=0"},{"Source":"x","ID":"y"}],
            "ClientInfo":{"Context":"default"}}"#;
        let engine = engine(version, Some(info)).unwrap();
        assert_eq!(engine.api, (1, 50));
        assert_eq!(engine.runtimes, ["nvidia", "runc"]);
        assert_eq!(engine.cdi_devices, ["nvidia.com/gpu=0"]);
        assert_eq!(engine.cdi_directories, ["/etc/cdi"]);
        assert_eq!(engine.context.as_deref(), Some("default"));
    }

    #[test]
    fn answers_that_are_odd() {
        assert!(engine(b"<html>", None).is_err());
        assert_eq!(engine(b"{}", Some(b"?")).unwrap(), Engine::default());
        let nulls = br#"{"Runtimes":null,"DiscoveredDevices":null,"CDISpecDirs":null}"#;
        assert_eq!(engine(b"{}", Some(nulls)).unwrap(), Engine::default());
        for text in [&b"x"[..], b"[[null]]", br#"[{"Config":[null,[]]}]"#] {
            assert!(configuration(text).is_err());
        }
        for text in [&b"[null,null]"[..], br#"{"Client":["1.50"]}"#] {
            assert!(engine(text, None).is_err());
        }
        for text in [
            &b"[]"[..],
            br#"[{"Config":null}]"#,
            br#"[{"Config":{"Labels":null}}]"#,
        ] {
            assert_eq!(configuration(text).unwrap(), Configuration::default());
        }
    }

    #[test]
    fn words_of_nv_docker() {
        let docker = Docker::new(" sudo\tdocker  --tls ", &["-D".into()]);
        let line = docker.line(&["ps".into()]);
        assert_eq!(line, ["sudo", "docker", "--tls", "-D", "ps"]);
        assert_eq!(Docker::new(" ", &[]).line(&[]), ["docker"]);
    }
}
