//! Builds container roots with the layouts of the distributions.
//!
//! They differ in the parts that libnvc examines: directories of libraries and programs, which of these are links,
//! which file names the distribution, and whether there is a linker cache. The programs in them are this machine's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fmt, io};

use crate::driver::NATIVE;
use crate::elf::SharedObject;
use crate::{files, userland};

/// The layout of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Debian and Ubuntu: multiarch directories.
    Debian,
    /// Red Hat and SUSE: /usr/lib64.
    Rhel,
    /// Arch: everything in /usr/lib and /usr/bin, the others are links.
    Arch,
    /// Alpine: no glibc, no linker cache, and therefore none of this machine's programs.
    Alpine,
    /// Mount points only.
    Empty,
}

/// The note of the compatibility libcuda of CUDA 12.9.
pub const COMPAT_NOTE: &str = r#"{"format":1,"CUDA version":"12.9","driver":[535,550,560,565,570,575],"device":[1,2,3,4,5,6,7,8,9,10,11,12,13]}"#;

/// A change to a root before its linker cache is generated.
type Edit = Box<dyn Fn(&Path) -> io::Result<()> + Send>;

/// Options of a container root.
pub struct Builder {
    layout: Layout,
    merged_usr: bool,
    programs: Vec<&'static str>,
    compat: Vec<String>,
    edits: Vec<Edit>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Describes a root with a shell, some programs and ldconfig if the layout allows that.
    pub fn new(layout: Layout) -> Self {
        let programs: &[_] = match layout {
            Layout::Alpine | Layout::Empty => &[],
            // The last three are for a container's own process after pivoting.
            _ => &[
                "sh", "cat", "ls", "id", "env", "ldconfig", "umount", "sleep", "chroot",
            ],
        };
        Self {
            layout,
            merged_usr: layout != Layout::Alpine,
            programs: programs.to_vec(),
            compat: Vec::new(),
            edits: Vec::new(),
        }
    }

    /// Makes /bin, /sbin, /lib and /lib64 separate directories, as before the /usr merge.
    #[must_use]
    pub fn split_usr(mut self) -> Self {
        self.merged_usr = false;
        self
    }

    /// Omits all programs; faster, but chroot into it is not possible.
    #[must_use]
    pub fn no_programs(mut self) -> Self {
        self.programs.clear();
        self
    }

