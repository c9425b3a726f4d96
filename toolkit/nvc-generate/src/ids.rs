//! Parses device ids: `all`, `none`, `N`, `G:M`, `GPU-…` and `MIG-…`.

use libnvc::{Error, ErrorKind, Result};

use crate::uuid::is_uuid;

/// A parsed id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Id {
    /// A GPU by its index.
    Gpu(u32),
    /// A MIG device by its GPU's index and its own.
    Mig(u32, u32),
    /// A GPU or MIG device by its UUID.
    Uuid(String),
}

/// A parsed list of ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum IdList {
    All,
    None,
    These(Vec<Id>),
}

/// Parses a list. `none` has precedence, then `all`.
pub(super) fn parse(ids: &[String]) -> Result<IdList> {
    if ids.is_empty() {
        return Ok(IdList::All);
    }
    let parsed = ids
        .iter()
        .filter(|id| *id != "all" && *id != "none")
        .map(|id| one(id));
    let parsed = parsed.collect::<Result<Vec<_>>>()?;
    if ids.iter().any(|id| id == "none") {
        return Ok(IdList::None);
    }
    if ids.iter().any(|id| id == "all") {
        return Ok(IdList::All);
    }
    Ok(IdList::These(parsed))
}

fn one(id: &str) -> Result<Id> {
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().ok()).flatten()
    };
    let parsed = match id.split_once(':') {
        Some((gpu, mig)) => number(gpu)
            .zip(number(mig))
            .map(|(gpu, mig)| Id::Mig(gpu, mig)),
        None => number(id).map(Id::Gpu),
    };
    let by_uuid = || {
        let rest = id
            .strip_prefix("MIG-GPU-")
            .or(id.strip_prefix("GPU-"))
            .or(id.strip_prefix("MIG-"))?;
        let uuid = rest.split('/').next()?;
        is_uuid(uuid).then(|| Id::Uuid(id.into()))
    };
    parsed.or_else(by_uuid).ok_or_else(|| {
        let text = format!("\"{id}\" is neither an index nor a UUID");
        Error::new(ErrorKind::InvalidArgument, text).hint("nvidia-smi -L lists what there is")
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read() {
        let of = |ids: &[&str]| parse(&ids.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(of(&[]).unwrap(), IdList::All);
        assert_eq!(of(&["0", "none", "all"]).unwrap(), IdList::None);
        assert_eq!(of(&["0", "all"]).unwrap(), IdList::All);
        let uuid = "MIG-GPU-8a4d1f3c-0b51-4c8e-9d57-3f2a6b1c0e01/1/0";
        let expected = vec![Id::Gpu(7), Id::Mig(1, 0), Id::Uuid(uuid.into())];
        assert_eq!(of(&["7", "1:0", uuid]).unwrap(), IdList::These(expected));
        for bad in [
            "first",
            "",
            "gpu-8a4d1f3c-0b51-4c8e-9d57-3f2a6b1c0e01",
            "1:",
            "-1",
            "+1",
        ] {
            assert!(of(&[bad]).is_err(), "{bad}");
        }
    }
}
