//! Formats the cause of a failed system call like the programs that we replace: `no such file or directory`.

/// Returns the cause without Rust's error number, with a lower-case first letter.
pub fn text(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = match text.find(" (os error ") {
        Some(end) => &text[..end],
        None => &text,
    };
    let mut letters = text.chars();
    match letters.next() {
        // An abbreviation keeps its case.
        Some(first) if !letters.as_str().starts_with(char::is_uppercase) => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn causes_have_neither_numbers_nor_capitals() {
        let of = std::io::Error::from_raw_os_error;
        assert_eq!(text(&of(2)), "no such file or directory");
        assert_eq!(text(&of(21)), "is a directory");
        assert_eq!(text(&std::io::Error::other("YAML is odd")), "YAML is odd");
    }
}
