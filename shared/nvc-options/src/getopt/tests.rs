//! Tests parsing command lines like argp.

use std::os::unix::ffi::OsStringExt as _;

use super::*;
use crate::table::Opt;

fn caller() -> Caller {
    Caller {
        typed: "./bin/nvidia-container-cli".into(),
        name: PROGRAM.to_owned(),
        posixly_correct: false,
    }
}

fn read_as(caller: &Caller, line: &str) -> Parsed {
    let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    read(caller, &words)
}

/// Returns a line in its full form: `--option` or `--option=value` each, the command, its options, `--`, the operand.
fn spelt_out(line: &CommandLine) -> Vec<OsString> {
    let options = |given: &Given| -> Vec<OsString> {
        let named = given.iter().filter(|(option, _)| !option.help.is_empty());
        let spell = |(option, value): (&Opt, Option<&OsStr>)| {
            let mut word = OsString::from(format!("--{}", option.long));
            if let Some(value) = value {
                word.push("=");
                word.push(value);
            }
            word
        };
        named.map(spell).collect()
    };
    let mut words = options(&line.global);
    words.push(line.command.name.into());
    words.extend(options(&line.options));
    if let Some(operand) = &line.operand {
        words.extend(["--".into(), operand.clone()]);
    }
    words
}

fn complaint(line: &str) -> String {
    match read_as(&caller(), line) {
        Parsed::Mistake(text) | Parsed::Unknown(_, text) => text.lines().next().unwrap().to_owned(),
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn spellings() {
    for (typed, read) in [
        ("info", "info"),
        ("-k --deb=x info", "--load-kmods --debug=x info"),
        ("-kdx -u info", "--load-kmods --debug=x --user info"),
        ("-d info info --cs", "--debug=info info --csv"),
        ("-ku1:2 info", "--load-kmods --user=1:2 info"),
        ("--user info", "--user info"),
        ("-- list -l", "list --libraries"),
        (
            "list -lbif",
            "list --libraries --binaries --ipcs --firmwares",
        ),
        ("list --lib --fir", "list --libraries --firmwares"),
        // upstream's option has precedence over ours with the same prefix
        ("list --f", "list --firmwares"),
        ("info --f json", "info --format=json"),
        // ambiguous since upstream 1.17.4
        ("configure --no-c x", "configure --no-cgroups -- x"),
        ("configure --no-cn x", "configure --no-cntlibs -- x"),
        (
            "configure --cu=mount x",
            "configure --cuda-compat-mode=mount -- x",
        ),
        (
            "list --HANG --program-name x --HANG=3 -l",
            "list --libraries",
        ),
        (
            "configure -cug /x -p 3",
            "configure --compute --utility --graphics --pid=3 -- /x",
        ),
        ("configure --pid -- -- -x", "configure --pid=-- -- -x"),
        ("configure -d= /x", "configure --device== -- /x"),
    ] {
        let Parsed::Run(words) = read_as(&caller(), typed) else {
            panic!("{typed}")
        };
        assert_eq!(spelt_out(&words).join(OsStr::new(" ")), read, "{typed}");
    }
}

#[test]
fn complaints() {
    let top = "./bin/nvidia-container-cli";
    for (typed, text) in [
        (
            "--frob=1 info",
            format!("{top}: unrecognized option '--frob=1'"),
        ),
        ("-kx info", format!("{top}: invalid option -- 'x'")),
        (
            "--no",
            format!(
                "{top}: option '--no' is ambiguous; possibilities: '--no-pivot' \
                 '--no-create-imex-channels'"
            ),
        ),
        (
            "configure --v",
            format!(
                "{PROGRAM} configure: option '--v' is ambiguous; possibilities: '--video' '--version'"
            ),
        ),
        (
            "configure --pi",
            format!("{PROGRAM} configure: option '--pid' requires an argument"),
        ),
        ("info x", format!("{PROGRAM} info: Too many arguments")),
        ("info -", format!("{PROGRAM} info: Too many arguments")),
        ("list -- -l", format!("{PROGRAM} list: Too many arguments")),
        ("", format!("Usage: {PROGRAM} [OPTION...] COMMAND [ARG...]")),
        (
            "-u 3",
            format!("Usage: {PROGRAM} [OPTION...] COMMAND [ARG...]"),
        ),
        (
            "frob",
            format!("Usage: {PROGRAM} [OPTION...] COMMAND [ARG...]"),
        ),
        (
            "configure",
            format!("Usage: {PROGRAM} configure [OPTION...] ROOTFS"),
        ),
        (
            "configure a b",
            format!("Usage: {PROGRAM} configure [OPTION...] ROOTFS"),
        ),
    ] {
        assert_eq!(complaint(typed), text, "{typed}");
    }
}

#[test]
fn questions() {
    for (typed, question, command) in [
        ("-?", Question::Help, PROGRAM),
        ("-k --help --frob", Question::Help, PROGRAM),
        ("info -V", Question::Version, "info"),
        ("configure --us", Question::Usage, "configure"),
        ("list --u x", Question::Usage, "list"),
    ] {
        match read_as(&caller(), typed) {
            Parsed::Ask(q, c) => assert_eq!((q, c.name), (question, command), "{typed}"),
            other => panic!("{typed}: {other:?}"),
        }
    }
}

#[test]
fn posixly_correct_ends_options_at_the_first_positional() {
    let caller = Caller {
        posixly_correct: true,
        ..caller()
    };
    let Parsed::Run(words) = read_as(&caller, "configure -c /x") else {
        panic!()
    };
    assert_eq!(words.operand.unwrap(), "/x");
    assert!(matches!(
        read_as(&caller, "configure /x -c"),
        Parsed::Mistake(_)
    ));
}

#[test]
fn words_are_counted_as_upstream_does() {
    for (typed, count) in [
        ("-k list", 1),
        ("list --imex-channel=3", 2),
        ("list --imex-channel 3", 3),
        ("list --", 2),
        ("list --format=json", 1),
        ("list --format json --imex-channel=3", 2),
    ] {
        let Parsed::Run(words) = read_as(&caller(), typed) else {
            panic!("{typed}")
        };
        assert_eq!(words.command_words, count, "{typed}");
    }
}

#[test]
fn bytes_that_are_not_utf8_survive() {
    let odd = OsString::from_vec(b"/\xff".to_vec());
    let mut attached = OsString::from("-p");
    attached.push(&odd);
    let words = ["configure".into(), attached, odd.clone()];
    let Parsed::Run(words) = read(&caller(), &words) else {
        panic!()
    };
    assert_eq!(words.operand, Some(odd.clone()));
    assert_eq!(words.options.last("pid"), Some(odd.as_os_str()));
    let word = OsString::from_vec(b"-\xff".to_vec());
    let Parsed::Mistake(text) = read(&caller(), &["info".into(), word]) else {
        panic!()
    };
    assert!(text.starts_with("nvidia-container-cli info: invalid option -- '\u{fffd}'\n"));
}

/// glibc's argp changes the name of its own messages, and getopt keeps the one that it was given.
#[test]
fn the_name_of_messages_can_be_changed() {
    let help =
        |name: &str| format!("Try `{name} --help' or `{name} --usage' for more information.\n");
    for (typed, text) in [
        (
            "--program-name=foo -x",
            format!("./bin/{PROGRAM}: invalid option -- 'x'\n{}", help("foo")),
        ),
        (
            "--program-name=/a/foo info -x",
            format!("foo info: invalid option -- 'x'\n{}", help("foo info")),
        ),
        (
            "info --program-name=foo -x",
            format!("{PROGRAM} info: invalid option -- 'x'\n{}", help("foo")),
        ),
        (
            "info --program-name=foo x",
            format!("foo: Too many arguments\n{}", help("foo")),
        ),
    ] {
        let Parsed::Mistake(said) = read_as(&caller(), typed) else {
            panic!("{typed}")
        };
        assert_eq!(said, text, "{typed}");
    }
}
