//! Selects GPUs for engines that find them themselves: CDI, the runtime, `--gpus`.

use libnvc::request::unquoted;
use libnvc::{DeviceName, Error, ErrorKind, Result};
use nvc_cdi::names;

use crate::device_id::{Candidate, find, items, starts};

use super::image::Image;

/// The selected GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    All,
    /// None: the image or the user disables GPUs.
    Nothing,
    /// By name: index, UUID, or a MIG device's, in the order of the request.
    These(Vec<String>),
}

impl Selection {
    /// Returns NV_GPU's GPUs, or else those of NVIDIA_VISIBLE_DEVICES on the command line or in the image, or else all.
    ///
    /// # Errors
    /// `invalid device: <id>` for an invalid name.
    pub(super) fn new(nv_gpu: &str, image: &Image) -> Result<Self> {
        let chosen = items(unquoted(nv_gpu));
        if !chosen.is_empty() {
            return Self::of(&chosen);
        }
        match image.visible().map(unquoted) {
            Some("") => Ok(Self::Nothing),
            Some(visible) => Self::of(&items(visible)),
            None => Ok(Self::All),
        }
    }

    fn of(ids: &[&str]) -> Result<Self> {
        let are = |word: &str| ids.iter().any(|id| id.eq_ignore_ascii_case(word));
        match ids {
            [] => return Ok(Self::Nothing),
            [_] if are("none") || are("void") => return Ok(Self::Nothing),
            _ if are("all") => return Ok(Self::All),
            _ => {}
        }
        let mut names: Vec<String> = Vec::new();
        for id in ids {
            // A CDI name denotes the device it ends with.
            let name = names::parse(id).map_or(*id, |name| name.device);
            // The old name of a MIG device has slashes.
            let is_old = matches!(DeviceName::parse(name), Some(DeviceName::Instances(..)));
            let fits = |c: char| {
                c.is_ascii_alphanumeric()
                    || matches!(c, '-' | '_' | ':' | '.')
                    || c == '/' && is_old
            };
            if name.is_empty()
                || !name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '+')
                || !name.trim_start_matches('+').chars().all(fits)
            {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("invalid device: {id}"),
                ));
            }
            // Signs and leading zeros are accepted in indices, as in the classic back end.
            let name = name
                .parse::<u32>()
                .map_or_else(|_| name.to_owned(), |index| index.to_string());
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Ok(Self::These(names))
    }

    /// Returns true if a name may be a UUID prefix, which only this program can complete.
    pub(super) fn has_prefixes(&self) -> bool {
        let Self::These(names) = self else {
            return false;
        };
        names.iter().any(|name| is_prefix(name))
    }

    /// Returns the first name that is not among these; a UUID prefix matches all names that begin with it.
    pub(super) fn missing_in(&self, names: &[String]) -> Option<&str> {
        let is_there = |wanted: &str| {
            names
                .iter()
                .any(|name| name == wanted || is_prefix(wanted) && starts(name, wanted))
        };
        match self {
            Self::Nothing => None,
            Self::All => Some("all").filter(|name| !is_there(name)),
            Self::These(wanted) => wanted
                .iter()
                .map(String::as_str)
                .find(|name| !is_there(name)),
        }
    }

    /// Completes UUID prefixes from the existing UUIDs.
    ///
    /// # Errors
    /// `invalid device: <id>` for a prefix without a match.
    pub(super) fn complete(self, gpus: &[Candidate]) -> Result<Self> {
        let Self::These(names) = self else {
            return Ok(self);
        };
        let mut whole: Vec<String> = Vec::new();
        for name in names {
            let name = if is_prefix(&name) {
                find(&name, gpus)
                    .map(|gpu| gpu.uuid.clone())
                    .ok_or_else(|| {
                        let there: Vec<&str> = gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
                        Error::new(
                            ErrorKind::InvalidArgument,
                            format!("invalid device: {name}"),
                        )
                        .hint(format!("there are {}", there.join(", ")))
                    })?
            } else {
                name
            };
            if !whole.contains(&name) {
                whole.push(name);
            }
        }
        Ok(Self::These(whole))
    }
}

/// Returns true if a name is the start of a GPU's UUID and not a whole one, which has 40 characters, or is in another case.
fn is_prefix(name: &str) -> bool {
    let whole =
        || name.len() >= 40 && name.starts_with("GPU-") && !name[4..].contains(char::is_uppercase);
    starts(name, "GPU-") && !whole()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn selection(nv_gpu: &str, visible: Option<&str>) -> Result<Selection> {
        let mut image = Image::default();
        if let Some(value) = visible {
            let name = "NVIDIA_VISIBLE_DEVICES".to_owned();
            image.environment.insert(name, value.to_owned());
        }
        Selection::new(nv_gpu, &image)
    }

    fn these(names: &[&str]) -> Selection {
        Selection::These(names.iter().map(|s| (*s).to_owned()).collect())
    }

    #[test]
    fn requests() {
        for (nv_gpu, visible, expected) in [
            ("", None, Selection::All),
            (" ,", None, Selection::All),
            ("", Some("all"), Selection::All),
            ("", Some("none"), Selection::Nothing),
            ("", Some("void"), Selection::Nothing),
            ("", Some(""), Selection::Nothing),
            ("", Some("0,1"), these(&["0", "1"])),
            ("1", Some("none"), these(&["1"])),
            ("'1'", Some("0"), these(&["1"])),
            ("", Some("\"All\""), Selection::All),
            ("all", Some("0"), Selection::All),
            ("1 0,01", None, these(&["1", "0"])),
            ("+1", None, these(&["1"])),
            ("0:1 MIG-aa", None, these(&["0:1", "MIG-aa"])),
            ("", Some("nvidia.com/gpu=1"), these(&["1"])),
            ("MIG-GPU-aa/1/0", None, these(&["MIG-GPU-aa/1/0"])),
        ] {
            assert_eq!(selection(nv_gpu, visible).unwrap(), expected, "{nv_gpu:?}");
        }
        for id in ["-1", "a/b", "\"x", "0\t1", "--privileged", "$(x)", "x="] {
            let failure = selection(id, None).unwrap_err();
            assert_eq!(failure.message(), format!("invalid device: {id}"));
        }
    }

    #[test]
    fn uuids_are_completed() {
        let uuid = "GPU-836c0c09-9b78-6511-cb1c-0cdc5fc5cf0b";
        let gpus = [Candidate {
            index: 0,
            uuid: uuid.into(),
            minor: 1,
            busid: String::new(),
        }];
        let shouted = selection(&uuid.to_uppercase(), None).unwrap();
        assert_eq!(shouted.complete(&gpus).unwrap(), these(&[uuid]));
        let short = selection("GPU-83 1", None).unwrap();
        assert!(short.has_prefixes());
        assert_eq!(short.complete(&gpus).unwrap(), these(&[uuid, "1"]));
        assert!(!selection(uuid, None).unwrap().has_prefixes());
        assert!(!selection("all", None).unwrap().has_prefixes());
        let unknown = selection("GPU-9", None).unwrap().complete(&gpus);
        assert_eq!(unknown.unwrap_err().message(), "invalid device: GPU-9");
    }
}
