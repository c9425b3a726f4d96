//! Keeps a bounded part of ldconfig's output, whose content and size the image controls.

/// Limit of kept bytes.
const MAX_KEPT: usize = 64 << 10;
/// Length limit of a line.
const LINE: usize = 1 << 10;

/// The output of a program.
#[derive(Debug, Default)]
pub(crate) struct Output {
    lines: Vec<String>,
    kept: usize,
    left_out: u64,
    partial: Vec<u8>,
    last: Option<String>,
}

impl Output {
    /// Consumes more bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let mut pieces = bytes.split(|&byte| byte == b'\n').peekable();
        while let Some(piece) = pieces.next() {
            self.extend(piece);
            if pieces.peek().is_some() {
                self.end_line();
            }
        }
    }

    /// Ends an unterminated last line.
    pub(crate) fn finish(&mut self) {
        self.end_line();
    }

    /// Returns the kept lines, as the program wrote them.
    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Returns the last line, kept or not.
    pub(crate) fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// Returns the number of dropped bytes.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }

    fn extend(&mut self, bytes: &[u8]) {
        let room = LINE.saturating_sub(self.partial.len()).min(bytes.len());
        let (taken, left) = bytes.split_at(room);
        self.partial.extend_from_slice(taken);
        self.left_out += left.len() as u64;
    }

    fn end_line(&mut self) {
        let bytes = std::mem::take(&mut self.partial);
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        if line.is_empty() {
            return;
        }
        if self.kept + line.len() <= MAX_KEPT {
            self.kept += line.len();
            self.lines.push(line.clone());
        } else {
            self.left_out += bytes.len() as u64;
        }
        self.last = Some(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(pieces: &[&[u8]]) -> Output {
        let mut output = Output::default();
        for piece in pieces {
            output.feed(piece);
        }
        output.finish();
        output
    }

    #[test]
    fn pieces_become_lines() {
        let output = fed(&[b"one\ntw", b"o\n\n", b"three \x1b[31m\xff"]);
        assert_eq!(output.lines(), ["one", "two", "three \x1b[31m\u{fffd}"]);
        assert_eq!(output.last(), Some("three \x1b[31m\u{fffd}"));
        assert_eq!(output.left_out(), 0);
        assert_eq!(fed(&[]).last(), None);
    }

    #[test]
    fn a_flood_is_bounded() {
        let line = [b'a'; 5000];
        let mut pieces: Vec<&[u8]> = Vec::new();
        for _ in 0..100 {
            pieces.extend([&line[..], b"\n"]);
        }
        pieces.push(b"the end\n");
        let output = fed(&pieces);
        assert_eq!(output.lines().len(), MAX_KEPT / LINE);
        assert!(output.left_out() > 400_000);
        assert_eq!(output.last(), Some("the end"));
    }
}
