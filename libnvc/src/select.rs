//! Chooses devices: finds those that `--device`, `--mig-config` and `--mig-monitor` name, and reads `--imex-channel`.
//!
//! The grammar is upstream's, quirks included, since schedulers and scripts pass whatever once worked: partial PCI
//! addresses, trailing garbage after a MIG index. In addition, a UUID prefix is a name if it is unambiguous, as in
//! NVIDIA's guides. A GPU that could not be read is an error only if it is requested by name.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::device_name::{DeviceName, MIN_UUID_START, decimal, has_prefix};
use crate::error::{Error, ErrorKind, Phase, Result};
use crate::host::{DeviceInfo, FailedGpu, Gpu, MigDevice};
use crate::request::DeviceRequest;

/// Number of IMEX channels: they are minor numbers, and Linux has this many.
const IMEX_CHANNELS: u32 = 1 << 20;

/// Longest list of devices in a hint, in characters.
const LISTED: usize = 100;

/// Most UUIDs in an error.
const MAX_UUIDS: usize = 24;

/// Chosen devices without duplicates, in the order of the request.
#[derive(Clone, Debug, Default)]
pub struct Selection<'a> {
    /// GPUs, including the parents of MIG devices.
    pub gpus: Vec<&'a Gpu>,
    /// Those GPUs that were requested themselves.
    pub whole: Vec<&'a Gpu>,
    /// MIG devices, each with its GPU.
    pub migs: Vec<(&'a Gpu, &'a MigDevice)>,
    /// True if `all` was requested, rather than devices that happen to be all.
    pub all: bool,
}

impl<'a> Selection<'a> {
    fn add_gpu(&mut self, gpu: &'a Gpu) {
        add(&mut self.gpus, gpu);
        add(&mut self.whole, gpu);
    }

    fn add_mig(&mut self, gpu: &'a Gpu, mig: &'a MigDevice) {
        add(&mut self.gpus, gpu);
        if !self.migs.iter().any(|(_, known)| std::ptr::eq(*known, mig)) {
            self.migs.push((gpu, mig));
        }
    }

    fn add_all(&mut self, gpus: &'a [Gpu]) {
        for gpu in gpus {
            self.add_gpu(gpu);
            for mig in &gpu.mig_devices {
                self.add_mig(gpu, mig);
            }
        }
        self.all = true;
    }
}

fn add<'a>(gpus: &mut Vec<&'a Gpu>, gpu: &'a Gpu) {
    if !gpus.iter().any(|known| std::ptr::eq(*known, gpu)) {
        gpus.push(gpu);
    }
}

/// One of the two global MIG capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MigCapability {
    /// Configuring the partitions.
    Config,
    /// Monitoring all instances.
    Monitor,
}

impl MigCapability {
    /// Returns the name of the capability's file and of the option.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Monitor => "monitor",
        }
    }
}

/// The GPUs for which a global MIG capability is requested.
#[derive(Clone, Debug, Default)]
pub struct MigSelection<'a> {
    /// True if it was requested; the files of single MIG devices are then omitted, even if no GPU supports MIG.
    pub all: bool,
    /// The selected GPUs that support MIG.
    pub gpus: Vec<&'a Gpu>,
}

/// All devices that a request names.
#[derive(Clone, Debug, Default)]
pub struct Choice<'a> {
    /// GPUs and MIG devices.
    pub selection: Selection<'a>,
    /// GPUs whose MIG configuration may be changed.
    pub mig_config: MigSelection<'a>,
    /// GPUs whose MIG instances may be monitored.
    pub mig_monitor: MigSelection<'a>,
}

impl<'a> Choice<'a> {
    /// Chooses the devices that `wanted` names.
    ///
    /// # Errors
    /// Those of [`select_devices`] and `select_mig_capability`, each with its phase.
    pub fn make(devices: &'a DeviceInfo, wanted: &DeviceRequest) -> Result<Self> {
        let selection = select_devices(&devices.gpus, &devices.failed, &wanted.ids)
            .map_err(|error| error.during(Phase::Device))?;
        let mig_config =
            select_mig_capability(&selection, MigCapability::Config, &wanted.mig_config)
                .map_err(|error| error.during(Phase::MigConfig))?;
        let mig_monitor =
            select_mig_capability(&selection, MigCapability::Monitor, &wanted.mig_monitor)
                .map_err(|error| error.during(Phase::MigMonitor))?;
        Ok(Self {
            mig_config,
            mig_monitor,
            selection,
        })
    }

