//! Determines whether a program was built and installed together with the calling program.
//!
//! Packages record the GNU build ids of their programs. A program in the caller's directory whose build id is recorded
//! under its name is ours: its interface is known, and its work may be done without executing it. Everything else is
//! foreign, including files that cannot be read: an administrator may have installed another program on purpose.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// The file of recorded build ids, relative to the programs' directory: lines of `BUILD-ID NAME`.
pub const RECORD: &str = "../share/nvidia-container-toolkit/build-ids";

/// Linkers put the notes directly after the headers.
const HEAD: u64 = 8192;

/// Size limit of the record.
const MAX_RECORD_SIZE: u64 = 1 << 16;

/// Returns true if `found` is our program `name`; `own` is the path of the calling program.
pub fn is_ours(found: &Path, name: &str, own: &Path) -> bool {
    let directory = |path: &Path| Some(std::fs::canonicalize(path).ok()?.parent()?.to_owned());
    let (Some(of_found), Some(of_own)) = (directory(found), directory(own)) else {
        return false;
    };
    if of_found != of_own {
        return false;
    }
    is_recorded(found, name, &record(own))
}

/// Returns the record of the programs that were installed with the calling program, whose path is `own`; empty without
/// one.
pub fn record(own: &Path) -> String {
    let own = std::fs::canonicalize(own).unwrap_or_default();
    let directory = own.parent().unwrap_or(Path::new(""));
    let record = read(&directory.join(RECORD), MAX_RECORD_SIZE).unwrap_or_default();
    String::from_utf8_lossy(&record).into_owned()
}

/// Returns true if a record has the build id of `program` under this name, wherever the program lies.
pub fn is_recorded(program: &Path, name: &str, record: &str) -> bool {
    let Some(id) = head(program).as_deref().and_then(build_id) else {
        return false;
    };
    let mut pairs = record.lines().filter_map(|line| line.split_once(' '));
    pairs.any(|pair| pair == (id.as_str(), name))
}

/// Returns true if a file is a script, which names its interpreter.
pub fn is_script(program: &Path) -> bool {
    head(program).is_some_and(|head| head.starts_with(b"#!"))
}

/// Returns the start of a regular file. Opening anything else could block.
fn head(program: &Path) -> Option<Vec<u8>> {
    let is_file = std::fs::metadata(program).is_ok_and(|facts| facts.is_file());
    if is_file { read(program, HEAD) } else { None }
}

fn read(path: &Path, limit: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)
        .ok()?
        .take(limit)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}

/// Returns the GNU build id of a 64-bit program, in hexadecimal, from the start of its file.
pub fn build_id(head: &[u8]) -> Option<String> {
    const NOTE: u64 = 4;
    if head.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let table = number(head, 32, 8)?;
    let (size, count) = (number(head, 54, 2)?, number(head, 56, 2)?);
    (0..count).find_map(|index| {
        let at = table.checked_add(index.checked_mul(size)?)?;
        let segment = head.get(usize::try_from(at).ok()?..)?;
        if number(segment, 0, 4)? != NOTE {
            return None;
        }
        let start = usize::try_from(number(segment, 8, 8)?).ok()?;
        let length = usize::try_from(number(segment, 32, 8)?).ok()?;
        id_of(head.get(start..start.checked_add(length)?)?)
    })
}

/// Returns the build id from notes: sizes of name and content, type, name, content, each padded to four bytes.
fn id_of(mut notes: &[u8]) -> Option<String> {
    const BUILD_ID: u64 = 3;
    loop {
        let name = usize::try_from(number(notes, 0, 4)?).ok()?;
        let length = usize::try_from(number(notes, 4, 4)?).ok()?;
        let start = 12_usize.checked_add(name.checked_next_multiple_of(4)?)?;
        let end = start.checked_add(length)?;
        let content = notes.get(start..end)?;
        let is_gnu = notes.get(12..12_usize.checked_add(name)?)? == b"GNU\0";
        if is_gnu && number(notes, 8, 4)? == BUILD_ID && !content.is_empty() {
            return Some(content.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        notes = notes.get(end.checked_next_multiple_of(4)?..)?;
    }
}

/// Reads a little-endian number of at most eight bytes.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(size)?)?;
    let digits = part.iter().rev();
    Some(digits.fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_the_recorded_program_beside_us_is_ours() {
        let dir = tempfile::tempdir().unwrap();
        let (bin, share) = (dir.path().join("bin"), dir.path().join("share"));
        let record = bin.join(RECORD);
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(share.join("nvidia-container-toolkit")).unwrap();
        let this = std::env::current_exe().unwrap();
        let (cli, own) = (bin.join("cli"), bin.join("hook"));
        fs::copy(&this, &cli).unwrap();
        fs::write(&own, "").unwrap();
        assert!(!is_ours(&cli, "cli", &own), "nothing is recorded");

        let id = build_id(&head(&this).unwrap()).expect("test programs have a build id");
        assert_eq!(id.len(), 40);
        fs::write(&record, format!("00 cli\n{id} cli\n{id} other\n")).unwrap();
        assert!(is_ours(&cli, "cli", &own));
        assert!(!is_ours(&cli, "hook", &own), "recorded under another name");
        assert!(!is_ours(&this, "cli", &own), "it lies elsewhere");
        std::os::unix::fs::symlink(&cli, dir.path().join("link")).unwrap();
        assert!(
            is_ours(&dir.path().join("link"), "cli", &own),
            "it is only named elsewhere"
        );

        for damaged in ["", " cli", &id, &format!("{id}cli")] {
            fs::write(&record, damaged).unwrap();
            assert!(!is_ours(&cli, "cli", &own), "{damaged:?}");
        }
        fs::write(&record, format!("{id} cli\n")).unwrap();
        fs::write(&cli, "#!/bin/sh\n").unwrap();
        assert!(!is_ours(&cli, "cli", &own), "a script in its place");
        assert!(!is_ours(&bin.join("missing"), "cli", &own));
        assert!(!is_ours(&bin, "cli", &own));
    }

    fn note(name: &[u8], kind: u32, content: &[u8]) -> Vec<u8> {
        let size = |length: usize| u32::try_from(length).unwrap().to_le_bytes();
        let sizes = [size(name.len()), size(content.len()), kind.to_le_bytes()];
        let mut all = sizes.concat();
        all.extend(name);
        all.resize(all.len().next_multiple_of(4), 0);
        all.extend(content);
        all.resize(all.len().next_multiple_of(4), 0);
        all
    }

    #[test]
    fn odd_notes_have_no_id() {
        let id = note(b"GNU\0", 3, &[0xab, 1]);
        assert_eq!(id_of(&id).as_deref(), Some("ab01"));
        let behind = [note(b"GNU\0", 1, &[0; 15]), id.clone()].concat();
        assert_eq!(id_of(&behind).as_deref(), Some("ab01"));
        assert_eq!(id_of(&note(b"GNX\0", 3, &[1])), None);
        assert_eq!(id_of(&note(b"GNU\0", 3, &[])), None);
        for end in 0..14 {
            assert_eq!(id_of(&id[..end]), None);
        }
        assert_eq!(id_of(&[0xff; 16]), None);
    }

    #[test]
    fn damaged_programs_do_no_harm() {
        let this = head(&std::env::current_exe().unwrap()).unwrap();
        for length in 0..1024 {
            build_id(&this[..length]);
        }
        for at in 0..1024 {
            for byte in [0, 1, 4, 0x7f, 0xff] {
                let mut copy = this.clone();
                copy[at] = byte;
                build_id(&copy);
            }
        }
    }
}
