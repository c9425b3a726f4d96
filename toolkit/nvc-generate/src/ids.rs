//! Checks lists of device ids: `all`, `none`, or names as [`libnvc::select`] reads them.

use libnvc::{Error, ErrorKind, Result};

/// Returns ids for a [`DeviceRequest`](libnvc::request::DeviceRequest): no id means all, and `none` has precedence.
///
/// # Errors
/// One of them is a list itself, or empty.
pub fn ids<S: AsRef<str>>(ids: &[S]) -> Result<Vec<String>> {
    let words = ids.iter().map(AsRef::as_ref);
    if ids.is_empty() {
        return Ok(vec!["all".into()]);
    }
    if words.clone().any(|id| id.eq_ignore_ascii_case("none")) {
        return Ok(Vec::new());
    }
    match words.clone().find(|id| id.is_empty() || id.contains(',')) {
        Some(odd) => {
            let text = format!("\"{odd}\" is neither an index nor a UUID");
            let error = Error::new(ErrorKind::InvalidArgument, text);
            Err(error.hint("nvidia-smi -L lists what there is"))
        }
        None => Ok(words.map(str::to_owned).collect()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn words_count_for_the_list() {
        assert_eq!(ids::<&str>(&[]).unwrap(), ["all"]);
        assert_eq!(ids(&["0", "None", "all"]).unwrap(), [""; 0]);
        assert_eq!(ids(&["0", "ALL"]).unwrap(), ["0", "ALL"]);
        for bad in ["", "0,1"] {
            assert!(ids(&[bad]).is_err(), "{bad}");
        }
    }
}