    /// Returns true if single MIG devices get their own files; a global capability covers all of them.
    pub(crate) fn wants_single_migs(&self) -> bool {
        !self.mig_config.all && !self.mig_monitor.all
    }
}

/// Selects the devices of these names, e.g. `0`, `GPU-…` and `1:0`. On a machine without GPUs, `all` is nothing.
///
/// # Errors
/// `<name>: unknown device`, NVML's error for a GPU that is lost, and, of the kind [`ErrorKind::InvalidArgument`], a
/// name that is the start of several UUIDs.
pub fn select_devices<'a, S: AsRef<str>>(
    gpus: &'a [Gpu],
    lost: &[FailedGpu],
    names: &[S],
) -> Result<Selection<'a>> {
    let mut selection = Selection::default();
    let is_all = |name: &S| name.as_ref().eq_ignore_ascii_case("all");
    if gpus.is_empty() && lost.is_empty() && names.iter().all(is_all) {
        return Ok(selection);
    }
    for item in names.iter().map(AsRef::as_ref) {
        if item.eq_ignore_ascii_case("all") {
            selection.add_all(gpus);
            break;
        }
        let unknown = || {
            Error::fault(ErrorKind::NotFound, item, "unknown device")
                .hint(available_devices(gpus, lost))
        };
        // A name may end in garbage, but not in further names: they would be ignored.
        if item.contains(',') {
            return Err(unknown());
        }
        match find(gpus, lost, item)?.ok_or_else(unknown)? {
            (gpu, Some(mig)) => selection.add_mig(gpu, mig),
            (gpu, None) => selection.add_gpu(gpu),
        }
    }
    Ok(selection)
}

/// Selects the GPUs for the option of `capability` with these names; only `all` is supported.
///
/// # Errors
/// `<item>: only 'all' devices are currently supported` and, if single MIG devices are selected, `all: cannot enable
/// mig-config with specific MIG devices selected`.
pub(crate) fn select_mig_capability<'a, S: AsRef<str>>(
    selection: &Selection<'a>,
    capability: MigCapability,
    names: &[S],
) -> Result<MigSelection<'a>> {
    let Some(item) = names.first().map(AsRef::as_ref) else {
        return Ok(MigSelection::default());
    };
    if !item.eq_ignore_ascii_case("all") {
        let cause = "only 'all' devices are currently supported";
        return Err(Error::fault(ErrorKind::InvalidArgument, item, cause));
    }
    if !selection.all && !selection.migs.is_empty() {
        let name = capability.name();
        let cause = format!("cannot enable mig-{name} with specific MIG devices selected");
        return Err(Error::fault(ErrorKind::InvalidArgument, item, cause));
    }
    let selected = selection.gpus.iter().copied();
    Ok(MigSelection {
        all: true,
        gpus: selected.filter(|gpu| gpu.mig_capable).collect(),
    })
}

/// Returns the IMEX channels of these names, which are numbers.
///
/// # Errors
/// `unsupported IMEX channel value: <name>`.
pub fn parse_imex_channels<S: AsRef<str>>(names: &[S]) -> Result<Vec<u32>> {
    let names = names.iter().map(AsRef::as_ref);
    names
        .map(|item| {
            decimal(item)
                .filter(|channel| *channel < IMEX_CHANNELS)
                .ok_or_else(|| {
                    let text = "unsupported IMEX channel value";
                    Error::new(ErrorKind::InvalidArgument, text)
                        .of(item)
                        .hint(format!(
                            "channels are numbers from 0 to {}, separated by commas",
                            IMEX_CHANNELS - 1
                        ))
                })
        })
        .collect()
}

/// Returns true if a name is that of the GPU.
fn is_gpu(name: &DeviceName<'_>, index: u32, uuid: Option<&str>, busid: Option<&str>) -> bool {
    let same =
        |known: Option<&str>, text: &str| known.is_some_and(|k| k.eq_ignore_ascii_case(text));
    match name {
        DeviceName::Gpu(named) => *named == index,
        DeviceName::Uuid(text) => same(uuid, text),
        DeviceName::Address(text) => same(busid, text),
        DeviceName::Mig(..) | DeviceName::Instances(..) => false,
    }
}

