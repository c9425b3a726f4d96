//! Describes commands and their options: the source of parsing, help, manual pages and completions.
//!
//! A table is a constant, which costs nothing at start.

/// A program, or one of its commands.
#[derive(Debug)]
pub struct Command {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    /// One-line description.
    pub about: &'static str,
    /// Full description, if it is longer.
    pub long_about: Option<&'static str>,
    pub options: &'static [Opt],
    /// Options of every command of this program, unless it has one of the same name.
    pub every: &'static [Opt],
    pub operand: Option<Operand>,
    pub commands: &'static [Command],
    /// All words after it are another program's.
    pub passes_on: bool,
    /// Text below the options, such as examples.
    pub after: &'static str,
}

/// The positional argument of a command.
#[derive(Debug)]
pub struct Operand {
    pub name: &'static str,
    pub help: &'static str,
}

/// An option.
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    pub long: &'static str,
    pub short: Option<char>,
    pub aliases: &'static [&'static str],
    pub takes: Takes,
    /// Equivalent variables; the first one that is set counts.
    pub env: &'static [&'static str],
    pub default: &'static str,
    pub help: &'static str,
    /// An option that upstream 1.17.0 lacks: ours, and those of its later versions. Abbreviations match upstream's
    /// options first, so that no command line that works there becomes ambiguous here. Additions are not counted where
    /// upstream counts arguments, and `--usage` is upstream's text.
    pub addition: bool,
    /// Accepted only for compatibility.
    pub hidden: bool,
}

/// The value of an option, with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Nothing; some grammars allow `=true` and `=false`.
    Flag,
    /// A value; the last one counts.
    Value(&'static str),
    /// An optional value, which must be attached.
    PerhapsValue(&'static str),
    /// Values, repeated or separated by commas; all of them count.
    Values(&'static str),
}

impl Takes {
    /// Returns the name of the value, if the option can have one.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Flag => None,
            Self::Value(name) | Self::PerhapsValue(name) | Self::Values(name) => Some(name),
        }
    }
}

/// An option without a value.
pub const fn flag(long: &'static str, help: &'static str) -> Opt {
    opt(long, Takes::Flag, help)
}

/// An option of whose values the last one counts.
pub const fn value(long: &'static str, name: &'static str, help: &'static str) -> Opt {
    opt(long, Takes::Value(name), help)
}

/// An option that can be repeated: each value counts.
pub const fn values(long: &'static str, name: &'static str, help: &'static str) -> Opt {
    opt(long, Takes::Values(name), help)
}

pub const fn opt(long: &'static str, takes: Takes, help: &'static str) -> Opt {
    Opt {
        long,
        short: None,
        aliases: &[],
        takes,
        env: &[],
        default: "",
        help,
        addition: false,
        hidden: false,
    }
}

impl Opt {
    pub const fn short(self, short: char) -> Self {
        let short = Some(short);
        Self { short, ..self }
    }

    pub const fn aliases(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    pub const fn env(self, env: &'static [&'static str]) -> Self {
        Self { env, ..self }
    }

    pub const fn default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    pub const fn addition(self) -> Self {
        let addition = true;
        Self { addition, ..self }
    }

    pub const fn hidden(self) -> Self {
        let hidden = true;
        Self { hidden, ..self }
    }

    /// Returns true if a name, without dashes, is this option's.
    pub fn is_called(&self, name: &str) -> bool {
        let is_short = |short: char| name.strip_prefix(short).is_some_and(str::is_empty);
        self.has_long(name) || self.short.is_some_and(is_short)
    }

    /// Returns true if a name is this option's long one, or one of the others that it has.
    pub fn has_long(&self, name: &str) -> bool {
        self.long == name || self.aliases.contains(&name)
    }
}

/// A command without commands below it.
pub const fn command(
    name: &'static str,
    about: &'static str,
    options: &'static [Opt],
    after: &'static str,
) -> Command {
    Command {
        name,
        aliases: &[],
        about,
        long_about: None,
        options,
        every: &[],
        operand: None,
        commands: &[],
        passes_on: false,
        after,
    }
}

/// A command that only has commands below it.
pub const fn group(
    name: &'static str,
    about: &'static str,
    commands: &'static [Command],
) -> Command {
    Command {
        commands,
        ..command(name, about, &[], "")
    }
}

impl Command {
    /// Returns the options of one of this program's commands, its own first.
    pub fn options_of(&self, command: &Command) -> impl Iterator<Item = &'static Opt> + use<> {
        let own = command.options;
        let is_free = |every: &&Opt| !own.iter().any(|opt| opt.has_long(every.long));
        own.iter().chain(self.every.iter().filter(is_free))
    }

    /// Returns true if a word is this command's name.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}
