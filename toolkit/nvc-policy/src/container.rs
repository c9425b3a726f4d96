//! Extracts from config.json the members that decide about GPUs: environment, mounts, annotations, privilege; and the
//! root.

use std::fmt;

use libnvc::request::ProcessUser;
use nvc_oci::lenient::{self, as_texts, list, malformed, member, mismatch, object, text, texts};
use serde_json::{Map, Value};

use crate::image::privilege::{self, LinuxCapabilities};
use crate::image::{self, Environment, Mount};

/// The relevant content of a container's config.json.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// `ociVersion`; empty if absent.
    pub version: String,
    /// `root.path`; None if there is no `root`.
    pub root: Option<String>,
    /// True if there is a `process`.
    pub has_process: bool,
    /// `process.env`, unparsed.
    pub environment: Vec<String>,
    /// `mounts`.
    pub mounts: Vec<Mount>,
    /// `annotations`.
    pub annotations: Vec<(String, String)>,
    /// True if the process is privileged.
    pub privileged: bool,
    /// `process.user`, unless it is root.
    pub user: Option<ProcessUser>,
}

/// The reason why config.json is invalid.
#[derive(Clone, Debug)]
pub enum Error {
    /// It is not JSON, or a member has the wrong type.
    Decode(libnvc::Error),
    /// The capabilities do not have the form of the file's version.
    Capabilities(libnvc::Error),
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decode(error) => out.write_str(&error.message()),
            Self::Capabilities(error) => write!(out, "process.capabilities: {}", error.message()),
        }
    }
}

impl From<libnvc::Error> for Error {
    fn from(error: libnvc::Error) -> Self {
        Self::Decode(error)
    }
}

/// Parses config.json.
///
/// # Errors
/// The value is not an object, or a relevant member has the wrong type.
pub fn facts(value: &Value) -> Result<Facts, Error> {
    let spec = match value {
        Value::Object(spec) => spec,
        Value::Null => return Ok(Facts::default()),
        _ => return Err(malformed("expected an object").into()),
    };
    let version = text(spec, "ociVersion")?.to_owned();
    let process = object(spec, "process")?;
    let root = object(spec, "root")?;
    let mut facts = Facts {
        root: root
            .map(|root| text(root, "path").map(str::to_owned))
            .transpose()?,
        has_process: process.is_some(),
        mounts: list(spec, "mounts")?
            .iter()
            .map(mount)
            .collect::<Result<_, _>>()?,
        annotations: annotations(spec)?,
        ..Facts::default()
    };
    if let Some(process) = process {
        let entries = texts(process, "env")?;
        facts.environment = entries.into_iter().map(str::to_owned).collect();
        let capabilities = capabilities(process, &version).map_err(Error::Capabilities)?;
        facts.privileged = privilege::is_privileged(&capabilities);
        facts.user = user(process);
    }
    facts.version = version;
    Ok(facts)
}

impl Facts {
    /// Returns the input for the decision about GPUs.
    ///
    /// # Errors
    /// An entry of the environment is not a variable.
    pub fn container(self) -> Result<image::Container, image::Error> {
        Ok(image::Container {
            environment: Environment::new(self.environment)?,
            mounts: self.mounts,
            annotations: self.annotations,
            privileged: self.privileged,
        })
    }
}

/// The image can name any number of groups: what does not fit on a command line is left out.
const MAX_GROUPS: usize = 1024;

/// Returns the user, if it is not root and has the form that the runtime will demand.
fn user(process: &Map<String, Value>) -> Option<ProcessUser> {
    let user = object(process, "user").ok()??;
    let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
    let more = list(user, "additionalGids").ok()?;
    let gid = member(user, "gid").map_or(Some(0), id);
    let groups = std::iter::once(gid).chain(more.iter().take(MAX_GROUPS).map(id));
    let found = ProcessUser {
        uid: member(user, "uid").and_then(id)?,
        groups: groups.collect::<Option<_>>()?,
    };
    (found.uid != 0).then_some(found)
}

fn mount(value: &Value) -> libnvc::Result<Mount> {
    let mount = match value {
        Value::Object(mount) => mount,
        Value::Null => return Ok(Mount::default()),
        _ => return Err(mismatch("mounts", "a list of objects")),
    };
    Ok(Mount {
        source: text(mount, "source")?.to_owned(),
        destination: text(mount, "destination")?.to_owned(),
    })
}

fn annotations(spec: &Map<String, Value>) -> libnvc::Result<Vec<(String, String)>> {
    let Some(annotations) = object(spec, "annotations")? else {
        return Ok(Vec::new());
    };
    annotations
        .iter()
        .map(|(key, value)| {
            let text = match value {
                Value::Null => Some(""),
                value => value.as_str(),
            };
            let text = text.ok_or_else(|| mismatch("annotations", "an object of strings"))?;
            Ok((key.clone(), text.to_owned()))
        })
        .collect()
}

fn capabilities(process: &Map<String, Value>, version: &str) -> libnvc::Result<LinuxCapabilities> {
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    let flat = privilege::has_flat_capabilities(version);
    match (member(process, "capabilities"), flat) {
        (None, _) => Ok(LinuxCapabilities::Bounding(Vec::new())),
        (Some(Value::Array(names)), true) => {
            as_texts(names, "list").map(|names| LinuxCapabilities::Flat(owned(names)))
        }
        (Some(Value::Object(sets)), false) => {
            for name in ["effective", "inheritable", "permitted", "ambient"] {
                lenient::texts(sets, name)?;
            }
            texts(sets, "bounding").map(|names| LinuxCapabilities::Bounding(owned(names)))
        }
        (Some(_), true) => Err(malformed(format!(
            "expected a list of strings in version {version}"
        ))),
        (Some(_), false) => Err(malformed(format!(
            "expected an object in version \"{version}\""
        ))),
    }
}