/// Returns true if a name is that of a MIG device of a GPU.
fn is_mig(name: &DeviceName<'_>, gpu: &Gpu, mig: &MigDevice) -> bool {
    match name {
        DeviceName::Mig(parent, index) => (*parent, *index) == (gpu.index, mig.index),
        DeviceName::Uuid(uuid) => mig.uuid.eq_ignore_ascii_case(uuid),
        DeviceName::Instances(uuid, gi, ci) => {
            gpu.uuid.eq_ignore_ascii_case(uuid) && (*gi, *ci) == (mig.gi, mig.ci)
        }
        DeviceName::Gpu(_) | DeviceName::Address(_) => false,
    }
}

/// A GPU, or one of its MIG devices.
type Found<'a> = (&'a Gpu, Option<&'a MigDevice>);

/// Finds the device that `item` names, or the start of its UUID.
fn find<'a>(gpus: &'a [Gpu], lost: &[FailedGpu], item: &str) -> Result<Option<Found<'a>>> {
    let Some(name) = DeviceName::parse(item) else {
        return Ok(None);
    };
    let is_meant = |gpu: &&Gpu| is_gpu(&name, gpu.index, Some(&gpu.uuid), Some(&gpu.busid));
    if let Some(gpu) = gpus.iter().find(is_meant) {
        return Ok(Some((gpu, None)));
    }
    let migs = gpus
        .iter()
        .flat_map(|gpu| gpu.mig_devices.iter().map(move |mig| (gpu, mig)));
    if let Some((gpu, mig)) = migs.clone().find(|(gpu, mig)| is_mig(&name, gpu, mig)) {
        return Ok(Some((gpu, Some(mig))));
    }
    let gone = lost.iter().find(|gpu| {
        let uuid = gpu.uuid.as_deref();
        match &name {
            DeviceName::Mig(index, _) => *index == gpu.index,
            DeviceName::Instances(named, ..) => uuid.is_some_and(|u| u.eq_ignore_ascii_case(named)),
            name => is_gpu(name, gpu.index, uuid, gpu.busid.as_deref()),
        }
    });
    match (gone, name) {
        (Some(gpu), _) => Err(lost_error(item, gpu)),
        (None, DeviceName::Uuid(start)) => find_by_start(gpus, lost, start),
        (None, _) => Ok(None),
    }
}

/// Finds the device whose UUID starts with `item`: a GPU, or a MIG device with its GPU.
///
/// # Errors
/// Several UUIDs have this prefix, or could have it because a GPU is lost: the result must not depend on which GPU is
/// lost.
fn find_by_start<'a>(gpus: &'a [Gpu], lost: &[FailedGpu], item: &str) -> Result<Option<Found<'a>>> {
    // MIG devices of old drivers are named after their GPU.
    let mut prefixes = ["MIG-GPU-", "MIG-", "GPU-"].into_iter();
    let prefix = prefixes.find(|prefix| has_prefix(item, prefix));
    if prefix.is_none_or(|prefix| item.len() < prefix.len() + MIN_UUID_START) {
        return Ok(None);
    }
    let migs = gpus.iter().flat_map(|gpu| {
        let migs = gpu.mig_devices.iter();
        migs.map(move |mig| (mig.uuid.as_str(), (gpu, Some(mig))))
    });
    let there = gpus.iter().map(|gpu| (gpu.uuid.as_str(), (gpu, None)));
    let found: Vec<_> = there
        .chain(migs)
        .filter(|(uuid, _)| has_prefix(uuid, item))
        .collect();
    let is_meant = |gpu: &&FailedGpu| (gpu.uuid.as_deref()).is_some_and(|u| has_prefix(u, item));
    let gone: Vec<_> = lost.iter().filter(is_meant).collect();
    match (&found[..], &gone[..]) {
        ([], []) => Ok(None),
        ([(uuid, device)], []) => {
            // An old driver's MIG devices are named after their GPU.
            let is_mig = device.1.is_some() && prefix != Some("MIG-GPU-");
            let mut lost = lost.iter();
            let gone = lost.find(|gpu| is_mig || gpu.uuid.is_none());
            gone.map_or(Ok(Some(*device)), |gpu| Err(doubtful(item, uuid, gpu)))
        }
        ([], [gpu]) => Err(lost_error(item, gpu)),
        _ => {
            let gone = gone.iter().filter_map(|gpu| gpu.uuid.as_deref());
            let uuids: Vec<_> = found.iter().map(|(uuid, _)| *uuid).chain(gone).collect();
            Err(ambiguous(item, &uuids))
        }
    }
}

