//! Reads a file's ELF headers: the libraries it needs, the system it was built for, its build id, and a note in a
//! section.
//!
//! Driver libraries are up to 100 MB, so this reads only headers, the dynamic segment and notes, each with one small
//! read. A truncated or malformed file is an error, never a panic.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use goblin::container::Ctx;
use goblin::elf::dynamic::{DT_NEEDED, DT_SONAME, DT_STRTAB, Dyn, Dynamic};
use goblin::elf::header::{EI_CLASS, ET_DYN};
use goblin::elf::program_header::{PT_DYNAMIC, PT_LOAD, PT_NOTE, ProgramHeader};
use goblin::elf::section_header::SHT_DYNAMIC;
use goblin::elf::{Elf, Header, SectionHeader};

/// Size of the first read: with common linkers it covers the headers and the notes.
const HEAD: usize = 1024;
/// Size limit of a dynamic or note segment, or of a section; typical ones are below one kilobyte.
const MAX_SEGMENT_SIZE: u64 = 64 * 1024;
const MAX_SEGMENTS: u16 = 128;
const MAX_SECTIONS: u16 = 4096;
/// Longer than any file name can be.
const MAX_NAME_LEN: usize = 256;
/// Names this far apart are read at once.
const MAX_SPAN: u64 = 4096;
/// Note types of owner `GNU`: the ABI tag, and the build id.
const NT_GNU_ABI_TAG: u32 = 1;
const NT_GNU_BUILD_ID: u32 = 3;

/// The reason why a library's headers could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ElfError {
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("it is not an ELF file: {0}")]
    NotElf(#[from] goblin::error::Error),
    #[error("its ELF headers are invalid")]
    Nonsense,
    #[error("it has no dynamic section")]
    NoDynamicSection,
    #[error("it has no ABI note")]
    NoAbiNote,
}

/// Reads bytes at an offset; returns fewer at the end of the file.
pub(crate) trait Source {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl Source for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }
}

/// The machine an ELF header names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// `EI_CLASS`: 1 for 32 bits, 2 for 64.
    pub(crate) class: u8,
    /// `e_machine`.
    pub(crate) machine: u16,
    /// `e_flags`: variants of the machine.
    pub(crate) flags: u32,
}

/// The headers of an ELF file.
pub(crate) struct Library<S> {
    source: S,
    identity: Identity,
    /// True if it is a shared object.
    shared: bool,
    head: Vec<u8>,
    ctx: Ctx,
    segments: Vec<ProgramHeader>,
    sections: SectionTable,
    /// File offset of the names, if the sections say it.
    names: Option<u64>,
}

/// The names in a file.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Its own, if it has one.
    pub(crate) soname: Option<Vec<u8>>,
    /// Those of the libraries that it needs.
    pub(crate) needed: Vec<Vec<u8>>,
}

/// Where a file's strings are, and some of them.
struct Strings {
    /// Their file offset.
    offset: u64,
    /// Bytes from the string at `first` on.
    known: Vec<u8>,
    first: u64,
}

impl Strings {
    fn at(offset: u64) -> Self {
        Self {
            offset,
            known: Vec::new(),
            first: 0,
        }
    }
}

/// Where the section headers are.
struct SectionTable {
    offset: u64,
    count: u16,
    /// Index of the section with the sections' names.
    names: u16,
}

