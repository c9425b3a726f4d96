//! Finds the command and the image in a docker command line, like docker itself.

use libnvc::{Error, ErrorKind, Result};

use super::options::{Scope, Takes, long_name};

/// A parsed command line. Numbers are positions of words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CommandLine {
    /// Words before this are docker's global options.
    pub(super) globals: usize,
    pub(super) command: Command,
    /// The image of `run` and `create`.
    pub(super) image: Option<usize>,
    /// Options of `run` and `create`.
    pub(super) options: Vec<GivenOption>,
    pub(super) global_options: Vec<GivenOption>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Command {
    /// `run` or `create`, with or without `container`.
    Run,
    Version,
    /// docker prints its help: `--help`, `help`, or no command.
    Help,
    /// Any other command.
    #[default]
    Other,
}

/// An option as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GivenOption {
    /// Without dashes; the long name for the few that matter here.
    pub(super) name: String,
    /// Its value, if it has one.
    pub(super) value: Option<String>,
}

impl CommandLine {
    /// Returns the values of an option of `run`, by its long name.
    pub(super) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.options
            .iter()
            .filter(move |given| given.name == name)
            .filter_map(|given| given.value.as_deref())
    }
}

/// Parses a command line; `takes` returns whether an option takes a value.
///
/// # Errors
/// `empty argument`, and those of `takes`.
pub(super) fn read(
    words: &[String],
    mut takes: impl FnMut(Scope, &str) -> Result<Takes>,
) -> Result<CommandLine> {
    let mut line = CommandLine::default();
    let (command, options) = positional(words, 0, Scope::Global, &mut takes)?;
    line.global_options = options;
    line.globals = command.unwrap_or(words.len());
    let is_asked = |name: &str| line.global_options.iter().any(|given| given.name == name);
    if ["help", "h"].into_iter().any(is_asked) {
        line.command = Command::Help;
        return Ok(line);
    }
    if ["version", "v"].into_iter().any(is_asked) {
        return Ok(line);
    }
    let Some(mut at) = command else {
        line.command = Command::Help;
        return Ok(line);
    };
    let word = |at: usize| words.get(at).map(String::as_str);
    if word(at) == Some("container") && word(at + 1).is_some() {
        at += 1;
    }
    line.command = match word(at) {
        Some("run" | "create") => Command::Run,
        Some("version") => Command::Version,
        Some("help") if word(at + 1).is_none() => Command::Help,
        _ => Command::Other,
    };
    if line.command == Command::Run {
        let (image, options) = positional(words, at + 1, Scope::Run, &mut takes)?;
        let is_help = options.iter().any(|given| given.name == "help");
        line.image = image.filter(|_| !is_help);
        line.options = options;
    }
    Ok(line)
}

/// Returns the first word that is neither an option nor an option's value, and the options before it.
fn positional(
    words: &[String],
    start: usize,
    scope: Scope,
    takes: &mut impl FnMut(Scope, &str) -> Result<Takes>,
) -> Result<(Option<usize>, Vec<GivenOption>)> {
    let mut reader = Reader {
        words,
        at: start,
        scope,
        options: Vec::new(),
    };
    let mut takes = |name: &str| takes(scope, name);
    while let Some(word) = words.get(reader.at) {
        if word.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "empty argument")
                .hint("is a variable unset?"));
        }
        let Some(option) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
            return Ok((Some(reader.at), reader.options));
        };
        reader.at += 1;
        match option.strip_prefix('-') {
            Some("") => {
                let next = words.get(reader.at).map(|_| reader.at);
                return Ok((next, reader.options));
            }
            Some(long) => reader.long(long, &mut takes)?,
            None => reader.cluster(option, &mut takes)?,
        }
    }
    Ok((None, reader.options))
}

/// Collects the options of a command line.
struct Reader<'a> {
    words: &'a [String],
    /// Position of the next word.
    at: usize,
    scope: Scope,
    options: Vec<GivenOption>,
}

