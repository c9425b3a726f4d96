//! Rewrites libnvc's hints for their reader.
//!
//! libnvc names the options of nvidia-container-cli, which users of an engine or of nvidia-ctk do not have. Each program
//! passes a hint through [`for_reader`] before it prints it. A test compares the table with libnvc's hints.

use libnvc::Error;

/// Who reads a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A user of an engine, who can only change config.toml.
    Engine,
    /// A user of nvidia-ctk.
    Ctk,
    /// A user of `nvidia-ctk doctor`, which reads config.toml.
    Doctor,
}

/// An option of nvidia-container-cli in hints.
struct OptionWords {
    name: &'static str,
    engine: &'static str,
    ctk: &'static str,
    doctor: &'static str,
}

/// The options that hints name.
const OPTIONS: [OptionWords; 6] = [
    OptionWords {
        name: "--root",
        engine: "`sudo nvidia-ctk config --set nvidia-container-cli.root=DIRECTORY --in-place`",
        ctk: "--driver-root",
        doctor: "nvidia-container-cli.root of config.toml",
    },
    OptionWords {
        name: "--no-cgroups",
        engine: "`sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups=true --in-place`",
        ctk: "nvidia-container-cli.no-cgroups of config.toml",
        doctor: "nvidia-container-cli.no-cgroups of config.toml",
    },
    OptionWords {
        name: "--ldconfig=@PATH",
        engine: "nvidia-container-cli.ldconfig=@PATH of config.toml",
        ctk: "--ldconfig-path",
        doctor: "nvidia-container-cli.ldconfig=@PATH of config.toml",
    },
    OptionWords {
        name: "nvidia-container-cli --load-kmods",
        engine: "`sudo nvidia-ctk config --set nvidia-container-cli.load-kmods=true --in-place`",
        ctk: "nvidia-container-cli --load-kmods",
        doctor: "nvidia-container-cli.load-kmods of config.toml",
    },
    OptionWords {
        name: "--no-pivot",
        engine: "nvidia-container-cli.no-pivot of config.toml",
        ctk: "nvidia-container-cli.no-pivot of config.toml",
        doctor: "nvidia-container-cli.no-pivot of config.toml",
    },
    OptionWords {
        name: "--user",
        engine: "nvidia-container-cli.user of config.toml",
        ctk: "nvidia-container-cli.user of config.toml",
        doctor: "nvidia-container-cli.user of config.toml",
    },
];

/// Returns a hint of libnvc with the words that its reader can use.
pub fn for_reader(hint: &str, reader: Reader) -> String {
    let mut text = hint.to_owned();
    for option in &OPTIONS {
        let words = match reader {
            Reader::Engine => option.engine,
            Reader::Ctk => option.ctk,
            Reader::Doctor => option.doctor,
        };
        text = replaced(&text, option.name, words);
    }
    text
}

/// Returns an error's message with its hint in the same line, because engines show only one line or record.
pub fn one_line(error: &Error, reader: Reader) -> String {
    let message = error.message();
    match error.advice() {
        Some(hint) => format!("{message} (hint: {})", for_reader(hint, reader)),
        None => message,
    }
}

/// Replaces a name, but not the start of a longer one: `--root=/x` belongs to a command in the hint.
fn replaced(text: &str, name: &str, words: &str) -> String {
    let is_end = |rest: &str| {
        let next = rest.chars().next();
        !next.is_some_and(|letter| letter.is_ascii_alphanumeric() || "-=".contains(letter))
    };
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(name) {
        out += before;
        out += if is_end(after) { words } else { name };
        rest = after;
    }
    out + rest
}

/// Says which known word a misspelt one probably means, or which there are.
pub fn did_you_mean(word: &str, known: &[&str]) -> String {
    match nearest(word, known) {
        Some(near) => format!("did you mean {near}?"),
        None => match known.split_last() {
            Some((last, [])) => format!("it must be {last}"),
            Some((last, others)) => format!("it must be {} or {last}", others.join(", ")),
            None => String::new(),
        },
    }
}

