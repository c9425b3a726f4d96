//! Finds the command and the image in a docker command line, like docker itself.

use std::ffi::OsString;

use libnvc::{Error, ErrorKind, Result};
use nvc_options::Given;
use nvc_options::mistake::{Fault, Mistake};
use nvc_options::scan::{Event, PFLAG, Scanner};

use super::options::Scope;

/// A parsed command line. Numbers are positions of words.
#[derive(Clone, Debug, Default)]
pub(super) struct CommandLine {
    /// Words before this are docker's global options.
    pub(super) globals: usize,
    pub(super) command: Command,
    /// The image of `run` and `create`.
    pub(super) image: Option<usize>,
    /// The word before the image is the `--` that ends the options.
    pub(super) has_dashes: bool,
    /// Options of `run` and `create`.
    pub(super) options: Given,
    pub(super) global_options: Given,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Command {
    /// `run` or `create`, with or without `container`.
    Run,
    Version,
    /// docker prints its help: `--help`, `help`, or no command.
    Help,
    /// Any other command.
    #[default]
    Other,
}

/// Parses a command line; `takes` returns whether an option takes a value that the tables lack.
///
/// # Errors
/// `empty argument`, and those of `takes`.
pub(super) fn read(
    words: &[OsString],
    mut takes: impl FnMut(Scope, &str) -> Result<bool>,
) -> Result<CommandLine> {
    let mut line = CommandLine::default();
    let (options, scanner) = options(words, Scope::Global, &mut takes)?;
    let rest = scanner.rest();
    line.global_options = options;
    line.globals = words.len() - rest.len();
    if line.global_options.has("help") {
        line.command = Command::Help;
        return Ok(line);
    }
    if line.global_options.has("version") {
        return Ok(line);
    }
    let rest = match rest {
        [container, rest @ ..] if container == "container" && !rest.is_empty() => rest,
        _ => rest,
    };
    let texts: Vec<_> = rest.iter().map(|word| word.to_str()).take(2).collect();
    line.command = match texts[..] {
        [] | [Some("help")] => Command::Help,
        [Some("run" | "create"), ..] => Command::Run,
        [Some("version"), ..] => Command::Version,
        _ => Command::Other,
    };
    if line.command == Command::Run {
        let words_of_run = rest.get(1..).unwrap_or_default();
        let (options, scanner) = self::options(words_of_run, Scope::Run, &mut takes)?;
        let behind = scanner.rest().len();
        line.image = (behind > 0 && !options.has("help")).then(|| words.len() - behind);
        line.has_dashes = scanner.is_ended();
        line.options = options;
    }
    Ok(line)
}

/// Reads the options before the first word that is neither an option nor an option's value.
fn options<'w>(
    words: &'w [OsString],
    scope: Scope,
    takes: &mut impl FnMut(Scope, &str) -> Result<bool>,
) -> Result<(Given, Scanner<'w>)> {
    let mut scanner = Scanner::new(&PFLAG, words);
    let mut given = Given::default();
    while let Some(event) = scanner.next(&[scope.known()]) {
        match event {
            Ok(Event::Option(opt, value)) => given.push(opt, value),
            Err(Mistake {
                fault: Fault::Unknown(None),
                name,
                ..
            }) if takes(scope, &name.to_string_lossy())? => {
                scanner.value();
            }
            // Docker says what is wrong.
            Ok(Event::Word(_)) | Err(_) => {}
        }
    }
    if !scanner.is_ended() && scanner.rest().first().is_some_and(|word| word.is_empty()) {
        let error = Error::new(ErrorKind::InvalidArgument, "empty argument");
        return Err(error.hint("is a variable unset?"));
    }
    Ok((given, scanner))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    fn line(text: &str) -> CommandLine {
        let words = if text.is_empty() {
            Vec::new()
        } else {
            words(text)
        };
        read(&words, |_, _| Ok(true)).unwrap()
    }

    /// Returns the word that is parsed as the image.
    fn image(text: &str) -> Option<OsString> {
        line(text).image.map(|at| words(text)[at].clone())
    }

    #[test]
    fn images() {
        for text in [
            "run img",
            "run -it img",
            "run -itv /a:/b img",
            "run -e A=B img",
            "run -eA=B img",
            "run --name= img",
            "run -p 8080:80 img",
            "run -p8080:80 img cmd",
            "run --gpus all img",
            "run -- img cmd",
            "run --rm -- img cmd",
            "run -q img cmd",
            "run --quiet img cmd",
            "create --rm img cmd",
            "create --no-healthcheck img cmd",
            "run --init img",
            "run -t=true img",
            "run -it=false img cmd",
            "run -v=/a:/b img",
            "-H tcp://h:1 run img",
            "-l debug run img",
            "-D --tls run img x",
            "container run img",
            "-Htcp://h:1 container create img",
            "--host=x -- run img",
        ] {
            assert_eq!(image(text), Some("img".into()), "{text}");
        }
        assert_eq!(image("run - img"), Some("-".into()));
        for text in [
            "",
            "ps -a",
            "run",
            "run -it --name x",
            "run --help img",
            "-v run img",
            "--help run img",
            "container",
            "container ls img",
            "exec run ls",
            "build -t run .",
            "run --",
            "-D",
        ] {
            assert_eq!(image(text), None, "{text}");
        }
    }

    #[test]
    fn options_and_commands() {
        let read = line("-H x -c=y run --rm -e A=B -eC -itu me --env=D=E img -e F");
        let values: Vec<&str> = read.options.list("env").collect();
        assert_eq!(values, ["A=B", "C", "D=E"]);
        assert_eq!(read.globals, 3);
        let globals = &read.global_options;
        assert_eq!(
            (globals.text("host"), globals.text("context")),
            (Some("x"), Some("y"))
        );
        assert_eq!(line("version").command, Command::Version);
        assert_eq!(line("ps").command, Command::Other);
        assert_eq!(line("-v version").command, Command::Other);
        for text in ["", "--help", "-D -h", "help", "--help run img"] {
            let words: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
            let line = super::read(&words, |_, _| Ok(false)).unwrap();
            assert_eq!(line.command, Command::Help, "{text}");
        }
        assert_eq!(line("help run").command, Command::Other);
    }

    #[test]
    fn empty_arguments_are_refused() {
        for text in [" run img", "run  img", "run --rm  "] {
            let read = read(&words(text), |_, _| Ok(false));
            assert_eq!(read.unwrap_err().message(), "empty argument");
        }
    }

    #[test]
    fn unknown_options_are_asked_for() {
        let image = |text: &str, takes: bool| {
            let mut asked = Vec::new();
            let line = read(&words(text), |_, name| {
                asked.push(name.to_owned());
                Ok(takes)
            });
            (line.unwrap().image, asked.join(" "))
        };
        for (text, takes, at, asked) in [
            ("run --new x img", true, 3, "new"),
            ("run --new x img", false, 2, "new"),
            ("run --new=x img", true, 2, ""),
            ("run -ixk v img", true, 2, "x"),
            ("run -ixt v img", false, 2, "x"),
            ("run -ix v img", true, 3, "x"),
            ("run -ix=v img", true, 2, ""),
        ] {
            assert_eq!(image(text, takes), (Some(at), asked.to_owned()), "{text}");
        }
        assert!(line("run --new -- -- img").has_dashes);
        assert!(!line("run --new -- img").has_dashes);
    }
}
