//! Writes the manual page of config.toml, from the table of its keys.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use nvc_policy::config::keys::KEYS;

/// The page without its title and its keys.
const PAGE: &str = include_str!("../../man/nvidia-container-runtime-config.toml.sections");

/// Writes into `directory`.
pub(crate) fn write(directory: &Path, date: &str) -> io::Result<()> {
    let name = "nvidia-container-runtime-config.toml";
    let (before, after) = PAGE
        .split_once("@KEYS@\n")
        .ok_or_else(|| io::Error::other("the page has no place for the keys"))?;
    let text = format!(
        ".TH {} 5 \"{}\" \"nvidia\\-container\\-toolkit {}\" \"NVIDIA containers\"\n{before}{}{after}",
        escaped(&name.to_uppercase()),
        escaped(date),
        env!("CARGO_PKG_VERSION"),
        keys()
    );
    crate::save(&directory.join(format!("{name}.5")), text.as_bytes())
}

/// Returns a section for each table, with its keys.
fn keys() -> String {
    let (mut text, mut table) = (String::new(), None);
    for key in KEYS {
        let (of, name) = key.name.split_once('.').unwrap_or(("", key.name));
        if table != Some(of) {
            table = Some(of);
            let title = match of {
                "" => "TOP LEVEL".to_owned(),
                _ => format!("[{}]", escaped(of)),
            };
            let _ = writeln!(text, ".SH {title}");
        }
        let default = escaped(key.default);
        let _ = writeln!(text, ".TP\n.BR \"{}\" \" = {default}\"", escaped(name));
        for (number, part) in escaped(key.text.trim()).split('`').enumerate() {
            let is_bold = number % 2 == 1;
            text += &if is_bold {
                format!("\\fB{part}\\fP")
            } else {
                part.to_owned()
            };
        }
        text.push('\n');
    }
    text
}

/// Escapes what roff would change.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('"', "\\(dq")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_with_table_default_and_text() {
        let text = keys();
        for part in [
            ".SH TOP LEVEL\n.TP\n.BR \"accept\\-annotations\" \" = false\"\nLet annotations",
            ".SH [nvidia\\-container\\-runtime]\n",
            ".BR \"runtimes\" \" = [\\(dqrunc\\(dq, \\(dqcrun\\(dq]\"\n",
            "\nIgnore requirements (\\fBNVIDIA_REQUIRE_*\\fP) of all images.\n",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert_eq!(text.matches(".TP\n").count(), KEYS.len());
        assert!(!text.contains('`') && !text.lines().any(|line| line.starts_with('\'')));
    }
}
