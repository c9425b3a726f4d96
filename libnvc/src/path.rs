//! Distinguishes host paths from container paths by type.
//!
//! Both types are *lexical*: text that looks absolute, never checked against a filesystem. A `HostPath` is relative to
//! the driver root, a `ContainerPath` to the container's root. Only discovery (in the driver root) and apply (in the
//! container's root) turn them into descriptors, at the moment of use.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The directories of programs that PATH has by default, in Debian's order.
pub const STANDARD_PATH: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

macro_rules! lexical_path {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(PathBuf);

        impl $name {
            /// Wraps a path; adds a leading slash if it is missing.
            pub fn new(path: impl AsRef<Path>) -> Self {
                Self(Path::new("/").join(path))
            }

            /// Returns the path with its leading slash.
            pub fn as_path(&self) -> &Path {
                &self.0
            }

            /// Returns this path with another component or relative path appended.
            #[must_use]
            pub fn join(&self, tail: impl AsRef<Path>) -> Self {
                Self(self.0.join(relative(tail.as_ref())))
            }

            /// Returns the directory part; the root is its own parent.
            #[must_use]
            pub fn parent(&self) -> Self {
                Self(self.0.parent().unwrap_or(Path::new("/")).to_owned())
            }

            /// Returns the last component; empty for the root.
            pub fn file_name(&self) -> &OsStr {
                self.0.file_name().unwrap_or_default()
            }

            /// Returns the path without its leading slash, `.` for the root, as the `*at` calls expect.
            pub fn relative(&self) -> &Path {
                relative(&self.0)
            }

            /// Returns the path below `root`, for messages.
            pub fn below(&self, root: &Path) -> PathBuf {
                root.join(relative(&self.0))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.display().fmt(f)
            }
        }

        impl Serialize for $name {
            /// Serialises as text; bytes that are not UTF-8 are replaced, because JSON cannot represent them.
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0.to_string_lossy())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer).map(Self::new)
            }
        }
    };
}

lexical_path! {
    /// A path below the driver root, e.g. `/usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03`.
    HostPath
}

lexical_path! {
    /// A path below the container's root, as the container sees it.
    ContainerPath
}

impl From<&HostPath> for ContainerPath {
    /// Returns the same path in the container as in the driver root.
    fn from(path: &HostPath) -> Self {
        Self(path.0.clone())
    }
}

fn relative(path: &Path) -> &Path {
    let mut components = path.components();
    while matches!(
        components.clone().next(),
        Some(Component::RootDir | Component::Prefix(_))
    ) {
        components.next();
    }
    let rest = components.as_path();
    if rest.as_os_str().is_empty() {
        Path::new(".")
    } else {
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_stay_below_the_root() {
        let dir = ContainerPath::new("usr/lib");
        assert_eq!(dir.as_path(), Path::new("/usr/lib"));
        assert_eq!(
            dir.join("/etc/passwd").as_path(),
            Path::new("/usr/lib/etc/passwd")
        );
        assert_eq!(dir.relative(), Path::new("usr/lib"));
        assert_eq!(ContainerPath::new("/").relative(), Path::new("."));
        assert_eq!(dir.below(Path::new("/root")), Path::new("/root/usr/lib"));
    }
}
