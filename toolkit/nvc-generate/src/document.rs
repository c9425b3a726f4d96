//! Generates the CDI specifications of this machine that nvidia-ctk writes.

use libnvc::request::{DeviceRequest, Request};
use libnvc::{Error, ErrorKind, Result};
use nvc_cdi::{Spec, version};

use crate::content::{self, Content, VOID};
use crate::draft::{self, DraftDevice};
use crate::{Options, driver, ids, modes, simplify};

/// The suffixes of additional specifications.
pub const PARTS: [&str; 2] = ["coherent", "noncoherent"];

/// Generated specifications.
#[derive(Debug)]
pub struct GeneratedSpecs {
    /// The main specification.
    pub spec: Spec,
    /// Additional ones for some of the devices: the suffix of the class and of the file's name, and the specification.
    pub parts: Vec<(&'static str, Spec)>,
    /// Warnings in order of occurrence.
    pub warnings: Vec<String>,
}

/// Generates the specification.
///
/// # Errors
/// The driver does not respond, part of a device is missing ([`ErrorKind::NotFound`] if there is no usable device at
/// all), or an option is unsuitable for the machine.
pub fn generate(options: &Options) -> Result<GeneratedSpecs> {
    let request = Request {
        devices: DeviceRequest {
            ids: ids::ids(&options.ids)?,
            ..DeviceRequest::default()
        },
        ..driver::request()
    };
    let mut found = modes::find(options, &request)?;
    if let Some(host) = &found.host {
        found.warnings.extend(host.driver.missing_manifests());
        found.warnings.extend(host.driver.found_by_path());
    }
    let make = |class: &str, devices: Vec<DraftDevice>| spec(options, class, devices, &found);
    let mut parts = Vec::new();
    for (part, devices) in &found.parts {
        let class = format!("{}.{part}", options.class);
        parts.push((*part, make(&class, devices.clone())?));
    }
    let spec = make(&options.class, found.devices.clone())?;
    Ok(GeneratedSpecs {
        spec,
        parts,
        warnings: found.warnings,
    })
}

/// Builds and validates a specification of some devices.
pub(crate) fn spec(
    options: &Options,
    class: &str,
    mut devices: Vec<DraftDevice>,
    found: &Content,
) -> Result<Spec> {
    let mut common = found.common.clone();
    common.add_variable(VOID);
    let none_chosen = options.ids.iter().any(|id| id == "none");
    simplify::simplify(&mut devices, &mut common, !options.no_all && !none_chosen);
    let drafts = devices.iter_mut().map(|device| &mut device.draft);
    for draft in drafts.chain([&mut common]) {
        if !options.gids {
            simplify::without_groups(draft);
        }
        if options.has_one_hook() {
            draft::merge(std::slice::from_mut(draft));
        }
    }
    content::check(&devices, &found.warnings)?;
    let program = &options.hooks.program;
    let devices = devices.into_iter().map(|device| device.render(program));
    let mut spec = Spec {
        kind: format!("{}/{class}", options.vendor),
        devices: devices.collect(),
        container_edits: common.render(program),
        ..Spec::default()
    };
    spec.cdi_version = version::minimum(&spec).0.into();
    nvc_cdi::validate::spec(&spec).map_err(|text| {
        Error::new(
            ErrorKind::Malformed,
            format!("the specification is not valid: {text}"),
        )
    })?;
    Ok(spec)
}
