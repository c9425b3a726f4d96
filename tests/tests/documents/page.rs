//! Reads a Markdown page: its sections, and the blocks in them.

/// A block between fences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// The heading above it, of the second level.
    pub(crate) section: String,
    /// The word behind the fence, such as `sh`.
    pub(crate) language: String,
    pub(crate) text: String,
}

/// Returns the headings of the second level.
pub(crate) fn sections(page: &str) -> Vec<String> {
    let mut is_text = true;
    let mut found = Vec::new();
    for line in page.lines() {
        is_text ^= line.starts_with("```");
        if let Some(heading) = line.strip_prefix("## ").filter(|_| is_text) {
            found.push(heading.to_owned());
        }
    }
    found
}

/// Returns the blocks in the order of the page.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let mut section = String::new();
    let mut open: Option<Block> = None;
    let mut found = Vec::new();
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(block), None) => block.text += &format!("{line}\n"),
            (None, Some(language)) => {
                open = Some(Block {
                    section: section.clone(),
                    language: language.to_owned(),
                    text: String::new(),
                });
            }
            (None, None) => {
                if let Some(heading) = line.strip_prefix("## ") {
                    heading.clone_into(&mut section);
                }
            }
        }
    }
    assert_eq!(open, None, "a block without an end");
    found
}