    /// Adds programs of this machine.
    #[must_use]
    pub fn programs(mut self, names: &[&'static str]) -> Self {
        self.programs.extend_from_slice(names);
        self
    }

    /// Adds a CUDA forward-compatibility package of this driver version.
    #[must_use]
    pub fn compat(mut self, version: &str) -> Self {
        self.compat.push(version.into());
        self
    }

    /// Applies a change before the linker cache is generated.
    #[must_use]
    pub fn edit(mut self, change: impl Fn(&Path) -> io::Result<()> + Send + 'static) -> Self {
        self.edits.push(Box::new(change));
        self
    }

    /// Adds a directory.
    #[must_use]
    pub fn directory(self, path: &'static str) -> Self {
        self.edit(move |root| files::directory(&files::below(root, Path::new(path))))
    }

    /// Adds a symlink, created before any file that goes through it.
    #[must_use]
    pub fn link(self, path: &'static str, target: &'static str) -> Self {
        self.edit(move |root| files::link(&files::below(root, Path::new(path)), target))
    }

    /// Adds a file.
    #[must_use]
    pub fn file(self, path: &'static str, content: &'static str, mode: u32) -> Self {
        self.edit(move |root| files::file(&files::below(root, Path::new(path)), content, mode))
    }

    /// Creates the root in a directory.
    ///
    /// # Errors
    /// A file cannot be created.
    pub fn build(&self, root: impl AsRef<Path>) -> io::Result<PathBuf> {
        files::directory(root.as_ref())?;
        let root = root.as_ref().canonicalize()?;
        for directory in ["proc", "sys", "dev", "tmp", "run", "mnt", "etc"] {
            files::directory(&root.join(directory))?;
        }
        files::mode(&root.join("tmp"), 0o1777)?;
        if self.layout != Layout::Empty {
            self.directories(&root)?;
            self.etc(&root)?;
            if !self.programs.is_empty() {
                userland::install(&root, &self.programs, &self.libraries())?;
                userland::install_c_library(&root, &self.libraries())?;
            }
        }
        if !self.compat.is_empty() {
            self.cuda_compat(&root)?;
        }
        for edit in &self.edits {
            edit(&root)?;
        }
        if !matches!(self.layout, Layout::Alpine | Layout::Empty) {
            let output = Command::new(userland::host_ldconfig())
                .arg("-r")
                .arg(&root)
                .output()?;
            if !output.status.success() {
                return Err(io::Error::other(format!("ldconfig: {output:?}")));
            }
        }
        Ok(root)
    }

    /// Returns the directory of native libraries in this layout, which also holds this machine's.
    pub fn libraries(&self) -> String {
        match self.layout {
            Layout::Debian => format!("/usr/lib/{}", NATIVE.0),
            _ => "/usr/lib64".into(),
        }
    }

    fn directories(&self, root: &Path) -> io::Result<()> {
        let link = |path: &str, target: &str| files::link(&root.join(path), target);
        let directory = |path: &str| files::directory(&root.join(path));
        for path in [
            "usr/bin",
            "usr/lib",
            "usr/local",
            "var/lib",
            "root",
            "home/user",
        ] {
            directory(path)?;
        }
        link("var/run", "/run")?;
        if self.layout == Layout::Arch {
            link("usr/lib64", "lib")?;
            link("usr/sbin", "bin")?;
        } else {
            directory("usr/sbin")?;
        }
        if matches!(self.layout, Layout::Debian | Layout::Rhel) {
            directory("usr/lib64")?;
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            if name == "lib64" && self.layout == Layout::Alpine {
                continue;
            }
            if self.merged_usr {
                link(name, &format!("usr/{name}"))?;
            } else {
                directory(name)?;
            }
        }
        Ok(())
    }

    fn etc(&self, root: &Path) -> io::Result<()> {
        let file = |name: &str, text: &str| files::file(&root.join("etc").join(name), text, 0o644);
        file(
            "passwd",
            "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n",
        )?;
        file("group", "root:x:0:\nuser:x:1000:\n")?;
        let (id, release) = match self.layout {
            Layout::Debian => ("debian", "debian_version"),
            Layout::Rhel => ("rhel", "redhat-release"),
            Layout::Arch => ("arch", "arch-release"),
            Layout::Alpine => ("alpine", "alpine-release"),
            Layout::Empty => return Ok(()),
        };
        file("os-release", &format!("ID={id}\n"))?;
        file(release, "1\n")?;
        if self.layout == Layout::Alpine {
            // In place of musl's ldconfig; leaves a trace if it is ever run.
            let script = "#!/bin/sh\necho run > /ldconfig-was-run\n";
            return files::file(&root.join("sbin/ldconfig"), script, 0o755);
        }
        file("ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")?;
        let directories = match self.layout {
            Layout::Debian => format!("/lib/{0}\n/usr/lib/{0}\n", NATIVE.0),
            _ => "/lib64\n/usr/lib64\n".into(),
        };
        file("ld.so.conf.d/libraries.conf", &directories)
    }

    /// Installs /usr/local/cuda/compat like the cuda-compat packages.
    fn cuda_compat(&self, root: &Path) -> io::Result<()> {
        let local = root.join("usr/local");
        files::link(&local.join("cuda"), "cuda-12.9")?;
        let directory = local.join("cuda-12.9/compat");
        for version in &self.compat {
            for (stem, soname) in [
                ("libcuda", "libcuda.so.1"),
                ("libnvidia-ptxjitcompiler", "libnvidia-ptxjitcompiler.so.1"),
            ] {
                let name = format!("{stem}.so.{version}");
                let mut object = SharedObject::new(NATIVE.1).soname(soname);
                if stem == "libcuda" {
                    object = object.compat_note(COMPAT_NOTE);
                }
                files::file(&directory.join(&name), object.bytes(), 0o644)?;
                let link = directory.join(soname);
                if !link.is_symlink() {
                    files::link(&link, &name)?;
                }
            }
        }
        files::link(&directory.join("libcuda.so"), "libcuda.so.1")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn programs_run_in_every_layout_with_a_c_library() {
        for layout in [Layout::Debian, Layout::Rhel, Layout::Arch] {
            for merged in [true, false] {
                let directory = tempfile::tempdir().unwrap();
                let mut builder = Builder::new(layout).compat("575.1").directory("/opt/x");
                builder.merged_usr = merged || layout == Layout::Arch;
                let root = builder.build(directory.path()).unwrap();
                assert!(
                    root.join("opt/x").is_dir()
                        && root.join("usr/local/cuda/compat/libcuda.so").exists()
                );
                let mut command = Command::new("unshare");
                if !nix::unistd::geteuid().is_root() {
                    command.arg("-r");
                }
                let output = command
                    .arg("--root")
                    .arg(&root)
                    .args(["/bin/sh", "-c", "cat /etc/os-release; id -u; ls /"])
                    .output()
                    .unwrap();
                let text = String::from_utf8_lossy(&output.stdout);
                assert!(
                    text.starts_with("ID=") && text.contains("\n0\n"),
                    "{layout:?}: {output:?}"
                );
            }
        }
    }

    #[test]
    fn roots_without_glibc_have_no_cache() {
        for layout in [Layout::Alpine, Layout::Empty] {
            let directory = tempfile::tempdir().unwrap();
            let root = Builder::new(layout).build(directory.path()).unwrap();
            assert!(!root.join("etc/ld.so.cache").exists());
            assert_eq!(
                root.join("etc/alpine-release").exists(),
                layout == Layout::Alpine
            );
        }
    }
}
