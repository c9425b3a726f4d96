//! Chooses devices: finds those that `--device`, `--mig-config` and `--mig-monitor` name, and reads `--imex-channel`.
//!
//! The grammar is upstream's, quirks included, since schedulers and scripts pass whatever once worked: partial PCI
//! addresses, trailing garbage after a MIG index. In addition, a UUID prefix is a name if it is unambiguous, as in
//! NVIDIA's guides. A GPU that could not be read is an error only if it is requested by name.

#![forbid(unsafe_code)]

use std::fmt::Write as _;

use crate::error::{Error, ErrorKind, Phase, Result};
use crate::host::{DeviceInfo, FailedGpu, Gpu, MigDevice};
use crate::request::DeviceRequest;

/// Number of IMEX channels: they are minor numbers, and Linux has this many.
const IMEX_CHANNELS: u32 = 1 << 20;

/// Longest list of UUIDs in an error.
const LISTED: usize = 24;

/// Size limit of the hint that lists devices.
const HINT: usize = 200;

/// Fewest characters of a UUID that name a device, without `GPU-` or `MIG-`.
pub(crate) const MIN_UUID_START: usize = 4;

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
        if let Some(gpu) = find_gpu(gpus, lost, item)? {
            selection.add_gpu(gpu);
        } else if let Some((gpu, mig)) = find_mig(gpus, lost, item)? {
            selection.add_mig(gpu, mig);
        } else if let Some(device) = find_by_start(gpus, lost, item)? {
            match device {
                (gpu, Some(mig)) => selection.add_mig(gpu, mig),
                (gpu, None) => selection.add_gpu(gpu),
            }
        } else {
            return Err(unknown());
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

/// What the form of a device's name says, without a machine. nvidia-container-cli takes more texts, since upstream's reads
/// numbers with scanf: those are [`select_devices`]' alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceName<'a> {
    /// The index of a GPU.
    Gpu(u32),
    /// The indices of a GPU and of its MIG device.
    Mig(u32, u32),
    /// `GPU-…` or `MIG-…` in any case: a UUID, or the start of one, or `MIG-GPU-<UUID>/<GI>/<CI>`.
    Uuid(&'a str),
    /// The PCI address of a GPU, as [`Gpu::busid`].
    Address(String),
}

impl<'a> DeviceName<'a> {
    /// Parses a name; None if it has none of these forms.
    pub fn parse(text: &'a str) -> Option<Self> {
        if has_prefix(text, "GPU-") || has_prefix(text, "MIG-") {
            return Some(Self::Uuid(text));
        }
        let parts: Vec<&str> = text.splitn(4, ':').collect();
        match parts[..] {
            [gpu] => plain(gpu).map(Self::Gpu),
            [gpu, mig] => Some(Self::Mig(plain(gpu)?, plain(mig)?)),
            [domain, bus, device] => {
                let device = device.split_once('.').map_or(device, |(device, _)| device);
                let is_whole = matches!(domain.len(), 4 | 8) && (bus.len(), device.len()) == (2, 2);
                is_whole.then(|| pci_address(text).map(Self::Address))?
            }
            _ => None,
        }
    }
}

/// Parses a number of digits alone.
fn plain(text: &str) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok())?
}

/// Parses `MIG-GPU-<UUID>/<GI>/<CI>`: the GPU's UUID, GPU instance and compute instance.
///
/// That is NVML's UUID of a MIG device with drivers before 470, and LXD's name of one with any driver.
pub(crate) fn mig_instances(text: &str) -> Option<(&str, u32, u32)> {
    let gpu = text
        .get("MIG-".len()..)
        .filter(|_| has_prefix(text, "MIG-GPU-"));
    let parts: Vec<&str> = gpu?.splitn(4, '/').collect();
    match parts[..] {
        [gpu, gi, ci] => Some((gpu, plain(gi)?, plain(ci)?)),
        _ => None,
    }
}

