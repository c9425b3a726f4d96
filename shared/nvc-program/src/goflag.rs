//! Parses options like Go's package `flag`: one dash or two, a value after `=` or in the next word, all options before
//! the first other word.

/// Words of a command line that begin with options.
#[derive(Debug)]
pub struct Flags<'w> {
    words: &'w [String],
}

/// An option without its dashes.
#[derive(Clone, Copy, Debug)]
pub struct Flag<'w> {
    pub name: &'w str,
    /// The part after `=`.
    value: Option<&'w str>,
}

impl<'w> Flags<'w> {
    pub fn new(words: &'w [String]) -> Self {
        Self { words }
    }

    /// Takes the next option; returns None if another word or `--` ends them.
    ///
    /// # Errors
    /// There is no name between the dashes and the value, or a third dash.
    pub fn take(&mut self) -> Result<Option<Flag<'w>>, String> {
        let Some((word, rest)) = self.words.split_first() else {
            return Ok(None);
        };
        let Some(bare) = word.strip_prefix('-').filter(|bare| !bare.is_empty()) else {
            return Ok(None);
        };
        self.words = rest;
        if bare == "-" {
            return Ok(None);
        }
        let bare = bare.strip_prefix('-').unwrap_or(bare);
        if bare.starts_with(['-', '=']) {
            return Err(format!("bad flag syntax: {word}"));
        }
        Ok(Some(match bare.split_once('=') {
            Some((name, value)) => Flag {
                name,
                value: Some(value),
            },
            None => Flag {
                name: bare,
                value: None,
            },
        }))
    }

    /// Returns the value of an option that has just been taken: its own, or the next word.
    ///
    /// # Errors
    /// There is no further word.
    pub fn text(&mut self, flag: Flag<'w>) -> Result<&'w str, String> {
        if let Some(value) = flag.value {
            return Ok(value);
        }
        let (word, rest) = self
            .words
            .split_first()
            .ok_or_else(|| format!("flag needs an argument: -{}", flag.name))?;
        self.words = rest;
        Ok(word)
    }

    /// Returns the words that have not been taken.
    pub fn rest(&self) -> &'w [String] {
        self.words
    }
}

impl Flag<'_> {
    /// Returns the value of an option that need not have one.
    ///
    /// # Errors
    /// The value is not a boolean.
    pub fn boolean(&self) -> Result<bool, String> {
        let Some(value) = self.value else {
            return Ok(true);
        };
        let (name, invalid) = (self.name, "invalid boolean value");
        boolean(value).ok_or_else(|| format!("{invalid} \"{value}\" for -{name}: parse error"))
    }

    /// Returns the error of an option that does not exist.
    pub fn unknown(&self) -> String {
        format!("flag provided but not defined: -{}", self.name)
    }
}

/// Parses a boolean like Go's `strconv.ParseBool`.
pub fn boolean(word: &str) -> Option<bool> {
    match word {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a line in which `-x` is a flag and every other option has a value; returns values and the rest.
    fn parse(line: &str) -> Result<(Vec<String>, Vec<String>), String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let (mut flags, mut values) = (Flags::new(&words), Vec::new());
        while let Some(flag) = flags.take()? {
            values.push(match flag.name {
                "x" => format!("x={}", flag.boolean()?),
                "y" => format!("y={}", flags.text(flag)?),
                _ => return Err(flag.unknown()),
            });
        }
        Ok((values, flags.rest().to_vec()))
    }

    #[test]
    fn options_end_at_the_first_other_word() {
        for (line, values, rest) in [
            ("", "", ""),
            ("-x -y a b -x", "x=true y=a", "b -x"),
            ("--x=false --y=a=b -y -x", "x=false y=a=b y=-x", ""),
            ("-x -- -x", "x=true", "-x"),
            ("-y -- - -x", "y=--", "- -x"),
            ("-y= --", "y=", ""),
        ] {
            let split = |text: &str| text.split_whitespace().map(str::to_owned).collect();
            assert_eq!(parse(line), Ok((split(values), split(rest))), "{line}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (line, text) in [
            ("-frob", "flag provided but not defined: -frob"),
            ("--frob=1", "flag provided but not defined: -frob"),
            ("-y", "flag needs an argument: -y"),
            ("-x=z", "invalid boolean value \"z\" for -x: parse error"),
            ("---x", "bad flag syntax: ---x"),
            ("-=x", "bad flag syntax: -=x"),
        ] {
            assert_eq!(parse(line), Err(text.to_owned()), "{line}");
        }
    }
}
