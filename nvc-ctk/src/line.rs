//! Parses a command line and the environment according to the [`table`].

use std::collections::HashMap;
use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{ArgMatches, Command};

use crate::table::{self, Node, Opt, Takes};

/// The result of parsing.
#[derive(Debug)]
pub(crate) enum Read {
    /// A command to run.
    Line(Line),
    /// A text to print.
    Text(String),
    /// An unknown command.
    Unknown { word: String },
    /// An invalid command line.
    Mistake { text: String, error: String },
}

/// A command and the values of its options.
#[derive(Debug)]
pub(crate) struct Line {
    /// The command's words, without the program.
    pub(crate) path: Vec<&'static str>,
    /// The words after the options.
    pub(crate) rest: Vec<String>,
    texts: HashMap<&'static str, Vec<String>>,
    flags: HashMap<&'static str, bool>,
    given: Vec<&'static str>,
}

impl Line {
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

    /// Returns the equivalent command line, including options from the environment, for a file's comment.
    pub(crate) fn spelled_out(&self) -> Vec<String> {
        let mut words: Vec<String> = std::iter::once(table::PROGRAM)
            .chain(self.path.iter().copied())
            .map(String::from)
            .collect();
        for name in &self.given {
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
pub(crate) fn read(words: &[OsString], variable: &dyn Fn(&str) -> Option<OsString>) -> Read {
    let program = table::clap();
    let (plain, off) = match without_values(words) {
        Ok(plain) => plain,
        Err(error) => {
            let path: Vec<&str> = words
                .iter()
                .skip(1)
                .filter_map(|word| word.to_str())
                .collect();
            let text = help(&program, &path);
            return Read::Mistake { text, error };
        }
    };
    let matches = match program.clone().try_get_matches_from(&plain) {
        Ok(matches) => matches,
        Err(error) => return refused(&error, &program, words),
    };
    let (mut node, mut path, mut matches) = (&table::ROOT, Vec::new(), &matches);
    if matches.get_flag("version") {
        return Read::Text(version());
    }
    let mut outer = vec![matches];
    while let Some((name, inner)) = matches.subcommand() {
        let known = node.commands.iter().find(|known| known.name == name);
        let Some(known) = known else {
            return Read::Unknown { word: name.into() };
        };
        (node, matches) = (known, inner);
        path.push(known.name);
        outer.push(inner);
    }
    let does_something = node.commands.is_empty() || node.name == "config";
    if !does_something {
        return Read::Text(help(&program, &path));
    }
    match collect(node, &outer, &off, variable) {
        Ok(mut line) => {
            line.path = path;
            Read::Line(line)
        }
        Err(error) => Read::Mistake {
            text: help(&program, &path),
            error,
        },
    }
}

/// Removes the values of flags: `--flag=true` becomes `--flag`, and `--flag=false` goes to the second list.
fn without_values(words: &[OsString]) -> Result<(Vec<OsString>, Vec<&'static str>), String> {
    let (mut plain, mut off) = (Vec::new(), Vec::new());
    for word in words {
        let flag = word.to_str().and_then(|word| {
            let (name, value) = word.strip_prefix("--")?.split_once('=')?;
            Some((table::flag(name)?, value))
        });
        match flag {
            None => plain.push(word.clone()),
            Some((flag, value)) => match boolean(value) {
                Some(true) => plain.push(format!("--{flag}").into()),
                Some(false) => off.push(flag),
                None => {
                    return Err(format!(
                        "invalid value {value:?} for --{flag}: not a boolean"
                    ));
                }
            },
        }
    }
    Ok((plain, off))
}

/// Collects the values of a command's options: the command line, then the environment, then the default.
fn collect(
    node: &'static Node,
    outer: &[&ArgMatches],
    off: &[&'static str],
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Line, String> {
    let mut line = Line {
        path: Vec::new(),
        rest: Vec::new(),
        texts: HashMap::new(),
        flags: HashMap::new(),
        given: Vec::new(),
    };
    let own = outer.last().copied();
    if let Some(rest) = own.and_then(|own| own.try_get_many::<String>("rest").ok().flatten()) {
        line.rest = rest.cloned().collect();
    }
    for opt in table::options(node) {
        let is = |other: &Opt| other.long == opt.long;
        let is_global = table::GLOBAL.iter().any(is) && !node.options.iter().any(is);
        let places = if is_global {
            outer
        } else {
            &outer[outer.len() - 1..]
        };
        let of = |matches: &&ArgMatches| -> Option<Vec<String>> {
            if opt.takes == Takes::Flag {
                let is_off = || off.contains(&opt.long).then(|| vec!["false".to_string()]);
                return matches
                    .get_flag(opt.long)
                    .then(|| vec!["true".to_string()])
                    .or_else(is_off);
            }
            let values = matches.try_get_many::<String>(opt.long).ok().flatten()?;
            Some(values.cloned().collect())
        };
        let environment = || {
            let value = opt.env.iter().find_map(|name| variable(name))?;
            Some(vec![value.to_string_lossy().into_owned()])
        };
        let given = places.iter().rev().find_map(of).or_else(environment);
        if given.is_some() {
            line.given.push(opt.long);
        }
        store(&mut line, opt, given)?;
    }
    Ok(line)
}

fn store(line: &mut Line, opt: &'static Opt, given: Option<Vec<String>>) -> Result<(), String> {
    match opt.takes {
        Takes::Flag => {
            let value = given.and_then(|mut values| values.pop());
            let value = value.map_or(Ok(false), |value| {
                boolean(&value).ok_or_else(|| {
                    format!("invalid value {value:?} for --{}: not a boolean", opt.long)
                })
            })?;
            line.flags.insert(opt.long, value);
        }
        Takes::Text(_) => {
            let default = || vec![opt.default.to_string()];
            line.texts.insert(opt.long, given.unwrap_or_else(default));
        }
        Takes::List(_) => {
            let values = given.unwrap_or_default();
            let items = values.iter().flat_map(|value| value.split(','));
            line.texts.insert(
                opt.long,
                items.map(|item| item.trim().to_string()).collect(),
            );
        }
    }
    Ok(())
}

/// Parses a boolean like Go.
fn boolean(word: &str) -> Option<bool> {
    match word {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn refused(error: &clap::Error, program: &Command, words: &[OsString]) -> Read {
    if error.kind() == ErrorKind::DisplayHelp {
        return Read::Text(error.render().to_string());
    }
    let path: Vec<&str> = words
        .iter()
        .skip(1)
        .filter_map(|word| word.to_str())
        .collect();
    let text = error.render().to_string();
    let error = text.lines().next().unwrap_or_default();
    Read::Mistake {
        text: help(program, &path),
        error: error.strip_prefix("error: ").unwrap_or(error).to_string(),
    }
}

/// Returns the help of the command that the words select.
fn help(program: &Command, path: &[&str]) -> String {
    let mut found = program.clone();
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
