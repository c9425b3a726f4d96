//! Parses a command line and the environment according to the [`table`].

use std::ffi::{OsStr, OsString};

use libnvc::request::unquoted;
use nvc_options::given::boolean;
use nvc_options::given::items;
use nvc_options::scan::{Event, Scanner, URFAVE};
use nvc_options::{Command, Opt, Takes};
use nvc_program::hints::{did_you_mean, nearest_option};

use crate::table;

/// The result of parsing.
#[derive(Debug)]
pub(crate) enum Read {
    /// A command to run.
    CommandLine(CommandLine),
    /// A text to print.
    Text(String),
    /// An unknown command.
    Unknown { word: String, hint: String },
    /// An invalid command line.
    Mistake { error: String, hint: String },
}

/// A command and the values of its options.
#[derive(Debug)]
pub(crate) struct CommandLine {
    /// The command's words, without the program.
    pub(crate) path: Vec<&'static str>,
    /// The words after the options.
    pub(crate) rest: Vec<String>,
    settings: Vec<Setting>,
    /// Global options before a command that has its own of that name, and so does not get them.
    pub(crate) without_effect: Vec<&'static str>,
}

/// An option of the command with its values.
#[derive(Debug)]
struct Setting {
    opt: &'static Opt,
    /// `true` or `false` for a flag.
    values: Vec<String>,
    /// On the command line or in the environment.
    is_given: bool,
}

impl CommandLine {
    fn setting(&self, name: &str) -> Option<&Setting> {
        self.settings
            .iter()
            .find(|setting| setting.opt.long == name)
    }

    /// Returns true if a flag is set.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.text(name) == "true"
    }

    /// Returns the value of an option, or its default; the last one has precedence.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.list(name).last().map_or("", String::as_str)
    }

    /// Returns the value of an option given on the command line or in the environment.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
        let setting = self.setting(name).filter(|setting| setting.is_given);
        setting.map(|_| self.text(name))
    }

    /// Returns the equivalent command line, including options from the environment, without some options.
    pub(crate) fn spelled_out_without(&self, omitted: &[&str]) -> Vec<String> {
        let path = [table::PROGRAM]
            .into_iter()
            .chain(self.path.iter().copied());
        let mut words: Vec<String> = path.map(String::from).collect();
        for Setting { opt, values, .. } in self.settings.iter().filter(|s| s.is_given) {
            let name = opt.long;
            if omitted.contains(&name) {
                continue;
            }
            words.extend(
                values
                    .iter()
                    .map(|value| match (opt.takes, value.as_str()) {
                        (Takes::Flag, "true") => format!("--{name}"),
                        _ => format!("--{name}={value}"),
                    }),
            );
        }
        words
    }

    /// Returns the values of a list.
    pub(crate) fn list(&self, name: &str) -> &[String] {
        self.setting(name).map_or(&[], |setting| &setting.values)
    }
}

/// Parses words, with the program's name first.
///
/// The grammar is that of upstream's library: a flag may be repeated, an outer command's options are known to the inner
/// ones, and each command has a command `help`.
pub(crate) fn read(words: &[OsString], variable: &dyn Fn(&str) -> Option<OsString>) -> Read {
    let words = words.iter().skip(1);
    let words: Vec<_> = words
        .map(|word| OsString::from(word.to_string_lossy().into_owned()))
        .collect();
    let mut parser = LineParser {
        scanner: Scanner::new(&URFAVE, &words),
        levels: vec![&table::ROOT],
        given: Vec::new(),
    };
    parser.read(variable).unwrap_or_else(|mistake| mistake)
}

/// The state of the parser.
struct LineParser<'w> {
    scanner: Scanner<'w>,
    /// The program and the commands below it, the innermost last.
    levels: Vec<&'static Command>,
    given: Vec<(&'static Opt, String)>,
}

