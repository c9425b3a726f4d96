//! Parses a command line and the environment according to the [`table`].

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;

use nvc_program::hints::did_you_mean;
use nvc_program::urfave::{Given, Word, as_boolean, items};

use crate::table::{self, CommandNode, Opt, Takes};

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
    Mistake { text: String, error: String },
}

/// A command and the values of its options.
#[derive(Debug)]
pub(crate) struct CommandLine {
    /// The command's words, without the program.
    pub(crate) path: Vec<&'static str>,
    /// The words after the options.
    pub(crate) rest: Vec<String>,
    texts: HashMap<&'static str, Vec<String>>,
    flags: HashMap<&'static str, bool>,
    given: Vec<&'static str>,
    /// Global options before a command that has its own of that name, and so does not get them.
    pub(crate) without_effect: Vec<&'static str>,
}

impl CommandLine {
    /// Returns true if a flag is set.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.flags.get(name).copied().unwrap_or(false)
    }

    /// Returns the value of an option, or its default; the last one has precedence.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.texts
            .get(name)
            .and_then(|values| values.last())
            .map_or("", String::as_str)
    }

    /// Returns the value of an option given on the command line or in the environment.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
        self.given.contains(&name).then(|| self.text(name))
    }

    /// Returns the equivalent command line, including options from the environment, without some options.
    pub(crate) fn spelled_out_without(&self, omitted: &[&str]) -> Vec<String> {
        let mut words: Vec<String> = std::iter::once(table::PROGRAM)
            .chain(self.path.iter().copied())
            .map(String::from)
            .collect();
        for name in self.given.iter().filter(|name| !omitted.contains(name)) {
            if let Some(flag) = self.flags.get(name) {
                words.push(if *flag {
                    format!("--{name}")
                } else {
                    format!("--{name}=false")
                });
            } else if let Some(values) = self.texts.get(name) {
                words.extend(values.iter().map(|value| format!("--{name}={value}")));
            }
        }
        words
    }

    /// Returns the values of a list.
    pub(crate) fn list(&self, name: &str) -> &[String] {
        self.texts.get(name).map_or(&[], Vec::as_slice)
    }
}

/// Parses words, with the program's name first.
///
/// The grammar is that of upstream's library ([`nvc_program::urfave`]): a flag may be repeated, an outer command's options are known to the inner ones, and each command has a command `help`.
pub(crate) fn read(words: &[OsString], variable: &dyn Fn(&str) -> Option<OsString>) -> Read {
    let words = words.iter().skip(1).map(|word| word.to_string_lossy());
    let mut parser = LineParser {
        words: words.map(|word| word.into_owned()).collect(),
        levels: vec![&table::ROOT],
        values: HashMap::new(),
    };
    parser.read(variable).unwrap_or_else(|error| Read::Mistake {
        text: help(&parser.path()),
        error,
    })
}

/// The state of the parser.
struct LineParser {
    words: VecDeque<String>,
    /// The program and the commands below it, the innermost last.
    levels: Vec<&'static CommandNode>,
    /// The values of an option, by the level of the command that has it and its long name.
    values: HashMap<(usize, &'static str), Vec<String>>,
}

impl LineParser {
    fn path(&self) -> Vec<&'static str> {
        self.levels.iter().skip(1).map(|node| node.name).collect()
    }

