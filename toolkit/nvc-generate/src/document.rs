//! Generates the CDI specifications of this machine that nvidia-ctk writes.

use libnvc::plan::{DriverProc, Intent, ProcDevices, What};
use libnvc::request::{DeviceRequest, Placement, Request};
use libnvc::{Error, ErrorKind, Result};
use nvc_cdi::{Device, Edits, Spec, version};
use nvc_program::hook_names;

use crate::content::{self, Content, FoundDevice, VOID};
use crate::render::of_specification;
use crate::simplify::{self, simplified, without};
use crate::{Files, Mode, Options, driver, ids, live, modes};

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
    let find = &options.find;
    let request = Request {
        devices: DeviceRequest {
            ids: ids::ids(&find.ids)?,
            ..DeviceRequest::default()
        },
        ..driver::request(Placement::AsHost)
    };
    let mut found = modes::find(find, &request)?;
    if let Some(host) = &found.host {
        found.warnings.extend(host.driver.missing_manifests());
        found.warnings.extend(host.driver.found_by_path());
    }
    let make = |class: &str, devices: &[FoundDevice]| spec(options, class, devices, &found);
    let class = &options.names.class;
    let mut parts = Vec::new();
    for (part, devices) in &found.parts {
        parts.push((*part, make(&format!("{class}.{part}"), devices)?));
    }
    let spec = make(class, &found.devices)?;
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
    found_devices: &[FoundDevice],
    found: &Content,
) -> Result<Spec> {
    let (find, names, rendering) = (&options.find, &options.names, &options.rendering);
    let search = match find.files {
        Files::AtStart => live::words(find, &rendering.hooks),
        Files::Listed | Files::Omitted => Vec::new(),
    };
    let mut common = found.common.clone();
    // Managers may create nodes, unless the caller wants that hook.
    let params = hook_names::DISABLE_NODE_MODIFICATION;
    if find.mode == Mode::Management && rendering.hooks.enabled.contains(params) {
        common.push(Intent::required(What::DriverProc(DriverProc {
            no_new_nodes: true,
            devices: ProcDevices::All,
        })));
    }
    let mut common = of_specification(&common, &search, rendering)?;
    common.env.push(VOID.into());
    let common = simplified(common);
    let edits = |intents: &[_]| -> Result<Edits> {
        let edits = of_specification(intents, &[], rendering)?;
        Ok(without(simplified(edits), &common))
    };
    let mut devices = Vec::new();
    for device in found_devices {
        let edits = edits(&device.intents)?;
        let names = device.name.by(&names.naming).into_iter();
        devices.extend(names.map(|name| simplify::device(name, edits.clone())));
    }
    if devices.is_empty() && !found_devices.is_empty() {
        let text = "the GPU of a Jetson has no UUID: name it by index";
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let wants_all = !names.no_all && !find.ids.iter().any(|id| id.eq_ignore_ascii_case("none"));
    if wants_all && devices.iter().all(|device| device.name != "all") {
        let mut all = found_devices.iter().flat_map(|device| &device.intents);
        let mut all: Vec<_> = all.by_ref().cloned().collect();
        // One hook makes the links of all devices.
        all.sort_by_key(|intent| matches!(intent.what, What::Link(_) | What::Alias(_)));
        devices.push(simplify::device("all".into(), edits(&all)?));
    }
    devices.sort_by(|one, other| one.name.cmp(&other.name));
    let summary = |device: &Device| (device.name.clone(), device.container_edits.is_empty());
    let summary: Vec<(String, bool)> = devices.iter().map(summary).collect();
    let summary = summary.iter().map(|(name, empty)| (name.as_str(), *empty));
    content::check(summary, &found.warnings, find.mode)?;
    let mut spec = Spec {
        kind: format!("{}/{class}", names.vendor),
        devices,
        container_edits: common,
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
