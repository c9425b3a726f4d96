//! What the cluster side asks the machine side for.

use serde::{Deserialize, Serialize};

use crate::grants::Record;

/// What the cluster side asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Call {
    /// Give a claim its devices.
    Give(Record),
    /// Say which claims have been given devices.
    Records,
    /// Remember the GPUs of some devices by name.
    Name(Vec<(String, String)>),
    /// Take back those of the claim with this UID.
    TakeBack(String),
    /// Remove the socket that was made last.
    RemoveSocket,
}