/// Finds the GPU that `item` names by UUID, PCI address or index.
fn find_gpu<'a>(gpus: &'a [Gpu], lost: &[FailedGpu], item: &str) -> Result<Option<&'a Gpu>> {
    let busid = pci_address(item);
    let index = decimal(item);
    let by_uuid = |uuid: &str| has_prefix(item, "GPU-") && uuid.eq_ignore_ascii_case(item);
    let by_busid = |text: &str| busid.as_ref().is_some_and(|b| b.eq_ignore_ascii_case(text));

    let found = (gpus.iter().find(|gpu| by_uuid(&gpu.uuid)))
        .or_else(|| gpus.iter().find(|gpu| by_busid(&gpu.busid)))
        .or_else(|| gpus.iter().find(|gpu| index == Some(gpu.index)));
    if found.is_some() {
        return Ok(found);
    }
    let gone = lost.iter().find(|gpu| {
        gpu.uuid.as_deref().is_some_and(by_uuid)
            || gpu.busid.as_deref().is_some_and(by_busid)
            || index == Some(gpu.index)
    });
    gone.map_or(Ok(None), |gpu| Err(lost_error(item, gpu)))
}

/// Finds the MIG device that `item` names by UUID, by its GPU's UUID and its instances, or as `GPU:MIG`, with its GPU.
fn find_mig<'a>(
    gpus: &'a [Gpu],
    lost: &[FailedGpu],
    item: &str,
) -> Result<Option<(&'a Gpu, &'a MigDevice)>> {
    let find = |gpu: &'a Gpu, is_meant: &dyn Fn(&MigDevice) -> bool| {
        let mut migs = gpu.mig_devices.iter();
        migs.find(|mig| is_meant(mig)).map(|mig| (gpu, mig))
    };
    if has_prefix(item, "MIG-") {
        let by_uuid = |mig: &MigDevice| mig.uuid.eq_ignore_ascii_case(item);
        let found = gpus.iter().find_map(|gpu| find(gpu, &by_uuid));
        let Some((uuid, gi, ci)) = mig_instances(item).filter(|_| found.is_none()) else {
            return Ok(found);
        };
        let is_it = |known: &str| known.eq_ignore_ascii_case(uuid);
        if let Some(gpu) = lost
            .iter()
            .find(|gpu| gpu.uuid.as_deref().is_some_and(is_it))
        {
            return Err(lost_error(item, gpu));
        }
        let gpu = gpus.iter().find(|gpu| is_it(&gpu.uuid));
        return Ok(gpu.and_then(|gpu| find(gpu, &|mig| (mig.gi, mig.ci) == (gi, ci))));
    }
    let Some((gpu_index, mig_index)) = mig_indices(item) else {
        return Ok(None);
    };
    if let Some(gpu) = lost.iter().find(|gpu| gpu.index == gpu_index) {
        return Err(lost_error(item, gpu));
    }
    let gpu = gpus.iter().find(|gpu| gpu.index == gpu_index);
    Ok(gpu.and_then(|gpu| find(gpu, &|mig| mig.index == mig_index)))
}

/// Finds the device whose UUID starts with `item`: a GPU, or a MIG device with its GPU.
///
/// # Errors
/// Several UUIDs have this prefix, or could have it because a GPU is lost: the result must not depend on which GPU is
/// lost.
fn find_by_start<'a>(
    gpus: &'a [Gpu],
    lost: &[FailedGpu],
    item: &str,
) -> Result<Option<(&'a Gpu, Option<&'a MigDevice>)>> {
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
    let listed = uuids.get(..LISTED).unwrap_or(uuids);
    let mut cause = format!("several devices have such a UUID: {}", listed.join(", "));
    if uuids.len() > listed.len() {
        let _ = write!(cause, " and {} more", uuids.len() - listed.len());
    }
    Error::fault(ErrorKind::InvalidArgument, item, cause).hint("write more of the UUID")
}

