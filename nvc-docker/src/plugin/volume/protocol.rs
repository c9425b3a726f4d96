//! Implements docker's volume plugin protocol.

use std::sync::Arc;

use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use libnvc::printable;
use libnvc::{Error, ErrorKind, Result};
use nvc_program::json::Object;
use serde::Deserialize;
use serde_json::{Value, json};

use super::keeper::{Keeper, Outcome, StoreRequest};
use crate::driver_volume;
use crate::log_line::{log_error, log_text};
use crate::plugin::gpus::Gpus;
use crate::plugin::rest::{Answer, INTERNAL_ERROR, NOT_FOUND_TEXT, TEXT, json as line, of_type};

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
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct VolumeRequest {
    name: String,
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
        match self.answered(path, body).await {
            Ok(text) => of_type(StatusCode::OK, KIND, text),
            Err(failure) => {
                log_error(&failure);
                of_type(StatusCode::INTERNAL_SERVER_ERROR, TEXT, INTERNAL_ERROR)
            }
        }
    }

    async fn answered(&self, path: &str, body: &[u8]) -> Result<String> {
        let call = match path {
            "/Plugin.Activate" => {
                log_text("Received activate request");
                log_text("Plugins activated [VolumeDriver]");
                return Ok(line(&json!({ "Implements": ["VolumeDriver"] })));
            }
            path => path.strip_prefix("/VolumeDriver.").unwrap_or_default(),
        };
        match call {
            "Capabilities" => {
                return Ok(line(&json!({ "Capabilities": { "Scope": "local" } })));
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
            Err(why) => VolumeReply::Refusal(format!("{why}: {}", request.name)),
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
        Ok(line(&match call {
            "Create" | "Remove" | "Unmount" => json!({ "Err": err }),
            "Get" => {
                let volume = mountpoint.map(|mountpoint| volume(&request.name, &mountpoint));
                json!({ "Volume": volume, "Err": err })
            }
            _ => json!({ "Mountpoint": mountpoint, "Err": err }),
        }))
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
                StoreRequest::Mount(version)
            }
            // A start that has been told the path may not have used it yet.
            "Unmount" => return Ok(VolumeReply::Path(None)),
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
        let volumes = versions.iter();
        let volumes = volumes.map(|(version, place)| volume(&driver_volume::name(version), place));
        let volumes: Vec<_> = volumes.collect();
        let volumes = Some(volumes).filter(|volumes| !volumes.is_empty());
        Ok(line(&json!({ "Volumes": volumes, "Err": null })))
    }
}

fn volume(name: &str, mountpoint: &str) -> Value {
    json!({ "Name": name, "Mountpoint": mountpoint })
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
    /// Parses a body.
    ///
    /// # Errors
    /// If it is not an object with strings.
    pub(super) fn read(body: &[u8]) -> Result<Self> {
        let request = serde_json::from_slice(body).map(|Object(request)| request);
        request.map_err(|error| {
            let text = format!("malformed request: {error}");
            Error::new(ErrorKind::InvalidArgument, text)
        })
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
            (r#"{"Name":"x","ID":"i","Opts":{"a":"b"}}"#, Some("x")),
            ("{}", Some("")),
            ("", None),
            ("garbage", None),
            (r#"{"Name":"x"}garbage"#, None),
            (r#"{"Name":3}"#, None),
            ("[]", None),
            ("\"x\"", None),
            (r#"{"Name":"x""#, None),
        ] {
            let read = VolumeRequest::read(body.as_bytes());
            assert_eq!(read.ok().map(|r| r.name).as_deref(), name, "{body}");
        }
    }
}
