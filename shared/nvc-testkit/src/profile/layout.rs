//! Describes where a machine's files are, and which it has: the statements that make a profile a machine.
//!
//! NVML skips them; the builder of a driver root obeys them. Each line is one statement:
//!
//! ```text
//! only=libcuda libnvidia-ml /usr/bin/nvidia-smi    the driver's package has nothing else
//! libraries=/usr/lib64                             where its libraries are
//! lenient=yes                                      NVML needs no /dev/nvidiactl
//! nodes=no                                         no device nodes but those of `node` lines
//! cache=no                                         no ld.so.cache, and no ld.so.conf
//! driver-root=/run/nvidia/driver                   what the toolkit is told; `/` otherwise
//! file path=/etc/nv_tegra_release text=...         a file; \n in the text is a newline; `mode=755` before it
//! library path=/usr/lib/x.so.1.1 called=x.so.1     a shared object; `bits=32` for the narrow architecture, `needs=a,b`
//! dxcore path=/usr/lib/wsl/lib/libdxcore.so store=/usr/lib/wsl/drivers/nv
//! link path=/usr/lib/x.so to=x.so.1                a symlink
//! move path=/usr/bin/x to=/opt/bin/x               moves a file or a directory
//! remove path=/proc/driver                         removes a file or a directory
//! ```
//!
//! Changes happen in their order, after everything else and before the linker cache is made. `LIB` in a path is Debian's
//! multiarch directory, `VER` the driver's version.

use std::fmt;
use std::sync::OnceLock;

use super::Profile;
use super::text::word;

/// What NVML reads of GPUs.
const READINGS: &str = "/etc/nvidia-sim/readings";

/// Where a machine's files are. If nothing is said, it has what an ordinary package installs in Debian's directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The only libraries, by stem, and other files of the package; None for all.
    pub only: Option<Vec<String>>,
    /// The libraries' directory.
    pub libraries: Option<String>,
    /// There are no device nodes but those of the profile's statements.
    pub has_no_nodes: bool,
    /// NVML needs no node.
    pub is_lenient: bool,
    /// The loader has no cache and no configuration.
    pub has_no_cache: bool,
    /// The driver root that the toolkit is told, if it is not `/`.
    pub driver_root: Option<String>,
    /// Changes in their order.
    pub changes: Vec<Change>,
}

/// The permissions of a file without `mode`.
const ORDINARY: u32 = 0o644;

/// A change to a machine's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The path, as it is written.
    pub path: String,
    /// What happens there.
    pub what: What,
}

/// The kind of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A file.
    File {
        /// Its contents.
        text: String,
        /// Its permissions.
        mode: u32,
    },
    /// A shared object with this name, for the native architecture or its 32-bit companion.
    Library {
        /// Its own name.
        soname: String,
        /// It is for 32-bit programs.
        is_narrow: bool,
        /// All libraries that it needs; None for what the package's of this name needs.
        needs: Option<Vec<String>>,
    },
    /// A libdxcore with one adapter and this driver store.
    Dxcore(String),
    /// A link with this target.
    Link(String),
    /// It is moved there.
    Move(String),
    /// It is removed.
    Remove,
}

/// This process builds ordinary packages.
static IS_DEBIAN: OnceLock<()> = OnceLock::new();

impl Layout {
    /// Gives profiles of this process the files and nodes of an ordinary package, instead of a real machine's.
    pub fn use_debian() {
        IS_DEBIAN.get_or_init(|| ());
    }

    /// Returns the files and nodes of a real machine, the h100, for any GPUs; after [`use_debian`](Self::use_debian) those
    /// of an ordinary package.
    pub(super) fn of_this_suite() -> Self {
        let is_debian = IS_DEBIAN.get().is_some();
        let real = if is_debian {
            None
        } else {
            Profile::real("h100")
        };
        let mut layout = real.map_or_else(Self::default, |profile| profile.layout);
        // They are the GPU's.
        layout.changes.retain(|change| change.path != READINGS);
        layout
    }

