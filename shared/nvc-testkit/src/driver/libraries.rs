//! Lists the libraries of a driver package: names, SONAMEs and the other properties that libnvc's selection uses.

use std::path::Path;

use crate::elf::{Machine, SharedObject};

/// A library of the package.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// Name up to `.so`.
    pub stem: &'static str,
    /// Suffix after `.so.` in the SONAME; the whole version if None.
    pub soname: Option<&'static str>,
    /// True if there is a 32-bit one.
    pub in_32_bit: bool,
    /// The driver's libraries that it needs, by stem.
    pub needed: &'static [&'static str],
    /// True if it has the ABI note that libnvc requires of the TLS library.
    pub abi_tag: bool,
}

const fn library(stem: &'static str, soname: Option<&'static str>, in_32_bit: bool) -> Library {
    Library {
        stem,
        soname,
        in_32_bit,
        needed: &[],
        abi_tag: false,
    }
}

const fn needing(needed: &'static [&'static str], library: Library) -> Library {
    Library { needed, ..library }
}

/// Libraries in current packages that libnvc looks for. libnvidia-ml is compiled rather than generated.
pub(super) const CURRENT: &[Library] = &[
    library("libnvidia-ml", Some("1"), true),
    library("libnvidia-cfg", Some("1"), false),
    library("libcuda", Some("1"), true),
    library("libcudadebugger", Some("1"), false),
    library("libnvidia-opencl", Some("1"), true),
    library("libnvidia-gpucomp", None, true),
    library("libnvidia-ptxjitcompiler", Some("1"), true),
    library("libnvidia-allocator", Some("1"), true),
    library("libnvidia-pkcs11", None, false),
    library("libnvidia-pkcs11-openssl3", None, false),
    library("libnvidia-nvvm", Some("4"), true),
    library("libnvidia-ngx", Some("1"), false),
    library("libvdpau_nvidia", Some("1"), true),
    needing(
        &["libnvcuvid"],
        library("libnvidia-encode", Some("1"), true),
    ),
    needing(
        &["libnvcuvid"],
        library("libnvidia-opticalflow", Some("1"), true),
    ),
    library("libnvcuvid", Some("1"), true),
    needing(
        &["libnvidia-glsi", "libnvidia-gpucomp"],
        library("libnvidia-eglcore", None, true),
    ),
    needing(
        &["libnvidia-tls", "libnvidia-gpucomp"],
        library("libnvidia-glcore", None, true),
    ),
    Library {
        abi_tag: true,
        ..library("libnvidia-tls", None, true)
    },
    library("libnvidia-glsi", None, true),
    library("libnvidia-fbc", Some("1"), true),
    library("libnvidia-rtcore", None, false),
    library("libnvoptix", Some("1"), false),
    needing(
        &["libnvidia-glsi", "libnvidia-tls", "libnvidia-glcore"],
        library("libGLX_nvidia", Some("0"), true),
    ),
    needing(
        &["libnvidia-glsi"],
        library("libEGL_nvidia", Some("0"), true),
    ),
    library("libGLESv2_nvidia", Some("2"), true),
    library("libGLESv1_CM_nvidia", Some("1"), true),
    library("libnvidia-glvkspirv", None, true),
];

/// Libraries of older or newer packages and of data centres, which libnvc looks for too.
pub(super) const RARE: &[Library] = &[
    library("libnvidia-nscq", Some("2"), false),
    library("libnvidia-fatbinaryloader", None, true),
    library("libnvidia-compiler", None, true),
    library("libnvidia-ifr", Some("1"), true),
    library("libnvidia-cbl", None, false),
];

/// Libraries before GLVND; another vendor's would not need a core library.
pub(super) const LEGACY_GL: &[Library] = &[
    Library {
        needed: &["libnvidia-glcore"],
        ..library("libGL", Some("1"), true)
    },
    Library {
        needed: &["libnvidia-eglcore"],
        ..library("libEGL", Some("1"), true)
    },
    Library {
        needed: &["libnvidia-eglcore"],
        ..library("libGLESv1_CM", Some("1"), true)
    },
    Library {
        needed: &["libnvidia-eglcore"],
        ..library("libGLESv2", Some("2"), true)
    },
];

/// Libraries in every package that libnvc must ignore; some names share a prefix with one it looks for.
pub(super) const UNWANTED: &[Library] = &[
    library("libnvidia-nvvm70", Some("4"), true),
    library("libnvidia-sandboxutils", Some("1"), false),
    library("libnvidia-gtk3", None, false),
];

/// Returns the library that a file of this name is; None if no package has it.
pub(super) fn of_file(path: &Path, version: &str) -> Option<Library> {
    let name = path.file_name()?.to_str()?;
    let lists = [CURRENT, RARE, LEGACY_GL, UNWANTED].into_iter().flatten();
    lists
        .copied()
        .find(|library| library.file_name(version) == name)
}

impl Library {
    /// Returns the file name: `libcuda.so.570.124.06`.
    pub fn file_name(&self, version: &str) -> String {
        format!("{}.so.{version}", self.stem)
    }

    /// Returns the ELF file.
    pub fn object(&self, machine: Machine, version: &str) -> SharedObject {
        let soname = format!("{}.so.{}", self.stem, self.soname.unwrap_or(version));
        let mut object = SharedObject::new(machine)
            .soname(soname)
            .needed("libc.so.6");
        for stem in self.needed {
            let mut known = CURRENT.iter();
            let known = known.find(|library| library.stem == *stem);
            let soname = known.and_then(|library| library.soname).unwrap_or(version);
            object = object.needed(format!("{stem}.so.{soname}"));
        }
        if self.abi_tag {
            object = object.abi_tag([0, 2, 3, 99]);
        }
        object
    }
}