    fn node(&self) -> &'static CommandNode {
        self.levels.last().copied().unwrap_or(&table::ROOT)
    }

    fn read(&mut self, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Read, String> {
        let (mut rest, mut wants_help) = (Vec::new(), false);
        while let Some(word) = self.words.pop_front() {
            let trimmed = word.trim();
            let command = self
                .node()
                .commands
                .iter()
                .find(|node| node.name == trimmed || node.aliases.contains(&trimmed));
            match (command, Word::of(trimmed)) {
                (Some(_), _) | (_, Word::Plain) if !rest.is_empty() && self.is_command(trimmed) => {
                    rest.push(word);
                    rest.extend(self.words.drain(..));
                }
                (Some(command), _) => {
                    self.levels.push(command);
                    if command.name == "hook" {
                        rest.extend(self.words.drain(..)); // the hook program reads them
                    }
                }
                (None, Word::Plain) if self.is_command(trimmed) => return Ok(self.help_on_next()),
                (None, Word::Plain) => rest.push(word),
                (None, Word::End) => rest.extend(self.words.drain(..)),
                (None, Word::Option(given)) => match bare(trimmed) {
                    "help" | "h" => wants_help = true,
                    "version" | "v" if self.levels.len() == 1 => return Ok(Read::Text(version())),
                    _ if given.has_two_dashes || self.find(given.name).is_some() => {
                        self.option(given)?;
                    }
                    letters => self.bundle(letters)?,
                },
            }
        }
        let node = self.node();
        let does_something = node.commands.is_empty() || node.name == "config";
        match rest.first() {
            _ if wants_help => Ok(Read::Text(help(&self.path()))),
            Some(word) if !does_something => Ok(self.unknown(word.clone())),
            None if !does_something => Ok(Read::Text(help(&self.path()))),
            _ => self.collect(rest, variable).map(Read::CommandLine),
        }
    }

    /// Returns the answer to a word that is no command here.
    fn unknown(&self, word: String) -> Read {
        let known: Vec<_> = self.node().commands.iter().map(|node| node.name).collect();
        let hint = did_you_mean(&word, &known);
        Read::Unknown { word, hint }
    }

    /// Returns true if a word is a command here; every command has a command `help`.
    fn is_command(&self, word: &str) -> bool {
        let is_it = |node: &CommandNode| node.name == word || node.aliases.contains(&word);
        matches!(word, "help" | "h") || self.node().commands.iter().any(is_it)
    }

    /// Returns the help of the command that follows the word `help`.
    fn help_on_next(&mut self) -> Read {
        let mut path = self.path();
        if let Some(word) = self.words.pop_front() {
            if !self.is_command(&word) {
                return self.unknown(word);
            }
            let known = self.node().commands.iter();
            path.extend(known.filter(|node| node.name == word).map(|node| node.name));
        }
        Read::Text(help(&path))
    }

    /// Finds an option by name, inner commands first; returns it with the level of its command.
    fn find(&self, name: &str) -> Option<(usize, &'static Opt)> {
        let levels = self.levels.iter().enumerate().rev();
        let mut known = levels.flat_map(|(level, node)| {
            let global = if level == 0 { table::GLOBAL } else { &[] };
            let own = node.options.iter().chain(global);
            own.map(move |opt| (level, opt))
        });
        known.find(|(_, opt)| opt.is_called(name))
    }

    /// Parses several short options in one word, `-io FILE`.
    fn bundle(&mut self, letters: &str) -> Result<(), String> {
        let mut rest = letters;
        while let Some(letter) = rest.chars().next() {
            let (one, others) = rest.split_at(letter.len_utf8());
            if self.find(one).is_none() {
                return Err(format!("flag provided but not defined: -{letters}"));
            }
            if others.is_empty() || others.starts_with('=') {
                return self.option(Given::of(rest));
            }
            self.option(Given::of(one))?;
            rest = others;
        }
        Ok(())
    }

    /// Parses an option with its value, which may be the next word.
    fn option(&mut self, given: Given<'_>) -> Result<(), String> {
        let (level, opt) = self.find(given.name).ok_or_else(|| given.unknown())?;
        let value = match opt.takes {
            Takes::Flag => given.called(opt.long).flag()?.to_string(),
            _ => given.text(|| self.words.pop_front())?,
        };
        self.values
            .entry((level, opt.long))
            .or_default()
            .push(value);
        Ok(())
    }

    /// Collects the values of the command's options: the command line, then the environment, then the default.
    fn collect(
        &self,
        rest: Vec<String>,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<CommandLine, String> {
        let mut line = CommandLine {
            path: self.path(),
            rest,
            texts: HashMap::new(),
            flags: HashMap::new(),
            given: Vec::new(),
            without_effect: Vec::new(),
        };
        let node = self.node();
        let hidden = |global: &&Opt| {
            let mut own = node.options.iter();
            own.any(|opt| opt.is_called(global.long))
        };
        let given = table::GLOBAL
            .iter()
            .filter(|global| self.values.contains_key(&(0, global.long)));
        line.without_effect
            .extend(given.filter(hidden).map(|global| global.long));
        // Engines start a hook with an environment that can be a container's.
        let is_hook = node.name == "hook";
        let variable = |name: &str| if is_hook { None } else { variable(name) };
        for opt in table::options(node) {
            let is_own = node.options.iter().any(|own| own.long == opt.long);
            let level = if is_own { self.levels.len() - 1 } else { 0 };
            let given = self.values.get(&(level, opt.long)).cloned();
            let given = given.or_else(|| from_environment(opt, &variable));
            if given.is_some() {
                line.given.push(opt.long);
            }
            store(&mut line, opt, given)?;
        }
        Ok(line)
    }
}

/// Returns the value of the first variable that is set. An empty one is an empty text, or a flag that is off; an empty
/// list variable is ignored.
fn from_environment(opt: &Opt, variable: &dyn Fn(&str) -> Option<OsString>) -> Option<Vec<String>> {
    let value = opt.env.iter().find_map(|name| variable(name))?;
    let value = value.to_string_lossy().into_owned();
    match opt.takes {
        Takes::Flag if value.is_empty() => Some(vec!["false".into()]),
        Takes::List(_) if value.is_empty() => None,
        _ => Some(vec![value]),
    }
}

/// Returns an option without its dashes.
fn bare(option: &str) -> &str {
    let option = option.strip_prefix('-').unwrap_or(option);
    option.strip_prefix('-').unwrap_or(option)
}

fn store(
    line: &mut CommandLine,
    opt: &'static Opt,
    given: Option<Vec<String>>,
) -> Result<(), String> {
    match opt.takes {
        Takes::Flag => {
            let value = given.and_then(|mut values| values.pop());
            let value = value.map_or(Ok(false), |value| as_boolean(opt.long, &value))?;
            line.flags.insert(opt.long, value);
        }
        Takes::Text(_) => {
            let default = || vec![opt.default.to_string()];
            line.texts.insert(opt.long, given.unwrap_or_else(default));
        }
        Takes::List(_) => {
            let values = given.unwrap_or_default();
            let items = values.iter().flat_map(|value| items(value));
            line.texts
                .insert(opt.long, items.map(str::to_owned).collect());
        }
    }
    Ok(())
}

/// Returns the help of the command with this path.
fn help(path: &[&str]) -> String {
    let mut found = table::clap();
    found.build();
    for word in path {
        if let Some(inner) = found.find_subcommand(word) {
            found = inner.clone();
        }
    }
    found.render_help().to_string()
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
            let examples = table::examples(node.name);
            if node.name == table::PROGRAM {
                assert!(examples.len() > 1);
            } else if (node.commands.is_empty() || node.name == "config") && node.name != "hook" {
                assert!(!examples.is_empty(), "{path:?}");
            }
            for (text, what) in examples {
                let words = text.strip_prefix("nvidia-ctk ").unwrap();
                assert!(help(&path).contains(text) && help(&path).contains(what));
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
    fn short_options_share_a_word() {
        let config = line("config -dio /a");
        assert!(config.flag("in-place") && config.flag("debug"));
        assert_eq!(config.text("output"), "/a");
        assert_eq!(line("config -io=/a").text("output"), "/a");
        assert!(matches!(read_with("config -ix", &[]), Read::Mistake { .. }));
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