/// Describes a prefix that is unambiguous only because the UUIDs of a lost GPU, or of its MIG devices, are unknown.
fn doubtful(item: &str, uuid: &str, gpu: &FailedGpu) -> Error {
    let cause =
        format!("{uuid} starts so, but {gpu} is not usable, and which UUIDs it has is unknown");
    Error::fault(ErrorKind::InvalidArgument, item, cause).hint("write the whole UUID")
}

fn ambiguous(item: &str, uuids: &[&str]) -> Error {
    let listed = uuids.get(..MAX_UUIDS).unwrap_or(uuids);
    let mut cause = format!("several devices have such a UUID: {}", listed.join(", "));
    if uuids.len() > listed.len() {
        let _ = write!(cause, " and {} more", uuids.len() - listed.len());
    }
    Error::fault(ErrorKind::InvalidArgument, item, cause).hint("write more of the UUID")
}

fn lost_error(item: &str, gpu: &FailedGpu) -> Error {
    let mut text = format!("gpu {} ", gpu.index);
    if let Some(busid) = &gpu.busid {
        let _ = write!(text, "at {busid} ");
    }
    text += &format!("is not usable: {}", gpu.error.message().to_lowercase());
    Error::fault(ErrorKind::DriverFailed, item, text).hint(
        "the kernel's log (dmesg, NVRM and Xid lines) says why; the other GPUs can still be used",
    )
}

/// Lists the available devices for a hint.
fn available_devices(gpus: &[Gpu], lost: &[FailedGpu]) -> String {
    let names = gpus.iter().flat_map(|gpu| {
        let migs = gpu.mig_devices.iter();
        let migs = migs.map(move |mig| format!("{}:{}", gpu.index, mig.index));
        [gpu.index.to_string(), gpu.uuid.clone()]
            .into_iter()
            .chain(migs)
    });
    let here = devices_here(names).unwrap_or_else(|| "no usable devices here".to_owned());
    match listed(lost.iter().map(|gpu| gpu.index.to_string()), LISTED / 5) {
        lost if lost.is_empty() => here,
        lost => format!("{here}; not usable: GPU {lost}"),
    }
}

/// Returns the hint that lists devices: the same words in all programs, at most 200 characters with what a caller adds.
/// UUIDs are only mentioned if there are other names. None without a name.
pub fn devices_here<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Option<String> {
    let is_uuid = |name: &S| {
        let name = name.as_ref();
        let device = name.split_once('=').map_or(name, |(_, device)| device);
        matches!(DeviceName::parse(device), Some(DeviceName::Uuid(_)))
    };
    let (uuids, names): (Vec<S>, Vec<S>) = names.into_iter().partition(is_uuid);
    let (shown, end) = match (&uuids[..], &names[..]) {
        ([], []) => return None,
        ([], _) => (names, ""),
        (_, []) => (uuids, ""),
        _ => (names, ", or their UUIDs"),
    };
    Some(format!("devices here: {}{end}", listed(shown, LISTED)))
}

/// Lists names, with ranges of those that end in numbers, and in `limit` characters.
fn listed<S: AsRef<str>>(names: impl IntoIterator<Item = S>, limit: usize) -> String {
    let mut numbers: BTreeMap<String, BTreeSet<Option<u32>>> = BTreeMap::new();
    for name in names {
        let name = name.as_ref();
        let start = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = name
            .strip_prefix(start)
            .and_then(|digits| digits.parse::<u32>().ok());
        // A leading zero is part of the name.
        let number = number.filter(|number| format!("{start}{number}") == name);
        let start = if number.is_some() { start } else { name };
        numbers.entry(start.to_owned()).or_default().insert(number);
    }
    let mut text = String::new();
    let mut more = 0;
    for (start, numbers) in numbers {
        let mut numbers = numbers.into_iter().peekable();
        while let Some(first) = numbers.next() {
            let (mut last, mut count) = (first, 1);
            while let Some(next) = numbers.next_if(|next| *next == last.map(|n| n.wrapping_add(1)))
            {
                (last, count) = (next, count + 1);
            }
            // Not `0-7`, which reads like a name that is understood.
            let word = match (first, last) {
                (Some(first), Some(last)) if last.checked_sub(first) == Some(1) => {
                    format!("{start}{first}, {start}{last}")
                }
                (Some(first), Some(last)) if first < last => format!("{start}{first} to {last}"),
                (Some(only), _) => format!("{start}{only}"),
                (None, _) => start.clone(),
            };
            if more > 0 || text.len() + word.len() > limit {
                more += count;
            } else {
                let comma = if text.is_empty() { "" } else { ", " };
                let _ = write!(text, "{comma}{word}");
            }
        }
    }
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
