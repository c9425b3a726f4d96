//! Words libnvc's hints for their reader, who may have other ways to change a setting than its option.

use libnvc::{Error, Setting};

/// Who reads a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A user of nvidia-container-cli.
    Cli,
    /// A user of an engine, who can only change config.toml.
    Engine,
    /// A user of nvidia-ctk.
    Ctk,
    /// A user of `nvidia-ctk doctor`, which reads config.toml.
    Doctor,
    /// An administrator of a cluster, who sets the options of gpu-kubelet-plugin.
    Node,
}

/// Names a setting for its reader.
fn name(setting: Setting, reader: Reader) -> &'static str {
    use Reader::{Cli, Ctk, Doctor, Engine, Node};
    match (setting, reader) {
        (Setting::Root, Cli) => "--root",
        (Setting::Root, Engine) => {
            "`sudo nvidia-ctk config --set nvidia-container-cli.root=DIRECTORY --in-place`"
        }
        (Setting::Root, Ctk) => "--driver-root, or nvidia-container-cli.root of config.toml",
        (Setting::Root, Doctor) => "nvidia-container-cli.root of config.toml",
        (Setting::Root, Node) => "--container-driver-root",
        (Setting::NoCgroups, Cli) => "--no-cgroups",
        (Setting::NoCgroups, Engine) => {
            "`sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups=true --in-place`"
        }
        (Setting::NoCgroups, Ctk | Doctor | Node) => {
            "nvidia-container-cli.no-cgroups of config.toml"
        }
        (Setting::Ldconfig, Cli) => "--ldconfig=@PATH",
        (Setting::Ldconfig, Ctk) => "--ldconfig-path",
        (Setting::Ldconfig, Engine | Doctor | Node) => {
            "nvidia-container-cli.ldconfig=@PATH of config.toml"
        }
        (Setting::LoadKmods, Cli | Ctk | Node) => "nvidia-container-cli --load-kmods",
        (Setting::LoadKmods, Engine) => {
            "`sudo nvidia-ctk config --set nvidia-container-cli.load-kmods=true --in-place`"
        }
        (Setting::LoadKmods, Doctor) => "nvidia-container-cli.load-kmods of config.toml",
        (Setting::NoPivot, Cli) => "--no-pivot",
        (Setting::NoPivot, _) => "nvidia-container-cli.no-pivot of config.toml",
        (Setting::User, Cli) => "--user",
        (Setting::User, _) => "nvidia-container-cli.user of config.toml",
    }
}

/// Returns an error's hint, if there is one.
pub fn advice(error: &Error, reader: Reader) -> Option<String> {
    let hint = error.remedy()?;
    Some(hint.worded(|setting| name(setting, reader)))
}

/// Returns an error's message with its hint in the same line, because engines show only one line or record.
pub fn one_line(error: &Error, reader: Reader) -> String {
    let message = error.message();
    match advice(error, reader) {
        Some(hint) => format!("{message} (hint: {hint})"),
        None => message,
    }
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

/// Says which long option a misspelt one probably means.
pub fn nearest_option(name: &str, known: &[&str]) -> Option<String> {
    let near = nearest(name, known).filter(|near| *near != name)?;
    Some(format!("did you mean --{near}?"))
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
    use libnvc::ErrorKind;

    use super::*;

    #[test]
    fn each_reader_can_change_the_setting() {
        let hint = Setting::Root.between("name it with ", " or else");
        let error = Error::new(ErrorKind::System, "no driver").hint(hint);
        let of = |reader| advice(&error, reader).unwrap();
        assert_eq!(of(Reader::Cli), "name it with --root or else");
        assert!(of(Reader::Engine).contains("cli.root=DIRECTORY --in-place` or else"));
        assert_eq!(
            of(Reader::Ctk),
            "name it with --driver-root, or nvidia-container-cli.root of config.toml or else"
        );
        assert!(of(Reader::Doctor).contains("with nvidia-container-cli.root of config.toml"));
        let line = "no driver (hint: name it with --root or else)";
        assert_eq!(one_line(&error, Reader::Cli), line);
        let text = Error::new(ErrorKind::System, "x").hint("nvidia-ctk x --root=/y");
        assert_eq!(
            advice(&text, Reader::Ctk).unwrap(),
            "nvidia-ctk x --root=/y"
        );
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
