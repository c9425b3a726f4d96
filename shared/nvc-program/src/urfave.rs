//! Parses options like Go's package `urfave/cli`, which upstream's nvidia-ctk and nvidia-cdi-hook use: one dash or two
//! before any name, a value after `=` or in the next word, options before and after other words.

use crate::goflag::boolean;

/// The kind of a word on a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word<'w> {
    /// Not an option; a single dash is none either.
    Plain,
    /// `--`, which ends the options.
    End,
    Option(Given<'w>),
}

/// An option as it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given<'w> {
    /// Its name without dashes.
    pub name: &'w str,
    /// The part after `=`.
    value: Option<&'w str>,
    /// With one dash, several short options can share the word.
    pub has_two_dashes: bool,
}

impl<'w> Word<'w> {
    pub fn of(word: &'w str) -> Self {
        let Some(bare) = word.strip_prefix('-').filter(|bare| !bare.is_empty()) else {
            return Self::Plain;
        };
        match bare.strip_prefix('-') {
            Some("") => Self::End,
            Some(option) => Self::Option(Given {
                has_two_dashes: true,
                ..Given::of(option)
            }),
            None => Self::Option(Given::of(bare)),
        }
    }
}

impl<'w> Given<'w> {
    /// Splits a name, or a short option's letter, from its value.
    pub fn of(option: &'w str) -> Self {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        Self {
            name,
            value,
            has_two_dashes: false,
        }
    }

    /// Returns the same option under another of its names.
    pub fn called(self, name: &'w str) -> Self {
        Self { name, ..self }
    }

    /// Returns the value of a flag: true without a value, also after `=`.
    ///
    /// # Errors
    /// It is not a boolean.
    pub fn flag(&self) -> Result<bool, String> {
        let value = self.value.filter(|value| !value.is_empty());
        value.map_or(Ok(true), |value| as_boolean(self.name, value))
    }

    /// Returns the value of an option that needs one: its own, or the next word, which may begin with a dash.
    ///
    /// # Errors
    /// There is no further word.
    pub fn text(&self, next: impl FnOnce() -> Option<String>) -> Result<String, String> {
        let value = self.value.map(str::to_owned).or_else(next);
        value.ok_or_else(|| format!("flag needs an argument: --{}", self.name))
    }

    /// Returns the error of an option that does not exist.
    pub fn unknown(&self) -> String {
        format!("flag provided but not defined: -{}", self.name)
    }
}

/// Parses the value of the flag `name`.
///
/// # Errors
/// It is not a boolean.
pub fn as_boolean(name: &str, value: &str) -> Result<bool, String> {
    boolean(value).ok_or_else(|| format!("invalid value \"{value}\" for --{name}: not a boolean"))
}

/// Splits the value of an option that takes a list.
pub fn items(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(word: &str) -> Given<'_> {
        match Word::of(word) {
            Word::Option(given) => given,
            other => panic!("{word}: {other:?}"),
        }
    }

    #[test]
    fn words_are_told_apart() {
        for word in ["", "a", "-", "a=b", " -a"] {
            assert_eq!(Word::of(word), Word::Plain, "{word}");
        }
        assert_eq!(Word::of("--"), Word::End);
        for (word, name, value, two) in [
            ("-a", "a", None, false),
            ("--a", "a", None, true),
            ("-a=b=c", "a", Some("b=c"), false),
            ("--a=", "a", Some(""), true),
            ("---a", "-a", None, true),
        ] {
            let given = given(word);
            let parts = (given.name, given.value, given.has_two_dashes);
            assert_eq!(parts, (name, value, two));
        }
    }

    #[test]
    fn values_are_in_the_word_or_the_next() {
        for (word, flag) in [("-d", true), ("-d=", true), ("--d=0", false)] {
            assert_eq!(given(word).flag(), Ok(flag), "{word}");
        }
        let error = given("--debug=maybe").flag();
        let text = "invalid value \"maybe\" for --debug: not a boolean";
        assert_eq!(error, Err(text.to_owned()));
        let next = || Some("--next".to_owned());
        assert_eq!(given("-o").text(next), Ok("--next".to_owned()));
        assert_eq!(given("-o=").text(next), Ok(String::new()));
        let missing = "flag needs an argument: --o".to_owned();
        assert_eq!(given("-o").text(|| None), Err(missing));
        assert_eq!(items("a, b,").collect::<Vec<_>>(), ["a", "b", ""]);
    }
}
