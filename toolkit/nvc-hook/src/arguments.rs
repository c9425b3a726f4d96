//! Parses the command line like upstream's hook: options with one or two dashes, all of them before the command, `--`
//! ends them.

use std::path::PathBuf;

/// Options of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The configuration file; None if not given.
    pub config: Option<PathBuf>,
    /// Makes nvidia-container-cli write its debug log to standard error.
    pub debug: bool,
    /// The devices that our runtime resolved; None if it has not.
    pub devices: Option<Vec<String>>,
    /// NVML's answers about them, as the runtime wrote them; None if it has not.
    pub inventory: Option<String>,
}

/// Our runtime appends these options: UUIDs, separated by commas, and [`libnvc::host::Inventory`]'s text. No image can
/// set them.
const DEVICES: &str = "--devices=";
const INVENTORY: &str = "--nvml=";

/// The action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Prestart,
    /// Stages without work.
    Nothing,
    Version,
    Help,
}

/// A valid command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandLine {
    pub command: Command,
    pub options: Options,
}

/// An invalid command line, with a message if the usage is not sufficient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistake(pub Option<String>);

/// Parses the words after the program's name.
pub(crate) fn read(words: &[String]) -> Result<CommandLine, Mistake> {
    let mut options = Options::default();
    let mut version = false;
    let mut words = words.iter();
    let command = loop {
        let Some(word) = words.next() else {
            break None;
        };
        let Some(name) = word.strip_prefix('-').filter(|name| !name.is_empty()) else {
            break Some(word.as_str());
        };
        if name == "-" {
            break words.next().map(String::as_str);
        }
        let name = name.strip_prefix('-').unwrap_or(name);
        if name.starts_with(['-', '=']) {
            return Err(mistake(format!("bad flag syntax: {word}")));
        }
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (name, None),
        };
        match name {
            "config" => {
                let value = value
                    .or_else(|| words.next().map(String::as_str))
                    .ok_or_else(|| mistake("flag needs an argument: -config".into()))?;
                options.config = (!value.is_empty()).then(|| value.into());
            }
            "debug" => options.debug = boolean(name, value)?,
            "version" => version = boolean(name, value)?,
            "h" | "help" => {
                let command = Command::Help;
                return Ok(CommandLine { command, options });
            }
            _ => return Err(mistake(format!("flag provided but not defined: -{name}"))),
        }
    };
    let last = |option: &str| {
        words
            .clone()
            .rev()
            .find_map(|word| word.strip_prefix(option))
    };
    options.devices = last(DEVICES).map(|list| {
        let names = list.split(',').filter(|name| !name.is_empty());
        names.map(str::to_owned).collect()
    });
    options.inventory = last(INVENTORY).map(str::to_owned);
    let command = match command {
        _ if version => Command::Version,
        Some("prestart") => Command::Prestart,
        Some("poststart" | "poststop") => Command::Nothing,
        _ => return Err(Mistake(None)),
    };
    Ok(CommandLine { command, options })
}

fn mistake(text: String) -> Mistake {
    Mistake(Some(text))
}

fn boolean(name: &str, value: Option<&str>) -> Result<bool, Mistake> {
    match value {
        None | Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
        Some(other) => Err(mistake(format!(
            "invalid boolean value \"{other}\" for -{name}: parse error"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<CommandLine, Mistake> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        read(&words)
    }

    fn command(line: &str) -> Option<Command> {
        of(line).ok().map(|line| line.command)
    }

    #[test]
    fn options_come_before_the_command() {
        let line = of("--debug -config=/a prestart -version").ok();
        let options = Options {
            config: Some("/a".into()),
            debug: true,
            ..Options::default()
        };
        let command = Command::Prestart;
        assert_eq!(line, Some(CommandLine { command, options }));
        assert_eq!(
            of("-config /a -config= prestart").map(|line| line.options),
            Ok(Options::default())
        );
        assert_eq!(
            of("-debug=false -- prestart").map(|line| line.options.debug),
            Ok(false)
        );
    }

    #[test]
    fn devices_come_after_the_command() {
        let devices = |line: &str| of(line).ok().and_then(|line| line.options.devices);
        let two = Some(vec!["GPU-1".to_owned(), "MIG-2".into()]);
        assert_eq!(devices("prestart --devices=GPU-1,,MIG-2"), two);
        assert_eq!(devices("-debug prestart x --devices=GPU-1,MIG-2"), two);
        assert_eq!(devices("prestart devices=GPU-1"), None);
        // Before the command it is an unknown option, as in upstream.
        assert!(of("--devices=GPU-1 prestart").is_err());
    }

    #[test]
    fn inventories_come_after_the_command() {
        let inventory = |line: &str| of(line).ok().and_then(|line| line.options.inventory);
        let line = "prestart --nvml={1} --devices=GPU-1 --nvml={\"=2\"}";
        assert_eq!(inventory(line).as_deref(), Some("{\"=2\"}"));
        assert_eq!(inventory("prestart nvml={}"), None);
        assert!(of("--nvml={} prestart").is_err());
    }

    #[test]
    fn commands_are_known() {
        assert_eq!(command("poststart"), Some(Command::Nothing));
        assert_eq!(command("poststop x"), Some(Command::Nothing));
        assert_eq!(command("-version"), Some(Command::Version));
        assert_eq!(command("-version frob"), Some(Command::Version));
        assert_eq!(command("-h"), Some(Command::Help));
        assert_eq!(command("--help prestart"), Some(Command::Help));
    }

    #[test]
    fn mistakes_are_named() {
        let table = [
            ("", None),
            ("frob", None),
            ("--", None),
            ("-", None),
            (
                "-frob prestart",
                Some("flag provided but not defined: -frob"),
            ),
            ("--frob=1", Some("flag provided but not defined: -frob")),
            ("-config", Some("flag needs an argument: -config")),
            (
                "-debug=x",
                Some("invalid boolean value \"x\" for -debug: parse error"),
            ),
            ("---debug", Some("bad flag syntax: ---debug")),
            ("-=x", Some("bad flag syntax: -=x")),
        ];
        for (line, text) in table {
            assert_eq!(of(line), Err(Mistake(text.map(str::to_owned))), "{line}");
        }
    }
}
