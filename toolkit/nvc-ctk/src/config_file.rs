//! Edits config.toml as text: comments, order and unknown keys are kept.
//!
//! Like upstream's program, output contains unset settings as comments, `#key = example`, so that an administrator sees
//! what is available. Setting such a key uncomments it.

mod values;

use libnvc::{Error, ErrorKind, Result};
use nvc_options::given::boolean;
use nvc_policy::config::keys::{self, KEYS, Key, Kind, LDCONFIG, Shown, USER};
use toml_edit::{Array, DocumentMut, Item, Table, Value};

use crate::toml_values;

/// Properties of the host that affect the defaults.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Host {
    /// ldconfig is a wrapper script, and the program is `ldconfig.real`.
    pub(crate) has_ldconfig_real: bool,
    /// Device nodes belong to the group video.
    pub(crate) is_suse: bool,
}

/// Returns the configuration of a new installation.
pub(crate) fn default_text(host: Host) -> String {
    let (mut text, mut table) = (String::new(), "");
    for key in KEYS {
        let value = match (key.name, key.shown) {
            (LDCONFIG, _) if host.has_ldconfig_real => "\"@/sbin/ldconfig.real\"",
            (USER, Shown::Example(value)) if host.is_suse => value,
            (_, Shown::Default) => key.default,
            _ => continue,
        };
        let (of, name) = key.place();
        if of != table {
            table = of;
            text += &format!("\n[{table}]\n");
        }
        text += &format!("{name} = {value}\n");
    }
    text
}

/// Changes a text: each of `settings` is `KEY=VALUE` or the `KEY` of a boolean. The last one for a key has precedence.
///
/// # Errors
/// The text is not TOML, a key is unknown, or a value has the wrong type. Nothing is changed then.
pub(crate) fn change(text: &str, settings: &[String], list_separator: &str) -> Result<String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let original = parse(text)?;
    let keys: Vec<Vec<&str>> = settings.iter().map(|setting| key_of(setting)).collect();
    let check = |new: &str| {
        toml_values::check(&original, new, &keys)?;
        // A file that is not edited may have errors: it is printed as it is.
        if settings.is_empty() {
            return Ok(());
        }
        values::check(new, settings)
    };
    let commented = with_settings(&uncommented(text, settings), settings, list_separator);
    if let Ok((_, commented)) = &commented
        && check(commented).is_ok()
    {
        return Ok(commented.clone());
    }
    // What looks like a comment or a header may be in a text of several lines.
    let (plain, _) = with_settings(text, settings, list_separator)?;
    check(&plain)?;
    Ok(plain)
}

/// Returns the key path of a setting.
fn key_of(setting: &str) -> Vec<&str> {
    name_of(setting).split('.').collect()
}

fn name_of(setting: &str) -> &str {
    setting.split('=').next().unwrap_or_default()
}

/// Returns the text with the settings, without and with comments for settings that are unset.
fn with_settings(
    text: &str,
    settings: &[String],
    list_separator: &str,
) -> Result<(String, String)> {
    let mut document = parse(text)?;
    for setting in settings {
        set(&mut document, setting, list_separator)
            .map_err(|error| error.context(format!("invalid --set option {setting}")))?;
    }
    Ok((document.to_string(), documented_text(&document)))
}

fn parse(text: &str) -> Result<DocumentMut> {
    toml_values::parse(text).map_err(refused)
}

/// Returns a document as text, with the settings that are unset as comments.
fn documented_text(document: &DocumentMut) -> String {
    let mut text = document.to_string();
    // Appended as text, so that comments at the end keep their position.
    let mut tables: Vec<&str> = examples().map(|(key, _)| key.place().0).collect();
    tables.dedup();
    for name in tables.into_iter().filter(|name| !name.is_empty()) {
        let is_open = document
            .get(name)
            .is_none_or(|item| item.as_table().is_some_and(may_get_header));
        if is_open
            && !text
                .lines()
                .any(|line| header(line).as_deref() == Some(name))
        {
            let gap = if text.is_empty() || text.ends_with('\n') {
                ""
            } else {
                "\n"
            };
            text += &format!("{gap}\n[{name}]\n");
        }
    }
    with_comments(&text, document)
}

