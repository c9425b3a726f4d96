//! Parses a hook's arguments, by the grammar of [`nvc_program::urfave`].

use std::ffi::OsString;

use libnvc::{Error, ErrorKind, Result};
use nvc_program::goflag::boolean;
use nvc_program::urfave::{Word, items};

/// An option of a hook.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opt {
    pub(crate) name: &'static str,
    /// The name of its value; None for a flag.
    pub(crate) value: Option<&'static str>,
    /// Values may be separated by commas.
    pub(crate) is_list: bool,
    pub(crate) help: &'static str,
}

/// Options of every hook.
pub(crate) const EVERY: [Opt; 3] = [
    Opt {
        name: "container-spec",
        value: Some("FILE"),
        is_list: false,
        help: "Read the container's state from here",
    },
    Opt {
        name: "debug",
        value: None,
        is_list: false,
        help: "Log every step",
    },
    Opt {
        name: "quiet",
        value: None,
        is_list: false,
        help: "Log errors only",
    },
];

/// Words that are consumed one by one.
#[derive(Debug)]
pub(crate) struct Words {
    words: Vec<String>,
    at: usize,
}

#[derive(Debug, Default)]
pub(crate) struct GivenOptions(Vec<(&'static str, String)>);

impl Words {
    pub(crate) fn new(words: &[OsString]) -> Result<Self> {
        let text = |word: &OsString| {
            let word = word.to_str().map(String::from);
            word.ok_or_else(|| invalid("an argument is not UTF-8"))
        };
        Ok(Self {
            words: words.iter().map(text).collect::<Result<_>>()?,
            at: 0,
        })
    }

    pub(crate) fn peek(&self) -> Option<&str> {
        self.words.get(self.at).map(String::as_str)
    }

    pub(crate) fn skip(&mut self) {
        self.at += 1;
    }

    pub(crate) fn asks_for_help(&self) -> bool {
        matches!(self.peek(), Some("--help" | "-help" | "-h"))
    }

    /// Returns the value of one of the program's flags if the next word is one: `--NAME`, `--NAME=true`, also with one
    /// dash.
    pub(crate) fn program_flag(&self, names: &[&str]) -> Option<Result<bool>> {
        match Word::of(self.peek()?) {
            Word::Option(given) if names.contains(&given.name) => {
                Some(given.flag().map_err(invalid))
            }
            _ => None,
        }
    }

    /// Parses the rest of the words as options; ignores other words, as upstream does.
    pub(crate) fn options(&mut self, known: &[Opt]) -> Result<GivenOptions> {
        let mut given = GivenOptions::default();
        while let Some(word) = self.words.get(self.at) {
            self.at += 1;
            let option = match Word::of(word) {
                Word::Plain if word != "-" => continue,
                Word::Plain | Word::End => break,
                Word::Option(option) => option,
            };
            let full = if option.name == "d" {
                "debug"
            } else {
                option.name
            };
            let opt = known.iter().chain(&EVERY).find(|opt| opt.name == full);
            let opt = opt.ok_or_else(|| invalid(option.unknown()))?;
            let value = if opt.value.is_none() {
                option.flag().map(|is_on| is_on.to_string())
            } else {
                option.text(|| {
                    self.at += 1;
                    self.words.get(self.at - 1).cloned()
                })
            };
            let value = value.map_err(invalid)?;
            if opt.is_list {
                let values = items(&value).map(|item| (opt.name, item.to_owned()));
                given.0.extend(values);
            } else {
                given.0.push((opt.name, value));
            }
        }
        Ok(given)
    }
}

impl GivenOptions {
    /// Returns the last value of an option.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.list(name).last()
    }

    /// Returns all values of an option.
    pub(crate) fn list<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let values = self.0.iter().filter(move |(known, _)| *known == name);
        values
            .map(|(_, value)| value.as_str())
            .collect::<Vec<_>>()
            .into_iter()
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.text(name).and_then(boolean).unwrap_or(false)
    }
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Words {
        let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
        Words::new(&words).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn flags_of_the_program_have_values() {
        let flag = |text: &str| {
            let value = words(text).program_flag(&["debug", "d"]);
            value.map(|value| value.map_err(|error| error.message()))
        };
        for word in ["--debug", "-d", "-debug", "--debug=true", "--debug="] {
            assert_eq!(flag(word), Some(Ok(true)), "{word}");
        }
        assert_eq!(flag("--debug=false"), Some(Ok(false)));
        assert!(matches!(flag("--debug=maybe"), Some(Err(_))));
        assert_eq!(flag("--quiet"), None);
        assert_eq!(flag("debug"), None);
    }

    #[test]
    fn flags_of_the_program_may_follow_the_hook() {
        let given = words("-d --quiet=false word --container-spec=x").options(&[]);
        let given = given.unwrap_or_else(|error| panic!("{error}"));
        assert!(given.flag("debug") && !given.flag("quiet"));
        assert_eq!(given.text("container-spec"), Some("x"));
        assert!(words("--debug=maybe").options(&[]).is_err());
        assert!(words("--container-spec").options(&[]).is_err());
    }
}
