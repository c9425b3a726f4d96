//! Parses ld.so.conf and the files it includes as ldconfig does: directories, and patterns of further files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A directory of libraries.
    Directory(PathBuf),
    /// An `include`: a directory, and a pattern of names in it.
    Include(PathBuf, Vec<u8>),
}

/// Parses the lines of a file in the directory `parent`. Other lines, and relative directories, are ignored, as by
/// ldconfig.
pub(crate) fn parse(text: &[u8], parent: &Path) -> Vec<Line> {
    text.split(|&byte| byte == b'\n')
        .flat_map(|line| {
            let line = line.split(|&byte| byte == b'#').next();
            line_of(line.unwrap_or_default().trim_ascii(), parent)
        })
        .collect()
}

fn line_of(line: &[u8], parent: &Path) -> Vec<Line> {
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    match words.next() {
        Some(b"include") => words.filter_map(|word| include(word, parent)).collect(),
        Some(b"hwcap") | None => Vec::new(),
        Some(_) => directory(line).into_iter().collect(),
    }
}

/// Parses a directory; an equals sign starts the type of its libraries.
fn directory(line: &[u8]) -> Option<Line> {
    let path = line.split(|&byte| byte == b'=').next()?.trim_ascii_end();
    let path = Path::new(OsStr::from_bytes(path));
    path.is_absolute().then(|| Line::Directory(path.to_owned()))
}

/// Parses an include. Relative patterns start in the file's directory.
fn include(pattern: &[u8], parent: &Path) -> Option<Line> {
    let path = parent.join(OsStr::from_bytes(pattern));
    let name = path.file_name()?.as_bytes().to_vec();
    Some(Line::Include(path.parent()?.to_owned(), name))
}

/// Returns the line that names a directory; None if no line can: it would be read as something else.
pub(crate) fn line_for(directory: &Path) -> Option<Vec<u8>> {
    let mut line = directory.as_os_str().as_bytes().to_vec();
    line.push(b'\n');
    let read = parse(&line, Path::new("/"));
    (read == [Line::Directory(directory.to_owned())]).then_some(line)
}

/// Returns true if a pattern is a plain name.
pub(crate) fn is_plain(pattern: &[u8]) -> bool {
    !pattern.iter().any(|byte| b"*?[\\".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_parse_as_in_ldconfig() {
        let directory = |path: &str| Line::Directory(path.into());
        let text = b"# comment\n/usr/lib/one\n\t/two # here\n\n/three=libc6\nrelative\nhwcap 1 x\n\
            include ld.so.conf.d/*.conf /else/where.conf\n/with space\n/last";
        let parse = |text: &[u8]| parse(text, Path::new("/etc"));
        assert_eq!(
            parse(text),
            [
                directory("/usr/lib/one"),
                directory("/two"),
                directory("/three"),
                Line::Include("/etc/ld.so.conf.d".into(), b"*.conf".to_vec()),
                Line::Include("/else".into(), b"where.conf".to_vec()),
                directory("/with space"),
                directory("/last"),
            ]
        );
        assert_eq!(parse(b""), []);
        assert_eq!(parse(b"include\ninclude /\n=\n\0\xff"), []);
    }

    #[test]
    fn includes_start_in_the_files_directory() {
        let expected = [Line::Include(
            "/etc/ld.so.conf.d".into(),
            b"*.conf".to_vec(),
        )];
        for (text, parent) in [
            (&b"include ld.so.conf.d/*.conf"[..], "/etc"),
            (b"include *.conf", "/etc/ld.so.conf.d"),
            (b"include /etc/ld.so.conf.d/*.conf", "/opt"),
        ] {
            assert_eq!(parse(text, Path::new(parent)), expected);
        }
    }

    #[test]
    fn some_directories_have_no_line() {
        let line = |path: &str| line_for(Path::new(path));
        assert_eq!(line("/a b"), Some(b"/a b\n".to_vec()));
        for path in ["/a#b", "/a=b", "/a ", "/a\n/b", "a"] {
            assert_eq!(line(path), None, "{path}");
        }
    }

    #[test]
    fn a_plain_name_is_no_pattern() {
        assert!(is_plain(b"plain.conf") && !is_plain(b"*.conf"));
    }
}
