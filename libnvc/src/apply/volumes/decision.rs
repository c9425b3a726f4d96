//! Decides where files go if their directories may not be changed, because they are on a volume or the root is
//! read-only.
//!
//! A container that starts with NVIDIA's programs must start with ours, but no file of a volume is changed. So the files
//! go to a tmpfs of ours, and the loader's configuration in the image's own layer names it. Pure: `redirect` and
//! `ldconfig::builtin::fixed` look up the facts and carry the decision out.

/// What is known about a directory in which no file may be created, and which a plan has libraries or programs for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apply) struct Directory {
    /// All mount points exist already.
    pub(in crate::apply) is_complete: bool,
    /// The loader, or PATH, has it, so that files may be in another directory.
    pub(in crate::apply) is_searched: bool,
    /// There is a directory of PATH over which programs can be mounted.
    pub(in crate::apply) has_empty: bool,
    /// There is a path for the tmpfs.
    pub(in crate::apply) has_tmpfs: bool,
}

/// Where files go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apply) enum Destination {
    /// Where the plan has them. If a mount point is missing, that fails with an error that names the mount.
    InPlace,
    /// Into a tmpfs over an empty directory of PATH.
    Path,
    /// Into the tmpfs.
    Tmpfs,
    /// Nowhere: programs look for them at this place alone.
    LeftOut,
}

impl Directory {
    /// Decides about its libraries.
    pub(in crate::apply) fn libraries(self) -> Destination {
        if self.is_complete {
            Destination::InPlace
        } else if !self.is_searched {
            Destination::LeftOut
        } else if self.has_tmpfs {
            Destination::Tmpfs
        } else {
            Destination::InPlace
        }
    }

    /// Decides about its programs.
    pub(in crate::apply) fn programs(self) -> Destination {
        if self.is_complete || !self.is_searched {
            Destination::InPlace
        } else if self.has_empty {
            Destination::Path
        } else if self.has_tmpfs {
            Destination::Tmpfs
        } else {
            Destination::InPlace
        }
    }
}

/// What is known about the loader of an image whose /etc may not be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apply) struct Loader {
    /// It finds all libraries as it is.
    pub(in crate::apply) finds_all: bool,
    /// Its cache, or musl's list of directories, can be read, and so extended.
    pub(in crate::apply) is_readable: bool,
    /// There is a file over which another one can be mounted, and a tmpfs for that one.
    pub(in crate::apply) has_cover: bool,
}

/// How the loader finds the libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apply) enum Remedy {
    /// It needs nothing.
    Nothing,
    /// A file of ours is mounted over its cache or list; ldconfig will fail in the container.
    Cover,
    /// They cannot be given.
    Refuse,
}

impl Loader {
    /// Decides what the loader needs.
    pub(in crate::apply) fn remedy(self) -> Remedy {
        match self {
            Self {
                finds_all: true, ..
            } => Remedy::Nothing,
            Self {
                is_readable: true,
                has_cover: true,
                ..
            } => Remedy::Cover,
            Self { .. } => Remedy::Refuse,
        }
    }
}

/// Returns true if the loader finds a library: an entry of the cache wins, so each must be for its directory; without
/// entries the loader searches its default directories. `entries` says for each one whether it is.
pub(in crate::apply) fn finds(entries: &[bool], is_default: bool) -> bool {
    match entries {
        [] => is_default,
        _ => entries.iter().all(|is_its| *is_its),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [bool; 2] = [false, true];

    /// Each row has the facts as in `Directory`; `*` is both. The first row that fits decides.
    fn decided(rows: &[(&str, Destination)], of: impl Fn(Directory) -> Destination) {
        let mut used = vec![false; rows.len()];
        for number in 0..16_u8 {
            let fact = |bit: u8| number & (1 << bit) != 0;
            let directory = Directory {
                is_complete: fact(0),
                is_searched: fact(1),
                has_empty: fact(2),
                has_tmpfs: fact(3),
            };
            let fits = |row: &str| {
                let mut wanted = row.bytes().zip(0..);
                wanted.all(|(wanted, bit)| match wanted {
                    b'*' => true,
                    wanted => (wanted == b'1') == fact(bit),
                })
            };
            let row = rows.iter().position(|(row, _)| fits(row));
            let expected = row.and_then(|row| {
                used.get_mut(row).into_iter().for_each(|used| *used = true);
                rows.get(row).map(|row| row.1)
            });
            assert_eq!(Some(of(directory)), expected, "{directory:?}");
        }
        assert!(used.iter().all(|used| *used), "{used:?}");
    }

    #[test]
    fn libraries() {
        decided(
            &[
                // complete, searched, empty, tmpfs
                ("1***", Destination::InPlace),
                ("00**", Destination::LeftOut),
                ("01*1", Destination::Tmpfs),
                ("01*0", Destination::InPlace),
            ],
            Directory::libraries,
        );
    }

    #[test]
    fn programs() {
        decided(
            &[
                ("1***", Destination::InPlace),
                ("00**", Destination::InPlace),
                ("011*", Destination::Path),
                ("0101", Destination::Tmpfs),
                ("0100", Destination::InPlace),
            ],
            Directory::programs,
        );
    }

    #[test]
    fn loaders() {
        for finds_all in BOTH {
            for is_readable in BOTH {
                for has_cover in BOTH {
                    let loader = Loader {
                        finds_all,
                        is_readable,
                        has_cover,
                    };
                    let expected = match (finds_all, is_readable && has_cover) {
                        (true, _) => Remedy::Nothing,
                        (false, true) => Remedy::Cover,
                        (false, false) => Remedy::Refuse,
                    };
                    assert_eq!(loader.remedy(), expected, "{loader:?}");
                }
            }
        }
    }

    #[test]
    fn an_entry_wins_over_default_directories() {
        for (entries, is_default, expected) in [
            (&[][..], true, true),
            (&[], false, false),
            (&[true], false, true),
            (&[true, true], true, true),
            (&[false], true, false),
            (&[true, false], true, false),
        ] {
            assert_eq!(finds(entries, is_default), expected);
        }
    }
}
