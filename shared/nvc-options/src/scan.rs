//! Splits a command line into options, their values, and other words, by one of several grammars.
//!
//! No word is lost: each is an option, a value, another word, the `--` that ends the options, or behind that.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use crate::given::{Given, boolean};
use crate::mistake::{Fault, Mistake};
use crate::table::{Opt, Takes};

/// How options are written.
#[derive(Clone, Copy, Debug)]
pub struct Grammar {
    /// A long name may be abbreviated.
    pub abbreviates: bool,
    /// One dash is as good as two.
    pub one_dash: bool,
    /// None if letters cannot share a word.
    pub letters: Option<Letters>,
    pub flags: Flags,
    /// The first word that is no option ends the options.
    pub stops: bool,
    /// Blanks around an option do not count.
    pub trims: bool,
}

/// What may follow a letter in its word, besides the next letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Letters {
    /// Its value.
    Value,
    /// Its value after `=`.
    Equals,
    /// Its value, with `=` or without.
    ValueOrEquals,
}

/// What may follow a flag after `=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flags {
    Nothing,
    Boolean,
    BooleanOrNothing,
    Anything,
}

/// The grammar of getopt_long and argp.
pub const GETOPT: Grammar = Grammar {
    abbreviates: true,
    one_dash: false,
    letters: Some(Letters::Value),
    flags: Flags::Nothing,
    stops: false,
    trims: false,
};

/// The grammar of Go's package `flag`.
pub const GO: Grammar = Grammar {
    abbreviates: false,
    one_dash: true,
    letters: None,
    flags: Flags::Boolean,
    stops: true,
    trims: false,
};

/// The grammar of Go's package `urfave/cli`, which upstream's nvidia-ctk and nvidia-cdi-hook use.
pub const URFAVE: Grammar = Grammar {
    letters: Some(Letters::Equals),
    flags: Flags::BooleanOrNothing,
    stops: false,
    trims: true,
    ..GO
};

/// The grammar of Go's package `pflag`, which docker uses.
pub const PFLAG: Grammar = Grammar {
    one_dash: false,
    letters: Some(Letters::ValueOrEquals),
    flags: Flags::Anything,
    ..GO
};

/// A part of a command line.
#[derive(Clone, Copy, Debug)]
pub enum Event<'w> {
    Option(&'static Opt, Option<&'w OsStr>),
    /// A word that is neither an option nor a value; a single dash is one.
    Word(&'w OsString),
}

/// Goes through the words of a command line.
#[derive(Clone, Copy, Debug)]
pub struct Scanner<'w> {
    grammar: &'static Grammar,
    /// The words that have not been taken.
    words: &'w [OsString],
    /// The last word that was taken as an option.
    current: &'w OsStr,
    /// The letters of that word that have not been taken.
    letters: &'w [u8],
    is_ended: bool,
}

impl<'w> Scanner<'w> {
    pub fn new(grammar: &'static Grammar, words: &'w [OsString]) -> Self {
        Self {
            grammar,
            words,
            current: OsStr::new(""),
            letters: &[],
            is_ended: false,
        }
    }

