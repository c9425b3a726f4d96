//! Cleans paths lexically, like the programs that we replace: no symlink is followed.

use std::path::{Path, PathBuf};

/// Returns the path without `.`, `..` and doubled slashes; `.` if nothing is left.
pub fn clean(path: &str) -> String {
    let absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => match parts.last() {
                Some(&last) if last != ".." => {
                    parts.pop();
                }
                _ if absolute => {}
                _ => parts.push(".."),
            },
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    match (absolute, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".into(),
        (false, false) => joined,
    }
}

/// Makes a path absolute relative to `directory`, and cleans it.
pub fn absolute(path: &str, directory: &Path) -> PathBuf {
    if path.starts_with('/') {
        clean(path).into()
    } else {
        clean(&format!("{}/{path}", directory.display())).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_by_text() {
        let table = [
            ("", "."),
            ("/", "/"),
            ("//a//b/", "/a/b"),
            ("/../a/./b/../c", "/a/c"),
            ("a/../..", ".."),
            ("../../x", "../../x"),
            ("./", "."),
        ];
        for (path, cleaned) in table {
            assert_eq!(clean(path), cleaned, "{path}");
        }
    }

    #[test]
    fn relative_paths_start_at_the_directory() {
        let at = |path| absolute(path, Path::new("/bundle"));
        assert_eq!(at("rootfs"), Path::new("/bundle/rootfs"));
        assert_eq!(at(""), Path::new("/bundle"));
        assert_eq!(at("../x/"), Path::new("/x"));
        assert_eq!(at("/a/../r"), Path::new("/r"));
    }
}