impl<S: Source> Library<S> {
    /// Reads the headers.
    pub(crate) fn open(source: S) -> Result<Self, ElfError> {
        let mut head = vec![0; HEAD];
        let length = source.read_at(&mut head, 0)?;
        head.truncate(length);
        let header: Header = Elf::parse_header(&head)?;
        if header.e_phnum > MAX_SEGMENTS {
            return Err(ElfError::Nonsense);
        }
        let mut library = Self {
            ctx: Ctx::new(header.container()?, header.endianness()?),
            source,
            identity: Identity {
                class: header.e_ident[EI_CLASS],
                machine: header.e_machine,
                flags: header.e_flags,
            },
            shared: header.e_type == ET_DYN,
            head,
            segments: Vec::new(),
            sections: SectionTable {
                offset: header.e_shoff,
                count: header.e_shnum,
                names: header.e_shstrndx,
            },
            names: None,
        };
        let count = usize::from(header.e_phnum);
        let table = library.bytes(header.e_phoff, count * ProgramHeader::size(library.ctx))?;
        library.segments = ProgramHeader::parse(&table, 0, count, library.ctx)?;
        Ok(library)
    }

    /// Reads names where the sections say they are, if there are sections; a loader reads only segments.
    pub(crate) fn by_sections(mut self) -> Self {
        self.names = self.section_headers().ok().and_then(|headers| {
            let dynamic = headers.iter().find(|s| s.sh_type == SHT_DYNAMIC)?;
            let strings = headers.get(usize::try_from(dynamic.sh_link).ok()?)?;
            Some(strings.sh_offset)
        });
        self
    }

    /// Returns the machine it is for.
    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns true if the header's type is shared object.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Returns true if the library needs one whose name begins with one of `names`.
    pub(crate) fn needs(&self, names: &[&str]) -> Result<bool, ElfError> {
        let fits = |needed: &Vec<u8>| names.iter().any(|name| needed.starts_with(name.as_bytes()));
        Ok(self.names()?.needed.iter().any(fits))
    }

    /// Returns the SONAME, if it has one.
    pub(crate) fn soname(&self) -> Result<Option<Vec<u8>>, ElfError> {
        let (dynamic, strings) = self.dynamic()?;
        let last = dynamic.dyns.iter().rfind(|entry| entry.d_tag == DT_SONAME);
        last.map(|entry| self.name(&Strings::at(strings), entry.d_val))
            .transpose()
    }

    /// Returns the SONAME and the names of the needed libraries, with few reads.
    pub(crate) fn names(&self) -> Result<Names, ElfError> {
        let (dynamic, offset) = self.dynamic()?;
        let named = |entry: &&Dyn| matches!(entry.d_tag, DT_NEEDED | DT_SONAME);
        let places = || dynamic.dyns.iter().filter(named).map(|entry| entry.d_val);
        let mut strings = Strings::at(offset);
        // Linkers write them side by side.
        if let (Some(first), Some(last)) = (places().min(), places().max())
            && last - first <= MAX_SPAN
        {
            let start = offset.checked_add(first).ok_or(ElfError::Nonsense)?;
            let length = usize::try_from(last - first).map_err(|_| ElfError::Nonsense)?;
            strings.first = first;
            strings.known = self.bytes_up_to(start, length + MAX_NAME_LEN)?;
        }
        let mut names = Names::default();
        for entry in dynamic.dyns.iter().filter(named) {
            let name = self.name(&strings, entry.d_val)?;
            match entry.d_tag {
                DT_SONAME => names.soname = Some(name),
                _ => names.needed.push(name),
            }
        }
        Ok(names)
    }

    /// Reads the name at an offset of the strings.
    fn name(&self, strings: &Strings, at: u64) -> Result<Vec<u8>, ElfError> {
        let known = at.checked_sub(strings.first);
        let known = known.and_then(|at| strings.known.get(usize::try_from(at).ok()?..));
        let known = known.filter(|bytes| !bytes.is_empty());
        let mut name = match known {
            Some(bytes) => bytes.get(..MAX_NAME_LEN).unwrap_or(bytes).to_vec(),
            None => {
                let offset = strings.offset.checked_add(at).ok_or(ElfError::Nonsense)?;
                self.bytes_up_to(offset, MAX_NAME_LEN)?
            }
        };
        let length = name.iter().position(|&byte| byte == 0);
        name.truncate(length.ok_or(ElfError::Nonsense)?);
        Ok(name)
    }

