//! Detects the image's distribution by its library directories.
//!
//! The image's dynamic loader must find the mounted libraries: Debian's searches the multiarch directories, most others
//! /usr/lib64, musl's /usr/lib and nothing else. Upstream knows the first two.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::Layout;
use crate::error::{Error, Result};
use crate::inroot::{self, RootDir};
use crate::ldcache::musl;
use crate::path::ContainerPath;
use crate::request::ImageOptions;

#[cfg(target_arch = "x86_64")]
mod arch {
    pub(super) const MULTIARCH: &str = "/usr/lib/x86_64-linux-gnu";
    pub(super) const MULTIARCH32: &str = "/usr/lib/i386-linux-gnu";
}
#[cfg(target_arch = "aarch64")]
mod arch {
    pub(super) const MULTIARCH: &str = "/usr/lib/aarch64-linux-gnu";
    pub(super) const MULTIARCH32: &str = "/var/empty";
}

/// The directory of programs that every image has.
pub(crate) const PROGRAMS: &str = "/usr/bin";

/// Directories of native libraries in the families of distributions with glibc.
pub(crate) const FAMILIES: [&str; 2] = [arch::MULTIARCH, "/usr/lib64"];

/// Returns the directory of the X server's modules in an image with this directory of libraries: Debian's is not below
/// it.
pub(crate) fn x_modules(libraries: &ContainerPath) -> ContainerPath {
    let above = if *libraries == ContainerPath::new(arch::MULTIARCH) {
        libraries.parent()
    } else {
        libraries.clone()
    };
    above.join("xorg/modules")
}

/// Returns the directories for files in the image below `root`; the caller's options take precedence.
pub(super) fn detect(options: &ImageOptions, root: &RootDir) -> Result<Layout> {
    let given = |path: &Option<PathBuf>| path.as_ref().map(ContainerPath::new);
    let (libs_dir, libs32_dir) = match (given(&options.libs_dir), given(&options.libs32_dir)) {
        (Some(libs), Some(libs32)) => (libs, libs32),
        (libs, libs32) => {
            let found = library_directories(root)?;
            (libs.unwrap_or(found.0), libs32.unwrap_or(found.1))
        }
    };
    Ok(Layout {
        bins_dir: given(&options.bins_dir).unwrap_or_else(|| ContainerPath::new(PROGRAMS)),
        libs_dir,
        libs32_dir,
        cudart_dir: given(&options.cudart_dir)
            .unwrap_or_else(|| ContainerPath::new("/usr/local/cuda")),
    })
}

fn library_directories(root: &RootDir) -> Result<(ContainerPath, ContainerPath)> {
    let exists = |path: &str| {
        root.exists(Path::new(path))
            .map_err(|errno| Error::file("path error", path, errno))
    };
    let dirs =
        |libs: &str, libs32: &str| Ok((ContainerPath::new(libs), ContainerPath::new(libs32)));
    if exists("/etc/debian_version")? {
        return dirs(arch::MULTIARCH, arch::MULTIARCH32);
    }
    if exists(musl::NATIVE.path)? && !exists("/usr/lib64")? {
        return dirs("/usr/lib", "/usr/lib32");
    }
    // Images assembled from Debian packages without base-files.
    if exists(&format!("{}/libc.so.6", arch::MULTIARCH))? {
        return dirs(arch::MULTIARCH, arch::MULTIARCH32);
    }
    let libs = "/usr/lib64";
    let libs32 =
        if exists("/usr/lib32")? || !exists("/usr/lib")? || same_directory(root, "/usr/lib", libs)?
        {
            "/usr/lib32"
        } else {
            "/usr/lib"
        };
    dirs(libs, libs32)
}

fn same_directory(root: &RootDir, a: &str, b: &str) -> Result<bool> {
    let identity = |path: &str| match root.resolve(Path::new(path)) {
        Ok(fd) => inroot::identity_of(fd).map(Some),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        Err(errno) => Err(errno),
    };
    let of = |path| identity(path).map_err(|errno| Error::file("path error", path, errno));
    Ok(of(a)?.is_some_and(|a| of(b).is_ok_and(|b| b == Some(a))))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn detected(dirs: &[&str], files: &[&str], links: &[(&str, &str)]) -> (String, String) {
        let dir = tempfile::tempdir().unwrap();
        for path in dirs {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        for path in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        for (link, target) in links {
            symlink(target, dir.path().join(link)).unwrap();
        }
        let layout = detect(
            &ImageOptions::default(),
            &RootDir::open(dir.path()).unwrap(),
        )
        .unwrap();
        (layout.libs_dir.to_string(), layout.libs32_dir.to_string())
    }

    #[test]
    fn distributions_are_recognised() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let debian = pair(arch::MULTIARCH, arch::MULTIARCH32);
        assert_eq!(detected(&[], &["etc/debian_version"], &[]), debian);
        let libc = format!("{}/libc.so.6", &arch::MULTIARCH[1..]);
        assert_eq!(detected(&[], &[&libc], &[]), debian);
        // Fedora, openSUSE
        assert_eq!(
            detected(&["usr/lib", "usr/lib64"], &[], &[]),
            pair("/usr/lib64", "/usr/lib")
        );
        // Arch: lib64 is a link to lib, multilib has lib32
        let arch = detected(&["usr/lib", "usr/lib32"], &[], &[("usr/lib64", "lib")]);
        assert_eq!(arch, pair("/usr/lib64", "/usr/lib32"));
        assert_eq!(
            detected(&["usr/lib"], &[], &[("usr/lib64", "lib")]),
            pair("/usr/lib64", "/usr/lib32")
        );
        // Alpine
        assert_eq!(
            detected(&["usr/lib"], &[&musl::NATIVE.path[1..]], &[]),
            pair("/usr/lib", "/usr/lib32")
        );
        assert_eq!(detected(&[], &[], &[]), pair("/usr/lib64", "/usr/lib32"));
    }
}