impl Reader<'_> {
    fn give(&mut self, name: &str, value: Option<&str>) {
        self.options.push(GivenOption {
            name: long_name(self.scope, name).to_owned(),
            value: value.map(str::to_owned),
        });
    }

    /// Gives an option with the next word as its value.
    fn give_next(&mut self, name: &str) {
        let words = self.words;
        self.give(name, words.get(self.at).map(String::as_str));
        self.at += 1;
    }

    /// Reads `--NAME`, `--NAME=VALUE` or `--NAME VALUE`.
    fn long(&mut self, option: &str, takes: &mut impl FnMut(&str) -> Result<Takes>) -> Result<()> {
        match option.split_once('=') {
            Some((name, value)) => self.give(name, Some(value)),
            None => match takes(option)? {
                Takes::Nothing => self.give(option, None),
                Takes::Value => self.give_next(option),
            },
        }
        Ok(())
    }

    /// Reads letters behind one dash; the last may have a value, attached, after `=`, or in the next word.
    fn cluster(
        &mut self,
        letters: &str,
        takes: &mut impl FnMut(&str) -> Result<Takes>,
    ) -> Result<()> {
        let mut rest = letters;
        while let Some(letter) = rest.chars().next() {
            let (name, after) = rest.split_at(letter.len_utf8());
            rest = after;
            if let Some(value) = rest.strip_prefix('=') {
                self.give(name, Some(value));
                break;
            }
            match (takes(name)?, rest) {
                (Takes::Nothing, _) => {
                    self.give(name, None);
                    continue;
                }
                (Takes::Value, "") => self.give_next(name),
                (Takes::Value, attached) => self.give(name, Some(attached)),
            }
            break;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::options::known;
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn line(text: &str) -> CommandLine {
        let words = if text.is_empty() {
            Vec::new()
        } else {
            words(text)
        };
        read(&words, |scope, name| {
            Ok(known(scope, name).unwrap_or(Takes::Value))
        })
        .unwrap()
    }

    /// Returns the word that is parsed as the image.
    fn image(text: &str) -> Option<String> {
        line(text).image.map(|at| words(text)[at].clone())
    }

    #[test]
    fn images() {
        for text in [
            "run img",
            "run -it img",
            "run -itv /a:/b img",
            "run -e A=B img",
            "run -eA=B img",
            "run --name= img",
            "run -p 8080:80 img",
            "run -p8080:80 img cmd",
            "run --gpus all img",
            "run -- img cmd",
            "run --rm -- img cmd",
            "run -q img cmd",
            "run --quiet img cmd",
            "create --rm img cmd",
            "create --no-healthcheck img cmd",
            "run --init img",
            "run -t=true img",
            "run -it=false img cmd",
            "run -v=/a:/b img",
            "-H tcp://h:1 run img",
            "-l debug run img",
            "-D --tls run img x",
            "container run img",
            "-Htcp://h:1 container create img",
            "--host=x -- run img",
        ] {
            assert_eq!(image(text).as_deref(), Some("img"), "{text}");
        }
        assert_eq!(image("run - img").as_deref(), Some("-"));
        for text in [
            "",
            "ps -a",
            "run",
            "run -it --name x",
            "run --help img",
            "-v run img",
            "--help run img",
            "container",
            "container ls img",
            "exec run ls",
            "build -t run .",
            "run --",
            "-D",
        ] {
            assert_eq!(image(text), None, "{text}");
        }
    }

    #[test]
    fn options_and_commands() {
        let read = line("-H x -c=y run --rm -e A=B -eC -itu me --env=D=E img -e F");
        let values: Vec<&str> = read.values("env").collect();
        assert_eq!(values, ["A=B", "C", "D=E"]);
        assert_eq!(read.globals, 3);
        let globals: Vec<_> = read
            .global_options
            .iter()
            .map(|g| g.name.as_str())
            .collect();
        assert_eq!(globals, ["host", "context"]);
        assert_eq!(line("version").command, Command::Version);
        assert_eq!(line("ps").command, Command::Other);
        assert_eq!(line("-v version").command, Command::Other);
        for text in ["", "--help", "-D -h", "help", "--help run img"] {
            let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            let line = super::read(&words, |_, _| Ok(Takes::Nothing)).unwrap();
            assert_eq!(line.command, Command::Help, "{text}");
        }
        assert_eq!(line("help run").command, Command::Other);
    }

    #[test]
    fn empty_arguments_are_refused() {
        for text in [" run img", "run  img", "run --rm  "] {
            let read = read(&words(text), |_, _| Ok(Takes::Nothing));
            assert_eq!(read.unwrap_err().message(), "empty argument");
        }
    }
}