    /// Reads the dynamic section and finds the file offset of its strings.
    fn dynamic(&self) -> Result<(Dynamic, u64), ElfError> {
        let segment = self.segments.iter().find(|s| s.p_type == PT_DYNAMIC);
        let mut segment = segment.ok_or(ElfError::NoDynamicSection)?.clone();
        let bytes = self.segment(&segment)?;
        segment.p_offset = 0; // of `bytes`
        let dynamic = Dynamic::parse(&bytes, &[segment], self.ctx)?.ok_or(ElfError::Nonsense)?;
        let mut strings = dynamic.dyns.iter().filter(|entry| entry.d_tag == DT_STRTAB);
        let of_segments = || self.offset_of(strings.next()?.d_val);
        let strings = self.names.or_else(of_segments);
        Ok((dynamic, strings.ok_or(ElfError::Nonsense)?))
    }

    /// Reads the ABI note: operating system (0 is Linux) and oldest kernel version.
    pub(crate) fn abi(&self) -> Result<[u32; 4], ElfError> {
        let value = self.gnu_note(NT_GNU_ABI_TAG)?.unwrap_or_default();
        self.abi_of(&value).ok_or(ElfError::NoAbiNote)
    }

    /// Reads the ABI note of a library that has it only in a section.
    pub(crate) fn abi_of_section(&self) -> Option<[u32; 4]> {
        let note = self.note(".note.ABI-tag", "GNU").ok().flatten();
        self.abi_of(&note?)
    }

    fn abi_of(&self, value: &[u8]) -> Option<[u32; 4]> {
        let word = |index: usize| self.word(value, index * 4);
        Some([word(0)?, word(1)?, word(2)?, word(3)?])
    }

    /// Returns the build id; None if the linker wrote none.
    pub(crate) fn build_id(&self) -> Result<Option<Vec<u8>>, ElfError> {
        self.gnu_note(NT_GNU_BUILD_ID)
    }

    /// Returns the value of the first note of a type in a segment of notes.
    fn gnu_note(&self, kind: u32) -> Result<Option<Vec<u8>>, ElfError> {
        for segment in self.segments.iter().filter(|s| s.p_type == PT_NOTE) {
            let notes = self.segment(segment)?;
            if let Some(value) = self.find_gnu_note(&notes, segment.p_align, kind) {
                return Ok(Some(value.to_vec()));
            }
        }
        Ok(None)
    }