    /// Parses a statement; None if it is another one, or incomplete.
    pub(super) fn statement(&mut self, line: &str) -> Option<()> {
        if let Some((
            key @ ("only" | "libraries" | "nodes" | "lenient" | "cache" | "driver-root"),
            value,
        )) = line.split_once('=')
        {
            match (key, value) {
                ("only", names) => {
                    self.only = Some(names.split_whitespace().map(String::from).collect());
                }
                ("libraries", directory) => self.libraries = Some(directory.into()),
                ("driver-root", directory) => self.driver_root = Some(directory.into()),
                ("nodes", "no") => self.has_no_nodes = true,
                ("lenient", "yes") => self.is_lenient = true,
                ("cache", "no") => self.has_no_cache = true,
                _ => return None,
            }
            return Some(());
        }
        let (kind, words) = line.split_once(' ')?;
        let value = |key: &str| word(words, key).map(String::from);
        let what = match kind {
            "file" => {
                let (before, text) = words.split_once(" text=")?;
                What::File {
                    text: text.replace("\\n", "\n"),
                    mode: match word(before, "mode") {
                        None => ORDINARY,
                        Some(mode) => u32::from_str_radix(mode, 8).ok()?,
                    },
                }
            }
            "library" => What::Library {
                soname: value("called")?,
                is_narrow: match word(words, "bits") {
                    None => false,
                    Some("32") => true,
                    Some(_) => return None,
                },
                needs: value("needs").map(|names| names.split(',').map(String::from).collect()),
            },
            "dxcore" => What::Dxcore(value("store")?),
            "link" => What::Link(value("to")?),
            "move" => What::Move(value("to")?),
            "remove" => What::Remove,
            _ => return None,
        };
        let path = value("path")?;
        self.changes.push(Change { path, what });
        Some(())
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(names) = &self.only {
            writeln!(f, "only={}", names.join(" "))?;
        }
        if let Some(directory) = &self.libraries {
            writeln!(f, "libraries={directory}")?;
        }
        if self.is_lenient {
            writeln!(f, "lenient=yes")?;
        }
        if self.has_no_nodes {
            writeln!(f, "nodes=no")?;
        }
        if self.has_no_cache {
            writeln!(f, "cache=no")?;
        }
        if let Some(directory) = &self.driver_root {
            writeln!(f, "driver-root={directory}")?;
        }
        for Change { path, what } in &self.changes {
            match what {
                What::File { text, mode } => {
                    write!(f, "file path={path} ")?;
                    if *mode != ORDINARY {
                        write!(f, "mode={mode:o} ")?;
                    }
                    writeln!(f, "text={}", text.replace('\n', "\\n"))
                }
                What::Library {
                    soname,
                    is_narrow,
                    needs,
                } => {
                    let bits = if *is_narrow { " bits=32" } else { "" };
                    let needs = needs.as_ref().map(|names| names.join(","));
                    let needs = needs.map_or(String::new(), |names| format!(" needs={names}"));
                    writeln!(f, "library path={path} called={soname}{bits}{needs}")
                }
                What::Dxcore(store) => writeln!(f, "dxcore path={path} store={store}"),
                What::Link(to) => writeln!(f, "link path={path} to={to}"),
                What::Move(to) => writeln!(f, "move path={path} to={to}"),
                What::Remove => writeln!(f, "remove path={path}"),
            }?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn written_layouts_parse() {
        let lines = "only=libcuda /usr/bin/nvidia-smi\nlibraries=/usr/lib64\nnodes=no\ncache=no\n\
                     driver-root=/run/nvidia/driver\nfile path=/etc/x text=a b\\nc\\n\n\
                     library path=/usr/lib/x.so.1.1 called=x.so.1\n\
                     file path=/usr/bin/x mode=755 text=#!/bin/sh\\n\n\
                     library path=/LIB32/x.so.1.1 called=x.so.1 bits=32 needs=y.so.VER,libc.so.6\ndxcore path=/x.so store=/s\n\
                     link path=/a to=b\nmove path=/a to=/b\nremove path=/proc/driver\n";
        let mut layout = Layout::default();
        for line in lines.lines() {
            layout.statement(line).unwrap();
        }
        assert_eq!(layout.to_string(), lines);
        assert_eq!(
            layout.changes[0].what,
            What::File {
                text: "a b\nc\n".into(),
                mode: 0o644
            },
            "{layout}"
        );
        for line in [
            "cache=maybe",
            "link path=/a",
            "file path=/a",
            "library path=/a called=b bits=16",
            "file path=/a mode=9 text=b",
            "frob path=/a",
        ] {
            assert_eq!(layout.statement(line), None, "{line}");
        }
    }
}
