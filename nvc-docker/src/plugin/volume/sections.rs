//! Reads small libraries by their sections, which have more information than the segments that a loader needs.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use goblin::elf::dynamic::{DT_NEEDED, DT_SONAME};
use goblin::elf::section_header::SHT_DYNAMIC;
use goblin::elf::{Elf, SectionHeader};

/// Size limit: the libraries concerned have 15 kB.
const MAX_SIZE: u64 = 4 << 20;

/// A library's bytes.
#[derive(Debug)]
pub(super) struct Sections(Vec<u8>);

impl Sections {
    /// Reads a file, unless it is large.
    pub(super) fn read(file: &Path) -> Option<Self> {
        let opened = File::open(file).ok()?;
        if opened.metadata().ok()?.len() > MAX_SIZE {
            return None;
        }
        let mut bytes = Vec::new();
        opened.take(MAX_SIZE).read_to_end(&mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// Returns the SONAME, and whether a needed name has one of these prefixes.
    pub(super) fn names(&self, needed: &[&str]) -> Option<(Option<String>, bool)> {
        let elf = Elf::parse(&self.0).ok()?;
        let section = elf
            .section_headers
            .iter()
            .find(|section| section.sh_type == SHT_DYNAMIC)?;
        let strings = elf
            .section_headers
            .get(usize::try_from(section.sh_link).ok()?)?;
        let strings = self.content(strings)?;
        let text = |offset: u64| {
            let tail = strings.get(usize::try_from(offset).ok()?..)?;
            let text = std::ffi::CStr::from_bytes_until_nul(tail).ok()?;
            text.to_str().ok().map(str::to_owned)
        };
        let entries = &elf.dynamic.as_ref()?.dyns;
        let soname = entries.iter().find(|entry| entry.d_tag == DT_SONAME);
        let mut needs = entries.iter().filter(|entry| entry.d_tag == DT_NEEDED);
        let is_one = |name: String| needed.iter().any(|wanted| name.starts_with(wanted));
        Some((
            soname.and_then(|entry| text(entry.d_val)),
            needs.any(|entry| text(entry.d_val).is_some_and(is_one)),
        ))
    }

    /// Returns minor and patch version of the oldest supported kernel.
    pub(super) fn kernel(&self) -> Option<[u32; 2]> {
        let elf = Elf::parse(&self.0).ok()?;
        let is_note = |section: &&SectionHeader| {
            elf.shdr_strtab.get_at(section.sh_name) == Some(".note.ABI-tag")
        };
        let note = self.content(elf.section_headers.iter().find(is_note)?)?;
        let number = |at: usize| {
            let word = note.get(at..)?.first_chunk()?;
            Some(u32::from_le_bytes(*word))
        };
        Some([number(24)?, number(28)?])
    }

    fn content(&self, section: &SectionHeader) -> Option<&[u8]> {
        let start = usize::try_from(section.sh_offset).ok()?;
        let end = start.checked_add(usize::try_from(section.sh_size).ok()?)?;
        self.0.get(start..end)
    }
}
