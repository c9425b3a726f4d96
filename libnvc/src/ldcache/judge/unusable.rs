//! Names the reasons why an image's cache cannot be updated in place.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::error::errno_text;
use crate::ldcache::configured::Blocks;

/// The reason why ldconfig must rebuild the cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("{}: {}", .0.display(), errno_text(*.1))]
    Unreadable(PathBuf, Errno),
    /// The cache itself cannot be read or understood.
    #[error("/etc/ld.so.cache: {0}")]
    Cache(&'static str),
    #[error("{}: {why}", .0.path.display(), why = .0.why)]
    Configuration(Blocks),
    #[error("/etc/ld.so.conf is too large")]
    LargeConfiguration,
    #[error("/etc/ld.so.cache is older than /etc/ld.so.conf or what that includes")]
    OlderThanConfiguration,
    #[error("/etc/ld.so.cache is older than {}", .0.display())]
    OlderThan(PathBuf),
    #[error("/etc/ld.so.cache lists {}, which does not exist", .0.display())]
    MissingDirectory(PathBuf),
    #[error("/etc/ld.so.cache lists libraries that are not in {}", .0.display())]
    MissingLibraries(PathBuf),
    #[error("/etc/ld.so.cache does not list {}", .0.display())]
    UnlistedLibrary(PathBuf),
    #[error("/etc/ld.so.cache lists none of the libraries in {}", .0.display())]
    UnlistedDirectory(PathBuf),
    #[error("{} has too many libraries that /etc/ld.so.cache does not list", .0.display())]
    ManyUnlisted(PathBuf),
    #[error("{} has libraries for certain CPUs only", .0.display())]
    ForSomeProcessors(PathBuf),
    #[error("{} has too many directories", .0.display())]
    ManyDirectories(PathBuf),
    #[error("examining the image's directories takes too long")]
    Slow,
}

/// Returns the reason for a file or directory that cannot be read.
pub(super) fn unreadable(path: &Path, errno: Errno) -> Unusable {
    Unusable::Unreadable(path.to_owned(), errno)
}