    /// Returns the words that have not been taken.
    pub fn rest(&self) -> &'w [OsString] {
        self.words
    }

    /// Returns true if `--` has ended the options.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Takes the next part, according to the options of these tables; returns None at the end of the options.
    ///
    /// A mistake concerns one option, and the next call continues behind that.
    pub fn next(&mut self, tables: &[&'static [Opt]]) -> Option<Result<Event<'w>, Mistake<'w>>> {
        if self.is_ended {
            return None;
        }
        if !self.letters.is_empty() {
            return Some(self.letter(tables));
        }
        let (word, rest) = self.words.split_first()?;
        let mut bytes = word.as_bytes();
        if self.grammar.trims {
            bytes = bytes.trim_ascii();
        }
        let Some(bare) = bytes.strip_prefix(b"-").filter(|bare| !bare.is_empty()) else {
            if self.grammar.stops {
                return None;
            }
            self.words = rest;
            return Some(Ok(Event::Word(word)));
        };
        self.words = rest;
        self.current = word;
        let long = bare.strip_prefix(b"-");
        if long == Some(b"") {
            self.is_ended = true;
            return None;
        }
        if long.is_none() && !self.grammar.one_dash {
            self.letters = bare;
            return Some(self.letter(tables));
        }
        let (name, attached) = split(long.unwrap_or(bare));
        Some(match self.find(name, tables) {
            Ok(opt) => self.option(opt, name, false, attached),
            Err(Fault::Unknown(_)) if long.is_none() && self.grammar.letters.is_some() => {
                self.letters = bare;
                self.letter(tables)
            }
            Err(Fault::Unknown(_)) => Err(self.mistake(name, false, Fault::Unknown(attached))),
            Err(fault) => Err(self.mistake(name, false, fault)),
        })
    }

    /// Takes a value: the rest of the option's word, or the next word.
    pub fn value(&mut self) -> Option<&'w OsStr> {
        match std::mem::take(&mut self.letters) {
            [] => self.word(),
            letters => Some(OsStr::from_bytes(letters)),
        }
    }

    fn word(&mut self) -> Option<&'w OsStr> {
        let (word, rest) = self.words.split_first()?;
        self.words = rest;
        Some(word)
    }

    /// Takes one of several letters of a word.
    fn letter(&mut self, tables: &[&'static [Opt]]) -> Result<Event<'w>, Mistake<'w>> {
        let (name, rest) = self.letters.split_at(1);
        let follows = self.grammar.letters;
        let equals = rest.strip_prefix(b"=").map(OsStr::from_bytes);
        let equals = equals.filter(|_| follows != Some(Letters::Value));
        let mut known = tables.iter().copied().flatten();
        let letter = name.first().map(|letter| char::from(*letter));
        let Some(opt) = known.find(|opt| opt.short == letter) else {
            let is_lost = self.grammar.one_dash || equals.is_some();
            self.letters = if is_lost { &[] } else { rest };
            if self.grammar.one_dash {
                // It was not meant as letters.
                let bytes = self.current.as_bytes().trim_ascii();
                let (name, value) = split(bytes.get(1..).unwrap_or_default());
                return Err(self.mistake(name, false, Fault::Unknown(value)));
            }
            return Err(self.mistake(name, true, Fault::Unknown(equals)));
        };
        let has_rest = opt.takes != Takes::Flag && !rest.is_empty();
        let is_attached = has_rest && follows != Some(Letters::Equals);
        let attached = equals.or(is_attached.then(|| OsStr::from_bytes(rest)));
        self.letters = if attached.is_some() { &[] } else { rest };
        self.option(opt, name, true, attached)
    }

    /// Completes an option, with the next word if it needs a value and has none attached.
    fn option(
        &mut self,
        opt: &'static Opt,
        name: &'w [u8],
        is_letter: bool,
        attached: Option<&'w OsStr>,
    ) -> Result<Event<'w>, Mistake<'w>> {
        let flags = self.grammar.flags;
        let fault = match (opt.takes, attached) {
            (Takes::Flag, Some(_)) if flags == Flags::Nothing => Fault::Surplus(opt),
            (Takes::Flag, Some(value)) if !flags.allow(value) => Fault::NotBoolean(opt, value),
            (Takes::Value(_) | Takes::Values(_), None) => match self.word() {
                None => Fault::Missing(opt),
                value => return Ok(Event::Option(opt, value)),
            },
            _ => return Ok(Event::Option(opt, attached)),
        };
        Err(self.mistake(name, is_letter, fault))
    }

    /// Returns the option of this name, or the only one with this prefix.
    fn find(&self, name: &[u8], tables: &[&'static [Opt]]) -> Result<&'static Opt, Fault<'static>> {
        let name = std::str::from_utf8(name).map_err(|_| Fault::Unknown(None))?;
        let known = || tables.iter().copied().flatten();
        let may_be_short = self.grammar.one_dash;
        let is_it = |opt: &&Opt| opt.has_long(name) || may_be_short && opt.is_called(name);
        if let Some(opt) = known().find(is_it) {
            return Ok(opt);
        }
        for addition in [false, true]
            .into_iter()
            .filter(|_| self.grammar.abbreviates)
        {
            let fitting = known().filter(|opt| opt.addition == addition);
            let fitting: Vec<_> = fitting.filter(|opt| opt.long.starts_with(name)).collect();
            match fitting[..] {
                [] => {}
                [opt] => return Ok(opt),
                _ => return Err(Fault::Ambiguous(fitting)),
            }
        }
        Err(Fault::Unknown(None))
    }

    fn mistake(&self, name: &'w [u8], is_letter: bool, fault: Fault<'w>) -> Mistake<'w> {
        Mistake {
            word: self.current,
            name: OsStr::from_bytes(name),
            is_letter,
            fault,
        }
    }
}

impl Flags {
    fn allow(self, value: &OsStr) -> bool {
        match self {
            Self::Nothing => false,
            Self::Boolean => value.to_str().and_then(boolean).is_some(),
            Self::BooleanOrNothing => value.is_empty() || Self::Boolean.allow(value),
            Self::Anything => true,
        }
    }
}

/// Splits a name from the value after `=`.
fn split(option: &[u8]) -> (&[u8], Option<&OsStr>) {
    match option.iter().position(|byte| *byte == b'=') {
        Some(at) => {
            let (name, value) = option.split_at(at);
            (name, value.get(1..).map(OsStr::from_bytes))
        }
        None => (option, None),
    }
}

/// A command line, up to its first mistake.
#[derive(Debug)]
pub struct Scanned<'w> {
    pub given: Given,
    /// The words between the options.
    pub words: Vec<&'w OsString>,
    /// The words behind the options.
    pub rest: &'w [OsString],
    /// Number of words of options that upstream lacks.
    pub additions: usize,
    pub mistake: Option<Mistake<'w>>,
}

/// Reads the options of these tables.
pub fn scan<'w>(
    grammar: &'static Grammar,
    tables: &[&'static [Opt]],
    words: &'w [OsString],
) -> Scanned<'w> {
    let mut scanner = Scanner::new(grammar, words);
    let mut scanned = Scanned {
        given: Given::default(),
        words: Vec::new(),
        rest: words,
        additions: 0,
        mistake: None,
    };
    while let Some(event) = scanner.next(tables) {
        let taken = scanned.rest.len() - scanner.rest().len();
        scanned.rest = scanner.rest();
        match event {
            Ok(Event::Option(opt, value)) => {
                scanned.given.push(opt, value);
                scanned.additions += if opt.addition { taken } else { 0 };
            }
            Ok(Event::Word(word)) => scanned.words.push(word),
            Err(mistake) => {
                scanned.mistake = Some(mistake);
                return scanned;
            }
        }
    }
    scanned.rest = scanner.rest();
    scanned
}

/// Reads the options of these tables in a line that another program will read, which says what is wrong with the others.
pub fn known(grammar: &'static Grammar, table: &'static [Opt], words: &[OsString]) -> Given {
    let mut scanner = Scanner::new(grammar, words);
    let mut given = Given::default();
    while let Some(event) = scanner.next(&[table]) {
        if let Ok(Event::Option(opt, value)) = event {
            given.push(opt, value);
        }
    }
    given
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
