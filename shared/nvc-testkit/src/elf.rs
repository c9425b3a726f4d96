//! Writes small ELF shared objects that ldconfig lists and the dynamic loader accepts.
//!
//! A simulated driver needs some forty libraries with the right class, machine, SONAME and notes, and no code. A
//! compiler could build them, but not for the 32-bit architecture without its C library. The objects contain only the
//! parts that are read: ldconfig reads the program headers and the dynamic section, libnvc the section headers too.

/// A processor architecture of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// 64-bit x86.
    X86_64,
    /// 32-bit x86.
    I386,
    /// 64-bit ARM.
    Aarch64,
    /// 32-bit ARM, hard-float.
    Arm,
}

impl Machine {
    /// This computer's.
    pub const NATIVE: Self = if cfg!(target_arch = "aarch64") {
        Self::Aarch64
    } else {
        Self::X86_64
    };

    fn is_64(self) -> bool {
        matches!(self, Self::X86_64 | Self::Aarch64)
    }

    fn number(self) -> u16 {
        match self {
            Self::X86_64 => 62,
            Self::I386 => 3,
            Self::Aarch64 => 183,
            Self::Arm => 40,
        }
    }

    /// Returns `e_flags`, by which ldconfig recognises hard-float ARM objects.
    fn flags(self) -> u32 {
        match self {
            Self::Arm => 0x0500_0400,
            _ => 0,
        }
    }
}

