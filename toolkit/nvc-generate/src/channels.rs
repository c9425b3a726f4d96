//! Reads names of IMEX channels.
//!
//! A channel is its number, the minor number of its node.

use libnvc::host::numbers;
use libnvc::select::parse_imex_channels;
use libnvc::{Error, ErrorKind, Result};

/// The channels of a specification or of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Channels {
    /// Those of this machine.
    All,
    Numbers(Vec<u32>),
}

impl Channels {
    /// Reads names of channels: `all`, `none`, which has precedence, `channelN` or `N`. No name means all.
    ///
    /// # Errors
    /// A name is none of these.
    pub fn of<S: AsRef<str>>(names: &[S]) -> Result<Self> {
        let mut words = names.iter().map(AsRef::as_ref);
        if words.clone().any(|name| name.eq_ignore_ascii_case("none")) {
            return Ok(Self::Numbers(Vec::new()));
        }
        if names.is_empty() || words.clone().any(|name| name.eq_ignore_ascii_case("all")) {
            return Ok(Self::All);
        }
        words
            .try_fold(Vec::new(), |mut numbers, name| {
                numbers.push(number(name)?);
                Ok(numbers)
            })
            .map(Self::Numbers)
    }
}

/// Returns the number of a channel, which has one name only: another would be a second device in the specification.
pub(crate) fn number(name: &str) -> Result<u32> {
    let digits = name.strip_prefix("channel").unwrap_or(name);
    let number = numbers::canonical(digits).filter(|_| parse_imex_channels(&[digits]).is_ok());
    number.ok_or_else(|| {
        let text = format!("\"{name}\" is not an IMEX channel");
        Error::new(ErrorKind::InvalidArgument, text)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_become_numbers() {
        let of = |names: &[&str]| Channels::of(names).unwrap();
        assert_eq!(of(&[]), Channels::All);
        assert_eq!(of(&["0", "all"]), Channels::All);
        assert_eq!(of(&["all", "none"]), Channels::Numbers(Vec::new()));
        let last = "channel1048575";
        assert_eq!(of(&["7", last]), Channels::Numbers(vec![7, 1_048_575]));
        for name in [
            "",
            "07",
            "+7",
            "-1",
            "channel",
            "channel007",
            "channel+7",
            "1048576",
            "0,1",
        ] {
            let text = format!("\"{name}\" is not an IMEX channel");
            assert_eq!(Channels::of(&[name]).unwrap_err().message(), text);
        }
    }
}
