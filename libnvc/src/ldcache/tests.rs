//! Tests of reading, altering and writing a cache together; the end-to-end tests compare with the real ldconfig.

use proptest::prelude::*;

use super::contents::{CacheLine, Form, SUBDIRECTORY};
use super::listing::Listing;
use super::merge::{self, DirectoryAction, FoundLibrary, SearchedDirectory};
use super::order;

fn line(key: &'static str, directory: &'static str, rest: &'static str) -> CacheLine<'static> {
    CacheLine {
        flags: 0x303,
        kernel: 0,
        features: 0,
        key: key.as_bytes(),
        directory: directory.as_bytes(),
        rest: rest.as_bytes(),
    }
}

fn form(combined: bool, subdirectories: &'static [&'static str]) -> Form<'static> {
    Form {
        combined,
        byte_order: if cfg!(target_endian = "little") { 2 } else { 3 },
        generator: Some(b"ldconfig 1"),
        subdirectories: subdirectories.iter().map(|name| name.as_bytes()).collect(),
    }
}

/// Formats a listing, one entry per line.
fn text(lines: &[CacheLine<'_>]) -> Vec<String> {
    let show = |line: &CacheLine<'_>| {
        let [key, directory, rest] =
            [line.key, line.directory, line.rest].map(String::from_utf8_lossy);
        format!("{key} {:x} {directory}{rest}", line.flags)
    };
    lines.iter().map(show).collect()
}

#[test]
fn written_caches_parse() {
    let special = CacheLine {
        features: SUBDIRECTORY | 1,
        ..line("libb.so.1", "/lib/glibc-hwcaps/v3", "/libb.so.1.2")
    };
    let old = CacheLine {
        features: 1 << 50,
        kernel: 0x0003_0200,
        ..line("libb.so.1", "/lib/tls/haswell", "/libb.so.1")
    };
    let plain = line("liba.so.1", "/lib", "/liba.so.1");
    let names: &[&str] = &["v2", "v3"];
    for (form, lines) in [
        (form(false, names), vec![special, old, plain]),
        (form(true, &[]), vec![old, plain]),
        (form(true, &[]), vec![plain, plain, plain]),
        (form(true, &[]), vec![]),
        (
            Form {
                generator: None,
                byte_order: 0,
                ..form(false, &[])
            },
            vec![plain],
        ),
    ] {
        let bytes = form.write(&lines).unwrap();
        let read = Listing::parse(&bytes).unwrap();
        assert_eq!(read.form, form);
        assert_eq!(read.lines, lines);
        assert_eq!(bytes.starts_with(b"ld.so-1.7.0\0"), form.combined);
    }
}

#[test]
fn names_are_tails_of_paths() {
    let one = form(false, &[])
        .write(&[line("liba.so.1", "/lib", "/liba.so.1")])
        .unwrap();
    let found = one.windows(9).filter(|part| *part == b"liba.so.1");
    assert_eq!(found.count(), 1);
}

#[test]
fn directories_have_bases() {
    let lines = vec![
        line("a", "/lib", "/a"),
        CacheLine {
            features: SUBDIRECTORY,
            ..line("a", "/lib/glibc-hwcaps/v3", "/a")
        },
        CacheLine {
            features: 1 << 63,
            ..line("a", "/opt/tls/haswell", "/a")
        },
        line("a", "", "/a"),
        line("b", "/lib", "/b"),
    ];
    let bytes = form(false, &["v3"]).write(&lines).unwrap();
    let listing = Listing::parse(&bytes).unwrap();
    let bases: Vec<_> = listing
        .directories()
        .unwrap()
        .iter()
        .map(|directory| directory.base)
        .collect();
    assert_eq!(bases, [&b"/lib"[..], b"/lib", b"/opt", b""]);
}

#[test]
fn nonsense_is_refused() {
    let good = form(false, &["v3"])
        .write(&[line("liba.so.1", "/lib", "/liba.so.1")])
        .unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Listing::parse(&bytes).map(|_| ()).unwrap_err()
    };
    assert_eq!(with(0, b'x'), "it has another format");
    assert_eq!(
        with(28, 3 - u8::from(cfg!(target_endian = "big"))),
        "it is for another byte order"
    );
    assert_eq!(with(33, 0xff), "its extensions are invalid");
    assert_eq!(with(55, 0xff), "its entries are invalid"); // the key's offset
}

