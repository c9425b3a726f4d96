//! Selects GPUs by the user's ids: an index, or a UUID prefix.

use libnvc::{Error, ErrorKind, Result};

/// A GPU that can be selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Position in NVML's order.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// The N of /dev/nvidiaN.
    pub minor: u32,
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
    if id.starts_with("GPU-") {
        return gpus.iter().find(|gpu| gpu.uuid.starts_with(id));
    }
    // A sign and leading zeros are accepted.
    let index: i64 = id.parse().ok()?;
    gpus.iter().find(|gpu| i64::from(gpu.index) == index)
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
        ] {
            assert_eq!(chosen(text).unwrap(), minors, "{text:?}");
        }
        for id in [
            "9", "-1", "all", "none", "0\t1", "GPU-a", "gpu-8", "0x1", "MIG-1", "1.0",
        ] {
            let failure = chosen(id).unwrap_err();
            assert_eq!(failure.message(), format!("invalid device: {id}"));
        }
    }
}