/// Returns true if a table has no header, and no dotted keys or braces write it.
fn may_get_header(table: &Table) -> bool {
    table.is_implicit() && !table.is_dotted()
}

/// Uncomments the settings to set, so that the values get their usual position.
fn uncommented(text: &str, settings: &[String]) -> String {
    let names: Vec<&str> = settings.iter().map(|setting| name_of(setting)).collect();
    let (mut out, mut table) = (String::new(), String::new());
    let mut done = Vec::new();
    for line in text.split_inclusive('\n') {
        if let Some(name) = header(line) {
            table = name;
        }
        let is_wanted = |(key, _): &(Key, _)| {
            let name = key.place().1;
            let is_set = text
                .lines()
                .map(name_of)
                .any(|line| [name, key.name].contains(&line.trim()));
            names.contains(&key.name) && !is_set && !done.contains(&key.name)
        };
        match documented(&table, line).filter(is_wanted) {
            Some((key, example)) => {
                done.push(key.name);
                let name = name_of(line).trim_start_matches('#').trim_end();
                out.push_str(&format!("{name} = {example}\n"));
            }
            None => out.push_str(line),
        }
    }
    out
}

/// Returns the settings that are shown as comments while they are unset, with their examples.
fn examples() -> impl Iterator<Item = (Key, &'static str)> {
    KEYS.iter().filter_map(|key| match key.shown {
        Shown::Example(example) => Some((*key, example)),
        _ => None,
    })
}

/// Returns the setting in a comment of a table.
fn documented(table: &str, line: &str) -> Option<(Key, &'static str)> {
    let name = name_of(line.strip_prefix('#')?).trim_end();
    let is_named =
        |(key, _): &(Key, _)| key.place() == (table, name) || table.is_empty() && key.name == name;
    examples().find(|found| line.contains('=') && is_named(found))
}

fn set(document: &mut DocumentMut, setting: &str, separator: &str) -> Result<()> {
    let (name, value) = match setting.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (setting, None),
    };
    let key = keys::find(name).ok_or_else(|| {
        let error = refused(format!(
            "invalid config option: undefined field: \"{name}\""
        ));
        match keys::nearest(name) {
            Some(near) => error.hint(format!("did you mean {near}?")),
            None => error.hint("nvidia-container-runtime-config.toml(5) lists the keys"),
        }
    })?;
    let mut words: Vec<&str> = key.name.split('.').collect();
    let last = words.pop().unwrap_or_default();
    let mut table = document.as_table_mut() as &mut dyn toml_edit::TableLike;
    for word in words {
        if table.get(word).is_none() {
            let mut new = Table::new();
            new.set_implicit(true);
            toml_values::insert(table, word, Item::Table(new));
        }
        table = table
            .get_mut(word)
            .and_then(Item::as_table_like_mut)
            .ok_or_else(|| refused(format!("{word} must be a table, [{word}]")))?;
    }
    if value == Some("nil") && key.name.starts_with("features.") {
        table.remove(last);
        return Ok(());
    }
    let new = match (key.kind, value) {
        (Kind::Bool, None) => Value::from(true),
        (Kind::Bool, Some(word)) => {
            Value::from(boolean(word).ok_or_else(|| refused("not a boolean: true or false"))?)
        }
        (kind, None) => return Err(refused(format!("a value is needed: {}", kind.name()))),
        (Kind::Text, Some(text)) => {
            values::check_word(key, text)?;
            Value::from(text)
        }
        (Kind::List, Some("")) => Value::from(Array::new()),
        (Kind::List, Some(text)) if separator.is_empty() => Value::from_iter([text]),
        (Kind::List, Some(text)) => Value::from_iter(text.split(separator)),
    };
    toml_values::set(table, last, new);
    Ok(())
}