#[test]
fn unknown_subdirectories_are_invalid() {
    let unknown = CacheLine {
        features: SUBDIRECTORY | 7,
        ..line("a", "/lib/glibc-hwcaps/v3", "/a")
    };
    let bytes = form(false, &["v3"]).write(&[unknown]).unwrap();
    assert_eq!(
        Listing::parse(&bytes).unwrap_err(),
        "its entries are invalid"
    );
    let relative = form(false, &[]).write(&[line("a", "lib", "/a")]).unwrap();
    assert_eq!(
        Listing::parse(&relative).unwrap_err(),
        "its entries are invalid"
    );
    let combined = form(true, &["v3"]).write(&[]).unwrap();
    assert!(Listing::parse(&combined).is_err());
}

#[test]
fn searched_directories_come_first_under_their_names() {
    let special = CacheLine {
        features: SUBDIRECTORY,
        ..line("libb.so.1", "/lib/x/glibc-hwcaps/v3", "/libb.so.1.2")
    };
    let lines = [
        special,
        line("libb.so.1", "/usr/local/lib", "/libb.so.1"),
        line("libb.so.1", "/lib/x", "/libb.so.1"),
        line("libb.so.1", "/gone", "/libb.so.1"),
        line("liba.so.1", "/lib/x", "/liba.so.1"),
    ];
    let bytes = form(false, &["v3"]).write(&lines).unwrap();
    let listing = Listing::parse(&bytes).unwrap();
    let directory = |path: &str, found: &[(&str, i32)]| SearchedDirectory {
        path: path.into(),
        found: found
            .iter()
            .map(|(soname, flags)| FoundLibrary::new(soname.as_bytes(), *flags))
            .collect(),
        rank: usize::from(path != "/compat"),
    };
    let searched = [
        directory("/compat", &[("libb.so.1", 0x303)]),
        directory(
            "/usr/lib/x",
            &[
                ("libc.so.10", 0x303),
                ("liba.so.1", 3),
                ("libb.so.9", 0x303),
            ],
        ),
    ];
    let routes = merge::routes(
        &listing.directories().unwrap(),
        &searched,
        |base| match base {
            b"/lib/x" => DirectoryAction::Search(1),
            b"/gone" => DirectoryAction::Drop,
            _ => DirectoryAction::Keep(usize::MAX),
        },
    );
    let updated = merge::update(&listing, &routes, &searched);
    assert_eq!(
        text(&updated),
        [
            "libc.so.10 303 /usr/lib/x/libc.so.10",
            "libb.so.9 303 /usr/lib/x/libb.so.9",
            "libb.so.1 303 /usr/lib/x/glibc-hwcaps/v3/libb.so.1.2",
            "libb.so.1 303 /compat/libb.so.1",
            "libb.so.1 303 /usr/lib/x/libb.so.1",
            "libb.so.1 303 /usr/local/lib/libb.so.1",
            "liba.so.1 3 /usr/lib/x/liba.so.1",
        ]
    );
    assert!(updated.is_sorted_by(|one, other| order::entries(one, other).is_le()));
}

/// Of a directory that the image has too, only what was put there comes first.
#[test]
fn other_libraries_keep_their_place_and_name() {
    let lines = [
        line("libb.so.1", "/usr/local/lib", "/libb.so.1"),
        line("libb.so.1", "/usr/lib/x", "/libb.so.1"),
        line("liba.so.1", "/stubs", "/liba.so.1"),
        line("liba.so.1", "/usr/lib/x", "/liba.so.1"),
    ];
    let bytes = form(false, &[]).write(&lines).unwrap();
    let listing = Listing::parse(&bytes).unwrap();
    let searched = [SearchedDirectory {
        path: b"/usr/lib/x".to_vec(),
        found: vec![FoundLibrary::new(b"liba.so.1", 0x303)],
        rank: 0,
    }];
    let routes = merge::routes(
        &listing.directories().unwrap(),
        &searched,
        |base| match base {
            b"/usr/lib/x" => DirectoryAction::Share {
                searched: 0,
                position: 2,
                name: b"/lib/x".to_vec(),
            },
            _ => DirectoryAction::Keep(1),
        },
    );
    assert_eq!(
        text(&merge::update(&listing, &routes, &searched)),
        [
            "libb.so.1 303 /usr/local/lib/libb.so.1",
            "libb.so.1 303 /lib/x/libb.so.1",
            "liba.so.1 303 /usr/lib/x/liba.so.1",
            "liba.so.1 303 /stubs/liba.so.1",
        ]
    );
}

