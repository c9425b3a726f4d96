//! Words the cause of a failed system call as the programs that we replace do: `no such file or directory`.

/// The cause without Rust's error number, beginning with a small letter.
pub fn text(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = match text.find(" (os error ") {
        Some(end) => &text[..end],
        None => &text,
    };
    let mut letters = text.chars();
    match letters.next() {
        // An abbreviation stays as it is.
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