    fn find_gnu_note<'n>(&self, mut notes: &'n [u8], align: u64, wanted: u32) -> Option<&'n [u8]> {
        let align = if align == 8 { 8 } else { 4 };
        loop {
            let name_size = usize::try_from(self.word(notes, 0)?).ok()?;
            let value_size = usize::try_from(self.word(notes, 4)?).ok()?;
            let kind = self.word(notes, 8)?;
            let value_at = 12usize
                .checked_add(name_size)?
                .checked_next_multiple_of(align)?;
            let end = value_at.checked_add(value_size)?;
            if kind == wanted && notes.get(12..12 + name_size) == Some(b"GNU\0") {
                return notes.get(value_at..end);
            }
            notes = notes.get(end.checked_next_multiple_of(align)?..)?;
        }
    }

    /// Returns the value of the first note in a section of this name, if its owner is `owner`. A value that is longer
    /// than the rest of the section ends with it: some of NVIDIA's notes claim too much.
    pub(crate) fn note(&self, section: &str, owner: &str) -> Result<Option<Vec<u8>>, ElfError> {
        let Some(bytes) = self.section(section)? else {
            return Ok(None);
        };
        let note = || {
            let name_size = usize::try_from(self.word(&bytes, 0)?).ok()?;
            let value_size = usize::try_from(self.word(&bytes, 4)?).ok()?;
            let name_end = 12_usize.checked_add(name_size)?;
            let name = bytes.get(12..name_end)?.strip_suffix(b"\0")?;
            let value = bytes.get(name_end.checked_next_multiple_of(4)?..)?;
            let value = value.get(..value_size).unwrap_or(value);
            (name == owner.as_bytes()).then(|| value.to_vec())
        };
        Ok(note())
    }

    /// Returns the content of the section of a name.
    fn section(&self, name: &str) -> Result<Option<Vec<u8>>, ElfError> {
        let headers = self.section_headers()?;
        if headers.is_empty() {
            return Ok(None);
        }
        let names = headers.get(usize::from(self.sections.names));
        let names = names.ok_or(ElfError::Nonsense)?;
        let names = self.content(names.sh_offset, names.sh_size)?;
        let is_it = |header: &&SectionHeader| {
            let text = names.get(header.sh_name..);
            let rest = text.and_then(|text| text.strip_prefix(name.as_bytes()));
            rest.is_some_and(|rest| rest.first() == Some(&0))
        };
        let found = headers.iter().find(is_it);
        found
            .map(|header| self.content(header.sh_offset, header.sh_size))
            .transpose()
    }

    /// Returns the section headers; none if there is no table.
    fn section_headers(&self) -> Result<Vec<SectionHeader>, ElfError> {
        let SectionTable { offset, count, .. } = self.sections;
        if offset == 0 || count == 0 {
            return Ok(Vec::new());
        }
        if count > MAX_SECTIONS {
            return Err(ElfError::Nonsense);
        }
        let count = usize::from(count);
        let table = self.bytes(offset, count * SectionHeader::size(self.ctx))?;
        Ok(SectionHeader::parse_from(&table, 0, count, self.ctx)?)
    }

    fn word(&self, bytes: &[u8], offset: usize) -> Option<u32> {
        let bytes = *bytes.get(offset..)?.first_chunk()?;
        Some(if self.ctx.le.is_little() {
            u32::from_le_bytes(bytes)
        } else {
            u32::from_be_bytes(bytes)
        })
    }

    /// Returns the file offset of an address.
    fn offset_of(&self, address: u64) -> Option<u64> {
        let mut loaded = self.segments.iter().filter(|s| s.p_type == PT_LOAD);
        loaded.find_map(|segment| {
            let offset = address.checked_sub(segment.p_vaddr)?;
            (offset < segment.p_filesz).then(|| segment.p_offset.checked_add(offset))?
        })
    }

    fn segment(&self, segment: &ProgramHeader) -> Result<Vec<u8>, ElfError> {
        self.content(segment.p_offset, segment.p_filesz)
    }

    /// Reads a segment or section.
    fn content(&self, offset: u64, length: u64) -> Result<Vec<u8>, ElfError> {
        if length > MAX_SEGMENT_SIZE {
            return Err(ElfError::Nonsense);
        }
        let length = usize::try_from(length).map_err(|_| ElfError::Nonsense)?;
        self.bytes(offset, length)
    }

    fn bytes(&self, offset: u64, length: usize) -> Result<Vec<u8>, ElfError> {
        let bytes = self.bytes_up_to(offset, length)?;
        if bytes.len() == length {
            Ok(bytes)
        } else {
            Err(ElfError::Nonsense)
        }
    }

    fn bytes_up_to(&self, offset: u64, length: usize) -> Result<Vec<u8>, ElfError> {
        let known = usize::try_from(offset).ok().and_then(|start| {
            let end = start.checked_add(length)?;
            self.head.get(start..end)
        });
        if let Some(bytes) = known {
            return Ok(bytes.to_vec());
        }
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            let at = offset
                .checked_add(filled as u64)
                .ok_or(ElfError::Nonsense)?;
            match self.source.read_at(&mut bytes[filled..], at) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // An offset beyond any file.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                    return Err(ElfError::Nonsense);
                }
                Err(e) => return Err(e.into()),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
pub(crate) mod tests;
