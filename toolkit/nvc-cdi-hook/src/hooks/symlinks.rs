//! Creates symlinks; replaces existing files, but not directories.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

use libnvc::plan::{Intent, Link, Need, Place, What};
use libnvc::{ContainerPath, Error, ErrorKind, Result};
use nvc_options::Given;

pub(super) fn intents(given: &Given) -> Result<Vec<Intent>> {
    let mut seen = HashSet::new();
    let words = given.list("link").filter(|word| seen.insert(*word));
    let link = |word: &str| {
        let (need, what) = (Need::WherePermitted, What::Link(parse(word)?));
        Ok(Intent { need, what })
    };
    words.map(link).collect()
}

/// Parses `TARGET::LINK`.
fn parse(word: &str) -> Result<Link> {
    let invalid = |text: String| Error::new(ErrorKind::InvalidArgument, text);
    let specification = || invalid(format!("invalid symlink specification {word}"));
    let (target, link) = word.split_once("::").ok_or_else(specification)?;
    if target.is_empty() || link.is_empty() || link.contains("::") {
        return Err(specification());
    }
    // A trailing slash asks for a directory, and the link goes into it by the same name.
    let (directory, _) = link.rsplit_once('/').unwrap_or_default();
    let name = Path::new(link.trim_end_matches('/')).file_name();
    let name = name.filter(|_| !link.ends_with("/."));
    let name = name.ok_or_else(|| invalid(format!("{link} is not a file name")))?;
    // As upstream: `..` removes a name, whether or not there is such a directory.
    let mut path = PathBuf::from("/");
    for part in Path::new(directory).components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::ParentDir => drop(path.pop()),
            _ => {}
        }
    }
    Ok(Link {
        at: Place::At(ContainerPath::new(path.join(name))),
        target: PathBuf::from(target),
        replaces: true,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn links_are_parsed() {
        let link = |word: &str| parse(word).map_err(|error| error.message());
        let made = |target: &str, at: &str| {
            Ok(Link {
                at: Place::At(ContainerPath::new(at)),
                target: target.into(),
                replaces: true,
            })
        };
        assert_eq!(link("../a::/usr/lib/b"), made("../a", "/usr/lib/b"));
        assert_eq!(link("a::b"), made("a", "/b"));
        assert_eq!(link("a::/usr/b/"), made("a", "/usr/b/b"));
        for word in ["", "a", "::", "a::", "::b", "a::b::c"] {
            let refused = Err(format!("invalid symlink specification {word}"));
            assert_eq!(link(word), refused, "{word}");
        }
        for (path, cleaned) in [
            ("/no/../../b", "/b"),
            ("no/./x/../b", "/no/b"),
            ("/no/..//b/", "/b/b"),
        ] {
            assert_eq!(link(&format!("a::{path}")), made("a", cleaned));
        }
        for path in ["/", "/usr/..", "/usr/."] {
            let refused = Err(format!("{path} is not a file name"));
            assert_eq!(link(&format!("a::{path}")), refused);
        }
    }
}
