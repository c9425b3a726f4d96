//! Tests what hooks put in the place of files of the image: if anything fails, each old file is there again, whatever it
//! was.

use std::fs;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use nvc_testkit::cli::{Outcome, Run};
use nvc_testkit::faults;
use nvc_testkit::hostile::{Layout, Mounted, Root};
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::tree::Tree;
use nvc_tests::apply::{apply, compat, folder, link};
use nvc_tests::arena::Arena;

use super::hostile::line;

/// Runs a hook on a root that `prepare` changes, with the nth call of a name failing; returns the result, and the
/// changes.
fn tried(
    words: &str,
    fault: Option<((&str, usize), Errno)>,
    prepare: impl Fn(&Path) + Sync,
) -> (Outcome, Vec<String>) {
    machine::driver();
    let (arena, scratch) = (Arena::new().unwrap(), Scratch::new().unwrap());
    let root = Root {
        layout: Layout::Debian,
        mounted: Mounted::Bind,
        spots: Vec::new(),
    };
    let root = arena.build(&root).unwrap();
    arena.inside().run(|| prepare(&root)).unwrap();
    let look = || arena.inside().run(|| Tree::of(&root)).unwrap().unwrap();
    let before = look();
    let words: Vec<String> = words.split(' ').map(String::from).collect();
    let mut line = line(&scratch, &root, &words);
    if let Some((call, errno)) = fault {
        let command = faults::failing(call, errno as i32, &scratch.join("report")).unwrap();
        let words = [command.get_program()]
            .into_iter()
            .chain(command.get_args());
        let words: Vec<String> = words.map(|word| word.to_str().unwrap().into()).collect();
        line = [words, line].concat();
    }
    let outcome = arena
        .inside()
        .run(|| Run::other(&line[0]).args(&line[1..]).outcome().unwrap());
    let changes = look().changes_since(&before);
    arena.clear().unwrap();
    (outcome.unwrap(), changes)
}

pub(super) fn by_several_links() {
    const NAMES: [&str; 3] = ["one", "two", "three"];
    let links = NAMES.map(|name| format!(" --link target::/usr/lib/{name}"));
    let words = format!("create-symlinks{}", links.concat());
    let prepare = |root: &Path| {
        for name in NAMES {
            fs::write(root.join("usr/lib").join(name), name).unwrap();
        }
    };
    let calls = ["renameat", "renameat2"];
    let faults = calls.map(|name| [0, 1, 2].map(|nth| ((name, nth), Errno::EIO)));
    // A file system that cannot exchange files.
    let cannot = (("renameat2", 0), Errno::EINVAL);
    let mut failures = 0;
    for fault in faults.into_iter().flatten().chain([cannot]) {
        let (outcome, changes) = tried(&words, Some(fault), prepare);
        let context = format!("{fault:?}: {changes:#?} {outcome:#?}");
        if outcome.status == Some(0) {
            assert_eq!(changes.len(), NAMES.len(), "{context}");
            assert!(!context.contains(".nvc"), "{context}");
        } else {
            assert_eq!(changes, Vec::<String>::new(), "{context}");
            failures += 1;
        }
    }
    assert_eq!(failures, NAMES.len());
}

/// Nothing has a copy of a fifo, or of a large file.
pub(super) fn by_a_file() {
    const PLACE: &str = "etc/ld.so.conf.d/00-compat-nvidia.conf";
    let fifo = |place: &Path| mkfifo(place, Mode::S_IRWXU).unwrap();
    let large = |place: &Path| {
        let file = fs::File::create(place).unwrap();
        file.set_len((16 << 20) + 1).unwrap();
    };
    for make in [fifo, large] {
        for fails in [false, true] {
            let mut intents = vec![compat("1.0")];
            intents.extend(fails.then(|| folder("/usr/lib")));
            let (outcome, changes) = tried(&apply(&intents), None, |root| {
                make(&root.join(PLACE));
                if fails {
                    let _ = fs::remove_file(root.join("etc/ld.so.cache"));
                    fs::create_dir_all(root.join("etc/ld.so.cache/full")).unwrap();
                }
            });
            let context = format!("{changes:#?} {outcome:#?}");
            assert_eq!(outcome.status, Some(i32::from(fails)), "{context}");
            let is_about_it = |change: &&String| change.contains(PLACE);
            let about_it = changes.iter().filter(is_about_it).count();
            assert_eq!(about_it, usize::from(!fails), "{context}");
            assert_eq!(changes.is_empty(), fails, "{context}");
        }
    }
}

/// A path that leaves a directory that does not exist: in an option `..` is text, as upstream's; in a plan it is an error,
/// and the directory is not left behind.
pub(super) fn by_a_link_out_of_nothing() {
    let words = "create-symlinks --link a::/missing/../../y";
    let (outcome, changes) = tried(words, None, |_| ());
    assert_eq!(outcome.status, Some(0), "{outcome:#?}");
    assert!(
        matches!(&*changes, [made] if made.contains("y ")),
        "{changes:?}"
    );
    let words = apply(&[link("a", "/missing/../../y")]);
    let (outcome, changes) = tried(&words, None, |_| ());
    assert_eq!(outcome.status, Some(0), "{outcome:#?}");
    let said = outcome.message().to_lowercase();
    assert!(said.contains("y: no such file or directory"), "{said}");
    assert_eq!(changes, Vec::<String>::new(), "{words}");
}
