//! Selects GPUs by the user's ids, in the language of all programs; whole GPUs only.

use libnvc::{DeviceName, Error, ErrorKind, Result};

/// A GPU that can be selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Position in NVML's order.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// The N of /dev/nvidiaN.
    pub minor: u32,
    /// Its PCI address, as NVML writes it.
    pub busid: String,
}

/// Splits NV_GPU at spaces and commas; drops empty items.
pub fn items(text: &str) -> Vec<&str> {
    text.split([' ', ',']).filter(|id| !id.is_empty()).collect()
}

/// Returns the GPUs that these ids name without duplicates, in the order of the request; all of them if there are no
/// ids.
///
/// # Errors
/// `invalid device: <id>`.
pub fn choose<'a>(ids: &[&str], gpus: &'a [Candidate]) -> Result<Vec<&'a Candidate>> {
    if ids.is_empty() {
        return Ok(gpus.iter().collect());
    }
    let mut chosen: Vec<&Candidate> = Vec::new();
    for id in ids {
        let gpu = find(id, gpus).ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, format!("invalid device: {id}"))
        })?;
        if !chosen.contains(&gpu) {
            chosen.push(gpu);
        }
    }
    Ok(chosen)
}

/// Returns the GPU that an id names.
pub fn find<'a>(id: &str, gpus: &'a [Candidate]) -> Option<&'a Candidate> {
    // Upstream's also accepts this index.
    let name = DeviceName::parse(if id == "-0" { "0" } else { id })?;
    gpus.iter().find(|gpu| match &name {
        DeviceName::Gpu(index) => gpu.index == *index,
        // As many characters as the user likes.
        DeviceName::Uuid(start) => starts(&gpu.uuid, start),
        DeviceName::Address(address) => gpu.busid.eq_ignore_ascii_case(address),
        DeviceName::Mig(..) | DeviceName::Instances(..) => false,
    })
}

/// Returns true if a UUID starts so, in any case.
pub fn starts(uuid: &str, start: &str) -> bool {
    let beginning = uuid.get(..start.len());
    beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(start))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn gpus() -> Vec<Candidate> {
        [(0, "GPU-836c", 1), (1, "GPU-936c", 0)]
            .map(|(index, uuid, minor)| Candidate {
                index,
                uuid: uuid.into(),
                minor,
                busid: format!("00000000:0{index}:00.0"),
            })
            .into()
    }

    fn chosen(text: &str) -> Result<Vec<u32>> {
        let gpus = gpus();
        Ok(choose(&items(text), &gpus)?
            .iter()
            .map(|gpu| gpu.minor)
            .collect())
    }

    #[test]
    fn ids() {
        for (text, minors) in [
            ("", vec![1, 0]),
            (" , ", vec![1, 0]),
            ("0", vec![1]),
            ("1,0", vec![0, 1]),
            ("GPU-", vec![1]),
            ("GPU-9", vec![0]),
            ("GPU-936c", vec![0]),
            ("+1 -0 01", vec![0, 1]),
            (" 1, ,1 01", vec![0]),
            ("gpu-9 0000:00:00.0", vec![0, 1]),
        ] {
            assert_eq!(chosen(text).unwrap(), minors, "{text:?}");
        }
        for id in [
            "9", "-1", "all", "none", "0\t1", "GPU-a", "0x1", "MIG-1", "1.0", "0:0",
        ] {
            let failure = chosen(id).unwrap_err();
            assert_eq!(failure.message(), format!("invalid device: {id}"));
        }
    }
}
