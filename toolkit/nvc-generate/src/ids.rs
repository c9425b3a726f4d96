//! Checks device ids: `all`, `none`, and the names that [`DeviceName`] knows.
//!
//! [`libnvc::select`] accepts more forms, which upstream's specifications do not have.

use libnvc::request::unquoted;
use libnvc::select::DeviceName;
use libnvc::{Error, ErrorKind, Result};

use crate::uuid::is_uuid_start;

/// Returns ids for a [`DeviceRequest`](libnvc::request::DeviceRequest): no id means all, and `none` has precedence.
///
/// # Errors
/// One of them is a list itself, or empty.
pub fn ids<S: AsRef<str>>(ids: &[S]) -> Result<Vec<String>> {
    let words = ids.iter().map(|id| unquoted(id.as_ref()));
    if ids.is_empty() {
        return Ok(vec!["all".into()]);
    }
    if words.clone().any(|id| id.eq_ignore_ascii_case("none")) {
        return Ok(Vec::new());
    }
    match words.clone().find(|id| id.is_empty() || id.contains(',')) {
        Some(odd) => Err(refused(odd, "give each device an option of its own".into())),
        None => Ok(words.map(str::to_owned).collect()),
    }
}

/// Checks the form of ids. `there` lists the devices that there are, for a hint.
pub(super) fn check(ids: &[String], there: impl Fn() -> String) -> Result<()> {
    let mut ids = ids.iter().filter(|id| !id.eq_ignore_ascii_case("all"));
    match ids.find(|id| !is_known(id)) {
        Some(odd) => Err(refused(odd, there())),
        None => Ok(()),
    }
}

fn is_known(id: &str) -> bool {
    match DeviceName::parse(id) {
        Some(DeviceName::Gpu(_) | DeviceName::Mig(..) | DeviceName::Address(_)) => true,
        Some(DeviceName::Uuid(text)) => {
            let uuid = text.split('/').next().unwrap_or_default();
            let mut prefixes = ["MIG-GPU-", "GPU-", "MIG-"].into_iter();
            let rest = prefixes.find_map(|prefix| {
                let (start, rest) = uuid.split_at_checked(prefix.len())?;
                start.eq_ignore_ascii_case(prefix).then_some(rest)
            });
            rest.is_some_and(is_uuid_start)
        }
        None => false,
    }
}

fn refused(id: &str, hint: String) -> Error {
    let text = format!("\"{id}\" is neither an index nor a UUID");
    Error::new(ErrorKind::InvalidArgument, text).hint(hint)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_upstreams_forms() {
        let of =
            |names: &[&str]| ids(names).and_then(|list| check(&list, String::new).map(|()| list));
        assert_eq!(of(&[]).unwrap(), ["all"]);
        assert_eq!(of(&["0", "None", "all"]).unwrap(), [""; 0]);
        assert_eq!(of(&["ALL", "'1'"]).unwrap(), ["ALL", "1"]);
        assert_eq!(of(&["0", "all"]).unwrap(), ["0", "all"]);
        let uuid = "MIG-GPU-8a4d1f3c-0b51-4c8e-9d57-3f2a6b1c0e01/1/0";
        assert_eq!(of(&["7", "1:0", uuid]).unwrap(), ["7", "1:0", uuid]);
        assert_eq!(of(&["GPU-8a4d", "MIG-8a4d1f3c-0"]).unwrap().len(), 2);
        let uuid = "gpu-8a4d1f3c-0b51-4c8e-9d57-3f2a6b1c0e01";
        assert_eq!(of(&[uuid, "0000:3B:00.0"]).unwrap(), [uuid, "0000:3B:00.0"]);
        for bad in [
            "first",
            "",
            "GPU-",
            "GPU-8a4",
            "GPU-8a4x",
            "3b:00.0",
            "0:3b:00.0",
            "1:",
            "-1",
            "+1",
            "0,1",
        ] {
            assert!(of(&[bad]).is_err(), "{bad}");
        }
    }
}
