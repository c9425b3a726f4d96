//! Implements docker's volume plugin protocol.

use std::sync::Arc;

use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use libnvc::printable;
use libnvc::{Error, ErrorKind, Result};
use serde::Serialize;
use serde_json::{Map, Value};

use super::keeper::{Keeper, Outcome, StoreRequest};
use crate::driver_volume::{self, BadName};
use crate::log_line::{log_error, log_text};
use crate::plugin::gpus::Gpus;
use crate::plugin::rest::{Answer, INTERNAL_ERROR, NOT_FOUND_TEXT, TEXT, json, of_type};

/// The outcome of a call, as docker gets it.
enum VolumeReply {
    /// Success; the volume's path, if the call returns one.
    Path(Option<String>),
    /// The reason why the request is refused.
    Refusal(String),
}

/// Content types of which docker must accept one.
const ACCEPTED: [&str; 2] = [
    "application/vnd.docker.plugins.v1.1+json",
    "application/vnd.docker.plugins.v1.2+json",
];

/// Content type of all answers of the protocol.
const KIND: &str = "application/vnd.docker.plugins.v1+json";

/// The volume plugin.
#[derive(Debug)]
pub(crate) struct Volumes {
    keeper: Keeper,
    gpus: Arc<Gpus>,
}

/// A request that names a volume.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct VolumeRequest {
    name: String,
    /// The user of a mount; docker generates one per container.
    id: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ActivateResponse {
    implements: [&'static str; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct CapabilitiesResponse {
    capabilities: Scope,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Scope {
    scope: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ErrorResponse {
    err: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct MountResponse {
    mountpoint: Option<String>,
    err: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct GetResponse {
    volume: Option<Volume>,
    err: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ListResponse {
    volumes: Option<Vec<Volume>>,
    err: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Volume {
    name: String,
    mountpoint: String,
}

impl Volumes {
    /// Serves a keeper's volumes; the driver's version comes from the GPUs.
    pub(crate) fn new(keeper: Keeper, gpus: Arc<Gpus>) -> Self {
        Self { keeper, gpus }
    }

    /// Returns the rejection of a request that can be rejected without its body.
    pub(crate) fn refusal(request: &Parts) -> Option<Answer> {
        let accepts = request.headers.get(ACCEPT).map(HeaderValue::as_bytes);
        if !ACCEPTED.iter().any(|kind| accepts == Some(kind.as_bytes())) {
            let shown = String::from_utf8_lossy(accepts.unwrap_or_default()).into_owned();
            log_text(&format!("Unsupported plugin API {shown}"));
            let mut answer = of_type(StatusCode::NOT_ACCEPTABLE, TEXT, "");
            answer.headers_mut().remove(CONTENT_TYPE);
            return Some(answer);
        }
        (request.method != Method::POST || !is_endpoint(request.uri.path()))
            .then(|| of_type(StatusCode::NOT_FOUND, TEXT, NOT_FOUND_TEXT))
    }

    pub(crate) async fn answer(&self, path: &str, body: &[u8]) -> Answer {
        match self.line(path, body).await {
            Ok(line) => of_type(StatusCode::OK, KIND, line),
            Err(failure) => {
                log_error(&failure);
                of_type(StatusCode::INTERNAL_SERVER_ERROR, TEXT, INTERNAL_ERROR)
            }
        }
    }

    async fn line(&self, path: &str, body: &[u8]) -> Result<String> {
        let call = match path {
            "/Plugin.Activate" => {
                log_text("Received activate request");
                log_text("Plugins activated [VolumeDriver]");
                return Ok(json(&ActivateResponse {
                    implements: ["VolumeDriver"],
                }));
            }
            path => path.strip_prefix("/VolumeDriver.").unwrap_or_default(),
        };
        match call {
            "Capabilities" => {
                return Ok(json(&CapabilitiesResponse {
                    capabilities: Scope { scope: "local" },
                }));
            }
            "List" => return self.list().await,
            _ => {}
        }
        let request = VolumeRequest::read(body)?;
        let kind = match call {
            "Path" => "mount".to_owned(),
            call => call.to_lowercase(),
        };
        if call != "Get" {
            log_text(&format!(
                "Received {kind} request for volume '{}'",
                request.name
            ));
        }
        let outcome = match driver_volume::version(&request.name) {
            Ok(version) => self.carry_out(call, version, &request).await?,
            Err(BadName::Format) => {
                VolumeReply::Refusal(format!("bad volume format: {}", request.name))
            }
            Err(BadName::Unsupported) => {
                VolumeReply::Refusal(format!("unsupported volume: {}", request.name))
            }
        };
        let (mountpoint, err) = match outcome {
            VolumeReply::Path(path) => (path, None),
            VolumeReply::Refusal(text) => {
                // In the log too, because docker shows it only to the user. It asks every plugin for every volume.
                if call != "Get" {
                    log_text(&format!("{kind}: {text}"));
                }
                (None, Some(printable(&text).into_owned()))
            }
        };
        Ok(match call {
            "Create" | "Remove" | "Unmount" => json(&ErrorResponse { err }),
            "Get" => json(&GetResponse {
                volume: mountpoint.map(|mountpoint| Volume {
                    name: request.name,
                    mountpoint,
                }),
                err,
            }),
            _ => json(&MountResponse { mountpoint, err }),
        })
    }

    /// Carries out a call; an error is a failure of this machine.
    async fn carry_out(
        &self,
        call: &str,
        version: &str,
        request: &VolumeRequest,
    ) -> Result<VolumeReply> {
        let name = &request.name;
        let missing = || VolumeReply::Refusal(format!("no such volume: {name}"));
        // Digits and dots that are not a version: no volume has that name.
        if !driver_volume::is_version(version) {
            return Ok(match call {
                "Create" => VolumeReply::Refusal(format!("invalid volume version: {name}")),
                "Remove" | "Unmount" => VolumeReply::Path(None),
                _ => missing(),
            });
        }
        let version = version.to_owned();
        let wanted = match call {
            "Create" => {
                let running = self.running_driver().await?;
                if version != running {
                    return Ok(VolumeReply::Refusal(format!(
                        "invalid volume version: {name}"
                    )));
                }
                StoreRequest::Create(version)
            }
            "Remove" => StoreRequest::Remove(version),
            "Mount" => {
                let Outcome::Path(Some(_)) = self
                    .keeper
                    .carry_out(StoreRequest::Find(version.clone()))
                    .await?
                else {
                    return Ok(missing());
                };
                let running = self.running_driver().await?;
                if version != running {
                    return Ok(VolumeReply::Refusal(format!(
                        "{name}: the driver is {running} now; create the container again, so that it gets that driver's volume"
                    )));
                }
                StoreRequest::Mount(version, request.id.clone())
            }
            "Unmount" => StoreRequest::Unmount(version, request.id.clone()),
            _ => StoreRequest::Find(version),
        };
        Ok(match self.keeper.carry_out(wanted).await? {
            Outcome::Path(None) => missing(),
            Outcome::Path(path) => VolumeReply::Path(path),
            Outcome::Done | Outcome::Versions(_) => VolumeReply::Path(None),
        })
    }

    async fn running_driver(&self) -> Result<String> {
        Ok(self.gpus.facts().await?.versions.driver?)
    }

    async fn list(&self) -> Result<String> {
        let versions = match self.keeper.carry_out(StoreRequest::List).await? {
            Outcome::Versions(versions) => versions,
            _ => Vec::new(),
        };
        let volumes: Vec<Volume> = versions
            .into_iter()
            .map(|(version, mountpoint)| Volume {
                name: driver_volume::name(&version),
                mountpoint,
            })
            .collect();
        Ok(json(&ListResponse {
            volumes: Some(volumes).filter(|volumes| !volumes.is_empty()),
            err: None,
        }))
    }
}

fn is_endpoint(path: &str) -> bool {
    path == "/Plugin.Activate"
        || path.strip_prefix("/VolumeDriver.").is_some_and(|call| {
            matches!(
                call,
                "Create"
                    | "Remove"
                    | "Mount"
                    | "Path"
                    | "Unmount"
                    | "Get"
                    | "List"
                    | "Capabilities"
            )
        })
}

impl VolumeRequest {
    /// Parses a body like Go: the first value counts, keys are case-insensitive, null counts as absent.
    ///
    /// # Errors
    /// If the body is not an object with strings.
    pub(super) fn read(body: &[u8]) -> Result<Self> {
        let text = String::from_utf8_lossy(body);
        let malformed = |why: String| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("malformed request: {why}"),
            )
        };
        let mut values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        let value = match values.next() {
            Some(value) => value.map_err(|error| malformed(error.to_string()))?,
            None => return Err(malformed("it is empty".into())),
        };
        let members = match value {
            Value::Null => Map::new(),
            Value::Object(members) => members,
            _ => return Err(malformed("it is not an object".into())),
        };
        let mut request = Self::default();
        for (key, value) in members {
            let place = if key.eq_ignore_ascii_case("name") {
                &mut request.name
            } else if key.eq_ignore_ascii_case("id") {
                // Upstream ignores it, whatever its type.
                if let Value::String(id) = value {
                    request.id = id;
                }
                continue;
            } else {
                continue;
            };
            match value {
                Value::Null => {}
                Value::String(text) => *place = text,
                _ => return Err(malformed("the name is not a string".into())),
            }
        }
        Ok(request)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn bodies() {
        for (body, name) in [
            (r#"{"Name":"x"}"#, Some("x")),
            (r#"{"name":"x","ID":3,"Opts":{"a":"b"}}"#, Some("x")),
            (r#"{"NAME":"x"} {"Name":"y"}"#, Some("x")),
            (r#"{"Name":"x"}garbage"#, Some("x")),
            (r#"{"Name":null}"#, Some("")),
            ("null", Some("")),
            ("{}", Some("")),
            ("", None),
            ("garbage", None),
            (r#"{"Name":3}"#, None),
            ("[]", None),
            ("\"x\"", None),
            (r#"{"Name":"x""#, None),
        ] {
            let read = VolumeRequest::read(body.as_bytes());
            assert_eq!(read.ok().map(|r| r.name).as_deref(), name, "{body}");
        }
        let read = VolumeRequest::read(b"{\"Name\":\"\xff\",\"ID\":\"i\"}").unwrap();
        assert_eq!((read.name.as_str(), read.id.as_str()), ("\u{fffd}", "i"));
    }
}