fn refused(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

/// Removes the comments of set settings, and adds missing comments of the others: at the start those of tables that
/// dotted keys write, which cannot have a header.
fn with_comments(text: &str, document: &DocumentMut) -> String {
    let active = |key: Key| {
        let (table, name) = key.place();
        let place = match table {
            "" => Some(document.as_item()),
            _ => document.get(table),
        };
        let table = place.and_then(Item::as_table_like);
        table.is_some_and(|table| table.contains_key(name))
    };
    let is_dotted = |table: &str| {
        let table = document.get(table).and_then(Item::as_table);
        table.is_some_and(Table::is_dotted)
    };
    let mut lines: Vec<&str> = Vec::new();
    let mut table = String::new();
    let mut there = Vec::new();
    for line in text.lines() {
        if let Some(name) = header(line) {
            table = name;
        }
        match documented(&table, line) {
            Some((key, _)) if active(key) => continue,
            Some((key, _)) => there.push(key.name),
            None => {}
        }
        lines.push(line);
    }
    let mut out = String::new();
    let missing = |table: &str, out: &mut String| {
        for (key, example) in examples() {
            let (of, name) = key.place();
            let dotted = table.is_empty() && is_dotted(of);
            if (of == table || dotted) && !active(key) && !there.contains(&key.name) {
                let name = if dotted { key.name } else { name };
                out.push_str(&format!("#{name} = {example}\n"));
            }
        }
    };
    missing("", &mut out);
    for line in lines {
        out.push_str(line);
        out.push('\n');
        if let Some(name) = header(line) {
            missing(&name, &mut out);
        }
    }
    out
}

/// Returns the name in a line `[NAME]`. Of `[[NAME]]`, a table in an array, it is `[NAME`, which is no setting's table.
fn header(line: &str) -> Option<String> {
    let inner = line.trim().strip_prefix('[')?;
    let (name, _) = inner.split_once(']')?;
    Some(name.trim().trim_matches(['"', '\'']).to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::any_text::{Known, Writer, numbers, toml_values, without};

    fn changed(text: &str, settings: &[&str]) -> Result<String> {
        let settings: Vec<String> = settings.iter().map(|&setting| setting.into()).collect();
        change(text, &settings, ":")
    }

    #[test]
    fn a_users_file_keeps_its_content() {
        let text = "# mine\ndisable-require = true # why\nunknown = 1\n\n[nvidia-container-cli]\n#root = \"/x\"\n# \"a # b\"\n";
        let new = changed(
            text,
            &[
                "nvidia-container-cli.root=/a # b",
                "nvidia-container-cli.no-cgroups",
            ],
        )
        .unwrap();
        for kept in [
            "# mine\n",
            "disable-require = true # why\n",
            "unknown = 1\n",
            "# \"a # b\"\n",
        ] {
            assert!(new.contains(kept), "{kept}: {new}");
        }
        assert!(
            new.contains("root = \"/a # b\"\n") && !new.contains("#root"),
            "{new}"
        );
        assert!(
            new.contains("no-cgroups = true\n") && !new.contains("#no-cgroups"),
            "{new}"
        );
        assert_eq!(changed(&new, &[]).unwrap(), new, "twice is once");
    }

    const TEXTS: &[&str] = &[
        "\"/\"",
        "'x'",
        "\"\"\"\n[nvidia-ctk]\n#root = 1\"\"\"",
        "\"# no = 'comment' \"",
    ];
    const BOOLEANS: &[&str] = &["true", "false"];
    const LISTS: &[&str] = &["[]", "[\"/a\", '/b',]", "[ # why\n \"/c\"\n]"];

    /// Settings that a file may have, with values of their types.
    const KNOWN: [Known<'_>; 9] = [
        (&["disable-require"], BOOLEANS),
        (&["nvidia-container-cli", "root"], TEXTS),
        (&["nvidia-container-cli", "no-cgroups"], BOOLEANS),
        (&["nvidia-container-cli", "environment"], LISTS),
        (&["nvidia-container-runtime", "debug"], TEXTS),
        (
            &["nvidia-container-runtime", "modes", "cdi", "spec-dirs"],
            LISTS,
        ),
        (
            &[
                "nvidia-container-runtime",
                "modes",
                "csv",
                "mount-spec-path",
            ],
            TEXTS,
        ),
        (&["nvidia-ctk", "path"], TEXTS),
        (&["features", "disable-imex-channel-creation"], BOOLEANS),
    ];

    const SETTINGS: [&str; 8] = [
        "disable-require=true",
        "nvidia-container-cli.no-cgroups",
        "nvidia-container-cli.root=/y",
        "nvidia-container-cli.environment=A:B",
        "nvidia-container-runtime.modes.cdi.spec-dirs=/a:/b",
        "nvidia-container-runtime.modes.csv.mount-spec-path=/m",
        "nvidia-container-runtime.mode=cdi",
        "nvidia-ctk.path=/z",
    ];

    #[test]
    fn tables_of_dotted_keys_have_dotted_comments() {
        let text = "# mine\nnvidia-container-cli.root = \"/x\"\n\n[nvidia-ctk]\n";
        let new = changed(text, &["nvidia-container-cli.user=root"]).unwrap();
        let shown = "#nvidia-container-cli.no-cgroups = false\n";
        assert!(
            new.contains(shown) && new.contains(text.split("\n\n").next().unwrap()),
            "{new}"
        );
        assert!(
            new.contains("\nnvidia-container-cli.user = \"root\"\n"),
            "{new}"
        );
        assert!(!new.contains("#nvidia-container-cli.root"), "{new}");
        let set = changed(&new, &["nvidia-container-cli.no-cgroups"]).unwrap();
        assert_eq!(
            set,
            new.replace(shown, "nvidia-container-cli.no-cgroups = true\n")
        );
        assert_eq!(changed(&set, &[]).unwrap(), set);
    }

    #[test]
    fn comments_in_an_arrays_table_are_not_settings() {
        let text = "[nvidia-container-cli]\n\n[[nvidia-container-cli.features]]\n#root = \"/x\"\n";
        let new = changed(text, &["nvidia-container-cli.root=/y"]).unwrap();
        assert!(new.contains("#root = \"/x\""), "{new}");
        assert_eq!(
            changed(&new, &["nvidia-container-cli.root=/y"]).unwrap(),
            new
        );
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(300))]

        /// Whatever is written can be read, has the settings, and every other value.
        #[test]
        fn edits_keep_all_other_values(
            numbers in numbers(),
            settings in proptest::sample::subsequence(&SETTINGS[..], 1..=4),
        ) {
            let text = Writer::new(&numbers, &KNOWN).toml();
            let mut before = toml_values(&text);
            let is_readable = nvc_policy::config::parse(&text).is_ok();
            let new = match changed(&text, &settings) {
                Ok(new) => new,
                // Unreadable files stay as they are.
                Err(error) => {
                    proptest::prop_assert!(!is_readable, "{error}: {text}");
                    return Ok(());
                }
            };
            let read = nvc_policy::config::parse(&new);
            proptest::prop_assert!(read.is_ok(), "{}\n{}", text, new);
            let mut after = toml_values(&new);
            for setting in &settings {
                let key = key_of(setting);
                let is_set = after.keys().any(|path| path.starts_with(&key.iter().map(ToString::to_string).collect::<Vec<_>>()));
                proptest::prop_assert!(is_set, "{}: {}", setting, new);
                before = without(before, &key);
                after = without(after, &key);
            }
            proptest::prop_assert_eq!(before, after, "{}\n{}", text, new);
            // Comments stay, except those of settings.
            let comments = |text: &str| text.matches("# mine").count();
            proptest::prop_assert_eq!(comments(&text), comments(&new), "{}\n=====\n{}", text, new);
            // Again changes nothing.
            let again = changed(&new, &settings);
            proptest::prop_assert!(again.is_ok_and(|again| again == new), "{}\n{}", text, new);
        }
    }

    #[test]
    fn values_that_a_key_cannot_have_are_refused() {
        const RUNTIME: &str = "nvidia-container-runtime";
        for (setting, expected) in [
            (
                "mode=legcy",
                "mode cannot be \"legcy\": it is one of auto, cdi, csv, jit-cdi, legacy; did you mean legacy?",
            ),
            ("log-level=foo", "it is one of trace, debug,"),
            (
                "modes.jit-cdi.requirements=yes",
                "it is one of warn, honour, ignore",
            ),
            (
                "modes.jit-cdi.driver-capabilities=",
                "it is one of ignore, honour",
            ),
            ("modes.cdi.default-kind=gpu", "a kind is VENDOR/CLASS"),
        ] {
            let error = changed("", &[&format!("{RUNTIME}.{setting}")]).unwrap_err();
            assert!(error.message().contains(expected), "{}", error.message());
        }
        for (setting, expected) in [
            ("accept-cdi-kinds=a.b/c:d", "a kind is VENDOR/CLASS"),
            ("supported-driver-capabilities=frob", "frob"),
            ("disable-require=maybe", "true or false"),
        ] {
            let error = changed("", &[setting]).unwrap_err();
            assert!(error.message().contains(expected), "{}", error.message());
        }
        let setting = format!("{}=hok", keys::CUDA_COMPAT_MODE);
        let error = changed("", &[&setting]).unwrap_err();
        assert!(error.message().contains("did you mean hook?"));
        let unknown = changed("", &["no-cgroups=true"]).unwrap_err();
        let near = Some("did you mean nvidia-container-cli.no-cgroups?");
        assert_eq!(unknown.advice().as_deref(), near);
        let other = "nvidia-container-runtime.log-level=DEBUG";
        assert!(changed("", &[other]).is_ok());
        // Other wrong values of the file are no reason.
        let wrong = "[nvidia-container-runtime]\nmode = \"legcy\"\n";
        assert!(changed(wrong, &["disable-require=true"]).is_ok());
    }

    #[test]
    fn values_are_checked() {
        for setting in [
            "no.such.key=1",
            "disable-require=maybe",
            "nvidia-container-cli.root",
            "nvidia-container-cli",
        ] {
            assert!(changed("", &[setting]).is_err(), "{setting}");
        }
        assert!(
            changed("a = \n", &[])
                .unwrap_err()
                .to_string()
                .contains("line 1")
        );
        assert!(
            changed(
                "nvidia-container-cli = 1\n",
                &["nvidia-container-cli.no-cgroups"]
            )
            .is_err()
        );
        let kinds = changed(
            "[nvidia-ctk]\n",
            &["accept-annotations", "accept-cdi-kinds=a.b/c:d.e/f"],
        );
        let kinds = nvc_policy::config::parse(&kinds.unwrap()).unwrap().config;
        assert!(kinds.accept_annotations);
        assert_eq!(kinds.accept_cdi_kinds, ["a.b/c", "d.e/f"]);
        let list = changed("", &["nvidia-container-runtime.runtimes=a:b"]).unwrap();
        assert!(list.contains("runtimes = [\"a\", \"b\"]"), "{list}");
    }

    #[test]
    fn the_default_is_read_as_the_defaults() {
        let text = changed(&default_text(Host::default()), &[]).unwrap();
        let mut read = nvc_policy::config::parse(&text).unwrap();
        assert!(read.warnings.is_empty());
        read.config.lines.clear();
        assert_eq!(read.config.cli.ldconfig.as_deref(), Some("@/sbin/ldconfig"));
        read.config.cli.ldconfig = None;
        assert_eq!(read.config, nvc_policy::config::Config::default());
    }
}