pub(crate) fn has_prefix(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Parses a whole decimal number; like C's `strtoul`, it allows leading blanks and a plus sign.
pub(crate) fn decimal(text: &str) -> Option<u32> {
    let text = text.trim_start_matches(is_blank);
    let digits = text.strip_prefix('+').unwrap_or(text);
    // A second sign would be accepted by `parse`.
    if digits.starts_with('+') {
        return None;
    }
    digits.parse().ok()
}

/// Parses the two numbers at the start of `G:M…` and ignores the rest, like scanf.
pub(crate) fn mig_indices(text: &str) -> Option<(u32, u32)> {
    let (gpu, rest) = text.split_once(':')?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    Some((decimal(gpu)?, rest.get(..digits)?.parse().ok()?))
}

/// Normalizes a PCI address to `%08x:%02x:%02x.0`; only domain, bus and device are parsed, like scanf.
pub(crate) fn pci_address(text: &str) -> Option<String> {
    let (domain, rest) = text.trim_start_matches(is_blank).split_once(':')?;
    let domain = domain
        .strip_prefix("0x")
        .or_else(|| domain.strip_prefix("0X"))
        .unwrap_or(domain);
    let domain = hexadecimal(domain)?;
    let (bus, rest) = rest.split_once(':')?;
    if bus.len() > 2 {
        return None;
    }
    let bus = hexadecimal(bus)?;
    let digits = rest
        .bytes()
        .take(2)
        .take_while(u8::is_ascii_hexdigit)
        .count();
    let device = hexadecimal(rest.get(..digits)?)?;
    Some(format!("{domain:08x}:{bus:02x}:{device:02x}.0"))
}

fn hexadecimal(digits: &str) -> Option<u32> {
    let only_digits = digits.bytes().all(|b| b.is_ascii_hexdigit());
    (only_digits && !digits.is_empty()).then(|| u32::from_str_radix(digits, 16).ok())?
}

fn is_blank(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\x0b'
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

/// Lists the devices that there are for a hint, in at most [`HINT`] bytes.
pub fn available_devices(gpus: &[Gpu], lost: &[FailedGpu]) -> String {
    let mut names = numbers("", gpus.iter().map(|gpu| gpu.index));
    for gpu in gpus {
        let slots = gpu.mig_devices.iter().map(|mig| mig.index);
        names.extend(numbers(&format!("{}:", gpu.index), slots));
    }
    let lost = numbers("", lost.iter().map(|gpu| gpu.index));
    let lost = if lost.is_empty() {
        String::new()
    } else {
        format!("; not usable: GPU {}", shortened(&lost, HINT / 3))
    };
    if names.is_empty() {
        return format!("no usable devices here{lost}");
    }
    let room = HINT - lost.len() - "devices here: , or their UUIDs".len();
    let names = shortened(&names, room);
    format!("devices here: {names}, or their UUIDs{lost}")
}

/// Names devices by their numbers: a range if more than two follow one another. Each name has its number of devices.
fn numbers(prefix: &str, numbers: impl Iterator<Item = u32>) -> Vec<(String, usize)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let named = runs
        .into_iter()
        .flat_map(|(first, last)| match last - first {
            0 => vec![(format!("{prefix}{first}"), 1)],
            1 => [first, last]
                .map(|number| (format!("{prefix}{number}"), 1))
                .into(),
            more => vec![(format!("{prefix}{first}-{last}"), more as usize + 1)],
        });
    named.collect()
}

/// Joins names; as many as fit in so many bytes, with the number of the others.
fn shortened(names: &[(String, usize)], room: usize) -> String {
    let mut text = String::new();
    let mut left: usize = names.iter().map(|(_, count)| count).sum();
    let more = |left: usize| format!(" and {left} more");
    for (name, count) in names {
        let separator = if text.is_empty() { "" } else { ", " };
        let end = if left == *count {
            String::new()
        } else {
            more(left - count)
        };
        if !text.is_empty() && text.len() + separator.len() + name.len() + end.len() > room {
            return text + &more(left);
        }
        text = text + separator + name;
        left -= count;
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
