//! What is kept of a claim that was given its devices.

use libnvc::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// Its name for those who claim it.
    pub(crate) name: String,
    pub(crate) uuid: String,
    /// The GPU's UUID, also for a MIG device.
    pub(crate) gpu: String,
    /// Of a MIG device: its GPU instance and its compute instance.
    #[serde(default)]
    pub(crate) instances: Option<(u32, u32)>,
    /// Given beside a claim that uses it.
    #[serde(default)]
    pub(crate) is_shared: bool,
}

impl Grant {
    /// Returns a name by which NVML is asked about this GPU alone: another one may hang.
    pub(crate) fn id(&self) -> String {
        let of_gpu = |(gi, ci)| format!("MIG-{}/{gi}/{ci}", self.gpu);
        self.instances.map_or_else(|| self.uuid.clone(), of_gpu)
    }

    /// Returns true if who has one of them can use the other, now or after MIG mode was switched.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let is_same_place = self.name == other.name && self.gpu == other.gpu;
        is_same_place || self.uuid == other.uuid || self.uuid == other.gpu || self.gpu == other.uuid
    }
}

/// What is known of a claim that was given its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) grants: Vec<Grant>,
    /// When it was allocated, or earlier; seconds since 1970.
    pub(crate) since: i64,
    /// Version of the driver whose files it has.
    pub(crate) driver: String,
}

impl Record {
    /// Parses the record of the claim with this UID.
    ///
    /// # Errors
    /// It is damaged, or that of another claim.
    pub(crate) fn parse(uid: &str, text: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if record.uid == uid {
            Ok(record)
        } else {
            Err(format!("it is that of {}", record.uid))
        }
    }
}

/// Checks that a claim's UID is safe as a part of a file's name.
///
/// # Errors
/// It is not.
pub(crate) fn check_uid(uid: &str) -> Result<()> {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if (1..=64).contains(&uid.len()) && uid.chars().all(is_safe) {
        return Ok(());
    }
    let text = format!("\"{uid}\" is not the UID of a claim");
    Err(Error::new(ErrorKind::InvalidArgument, text))
}
