//! Determines whether a container is privileged, by the rules of its version of the OCI specification.

use std::cmp::Ordering;

/// The capabilities of a container's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinuxCapabilities {
    /// One list, as in drafts of the specification.
    Flat(Vec<String>),
    /// Five sets; only this one matters here.
    Bounding(Vec<String>),
}

/// Returns true if a process with these capabilities is effectively unrestricted on the host.
pub fn is_privileged(capabilities: &LinuxCapabilities) -> bool {
    let (LinuxCapabilities::Flat(names) | LinuxCapabilities::Bounding(names)) = capabilities;
    names.iter().any(|name| name == "CAP_SYS_ADMIN")
}

/// Returns true if capabilities are one list in this version of the specification: from 1.0.0-rc1 until before
/// 1.0.0-rc5.
pub fn has_flat_capabilities(version: &str) -> bool {
    let Some(version) = Version::parse(version) else {
        return false;
    };
    let draft = |pre_release| Version {
        core: [1, 0, 0],
        pre_release: Some(pre_release),
    };
    version.compare(&draft("rc1")) != Ordering::Less
        && version.compare(&draft("rc5")) == Ordering::Less
}

/// A semantic version.
struct Version<'a> {
    core: [u64; 3],
    pre_release: Option<&'a str>,
}

impl<'a> Version<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let text = text.split('+').next()?;
        let (numbers, pre_release) = match text.split_once('-') {
            Some((numbers, pre_release)) => (numbers, Some(pre_release)),
            None => (text, None),
        };
        let mut core = [0; 3];
        let mut parts = 0;
        for part in numbers.split('.') {
            let plain = part.bytes().all(|byte| byte.is_ascii_digit())
                && (part.len() == 1 || !part.starts_with('0'));
            *core.get_mut(parts)? = part.parse().ok().filter(|_| plain)?;
            parts += 1;
        }
        // Abbreviated versions have no suffix.
        (parts == 3 || pre_release.is_none()).then_some(Self { core, pre_release })
    }

    fn compare(&self, other: &Version<'_>) -> Ordering {
        self.core
            .cmp(&other.core)
            .then_with(|| match (self.pre_release, other.pre_release) {
                (None, None) => Ordering::Equal,
                (None, Some(_)) => Ordering::Greater,
                (Some(_), None) => Ordering::Less,
                (Some(one), Some(other)) => compare_pre_releases(one, other),
            })
    }
}

/// Compares part by part: numbers by value and before words, words alphabetically; longer ones are later.
fn compare_pre_releases(one: &str, other: &str) -> Ordering {
    let (mut ones, mut others) = (one.split('.'), other.split('.'));
    loop {
        let (one, other) = match (ones.next(), others.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(one), Some(other)) => (one, other),
        };
        let order = match (one.parse::<u64>(), other.parse::<u64>()) {
            (Ok(one), Ok(other)) => one.cmp(&other),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => one.cmp(other),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_have_one_list() {
        for version in [
            "1.0.0-rc1",
            "1.0.0-rc3",
            "1.0.0-rc4",
            "1.0.0-rc2+build",
            "1.0.0-rc1.2",
        ] {
            assert!(has_flat_capabilities(version), "{version}");
        }
        let others = [
            "1.0.0-rc5",
            "1.0.0",
            "1.0.2",
            "1.0.2-dev",
            "0.9.0",
            "1.0.0-beta",
            "1.0",
            "1",
            "",
            "x",
            "1.0-rc3",
            "01.0.0-rc3",
            "1.0.0.0-rc3",
            "v1.0.0-rc3",
        ];
        for version in others {
            assert!(!has_flat_capabilities(version), "{version}");
        }
    }

    #[test]
    fn sys_admin_is_privilege() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        for make in [LinuxCapabilities::Flat, LinuxCapabilities::Bounding] {
            assert!(is_privileged(&make(names(&["CAP_KILL", "CAP_SYS_ADMIN"]))));
            assert!(!is_privileged(&make(names(&[
                "cap_sys_admin",
                "SYS_ADMIN"
            ]))));
            assert!(!is_privileged(&make(names(&[]))));
        }
    }
}
