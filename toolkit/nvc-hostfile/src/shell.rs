//! Quotes words of commands that a person copies, or a script runs, and reads such commands.
//!
//! A path or a name in a command can be of any user's choice: unquoted, it could be several words, or another command.

/// Returns a word for a POSIX shell, quoted if necessary.
pub fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./@%+=,:-".contains(c);
    // A tilde at the start, too, is none of these.
    if !text.is_empty() && text.chars().all(plain) {
        return text.into();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Returns a command of words.
pub fn line<T: AsRef<str>>(words: impl IntoIterator<Item = T>) -> String {
    let words: Vec<String> = words.into_iter().map(|text| word(text.as_ref())).collect();
    words.join(" ")
}

/// Splits a command into words, of which quotes keep the blanks; None if a quote has no end.
pub fn words(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match c {
            c if c.is_whitespace() => words.extend(word.take()),
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next()? {
                        end if end == c => break,
                        c => word.push(c),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(rest.next()?),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_take_each_word_as_one() {
        let words = [
            "docker",
            "--gpus=\"device=0\"",
            "",
            "it's",
            "a b",
            "~",
            "$(x)",
            "a\\x2db",
            "a;b",
        ];
        let quoted = line(words);
        let expected = r#"docker '--gpus="device=0"' '' 'it'\''s' 'a b' '~' '$(x)' 'a\x2db' 'a;b'"#;
        assert_eq!(quoted, expected);
        let script = format!("printf '%s\\n' {quoted}");
        let output = std::process::Command::new("sh")
            .args(["-c", &script])
            .output();
        let output = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        assert_eq!(output.ok(), Some(words.join("\n") + "\n"));
    }
}
