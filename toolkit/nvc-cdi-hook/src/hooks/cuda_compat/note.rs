//! Parses the ELF note in which a compatibility libcuda lists its supported drivers.
//!
//! The file belongs to the image, so every offset is checked; malformed data counts as no note.

use serde_json::Value;

const SECTION: &[u8] = b".note.cuda.fwd_compatibility";
const OWNER: &[u8] = b"NVIDIA Corporation";

/// Content of the note.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// The CUDA version of the library.
    pub(super) cuda: String,
    /// Major versions of the supported drivers.
    pub(super) drivers: Vec<u64>,
}

/// Size limit of a part of the file: more than the headers of 65,535 sections.
const LARGEST: usize = 1 << 22;

/// Returns the note of a 64-bit ELF file, if it has a valid one. `read` returns a part of the file.
///
/// A libcuda has 100 MB, and the container's memory limit already applies.
pub(super) fn read(read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> Option<Note> {
    let part = |from: u64, length: u64| {
        let length = usize::try_from(length)
            .ok()
            .filter(|&length| length <= LARGEST);
        read(from, length?)
    };
    let file = part(0, 64)?;
    if file.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let table = number(&file, 40, 8)?;
    let size = number(&file, 58, 2)?;
    let count = number(&file, 60, 2)?;
    let headers = part(table, size.checked_mul(count)?)?;
    let size = usize::try_from(size).ok()?;
    let header = |n: usize| {
        let start = n.checked_mul(size)?;
        headers.get(start..start.checked_add(64)?)
    };
    let content = |header: &[u8]| part(number(header, 24, 8)?, number(header, 32, 8)?);
    let names = usize::try_from(number(&file, 62, 2)?).ok()?;
    let names = content(header(names)?)?;
    let count = usize::try_from(count).ok()?;
    let section = (0..count).filter_map(header).find(|header| {
        let at = number(header, 0, 4).and_then(|at| usize::try_from(at).ok());
        let name = at.and_then(|at| names.get(at..));
        name.and_then(|name| name.strip_prefix(SECTION))
            .is_some_and(|rest| rest.first() == Some(&0))
    })?;
    description(&content(section)?)
}

/// Parses the description of a note: sizes of owner and description, type, owner, description, each padded to four
/// bytes.
fn description(note: &[u8]) -> Option<Note> {
    let owner = usize::try_from(number(note, 0, 4)?).ok()?;
    let length = usize::try_from(number(note, 4, 4)?).ok()?;
    let start = 12_usize.checked_add(owner.checked_next_multiple_of(4)?)?;
    if note
        .get(12..12_usize.checked_add(owner)?)?
        .strip_suffix(b"\0")?
        != OWNER
    {
        return None;
    }
    let text = note.get(start..start.checked_add(length)?)?;
    let text = text.split(|&byte| byte == 0).next()?;
    let value: Value = serde_json::from_slice(text).ok()?;
    let drivers = value.get("Driver").and_then(Value::as_array);
    Some(Note {
        cuda: value.get("CUDA Version")?.as_str()?.into(),
        drivers: drivers
            .into_iter()
            .flatten()
            .filter_map(Value::as_u64)
            .collect(),
    })
}

/// Reads a little-endian number.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(size)?)?;
    Some(
        bytes
            .iter()
            .rev()
            .fold(0, |number, &byte| number << 8 | u64::from(byte)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &[u8]) -> Option<Note> {
        super::read(|from, length| {
            let from = usize::try_from(from).ok()?;
            Some(file.get(from..from.checked_add(length)?)?.to_vec())
        })
    }

    #[test]
    fn damaged_files_have_no_note() {
        let mut file = vec![0; 200];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        for byte in 0..=255 {
            for at in 6..200 {
                let mut copy = file.clone();
                copy[at] = byte;
                assert_eq!(read(&copy), None);
            }
        }
        for length in 0..200 {
            assert_eq!(read(&vec![0xff; length]), None);
        }
    }
}