/// A shared object to write.
#[derive(Clone, Debug)]
pub struct SharedObject {
    machine: Machine,
    soname: Option<String>,
    needed: Vec<String>,
    abi_tag: Option<[u32; 4]>,
    compat_note: Option<String>,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_NOTE: u32 = 4;
const PT_GNU_STACK: u32 = 0x6474_e551;
const DT_NEEDED: u64 = 1;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_SYMENT: u64 = 11;
const DT_SONAME: u64 = 14;
const SECTION_NAMES: &[u8] =
    b"\0.note.ABI-tag\0.hash\0.dynsym\0.dynstr\0.dynamic\0.shstrtab\0.note.cuda.fwd_compatibility\0";

impl SharedObject {
    /// Describes an object with nothing but its machine.
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            soname: None,
            needed: Vec::new(),
            abi_tag: None,
            compat_note: None,
        }
    }

    /// Sets the SONAME.
    #[must_use]
    pub fn soname(mut self, name: impl Into<String>) -> Self {
        self.soname = Some(name.into());
        self
    }

    /// Adds a needed library.
    #[must_use]
    pub fn needed(mut self, name: impl Into<String>) -> Self {
        self.needed.push(name.into());
        self
    }

    /// Replaces all needed libraries.
    #[must_use]
    pub fn needing(mut self, names: Vec<String>) -> Self {
        self.needed = names;
        self
    }

    /// Adds a `.note.ABI-tag`: operating system (0 is Linux) and the three parts of the kernel version.
    #[must_use]
    pub fn abi_tag(mut self, tag: [u32; 4]) -> Self {
        self.abi_tag = Some(tag);
        self
    }

    /// Adds the note of a CUDA compatibility library, which lists the drivers that it supports as JSON. Its owner is
    /// NVIDIA; it is in a section, but in no segment, as in the real libraries.
    #[must_use]
    pub fn compat_note(mut self, text: impl Into<String>) -> Self {
        self.compat_note = Some(text.into());
        self
    }

    /// Returns the file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let wide = self.machine.is_64();
        let (header, segment, symbol, entry) = if wide {
            (64, 56, 24, 16)
        } else {
            (52, 32, 16, 8)
        };
        let segments = if self.abi_tag.is_some() { 4 } else { 3 };

        // Contents in file order; file offsets equal virtual addresses.
        let mut body = Body {
            bytes: vec![0; header + segments * segment],
        };
        let note = self.abi_tag.map(|tag| body.append(&note(tag)));
        let hash = body.append(&words(&[1, 1, 0, 0]));
        let symbols = body.append(&vec![0; symbol]);
        let mut strings = vec![0_u8];
        let names = self.dynamic_names(&mut strings);
        let strings = body.append(&strings);
        let tags = [
            (DT_HASH, hash.start as u64),
            (DT_STRTAB, strings.start as u64),
            (DT_SYMTAB, symbols.start as u64),
            (DT_STRSZ, strings.len() as u64),
            (DT_SYMENT, symbol as u64),
            (0, 0),
        ];
        let mut dynamic = Fields::new(wide);
        for (tag, value) in names.into_iter().chain(tags) {
            dynamic.word(tag).word(value);
        }
        let dynamic = body.append(&dynamic.bytes);
        let names = body.append(SECTION_NAMES);
        let compat = self.compat_note.as_ref();
        let compat = compat.map(|text| body.append(&note_of("NVIDIA Corporation", text)));

        let tag = note.clone().map(|note| (1, 7, 0, 0, note));
        let first = 1 + usize::from(tag.is_some());
        let mut sections = vec![(0, 0, 0, 0, 0..0)];
        sections.extend(tag);
        sections.extend([
            (15, 5, first + 1, 4, hash),
            (21, 11, first + 2, symbol, symbols),
            (29, 3, 0, 0, strings),
            (37, 6, first + 2, entry, dynamic.clone()),
        ]);
        sections.extend(compat.map(|note| (56, 7, 0, 0, note)));
        // The last, as the header says.
        sections.push((46, 3, 0, 0, names));
        let table = body.append(&section_table(&sections, wide));

        let mut head = self.header(table.start, segments, sections.len());
        let all = 0..body.bytes.len();
        // Writable, because the loader relocates the dynamic section in place.
        head.segment(PT_LOAD, 6, &all, 0x1000);
        head.segment(PT_DYNAMIC, 6, &dynamic, 8);
        // Since glibc 2.41, a library that does not say that its stack need not be executable cannot be loaded later.
        head.segment(PT_GNU_STACK, 6, &(0..0), 16);
        if let Some(note) = &note {
            head.segment(PT_NOTE, 4, note, 4);
        }
        body.bytes.splice(..head.bytes.len(), head.bytes);
        body.bytes
    }

    fn dynamic_names(&self, strings: &mut Vec<u8>) -> Vec<(u64, u64)> {
        let mut add = |text: &str| {
            let offset = strings.len() as u64;
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            offset
        };
        let mut tags: Vec<_> = self
            .needed
            .iter()
            .map(|name| (DT_NEEDED, add(name)))
            .collect();
        tags.extend(self.soname.iter().map(|name| (DT_SONAME, add(name))));
        tags
    }

    fn header(&self, section_table: usize, segments: usize, sections: usize) -> Fields {
        let wide = self.machine.is_64();
        let mut head = Fields::new(wide);
        head.bytes.extend_from_slice(b"\x7fELF");
        head.bytes.extend_from_slice(&[1 + u8::from(wide), 1, 1]);
        head.bytes.resize(16, 0);
        let (size, segment, section) = if wide { (64, 56, 64) } else { (52, 32, 40) };
        head.u16(3).u16(self.machine.number()).u32(1).word(0);
        head.word(size).word(section_table as u64);
        head.u32(self.machine.flags());
        head.u16(narrow(size)).u16(segment).u16(narrow(segments));
        head.u16(section).u16(narrow(sections));
        head.u16(narrow(sections - 1));
        head
    }
}

/// Name, type, link, entry size, place.
type Section = (u32, u32, usize, usize, std::ops::Range<usize>);

/// Builds the section headers.
fn section_table(sections: &[Section], wide: bool) -> Vec<u8> {
    let mut table = Fields::new(wide);
    for (name, kind, link, entry, place) in sections {
        let (start, length) = (place.start as u64, place.len() as u64);
        table.u32(*name).u32(*kind).word(2).word(start).word(start);
        table.word(length).u32(narrow(*link));
        table.u32(u32::from(*kind == 11));
        table.word(8).word(*entry as u64);
    }
    table.bytes
}

/// Builds a GNU note of type "ABI tag".
fn note(tag: [u32; 4]) -> Vec<u8> {
    let mut bytes = words(&[4, 16, 1]);
    bytes.extend_from_slice(b"GNU\0");
    bytes.extend(words(&tag));
    bytes
}

