//! Keeps on disk which GPUs are sick, so that no restart makes one well. A reboot does.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Gpu;
use crate::drafts::{OLD, sweep};

/// Size limit of the file.
const MAX_SIZE: usize = 4 << 20;

/// An XID that says something about a GPU or MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Verdict {
    pub(super) xid: u64,
    /// When something was last wrong, in seconds since the boot.
    pub(super) since: u64,
    /// It has failed to answer, or has asked for a reset: if it answers again, it was reset.
    pub(super) was_down: bool,
}

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// By the UUID of a GPU or MIG device.
    pub(super) verdicts: BTreeMap<String, Verdict>,
    /// Their GPUs, which may not answer after a restart.
    pub(super) gpus: Vec<Gpu>,
}

#[derive(Serialize, Deserialize)]
struct OnDisk<K> {
    /// The verdicts are of this boot.
    boot: String,
    #[serde(flatten)]
    kept: K,
}

/// Reads the file; what is damaged or of another boot counts as empty.
pub(super) fn read(path: &Path) -> Kept {
    if !path.exists() {
        return Kept::default();
    }
    let text = nvc_hostfile::read(path, MAX_SIZE).unwrap_or_default();
    match serde_json::from_slice::<OnDisk<Kept>>(&text) {
        Ok(known) if known.boot == boot() => known.kept,
        Ok(_) => Kept::default(),
        Err(error) => {
            let path = path.display();
            log::warn!("{path} is damaged: {error}; GPUs that were sick count as well");
            Kept::default()
        }
    }
}

/// Replaces the file.
pub(super) fn write(path: &Path, kept: &Kept) -> libnvc::Result<()> {
    let text = serde_json::to_vec(&OnDisk { boot: boot(), kept }).unwrap_or_default();
    sweep(path, OLD);
    nvc_hostfile::create(path, &text, 0o600)
}

fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().into()
}
