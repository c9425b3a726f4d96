//! Quotes words of commands that a person copies, or a script runs.
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