/// Returns the known word that is nearest to another, if that may be a slip.
pub fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    // The cost grows with the word's length, for each known one.
    if word.len() > 100 {
        return None;
    }
    let last = word.rsplit('.').next().unwrap_or(word);
    let all = known.iter().map(|known| (distance(word, known), *known));
    let (steps, near) = all.min_by_key(|(steps, _)| *steps)?;
    (steps <= 1 + last.len() / 4).then_some(near)
}

/// Returns the edit distance of two texts.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, that) in other.iter().enumerate() {
            let change = diagonal + usize::from(letter != *that);
            diagonal = row[column + 1];
            row[column + 1] = change.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn each_reader_has_the_option() {
        let hint = "name the directory that has it with --root";
        let of = |reader| for_reader(hint, reader);
        assert!(of(Reader::Engine).ends_with("cli.root=DIRECTORY --in-place`"));
        assert_eq!(
            of(Reader::Ctk),
            "name the directory that has it with --driver-root"
        );
        assert!(of(Reader::Doctor).ends_with("with nvidia-container-cli.root of config.toml"));
        let other = "nvidia-ctk x --root=/y, --no-cgroups-at-all";
        assert_eq!(for_reader(other, Reader::Engine), other);
    }

    /// Options of other programs that hints name, behind these words.
    const OTHERS: [&str; 3] = ["nvidia-ctk", "nvidia-smi", "systemctl"];

    /// Options for callers of nvidia-container-cli alone, of libnvc's own program, and of engines and nvidia-ctk.
    const OWN: [&str; 5] = [
        "--pid",
        "--nvc-query",
        "--gpus",
        "--runtime=nvidia",
        "--style=live",
    ];

    #[test]
    fn every_option_in_libnvcs_hints_is_known() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../libnvc/src");
        let mut found = Vec::new();
        search(&sources, &mut found);
        assert!(found.len() > 4, "{found:?}");
        for line in found {
            let names = OPTIONS.iter().map(|option| option.name).chain(OWN);
            let text = names.fold(line.clone(), |text, name| replaced(&text, name, ""));
            let start = text.split("--").next().unwrap_or_default();
            let is_other = OTHERS.iter().any(|other| start.contains(other));
            assert!(is_other || !text.contains("--"), "{line}");
        }
    }

    /// Collects the lines of sources that have an option in a text, except tests and comments.
    fn search(directory: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                search(&path, found);
            } else if name.ends_with(".rs") && !name.contains("tests") {
                let text = fs::read_to_string(&path).unwrap();
                let text = text.split("#[cfg(test)]").next().unwrap_or_default();
                let lines = text.lines().map(str::trim);
                let named = lines.filter(|line| !line.starts_with("//"));
                let has_option = |line: &&str| {
                    line.split("--")
                        .skip(1)
                        .any(|rest| rest.starts_with(|letter: char| letter.is_ascii_lowercase()))
                        && line.contains('"')
                };
                found.extend(named.filter(has_option).map(str::to_owned));
            }
        }
    }

    #[test]
    fn slips_are_recognised() {
        let known = ["info", "list", "configure"];
        assert_eq!(nearest("lst", &known), Some("list"));
        assert_eq!(nearest("confgure", &known), Some("configure"));
        assert_eq!(nearest("frob", &known), None);
        assert_eq!(nearest(&"x".repeat(1000), &known), None);
        assert_eq!(did_you_mean("lst", &known), "did you mean list?");
        let all = "it must be info, list or configure";
        assert_eq!(did_you_mean("frob", &known), all);
    }

    #[test]
    fn distances_are_symmetric() {
        for (one, other, steps) in [("", "abc", 3), ("kitten", "sitting", 3), ("a", "a", 0)] {
            assert_eq!(distance(one, other), steps);
            assert_eq!(distance(other, one), steps);
        }
    }
}
