//! Checks device ids: `all`, `none`, `N`, `G:M`, `GPU-…` and `MIG-…`, or the start of one of these.
//!
//! [`libnvc::select`] accepts more forms, which upstream's specifications do not have.

use libnvc::select::DeviceName;
use libnvc::{Error, ErrorKind, Result};

use crate::uuid::is_uuid_start;

/// Returns ids for a [`DeviceRequest`](libnvc::request::DeviceRequest): no id means all, and `none` has precedence.
///
/// # Errors
/// One of them is a list itself, or empty.
pub fn ids<S: AsRef<str>>(ids: &[S]) -> Result<Vec<String>> {
    let words = ids.iter().map(AsRef::as_ref);
    if ids.is_empty() {
        return Ok(vec!["all".into()]);
    }
    if words.clone().any(|id| id == "none") {
        return Ok(Vec::new());
    }
    match words.clone().find(|id| id.is_empty() || id.contains(',')) {
        Some(odd) => Err(refused(odd)),
        None => Ok(words.map(str::to_owned).collect()),
    }
}

/// Checks the form of ids.
pub(super) fn check(ids: &[String]) -> Result<()> {
    let mut ids = ids.iter().filter(|id| *id != "all");
    ids.try_for_each(|id| one(id))
}

fn one(id: &str) -> Result<()> {
    let is_known = match DeviceName::parse(id) {
        Some(DeviceName::Gpu(_) | DeviceName::Mig(..)) => true,
        Some(DeviceName::Uuid(text)) => {
            let prefixes = ["MIG-GPU-", "GPU-", "MIG-"];
            let rest = prefixes.iter().find_map(|prefix| text.strip_prefix(prefix));
            let uuid = rest.and_then(|rest| rest.split('/').next());
            uuid.is_some_and(is_uuid_start)
        }
        None => false,
    };
    if is_known {
        return Ok(());
    }
    Err(refused(id))
}

fn refused(id: &str) -> Error {
    let text = format!("\"{id}\" is neither an index nor a UUID");
    Error::new(ErrorKind::InvalidArgument, text).hint("nvidia-smi -L lists what there is")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_upstreams_forms() {
        let of = |names: &[&str]| ids(names).and_then(|list| check(&list).map(|()| list));
        assert_eq!(of(&[]).unwrap(), ["all"]);
        assert_eq!(of(&["0", "none", "all"]).unwrap(), [""; 0]);
        assert_eq!(of(&["0", "all"]).unwrap(), ["0", "all"]);
        let uuid = "MIG-GPU-8a4d1f3c-0b51-4c8e-9d57-3f2a6b1c0e01/1/0";
        assert_eq!(of(&["7", "1:0", uuid]).unwrap(), ["7", "1:0", uuid]);
        assert_eq!(of(&["GPU-8a4d", "MIG-8a4d1f3c-0"]).unwrap().len(), 2);
        for bad in [
            "first",
            "",
            "GPU-",
            "GPU-8a4",
            "GPU-8a4x",
            "gpu-8a4d1f3c-0b51-4c8e-9d57-3f2a6b1c0e01",
            "00000000:3b:00.0",
            "1:",
            "-1",
            "+1",
            "0,1",
        ] {
            assert!(of(&[bad]).is_err(), "{bad}");
        }
    }
}
