//! Parses the command line like upstream's hook: Go's options before the command, ours after it.

use std::ffi::OsString;
use std::path::PathBuf;

use libnvc::request::names;
use nvc_options::Opt;
use nvc_options::scan::{GO, Grammar, known, scan};
use nvc_options::table::{flag, value};
use nvc_policy::image::Devices;

/// Options of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The configuration file; None if not given.
    pub config: Option<PathBuf>,
    /// Makes nvidia-container-cli write its debug log to standard error.
    pub debug: bool,
    /// The devices that our runtime resolved; None if it has not.
    pub devices: Option<Devices>,
    /// NVML's answers about them, as the runtime wrote them; None if it has not.
    pub inventory: Option<String>,
    /// The bundle, if the state on standard input may have another.
    pub bundle: Option<PathBuf>,
    /// The file that the low-level runtime has read as config.json, if it may be another than the bundle's.
    pub specification: Option<PathBuf>,
}

/// Upstream's options.
static UPSTREAMS: [Opt; 4] = [
    value("config", "FILE", "configuration file"),
    flag("debug", "enable debug output"),
    flag("version", "enable version output"),
    flag("help", "").short('h'),
];

/// Our runtime appends these options. No image can set them.
static OURS: [Opt; 4] = [
    value("devices", "UUIDS", "separated by commas, or all"),
    value("nvml", "ANSWERS", "the text of [`libnvc::host::Inventory`]"),
    value("bundle", "DIR", "an absolute path"),
    value("config-json", "FILE", "an absolute path"),
];

/// Ours are found among any other words.
const BEHIND: Grammar = Grammar { stops: false, ..GO };

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
pub(crate) fn read(words: &[OsString]) -> Result<CommandLine, Mistake> {
    let before = scan(&GO, &[&UPSTREAMS], words);
    let mut options = Options {
        config: before.given.last("config").map(PathBuf::from),
        debug: before.given.flag("debug"),
        ..Options::default()
    };
    options.config = options.config.filter(|path| !path.as_os_str().is_empty());
    if before.given.has("help") {
        let command = Command::Help;
        return Ok(CommandLine { command, options });
    }
    if let Some(error) = before.mistake {
        return Err(mistake(error.by_go()));
    }
    let (command, behind) = match before.rest.split_first() {
        Some((command, behind)) => (command.to_str(), behind),
        None => (None, before.rest),
    };
    let ours = known(&BEHIND, &OURS, behind);
    options.devices = ours.text("devices").map(|list| match list {
        "" => Devices::None,
        "all" => Devices::All,
        _ => Devices::Names(names(list).map(str::to_owned).collect()),
    });
    options.inventory = ours.text("nvml").map(str::to_owned);
    let path = |option: &str| match ours.last(option).map(PathBuf::from) {
        Some(path) if !path.is_absolute() => Err(mistake(format!(
            "--{option}={}: not absolute",
            path.display()
        ))),
        value => Ok(value),
    };
    options.bundle = path("bundle")?;
    options.specification = path("config-json")?;
    let command = match command {
        _ if before.given.flag("version") => Command::Version,
        Some("prestart") => Command::Prestart,
        Some("poststart" | "poststop") => Command::Nothing,
        _ => return Err(Mistake(None)),
    };
    Ok(CommandLine { command, options })
}

fn mistake(text: String) -> Mistake {
    Mistake(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<CommandLine, Mistake> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
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
        let two = Some(Devices::Names(vec!["GPU-1".to_owned(), "MIG-2".into()]));
        assert_eq!(devices("prestart --devices=all"), Some(Devices::All));
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
    fn paths_are_absolute() {
        let line = "prestart --bundle=/b --bundle=/a --config-json=/x/y.json";
        let options = of(line).map(|line| line.options);
        let expected = Options {
            bundle: Some("/a".into()),
            specification: Some("/x/y.json".into()),
            ..Options::default()
        };
        assert_eq!(options, Ok(expected));
        for option in ["--bundle=", "--bundle=b", "--config-json=../x"] {
            let text = format!("{option}: not absolute");
            assert_eq!(of(&format!("prestart {option}")), Err(mistake(text)));
        }
        assert!(of("--bundle=/b prestart").is_err());
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
            ("-config", Some("flag needs an argument: -config")),
        ];
        for (line, text) in table {
            assert_eq!(of(line), Err(Mistake(text.map(str::to_owned))), "{line}");
        }
    }
}
