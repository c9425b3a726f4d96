//! Parses the names of GPUs and MIG devices, in the one language of all programs.
//!
//! The grammar is that of upstream's nvidia-container-cli, which reads numbers with scanf: schedulers and scripts pass
//! whatever once worked.

#![forbid(unsafe_code)]

/// Fewest characters of a UUID that name a device, without `GPU-` or `MIG-`.
pub(crate) const MIN_UUID_START: usize = 4;

/// What a device's name says without a machine: the one language of all programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceName<'a> {
    /// The index of a GPU.
    Gpu(u32),
    /// The indices of a GPU and of its MIG device.
    Mig(u32, u32),
    /// `GPU-…` or `MIG-…` in any case: a UUID, or the start of one.
    Uuid(&'a str),
    /// `MIG-GPU-UUID/GI/CI`, the name of a MIG device until driver 460: a GPU's UUID, and the ids of the instances.
    Instances(&'a str, u32, u32),
    /// A PCI address as NVML writes it.
    Address(String),
}

impl<'a> DeviceName<'a> {
    /// Parses a name; None if it has none of these forms.
    pub fn parse(text: &'a str) -> Option<Self> {
        if has_prefix(text, "GPU-") || has_prefix(text, "MIG-") {
            return Some(instances(text).unwrap_or(Self::Uuid(text)));
        }
        if let Some(address) = pci_address(text) {
            return Some(Self::Address(address));
        }
        match mig_indices(text) {
            Some((gpu, mig)) => Some(Self::Mig(gpu, mig)),
            None => decimal(text).map(Self::Gpu),
        }
    }
}

pub(crate) fn has_prefix(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Parses a whole decimal number; like C's `strtoul`, it allows a plus sign.
pub(crate) fn decimal(text: &str) -> Option<u32> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    // A second sign would be accepted by `parse`.
    if digits.starts_with('+') {
        return None;
    }
    digits.parse().ok()
}

/// Parses `MIG-GPU-UUID/GI/CI`.
fn instances(text: &str) -> Option<DeviceName<'_>> {
    let text = has_prefix(text, "MIG-GPU-").then(|| text.get("MIG-".len()..))??;
    let mut parts = text.split('/');
    let (gpu, gi, ci) = (parts.next()?, parts.next()?, parts.next()?);
    let number = |text: &str| {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
        is_plain.then(|| text.parse().ok())?
    };
    let name = DeviceName::Instances(gpu, number(gi)?, number(ci)?);
    parts.next().is_none().then_some(name)
}

/// Parses the two numbers at the start of `G:M…` and ignores the rest, like scanf.
fn mig_indices(text: &str) -> Option<(u32, u32)> {
    let (gpu, rest) = text.split_once(':')?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    Some((decimal(gpu)?, rest.get(..digits)?.parse().ok()?))
}

/// Normalizes a PCI address to `%08x:%02x:%02x.0`; only domain, bus and device are parsed, like scanf.
fn pci_address(text: &str) -> Option<String> {
    let (domain, rest) = text.split_once(':')?;
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
