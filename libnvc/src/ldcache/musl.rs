//! Updates musl's list of library directories, /etc/ld-musl-ARCH.path, which it uses instead of a cache.
//!
//! Without the file musl searches three directories; with it, only those that it names, separated by colons or
//! newlines.

/// A musl loader and the file that names its directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MuslLoader {
    pub(crate) path: &'static str,
    /// Name of the file in /etc.
    pub(crate) list: &'static str,
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use super::MuslLoader;

    pub(crate) const NATIVE: MuslLoader = MuslLoader {
        path: "/lib/ld-musl-x86_64.so.1",
        list: "ld-musl-x86_64.path",
    };
    pub(crate) const COMPAT32: MuslLoader = MuslLoader {
        path: "/lib/ld-musl-i386.so.1",
        list: "ld-musl-i386.path",
    };
}
#[cfg(target_arch = "aarch64")]
mod arch {
    use super::MuslLoader;

    pub(crate) const NATIVE: MuslLoader = MuslLoader {
        path: "/lib/ld-musl-aarch64.so.1",
        list: "ld-musl-aarch64.path",
    };
    pub(crate) const COMPAT32: MuslLoader = MuslLoader {
        path: "/lib/ld-musl-armhf.so.1",
        list: "ld-musl-armhf.path",
    };
}

pub(crate) use arch::{COMPAT32, NATIVE};

/// The directories that musl searches without a list.
const DEFAULT: &[u8] = b"/lib\n/usr/local/lib\n/usr/lib\n";

/// Returns the list with these directories added, or None if it has them already. `list` is None if the file is
/// missing.
///
/// `first` go before all others, `last` after them.
pub(crate) fn extended(list: Option<&[u8]>, first: &[&[u8]], last: &[&[u8]]) -> Option<Vec<u8>> {
    let list = list.unwrap_or(DEFAULT);
    let named = |directory: &&&[u8]| {
        let mut known = list.split(is_separator).map(without_slash);
        known.any(|known| known == without_slash(directory))
    };
    let missing = |directories: &[&[u8]]| -> Vec<u8> {
        let lines = directories.iter().filter(|directory| !named(directory));
        lines
            .flat_map(|directory| [directory, &b"\n"[..]].concat())
            .collect()
    };
    let (first, last) = (missing(first), missing(last));
    if first.is_empty() && last.is_empty() {
        return None;
    }
    let mut extended = first;
    extended.extend(list);
    if !extended.ends_with(b"\n") && !extended.is_empty() {
        extended.push(b'\n');
    }
    extended.extend(last);
    Some(extended)
}

fn is_separator(byte: &u8) -> bool {
    matches!(byte, b':' | b'\n')
}

fn without_slash(path: &[u8]) -> &[u8] {
    match path {
        [path @ .., b'/'] if !path.is_empty() => without_slash(path),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(list: Option<&str>, first: &[&str], last: &[&str]) -> Option<String> {
        let bytes = |paths: &[&'static str]| -> Vec<&'static [u8]> {
            paths.iter().map(|path| path.as_bytes()).collect()
        };
        let leak = |paths: &[&str]| -> Vec<&'static str> {
            paths.iter().map(|path| &*path.to_string().leak()).collect()
        };
        let (first, last) = (bytes(&leak(first)), bytes(&leak(last)));
        let extended = extended(list.map(str::as_bytes), &first, &last)?;
        Some(String::from_utf8_lossy(&extended).into_owned())
    }

    #[test]
    fn existing_directories_stay() {
        assert_eq!(text(None, &[], &["/usr/lib", "/lib/"]), None);
        assert_eq!(text(Some("/a:/b//"), &["/a"], &["/b"]), None);
    }

    #[test]
    fn missing_directories_are_added() {
        let defaults = "/lib\n/usr/local/lib\n/usr/lib\n";
        assert_eq!(
            text(None, &[], &["/usr/lib64"]),
            Some(format!("{defaults}/usr/lib64\n"))
        );
        assert_eq!(
            text(None, &["/c"], &["/usr/lib"]),
            Some(format!("/c\n{defaults}"))
        );
        assert_eq!(
            text(Some("/a:/b"), &[], &["/c"]).as_deref(),
            Some("/a:/b\n/c\n")
        );
        assert_eq!(text(Some(""), &[], &["/c"]).as_deref(), Some("/c\n"));
    }
}