prop_compose! {
    fn any_line()(
        flags in prop::sample::select(vec![3, 0x303, 0x803]),
        key in "lib[a-c0-2]{1,3}\\.so(\\.[0-9]{1,2})?",
        directory in prop::sample::select(vec!["/lib", "/usr/lib", "/opt/é", "/lib/tls"]),
        other in prop::option::of("[a-z.]{1,4}"),
        kernel in 0u32..2,
        features in prop::sample::select(vec![0, 0, 0, 1 << 63, SUBDIRECTORY, SUBDIRECTORY | 1 | 3 << 32]),
    ) -> (i32, String, &'static str, String, u32, u64) {
        let rest = format!("/{}", other.unwrap_or_else(|| key.clone()));
        (flags, key, directory, rest, kernel, features)
    }
}

proptest! {
    #[test]
    fn any_listing_survives(lines in prop::collection::vec(any_line(), 0..20), combined: bool) {
        let mut lines: Vec<CacheLine<'_>> = lines.iter().map(|(flags, key, directory, rest, kernel, features)| CacheLine {
            flags: *flags,
            kernel: *kernel,
            features: if combined && features & SUBDIRECTORY != 0 { 0 } else { *features },
            key: key.as_bytes(),
            directory: directory.as_bytes(),
            rest: rest.as_bytes(),
        }).collect();
        lines.sort_by(order::entries);
        let names: &[&str] = if combined { &[] } else { &["v2", "v3"] };
        let bytes = form(combined, names).write(&lines).unwrap();
        let listing = Listing::parse(&bytes).unwrap();
        prop_assert_eq!(&listing.lines, &lines);
        // Without a searched directory nothing changes.
        let directories = listing.directories().unwrap();
        let routes = merge::routes(&directories, &[], |_| DirectoryAction::Keep(usize::MAX));
        prop_assert_eq!(merge::update(&listing, &routes, &[]), lines);
    }

    #[test]
    fn found_libraries_are_listed_in_order(
        lines in prop::collection::vec(any_line(), 0..20),
        found in prop::collection::hash_set("lib[a-c0-2]{1,3}\\.so", 0..8),
    ) {
        let mut lines: Vec<CacheLine<'_>> = lines.iter().map(|(flags, key, directory, rest, kernel, features)| CacheLine {
            flags: *flags,
            kernel: *kernel,
            features: features & !SUBDIRECTORY,
            key: key.as_bytes(),
            directory: directory.as_bytes(),
            rest: rest.as_bytes(),
        }).collect();
        lines.sort_by(order::entries);
        let bytes = form(false, &[]).write(&lines).unwrap();
        let listing = Listing::parse(&bytes).unwrap();
        let searched = [SearchedDirectory {
            path: b"/new".to_vec(),
            found: found.iter().map(|soname| FoundLibrary::new(soname.as_bytes(), 0x303)).collect(),
            rank: 0,
        }];
        let directories = listing.directories().unwrap();
        let routes = merge::routes(&directories, &searched, |base| match base {
            b"/usr/lib" => DirectoryAction::Search(0),
            _ => DirectoryAction::Keep(usize::MAX),
        });
        let updated = merge::update(&listing, &routes, &searched);
        prop_assert!(updated.is_sorted_by(|one, other| order::entries(one, other).is_le()));
        for soname in &found {
            let same = |line: &&CacheLine<'_>| line.directory == b"/new" && line.key == soname.as_bytes() && line.features == 0;
            prop_assert_eq!(updated.iter().filter(same).count(), 1);
        }
        let kept = |line: &&CacheLine<'_>| line.directory != b"/usr/lib";
        prop_assert!(updated.iter().all(|line| kept(&line)));
        prop_assert!(lines.iter().filter(kept).all(|line| updated.contains(line)));
    }

    #[test]
    fn garbled_caches_are_no_harm(changes in prop::collection::vec((0usize..700, any::<u8>()), 1..6), cut in 0usize..700, combined: bool) {
        let names: &[&str] = if combined { &[] } else { &["v2"] };
        let lines: Vec<_> = ["liba.so.1", "libb.so.1", "libc.so.1"].map(|key| line(key, "/lib", "/x")).to_vec();
        let mut bytes = form(combined, names).write(&lines).unwrap();
        for (at, byte) in changes {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        for bytes in [&bytes[..], &bytes[..cut.min(bytes.len())]] {
            let Ok(listing) = Listing::parse(bytes) else {
                continue;
            };
            let searched = [SearchedDirectory {
                path: b"/new".to_vec(),
                found: vec![FoundLibrary::new(b"libz.so", 3)],
                rank: 0,
            }];
            let directories = listing.directories().unwrap();
            let routes = merge::routes(&directories, &searched, |_| DirectoryAction::Search(0));
            let updated = merge::update(&listing, &routes, &searched);
            prop_assert!(listing.form.write(&updated).is_some());
        }
    }
}
