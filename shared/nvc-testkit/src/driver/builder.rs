//! Holds the options of a driver root.

use std::io;
use std::path::Path;

use super::native::{NATIVE, NATIVE_32};
use super::procfs::Majors;
use crate::profile::Profile;

/// A change to a root before its linker cache is generated.
pub(super) type Edit = Box<dyn Fn(&Path) -> io::Result<()>>;

/// Options of a driver root.
pub struct Builder {
    pub(super) profile: Profile,
    pub(super) library_dir: String,
    pub(super) library_dir_32: Option<String>,
    pub(super) legacy_gl: bool,
    pub(super) rare: bool,
    pub(super) without: Vec<String>,
    pub(super) nodes: bool,
    pub(super) capability_nodes: bool,
    pub(super) majors: Option<Majors>,
    pub(super) libc: bool,
    pub(super) cuda: bool,
    pub(super) edits: Vec<Edit>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new(Profile::default())
    }
}

impl Builder {
    /// Describes a root with the contents of an ordinary package and its services.
    pub fn new(profile: Profile) -> Self {
        let layout = &profile.layout;
        let library_dir = layout.libraries.as_ref().map_or_else(
            || format!("/usr/lib/{}", NATIVE.0),
            |directory| directory.replace("LIB", &format!("usr/lib/{}", NATIVE.0)),
        );
        // A machine that lists its files has no 32-bit ones.
        let library_dir_32 = layout.only.is_none();
        let library_dir_32 = library_dir_32.then(|| format!("/usr/lib/{}", NATIVE_32.0));
        Self {
            library_dir,
            library_dir_32,
            profile,
            legacy_gl: false,
            rare: false,
            without: Vec::new(),
            nodes: true,
            capability_nodes: true,
            majors: None,
            libc: true,
            cuda: false,
            edits: Vec::new(),
        }
    }

    /// Sets the library directories; without the second there are no 32-bit libraries.
    #[must_use]
    pub fn library_dirs(mut self, native: &str, narrow: Option<&str>) -> Self {
        self.library_dir = native.into();
        self.library_dir_32 = narrow.map(str::to_owned);
        self
    }

    /// Sets the majors, for a driver that takes another one's place.
    #[must_use]
    pub fn majors(mut self, majors: Majors) -> Self {
        self.majors = Some(majors);
        self
    }

    /// Adds the GL libraries from before GLVND.
    #[must_use]
    pub fn legacy_gl(mut self) -> Self {
        self.legacy_gl = true;
        self
    }

    /// Adds libraries that few packages have.
    #[must_use]
    pub fn rare_libraries(mut self) -> Self {
        self.rare = true;
        self
    }

    /// Omits a library, named up to `.so`, or any other path.
    #[must_use]
    pub fn without(mut self, what: &str) -> Self {
        self.without.push(what.into());
        self
    }

    /// NVML needs no /dev/nvidiactl: for callers in a cgroup that denies it.
    #[must_use]
    pub fn lenient(mut self) -> Self {
        self.profile.layout.is_lenient = true;
        self
    }

    /// Omits device nodes, as in a user namespace.
    #[must_use]
    pub fn no_nodes(mut self) -> Self {
        self.nodes = false;
        self
    }

    /// Omits capability nodes and their major number, as in drivers before 450.
    #[must_use]
    pub fn no_capability_nodes(mut self) -> Self {
        self.capability_nodes = false;
        self
    }

    /// Omits the C library, as in a driver container built from scratch.
    #[must_use]
    pub fn no_libc(mut self) -> Self {
        self.libc = false;
        self
    }

    /// Adds a libcuda.so.1 that answers calls.
    #[must_use]
    pub fn answering_cuda(mut self) -> Self {
        self.cuda = true;
        self
    }

    /// Applies a change before the linker cache is generated.
    #[must_use]
    pub fn edit(mut self, change: impl Fn(&Path) -> io::Result<()> + 'static) -> Self {
        self.edits.push(Box::new(change));
        self
    }

    /// Returns false for a library or path to leave out.
    pub(super) fn wants(&self, what: &str) -> bool {
        let is_listed = |names: &Vec<String>| names.iter().any(|name| name == what);
        let is_node = what.starts_with("/dev/");
        !is_listed(&self.without)
            && (is_node || self.profile.layout.only.as_ref().is_none_or(is_listed))
    }
}
