//! Finds programs in directories, like the programs that we replace.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use libnvc::STANDARD_PATH;

/// Returns the directories of PATH, then the missing standard ones.
pub fn directories(path: Option<&OsStr>) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = match path {
        Some(path) if !path.is_empty() => path
            .as_bytes()
            .split(|byte| *byte == b':')
            .map(|entry| OsStr::from_bytes(entry).into())
            .collect(),
        _ => Vec::new(),
    };
    for usual in STANDARD_PATH {
        if !all.iter().any(|entry| entry.as_os_str() == usual) {
            all.push(usual.into());
        }
    }
    all
}

/// Joins directories for PATH.
pub fn joined(directories: &[PathBuf]) -> OsString {
    let parts: Vec<&OsStr> = directories.iter().map(|entry| entry.as_os_str()).collect();
    parts.join(OsStr::new(":"))
}

/// Returns true for an executable file.
pub fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

/// Returns the first program of this name.
pub fn find(name: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    directories
        .iter()
        .map(|directory| directory.join(name))
        .find(|path| is_executable(path))
}

/// Returns true if a name matches a shell pattern of `*`, `?` and `[...]`.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Position for backtracking: the last star, and the number of letters that it matches.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p, n));
            p += 1;
        } else if let Some(next) = fits(&pattern, p, name[n]) {
            (p, n) = (next, n + 1);
        } else if let Some((at, end)) = star {
            star = Some((at, end + 1));
            (p, n) = (at + 1, end + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Returns the pattern's next position if its part at `p` matches `letter`.
fn fits(pattern: &[char], p: usize, letter: char) -> Option<usize> {
    match pattern.get(p)? {
        '?' => Some(p + 1),
        '\\' => (pattern.get(p + 1) == Some(&letter)).then_some(p + 2),
        '[' => {
            let negated = matches!(pattern.get(p + 1), Some('^' | '!'));
            let mut at = p + 1 + usize::from(negated);
            let mut found = false;
            let first = at;
            while *pattern.get(at)? != ']' || at == first {
                let low = *pattern.get(at)?;
                let is_range = pattern.get(at + 1) == Some(&'-') && *pattern.get(at + 2)? != ']';
                let high = if is_range { *pattern.get(at + 2)? } else { low };
                found |= (low..=high).contains(&letter);
                at += if is_range { 3 } else { 1 };
            }
            (found != negated).then_some(at + 1)
        }
        c => (*c == letter).then_some(p + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_are_those_of_the_shell() {
        let table = [
            ("runc", "runc", true),
            ("run?", "runc", true),
            ("run?", "run", false),
            ("*.csv", "a.csv", true),
            ("*", "", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("[a-c]x[!d]", "bxe", true),
            ("[a-c]x[^d]", "bxd", false),
            ("[]x]", "]", true),
            ("[ab", "a", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("**", "abc", true),
        ];
        for (pattern, name, expected) in table {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
