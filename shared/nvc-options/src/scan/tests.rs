//! Tests each grammar with one table of options.

use super::*;
use crate::table::{flag, opt, value, values};

static OPTIONS: [Opt; 7] = [
    flag("debug", "").short('d'),
    flag("deep", ""),
    value("output", "FILE", "").short('o'),
    values("folder", "DIR", "").aliases(&["dir"]),
    opt("user", Takes::PerhapsValue("UID"), "").short('u'),
    flag("new", "").addition(),
    flag("newest", "").addition(),
];

fn words(line: &str) -> Vec<OsString> {
    line.split(' ')
        .filter(|word| !word.is_empty())
        .map(OsString::from)
        .collect()
}

/// Returns the events of a line, with the words of mistakes in braces, and the rest behind a bar.
fn read(grammar: &'static Grammar, line: &str) -> String {
    let words = words(line);
    let mut scanner = Scanner::new(grammar, &words);
    let mut shown = Vec::new();
    while let Some(event) = scanner.next(&[&OPTIONS]) {
        shown.push(match event {
            Ok(Event::Word(word)) => word.display().to_string(),
            Ok(Event::Option(opt, None)) => format!("<{}>", opt.long),
            Ok(Event::Option(opt, Some(value))) => format!("<{}={}>", opt.long, value.display()),
            Err(mistake) if grammar.abbreviates => format!("{{{}}}", mistake.by_getopt()),
            Err(mistake) if grammar.trims => format!("{{{}}}", mistake.by_urfave()),
            Err(mistake) => format!("{{{}}}", mistake.by_go()),
        });
    }
    let rest = scanner.rest().iter().map(|word| word.display().to_string());
    let rest: Vec<_> = rest.collect();
    if !rest.is_empty() {
        shown.push(format!("| {}", rest.join(" ")));
    }
    shown.join(" ")
}

#[test]
fn getopt() {
    for (line, expected) in [
        ("a -d b --output c -- -d", "a <debug> b <output=c> | -d"),
        (
            "--out=c --out c --dir x",
            "<output=c> <output=c> <folder=x>",
        ),
        (
            "-do c -doc -o=c - -o -d",
            "<debug> <output=c> <debug> <output=c> <output==c> - <output=-d>",
        ),
        (
            "-u 5 -u5 --user 5 --us=5 --user=",
            "<user> 5 <user=5> <user> 5 <user=5> <user=>",
        ),
        // Upstream's options have precedence over ours.
        (
            "--n",
            "{option '--n' is ambiguous; possibilities: '--new' '--newest'}",
        ),
        ("--new --newe", "<new> <newest>"),
        (
            "--de",
            "{option '--de' is ambiguous; possibilities: '--debug' '--deep'}",
        ),
        (
            "--de=1 d",
            "{option '--de=1' is ambiguous; possibilities: '--debug' '--deep'} d",
        ),
        (
            "--debug=1 d",
            "{option '--debug' doesn't allow an argument} d",
        ),
        (
            "--frob=1 -dxd",
            "{unrecognized option '--frob=1'} <debug> {invalid option -- 'x'} <debug>",
        ),
        ("--output", "{option '--output' requires an argument}"),
        ("-do", "<debug> {option requires an argument -- 'o'}"),
        (
            "-debug",
            "<debug> {invalid option -- 'e'} {invalid option -- 'b'} <user=g>",
        ),
    ] {
        assert_eq!(read(&GETOPT, line), expected, "{line}");
    }
}

#[test]
fn go() {
    for (line, expected) in [
        ("", ""),
        ("-d --output a b -d", "<debug> <output=a> | b -d"),
        (
            "--debug=false --o=a=b -o -d",
            "<debug=false> <output=a=b> <output=-d>",
        ),
        ("-d -- -d", "<debug> | -d"),
        ("-o -- - -d", "<output=--> | - -d"),
        ("-o= --", "<output=>"),
        ("-frob", "{flag provided but not defined: -frob}"),
        ("--frob=1", "{flag provided but not defined: -frob}"),
        ("-do a", "{flag provided but not defined: -do} | a"),
        ("-o", "{flag needs an argument: -o}"),
        ("-d=z", "{invalid boolean value \"z\" for -d: parse error}"),
        ("-d=", "{invalid boolean value \"\" for -d: parse error}"),
        (
            "---d -=d --=",
            "{bad flag syntax: ---d} {bad flag syntax: -=d} {bad flag syntax: --=}",
        ),
    ] {
        assert_eq!(read(&GO, line), expected, "{line}");
    }
}

#[test]
fn urfave() {
    for (line, expected) in [
        ("a -d=0 b --d= - -- -d", "a <debug=0> b <debug=> - | -d"),
        (
            "-output a -dir=b --output --d",
            "<output=a> <folder=b> <output=--d>",
        ),
        ("-do a -do=a", "<debug> <output=a> <debug> <output=a>"),
        // A value in the next word, though letters follow.
        ("-od a", "<output=a> <debug>"),
        ("-frob=1", "{flag provided but not defined: -frob}"),
        ("-dx a", "<debug> {flag provided but not defined: -dx} a"),
        ("---d", "{flag provided but not defined: --d}"),
        ("--o", "{flag needs an argument: --o}"),
        (
            "-d=maybe",
            "{invalid value \"maybe\" for --debug: not a boolean}",
        ),
    ] {
        assert_eq!(read(&URFAVE, line), expected, "{line}");
    }
    let blank = [" -d ".into(), " a ".into()];
    let scanned = scan(&URFAVE, &[&OPTIONS], &blank);
    assert!(scanned.given.flag("debug") && scanned.words == [" a "]);
}

#[test]
fn pflag() {
    for (line, expected) in [
        ("-d --output a b -d", "<debug> <output=a> | b -d"),
        (
            "--debug=x -d=x -do=a -doa -do a",
            "<debug=x> <debug=x> <debug> <output=a> <debug> <output=a> <debug> <output=a>",
        ),
        ("-d -- a", "<debug> | a"),
    ] {
        assert_eq!(read(&PFLAG, line), expected, "{line}");
    }
}

/// A program can know more than the tables: it takes the value of such an option itself.
#[test]
fn values_of_unknown_options() {
    for (line, expected) in [
        ("--frob a b", "a"),
        ("-dxa b", "a"),
        ("-x a b", "a"),
        ("--frob", ""),
    ] {
        let words = words(line);
        let mut scanner = Scanner::new(&PFLAG, &words);
        let mut found = std::iter::from_fn(|| scanner.next(&[&OPTIONS]));
        let mistake = found.find_map(Result::err).unwrap();
        assert!(matches!(mistake.fault, Fault::Unknown(None)), "{line}");
        assert_eq!(scanner.value().unwrap_or_default(), expected, "{line}");
    }
}

#[test]
fn lists_and_flags() {
    let line = words("--folder a,b --output c,d --folder= -d -d=false");
    let given = scan(&URFAVE, &[&OPTIONS], &line).given;
    assert_eq!(given.list("folder").collect::<Vec<_>>(), ["a", "b", ""]);
    assert_eq!(given.all("folder").collect::<Vec<_>>(), ["a,b", ""]);
    assert_eq!(given.list("output").collect::<Vec<_>>(), ["c,d"]);
    assert_eq!(
        (given.text("output"), given.text("user")),
        (Some("c,d"), None)
    );
    assert!(given.has("debug") && !given.flag("debug") && !given.flag("deep"));
}