impl LineParser<'_> {
    fn path(&self) -> Vec<&'static str> {
        self.levels.iter().skip(1).map(|node| node.name).collect()
    }

    fn node(&self) -> &'static Command {
        self.levels.last().copied().unwrap_or(&table::ROOT)
    }

    /// Returns the known options: inner commands first; the program's own are not for commands.
    fn tables(&self) -> Vec<&'static [Opt]> {
        let own = self.levels.iter().rev().map(|node| node.options);
        own.take(self.levels.len().saturating_sub(1).max(1))
            .chain([&table::GLOBAL[..]])
            .collect()
    }

    /// Returns a mistake as the error.
    fn read(&mut self, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Read, Read> {
        let (mut rest, mut wants_help) = (Vec::new(), false);
        while let Some(event) = self.scanner.next(&self.tables()) {
            let word =
                match event.map_err(|mistake| self.mistake(mistake.by_urfave(), mistake.name))? {
                    Event::Option(opt, value) => {
                        let value = value.map(OsStr::to_string_lossy).unwrap_or_default();
                        match (opt.takes, opt.long) {
                            (Takes::Flag, "help") => wants_help = true,
                            (Takes::Flag, "version") => return Ok(Read::Text(version())),
                            (Takes::Flag, _) => {
                                let is_on = value.is_empty() || boolean(&value) == Some(true);
                                self.given.push((opt, is_on.to_string()));
                            }
                            _ => self.given.push((opt, value.into_owned())),
                        }
                        continue;
                    }
                    Event::Word(word) => word.to_string_lossy(),
                };
            let trimmed = word.trim();
            let command = self.node().commands.iter();
            let command = command.into_iter().find(|node| node.is_called(trimmed));
            match command {
                _ if !self.is_command(trimmed) => rest.push(word.into_owned()),
                _ if !rest.is_empty() => {
                    rest.push(word.into_owned());
                    break;
                }
                None => return Ok(self.help_on_next()),
                Some(command) => {
                    self.levels.push(command);
                    if command.passes_on {
                        break;
                    }
                }
            }
        }
        rest.extend(texts(self.scanner.rest()));
        let node = self.node();
        let does_something = node.commands.is_empty() || node.name == "config";
        match rest.first() {
            _ if wants_help => Ok(Read::Text(help(&self.path()))),
            Some(word) if !does_something => Ok(self.unknown(word.clone())),
            None if !does_something => Ok(Read::Text(help(&self.path()))),
            _ => match self.collect(rest, variable) {
                Ok(line) => Ok(Read::CommandLine(line)),
                Err(error) => Err(self.mistake(error, OsStr::new(""))),
            },
        }
    }

    /// Returns the answer to a mistake in an option, with the nearest option, or else where all are listed.
    fn mistake(&self, error: String, name: &OsStr) -> Read {
        let options = self.tables().into_iter().flatten();
        let known: Vec<_> = options
            .filter(|opt| !opt.hidden)
            .map(|opt| opt.long)
            .collect();
        let name = name.to_string_lossy();
        let hint = nearest_option(&name, &known).unwrap_or_else(|| {
            let words = [&[table::PROGRAM], &self.path()[..], &["--help"]].concat();
            format!("{} lists the options", words.join(" "))
        });
        Read::Mistake { error, hint }
    }

    /// Returns the answer to a word that is no command here.
    fn unknown(&self, word: String) -> Read {
        let known: Vec<_> = self.node().commands.iter().map(|node| node.name).collect();
        let hint = did_you_mean(&word, &known);
        Read::Unknown { word, hint }
    }

    /// Returns true if a word is a command here; every command has a command `help`.
    fn is_command(&self, word: &str) -> bool {
        let mut known = self.node().commands.iter();
        matches!(word, "help" | "h") || known.any(|node| node.is_called(word))
    }

    /// Returns the help of the command that follows the word `help`.
    fn help_on_next(&mut self) -> Read {
        let mut path = self.path();
        if let Some(word) = texts(self.scanner.rest()).next() {
            if !self.is_command(&word) {
                return self.unknown(word);
            }
            let known = self.node().commands.iter();
            path.extend(known.filter(|node| node.name == word).map(|node| node.name));
        }
        Read::Text(help(&path))
    }

    /// Collects the values of the command's options: the command line, then the environment, then the default.
    fn collect(
        &self,
        rest: Vec<String>,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<CommandLine, String> {
        let node = self.node();
        let options: Vec<_> = table::ROOT.options_of(node).collect();
        let mut line = CommandLine {
            path: self.path(),
            rest,
            settings: Vec::new(),
            without_effect: Vec::new(),
        };
        // Engines start a hook with an environment that can be a container's.
        let variable = |name: &str| if node.passes_on { None } else { variable(name) };
        for global in &table::GLOBAL {
            let is_given = self.values(global).next().is_some();
            if is_given && node.options.iter().any(|own| own.is_called(global.long)) {
                line.without_effect.push(global.long);
            }
        }
        for opt in options {
            let given: Vec<_> = self.values(opt).map(str::to_owned).collect();
            let given = match &given[..] {
                [] => from_environment(opt, &variable)?,
                _ => Some(given),
            };
            let is_given = given.is_some();
            let values = match (given, opt.takes) {
                (Some(values), Takes::Values(_)) => {
                    let items = values.iter().flat_map(|value| items(opt, unquoted(value)));
                    items.map(str::to_owned).collect()
                }
                (Some(values), _) => values,
                (None, Takes::Values(_)) => Vec::new(),
                (None, _) => vec![opt.default.to_owned()],
            };
            line.settings.push(Setting {
                opt,
                values,
                is_given,
            });
        }
        Ok(line)
    }

    fn values(&self, of: &'static Opt) -> impl Iterator<Item = &str> {
        let given = self.given.iter().filter(|(opt, _)| std::ptr::eq(*opt, of));
        given.map(|(_, value)| value.as_str())
    }
}

fn texts(words: &[OsString]) -> impl Iterator<Item = String> {
    words.iter().map(|word| word.to_string_lossy().into_owned())
}

/// Returns the value of the first variable that is set. An empty one is an empty text, or a flag that is off; an empty
/// list variable is ignored.
fn from_environment(
    opt: &Opt,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Option<Vec<String>>, String> {
    let Some(value) = opt.env.iter().find_map(|name| variable(name)) else {
        return Ok(None);
    };
    let value = value.to_string_lossy().into_owned();
    Ok(match opt.takes {
        Takes::Flag if value.is_empty() => Some(vec!["false".into()]),
        Takes::Flag => {
            let name = opt.long;
            let invalid = || format!("invalid value \"{value}\" for --{name}: not a boolean");
            Some(vec![boolean(&value).ok_or_else(invalid)?.to_string()])
        }
        Takes::Values(_) if value.is_empty() => None,
        _ => Some(vec![value]),
    })
}

/// Returns the help of the command with this path.
fn help(path: &[&str]) -> String {
    nvc_help::text(nvc_help::ctk(), path)
}

fn version() -> String {
    format!(
        "NVIDIA Container Toolkit CLI version {}\n",
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read_with(words: &str, variables: &[(&str, &str)]) -> Read {
        let words: Vec<OsString> = std::iter::once("nvidia-ctk")
            .chain(words.split(' ').filter(|word| !word.is_empty()))
            .map(OsString::from)
            .collect();
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        read(&words, &variable)
    }

    fn line(words: &str) -> CommandLine {
        match read_with(words, &[]) {
            Read::CommandLine(line) => line,
            other => panic!("{words}: {other:?}"),
        }
    }

    /// Each command teaches by examples, which are its own and can be run.
    #[test]
    fn examples_are_command_lines() {
        let mut nodes = vec![(&table::ROOT, Vec::new())];
        while let Some((node, path)) = nodes.pop() {
            for inner in node.commands {
                nodes.push((inner, [&path[..], &[inner.name]].concat()));
            }
            let examples = node.after.lines().map(str::trim_start);
            let examples: Vec<_> = examples
                .filter(|line| line.starts_with("nvidia-ctk"))
                .collect();
            if node.name == table::PROGRAM {
                assert!(examples.len() > 1);
            } else if (node.commands.is_empty() || node.name == "config") && node.name != "hook" {
                assert!(!examples.is_empty(), "{path:?}");
            }
            assert!(help(&path).contains(node.after));
            for text in examples {
                let words = text.strip_prefix("nvidia-ctk ").unwrap();
                match read_with(words, &[]) {
                    Read::CommandLine(line) if !path.is_empty() => assert_eq!(line.path, path),
                    Read::CommandLine(_) | Read::Text(_) => assert!(path.is_empty(), "{text}"),
                    other => panic!("{text}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn options_have_one_dash_or_two_and_may_follow_words() {
        for words in [
            "cdi list --spec-dir /a",
            "cdi list -spec-dir=/a",
            "cdi list word --spec-dir=/a more",
            "--debug cdi list -d --d=true --spec-dir=/a",
        ] {
            assert_eq!(line(words).list("spec-dir"), ["/a"], "{words}");
        }
        assert!(line("cdi list -- --frob").list("spec-dir").is_empty());
        assert_eq!(line("cdi generate --output --x").text("output"), "--x");
    }

    /// Some engines start hooks with the environment of the container.
    #[test]
    fn a_hook_reads_no_variable() {
        let variables = [
            ("NVIDIA_CTK_DEBUG", "true"),
            ("NVIDIA_CTK_QUIET", "not a boolean"),
        ];
        for (words, debugs) in [
            ("hook chmod --mode 755", false),
            ("--debug hook chmod", true),
        ] {
            match read_with(words, &variables) {
                Read::CommandLine(line) => assert_eq!(line.flag("debug"), debugs, "{words}"),
                other => panic!("{words}: {other:?}"),
            }
        }
        assert!(matches!(
            read_with("info", &variables),
            Read::Mistake { .. }
        ));
    }

    #[test]
    fn flags_are_repeated_and_the_last_one_wins() {
        assert!(line("cdi list --debug --debug").flag("debug"));
        assert!(!line("--debug cdi list --debug=false").flag("debug"));
        assert!(line("cdi list --debug=").flag("debug"));
    }

    #[test]
    fn inner_commands_know_the_options_of_outer_ones_but_have_their_own() {
        let default = line("config --output=/a default --set=x -o /b");
        assert_eq!(default.path, ["config", "default"]);
        assert_eq!(default.text("output"), "/b");
        let configure = line("--config=/a runtime configure --config=/b");
        assert_eq!(configure.text("config"), "/b");
        let configure = line("--config=/a runtime configure");
        assert_eq!(configure.text("config"), "");
        assert_eq!(configure.without_effect, ["config"]);
        assert_eq!(line("--config=/a config").without_effect, ["config"]);
        for words in ["config --config=/a", "--config=/a info", "--debug config"] {
            assert!(line(words).without_effect.is_empty(), "{words}");
        }
    }

    #[test]
    fn empty_variables_are_empty_texts_flags_that_are_off_and_no_lists() {
        let empty = [
            ("NVIDIA_CTK_DEBUG", ""),
            ("NVIDIA_CTK_CDI_SPEC_DIRS", ""),
            ("NVIDIA_CTK_CONFIG", ""),
        ];
        let Read::CommandLine(line) = read_with("cdi list", &empty) else {
            panic!("a line was expected");
        };
        assert!(!line.flag("debug"));
        assert_eq!(line.given("spec-dir"), None);
        assert_eq!(line.given("config"), Some(""));
        let mistake = read_with("cdi list", &[("NVIDIA_CTK_DEBUG", "maybe")]);
        assert!(matches!(mistake, Read::Mistake { .. }), "{mistake:?}");
    }

    #[test]
    fn a_line_is_spelled_out_without_some_options() {
        let line = line("--quiet cdi generate --output=/a --mode=nvml --no-all-device");
        let words = line.spelled_out_without(&["output", "quiet"]).join(" ");
        assert!(words.starts_with("nvidia-ctk cdi generate --"), "{words}");
        assert!(
            words.contains("--mode=nvml") && words.contains("--no-all-device"),
            "{words}"
        );
        assert!(
            !words.contains("output") && !words.contains("quiet"),
            "{words}"
        );
    }

    #[test]
    fn help_is_a_command_everywhere() {
        for words in [
            "",
            "help",
            "h",
            "help cdi",
            "cdi help",
            "cdi generate help",
            "-h",
            "cdi",
        ] {
            let text = read_with(words, &[]);
            assert!(matches!(text, Read::Text(_)), "{words}: {text:?}");
        }
        for words in ["frob", "cdi frob", "help frob", "cdi frob list"] {
            let unknown = read_with(words, &[]);
            assert!(
                matches!(&unknown, Read::Unknown { word, .. } if word == "frob"),
                "{words}: {unknown:?}"
            );
        }
        assert_eq!(line("config frob").path, ["config"]);
    }

    #[test]
    fn unknown_options_and_missing_values_are_mistakes() {
        for words in [
            "--frob",
            "cdi list --frob",
            "cdi list --version",
            "cdi list --spec-dir",
        ] {
            let mistake = read_with(words, &[]);
            assert!(
                matches!(mistake, Read::Mistake { .. }),
                "{words}: {mistake:?}"
            );
        }
    }
}