/// Builds a note of type 1 with a text.
fn note_of(owner: &str, text: &str) -> Vec<u8> {
    let mut bytes = words(&[narrow(owner.len() + 1), narrow(text.len()), 1]);
    bytes.extend_from_slice(owner.as_bytes());
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn words(values: &[u32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// Converts a number that is small by construction.
fn narrow<T: TryInto<U>, U>(value: T) -> U {
    value
        .try_into()
        .unwrap_or_else(|_| unreachable!("objects are a few kilobytes"))
}

/// The growing file; every piece is aligned to 8.
struct Body {
    bytes: Vec<u8>,
}

impl Body {
    fn append(&mut self, piece: &[u8]) -> std::ops::Range<usize> {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(piece);
        start..self.bytes.len()
    }
}

/// Little-endian fields; a `word` has the width of the class.
struct Fields {
    wide: bool,
    bytes: Vec<u8>,
}

impl Fields {
    fn new(wide: bool) -> Self {
        let bytes = Vec::new();
        Self { wide, bytes }
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn word(&mut self, value: u64) -> &mut Self {
        if self.wide {
            self.bytes.extend_from_slice(&value.to_le_bytes());
            self
        } else {
            self.u32(narrow(value))
        }
    }

    /// Appends a program header; the position of the flags depends on the class.
    fn segment(&mut self, kind: u32, flags: u32, place: &std::ops::Range<usize>, align: u64) {
        let (start, length) = (place.start as u64, place.len() as u64);
        self.u32(kind);
        if self.wide {
            self.u32(flags);
        }
        self.word(start).word(start).word(start);
        self.word(length).word(length);
        if !self.wide {
            self.u32(flags);
        }
        self.word(align);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    fn output(command: &mut Command) -> String {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{command:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn ldconfig_lists_written_libraries() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::write(root.join("etc/ld.so.conf"), "/lib64\n/lib32\n").unwrap();
        for (machine, dir) in [(Machine::X86_64, "lib64"), (Machine::I386, "lib32")] {
            fs::create_dir_all(root.join(dir)).unwrap();
            let object = SharedObject::new(machine)
                .soname("libnvidia-tls.so.1")
                .needed("libc.so.6")
                .abi_tag([0, 2, 3, 99]);
            fs::write(
                root.join(dir).join("libnvidia-tls.so.550.1"),
                object.bytes(),
            )
            .unwrap();
        }
        output(Command::new("/sbin/ldconfig").arg("-r").arg(root));
        let listed = output(Command::new("/sbin/ldconfig").arg("-r").arg(root).arg("-p"));
        let (wide, narrow) = ("/lib64/libnvidia-tls.so.1", "/lib32/libnvidia-tls.so.1");
        let line = |path: &str| listed.lines().find(|line| line.ends_with(path)).unwrap();
        assert!(line(narrow).contains("(libc6"), "{listed}");
        if cfg!(target_arch = "x86_64") {
            assert!(line(wide).contains("(libc6,x86-64"), "{listed}");
        }
        let link = fs::read_link(root.join("lib64/libnvidia-tls.so.1")).unwrap();
        assert_eq!(link.to_str(), Some("libnvidia-tls.so.550.1"));
    }

    #[test]
    fn readelf_has_no_complaints() {
        let directory = tempfile::tempdir().unwrap();
        for machine in [
            Machine::X86_64,
            Machine::I386,
            Machine::Aarch64,
            Machine::Arm,
        ] {
            for tag in [None, Some([0, 2, 3, 99])] {
                let file = directory.path().join("lib.so");
                let mut object = SharedObject::new(machine)
                    .soname("libx.so.1")
                    .needed("libc.so.6");
                object.abi_tag = tag;
                fs::write(&file, object.bytes()).unwrap();
                // Segments, sections, dynamic section, notes, symbols.
                let text = output(Command::new("readelf").args(["-Wa"]).arg(&file));
                assert!(text.contains("Library soname: [libx.so.1]"), "{text}");
                assert!(text.contains("Shared library: [libc.so.6]"), "{text}");
                assert_eq!(
                    text.contains("OS: Linux, ABI: 2.3.99"),
                    tag.is_some(),
                    "{text}"
                );
                assert!(!text.contains("arning"), "{text}");
            }
        }
    }

    #[test]
    fn the_loader_accepts_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("libx.so.1");
        let machine = if cfg!(target_arch = "aarch64") {
            Machine::Aarch64
        } else {
            Machine::X86_64
        };
        fs::write(
            &file,
            SharedObject::new(machine).soname("libx.so.1").bytes(),
        )
        .unwrap();
        let status = Command::new("/bin/true")
            .env("LD_PRELOAD", &file)
            .output()
            .unwrap();
        assert!(
            status.status.success() && status.stderr.is_empty(),
            "{status:?}"
        );
    }
}
