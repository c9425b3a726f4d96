//! Words the mistakes of command lines as upstream's libraries do.

use std::ffi::OsStr;

use crate::table::Opt;

/// A mistake in a command line.
#[derive(Clone, Debug)]
pub struct Mistake<'w> {
    /// The word, as given.
    pub word: &'w OsStr,
    /// The option's name in it, without dashes.
    pub name: &'w OsStr,
    /// The name is a letter that could have shared the word with others.
    pub is_letter: bool,
    pub fault: Fault<'w>,
}

#[derive(Clone, Debug)]
pub enum Fault<'w> {
    /// There is no such option; its value, if one is attached.
    Unknown(Option<&'w OsStr>),
    /// An abbreviation of more than one option.
    Ambiguous(Vec<&'static Opt>),
    /// A value for an option that takes none.
    Surplus(&'static Opt),
    /// No value for an option that needs one.
    Missing(&'static Opt),
    /// The value of a flag is no boolean.
    NotBoolean(&'static Opt, &'w OsStr),
}

impl Mistake<'_> {
    /// Returns the text of getopt_long.
    pub fn by_getopt(&self) -> String {
        let (word, name) = (self.word.display(), self.name.display());
        match &self.fault {
            Fault::Unknown(_) if self.is_letter => format!("invalid option -- '{name}'"),
            Fault::Unknown(_) => format!("unrecognized option '{word}'"),
            Fault::Ambiguous(fitting) => {
                let names = fitting.iter().map(|opt| format!(" '--{}'", opt.long));
                let names: String = names.collect();
                format!("option '{word}' is ambiguous; possibilities:{names}")
            }
            Fault::Missing(_) if self.is_letter => {
                format!("option requires an argument -- '{name}'")
            }
            Fault::Missing(opt) => format!("option '--{}' requires an argument", opt.long),
            Fault::Surplus(opt) | Fault::NotBoolean(opt, _) => {
                format!("option '--{}' doesn't allow an argument", opt.long)
            }
        }
    }

    /// Returns the text of Go's package `flag`.
    pub fn by_go(&self) -> String {
        let name = self.name.display();
        match &self.fault {
            Fault::Unknown(_) if !self.name.is_empty() && !self.has_third_dash() => self.unknown(),
            Fault::Missing(_) => format!("flag needs an argument: -{name}"),
            Fault::NotBoolean(_, value) => {
                let value = value.display();
                format!("invalid boolean value \"{value}\" for -{name}: parse error")
            }
            _ => format!("bad flag syntax: {}", self.word.display()),
        }
    }

    /// Returns the text of Go's package `urfave/cli`.
    pub fn by_urfave(&self) -> String {
        match &self.fault {
            Fault::Missing(_) => format!("flag needs an argument: --{}", self.name.display()),
            Fault::NotBoolean(opt, value) => {
                let value = value.display();
                format!(
                    "invalid value \"{value}\" for --{}: not a boolean",
                    opt.long
                )
            }
            _ => self.unknown(),
        }
    }

    fn unknown(&self) -> String {
        format!("flag provided but not defined: -{}", self.name.display())
    }

    fn has_third_dash(&self) -> bool {
        self.name.as_encoded_bytes().starts_with(b"-")
    }
}
