//! Encodes and decodes protocol buffers, as far as CRI's few calls need.

/// A message under construction.
#[derive(Clone, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn number(mut self, field: u64, value: u64) -> Self {
        varint(&mut self.0, field << 3);
        varint(&mut self.0, value);
        self
    }

    pub(crate) fn text(self, field: u64, text: &str) -> Self {
        self.counted(field, text.as_bytes())
    }

    pub(crate) fn message(self, field: u64, message: &Self) -> Self {
        self.counted(field, &message.0)
    }

    /// Adds a map of strings.
    pub(crate) fn pairs(mut self, field: u64, pairs: &[(String, String)]) -> Self {
        for (name, value) in pairs {
            self = self.message(field, &Self::new().text(1, name).text(2, value));
        }
        self
    }

    fn counted(mut self, field: u64, bytes: &[u8]) -> Self {
        varint(&mut self.0, field << 3 | 2);
        varint(&mut self.0, bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// The fields of a decoded message.
pub(crate) struct Fields(Vec<(u64, Field)>);

enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

impl Fields {
    /// Decodes a message; None if the bytes are invalid.
    pub(crate) fn read(mut bytes: &[u8]) -> Option<Self> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = take_varint(&mut bytes)?;
            let field = match key & 7 {
                0 => Field::Number(take_varint(&mut bytes)?),
                1 => Field::Bytes(take(&mut bytes, 8)?),
                2 => {
                    let length = usize::try_from(take_varint(&mut bytes)?).ok()?;
                    Field::Bytes(take(&mut bytes, length)?)
                }
                5 => Field::Bytes(take(&mut bytes, 4)?),
                _ => return None,
            };
            fields.push((key >> 3, field));
        }
        Some(Self(fields))
    }

    /// Returns the string in a field, empty if it is missing.
    pub(crate) fn text(&self, number: u64) -> String {
        let bytes = self.0.iter().find_map(|(field, value)| match value {
            Field::Bytes(bytes) if *field == number => Some(bytes),
            _ => None,
        });
        bytes.map_or_else(String::new, |bytes| {
            String::from_utf8_lossy(bytes).into_owned()
        })
    }

    /// Returns the number in a field, 0 if it is missing.
    pub(crate) fn number(&self, number: u64) -> u64 {
        let value = self.0.iter().find_map(|(field, value)| match value {
            Field::Number(value) if *field == number => Some(*value),
            _ => None,
        });
        value.unwrap_or_default()
    }
}

fn take(bytes: &mut &[u8], length: usize) -> Option<Vec<u8>> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken.to_vec())
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let inner = Message::new().text(1, "x");
        let message = Message::new()
            .number(3, 300)
            .text(1, "ö")
            .message(2, &inner);
        let fields = Fields::read(message.bytes()).map(|fields| {
            (
                fields.number(3),
                fields.text(1),
                fields.text(2),
                fields.text(9),
            )
        });
        let expected = (300, "ö".into(), "\n\u{1}x".into(), String::new());
        assert_eq!(fields, Some(expected));
        assert!(Fields::read(&[0x0a, 5, b'x']).is_none());
    }
}
