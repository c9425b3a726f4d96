//! Writes calls and reads replies in D-Bus's format: as much of it as device lists of systemd's units need.
//!
//! Pure. A reply is foreign input: its length is limited before it is read, and nothing in it is trusted. Calls are
//! little-endian, which every peer must accept; replies have the peer's byte order.

use std::borrow::Cow;

/// Limit of a message's length: a list of some ten thousand devices.
pub(crate) const MAX_LENGTH: usize = 1 << 20;
/// Length of a message's fixed header, which contains the lengths of the rest.
pub(crate) const HEAD: usize = 16;

/// A path or pattern of devices and the permitted access, as in `DeviceAllow=`.
pub(crate) type Entry = (String, String);

/// A method call.
pub(crate) struct Call<'a> {
    pub(crate) serial: u32,
    /// None for a peer without a bus.
    pub(crate) destination: Option<&'a str>,
    pub(crate) path: &'a str,
    pub(crate) interface: &'a str,
    pub(crate) member: &'a str,
    pub(crate) body: Body,
}

/// The arguments of a call.
#[derive(Default)]
pub(crate) struct Body {
    signature: &'static str,
    bytes: Writer,
}

/// The part of a reply that is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Serial number of the call.
    pub(crate) to: u32,
    /// The value, or the error's name.
    pub(crate) outcome: Result<Value, String>,
}

/// The first value of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// None, or one of another type.
    Other,
    Text(String),
    Entries(Vec<Entry>),
}

/// The bytes are not a message, or one that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Values of the message type.
mod kind {
    pub(super) const CALL: u8 = 1;
    pub(super) const RETURN: u8 = 2;
    pub(super) const ERROR: u8 = 3;
}

/// Codes of the fields of a message's header.
mod field {
    pub(super) const PATH: u8 = 1;
    pub(super) const INTERFACE: u8 = 2;
    pub(super) const MEMBER: u8 = 3;
    pub(super) const ERROR_NAME: u8 = 4;
    pub(super) const REPLY_SERIAL: u8 = 5;
    pub(super) const DESTINATION: u8 = 6;
    pub(super) const SIGNATURE: u8 = 8;
}

/// Flag: start no program for this call.
const NO_AUTO_START: u8 = 2;
const VERSION: u8 = 1;

impl Call<'_> {
    /// Returns the message.
    pub(crate) fn message(&self) -> Vec<u8> {
        let mut fields = Writer::default();
        fields.field(field::PATH, "o", self.path);
        fields.field(field::INTERFACE, "s", self.interface);
        fields.field(field::MEMBER, "s", self.member);
        if let Some(destination) = self.destination {
            fields.field(field::DESTINATION, "s", destination);
        }
        if !self.body.signature.is_empty() {
            fields.field(field::SIGNATURE, "g", self.body.signature);
        }
        let body = &self.body.bytes.0;
        let mut message = Writer(vec![b'l', kind::CALL, NO_AUTO_START, VERSION]);
        message.number(length(body));
        message.number(self.serial);
        message.number(length(&fields.0));
        message.0.extend(fields.0);
        message.align(8);
        message.0.extend(body);
        message.0
    }
}

impl Body {
    /// Arguments of `Properties.Get`.
    pub(crate) fn property(interface: &str, name: &str) -> Self {
        let mut bytes = Writer::default();
        bytes.text(interface);
        bytes.text(name);
        Self {
            signature: "ss",
            bytes,
        }
    }

    /// Arguments of `Manager.SetUnitProperties`, until the machine's next start: adds lists to a unit's `DeviceAllow`,
    /// one after the other. An empty one removes what was there.
    pub(crate) fn device_lists(unit: &str, lists: &[&[Entry]]) -> Self {
        let mut bytes = Writer::default();
        bytes.text(unit);
        bytes.number(1);
        bytes.array(8, |bytes| {
            for list in lists {
                bytes.align(8);
                bytes.text("DeviceAllow");
                bytes.signature("a(ss)");
                bytes.array(8, |bytes| {
                    for (path, access) in *list {
                        bytes.align(8);
                        bytes.text(path);
                        bytes.text(access);
                    }
                });
            }
        });
        Self {
            signature: "sba(sv)",
            bytes,
        }
    }
}

/// Returns the path of a unit's object.
pub(crate) fn unit_path(name: &str) -> String {
    let mut path = String::from("/org/freedesktop/systemd1/unit/");
    for (at, byte) in name.bytes().enumerate() {
        let is_plain = byte.is_ascii_alphabetic() || (byte.is_ascii_digit() && at > 0);
        if is_plain {
            path.push(byte.into());
        } else {
            path += &format!("_{byte:02x}");
        }
    }
    path
}

/// Writes values. Positions count from the start of the message or body, which is aligned.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn number(&mut self, number: u32) {
        self.align(4);
        self.0.extend(number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(length(text.as_bytes()));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    fn signature(&mut self, signature: &str) {
        self.0
            .push(u8::try_from(signature.len()).expect("our signatures are short"));
        self.0.extend(signature.as_bytes());
        self.0.push(0);
    }

    fn array(&mut self, alignment: usize, elements: impl FnOnce(&mut Self)) {
        self.number(0);
        let start = self.0.len();
        self.align(alignment);
        let first = self.0.len();
        elements(self);
        let length = length(&self.0[first..]);
        self.0[start - 4..start].copy_from_slice(&length.to_le_bytes());
    }

    fn field(&mut self, code: u8, kind: &str, value: &str) {
        self.align(8);
        self.0.push(code);
        self.signature(kind);
        match kind {
            "g" => self.signature(value),
            _ => self.text(value),
        }
    }
}

/// A length as a number; a message that is too long is refused before it is sent.
fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// Returns the length of a message, given its first bytes.
pub(crate) fn message_length(head: &[u8; HEAD]) -> Result<usize, Malformed> {
    let mut reader = Reader::new(head)?;
    reader.at = 4;
    let body = reader.number()? as usize;
    reader.at = 12;
    let fields = reader.number()? as usize;
    // Each number is checked, so that the sum cannot overflow.
    if body > MAX_LENGTH || fields > MAX_LENGTH {
        return Err(Malformed);
    }
    let length = (HEAD + fields).next_multiple_of(8) + body;
    (length <= MAX_LENGTH).then_some(length).ok_or(Malformed)
}

/// Parses a whole message; None if it is no reply.
pub(crate) fn parse(message: &[u8]) -> Result<Option<Reply>, Malformed> {
    let head = message.first_chunk().ok_or(Malformed)?;
    if message_length(head)? != message.len() {
        return Err(Malformed);
    }
    let kind = message[1];
    if kind != kind::RETURN && kind != kind::ERROR {
        return Ok(None);
    }
    let mut reader = Reader::new(message)?;
    let fields = reader.fields()?;
    reader.align(8)?;
    let to = fields.to.ok_or(Malformed)?;
    let outcome = match kind {
        kind::ERROR => Err(fields.error.ok_or(Malformed)?),
        _ => Ok(reader.value(fields.signature)?),
    };
    Ok(Some(Reply { to, outcome }))
}

/// The fields of a reply's header.
#[derive(Default)]
struct Fields<'a> {
    to: Option<u32>,
    error: Option<String>,
    signature: &'a [u8],
}

/// Reads values of a message.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    is_little: bool,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let is_little = match bytes.first() {
            Some(b'l') => true,
            Some(b'B') => false,
            _ => return Err(Malformed),
        };
        Ok(Self {
            bytes,
            at: 0,
            is_little,
        })
    }

    fn align(&mut self, to: usize) -> Result<(), Malformed> {
        let at = self.at.next_multiple_of(to);
        if at > self.bytes.len() {
            return Err(Malformed);
        }
        self.at = at;
        Ok(())
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(length).ok_or(Malformed)?;
        let taken = self.bytes.get(self.at..end).ok_or(Malformed)?;
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<u32, Malformed> {
        self.align(4)?;
        let bytes = self.take(4)?.try_into().map_err(|_| Malformed)?;
        Ok(if self.is_little {
            u32::from_le_bytes(bytes)
        } else {
            u32::from_be_bytes(bytes)
        })
    }

    fn text(&mut self) -> Result<Cow<'a, str>, Malformed> {
        let length = self.number()? as usize;
        let text = self.take(length)?;
        self.end_of_text()?;
        Ok(String::from_utf8_lossy(text))
    }

    fn signature(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.byte()?;
        let signature = self.take(length.into())?;
        self.end_of_text()?;
        Ok(signature)
    }

    fn end_of_text(&mut self) -> Result<(), Malformed> {
        (self.byte()? == 0).then_some(()).ok_or(Malformed)
    }

    /// Returns the end of an array whose elements have this alignment, which is also that of the position.
    fn array(&mut self, alignment: usize) -> Result<usize, Malformed> {
        let length = self.number()? as usize;
        self.align(alignment)?;
        let end = self.at.checked_add(length).ok_or(Malformed)?;
        (end <= self.bytes.len()).then_some(end).ok_or(Malformed)
    }

    fn fields(&mut self) -> Result<Fields<'a>, Malformed> {
        self.at = 12;
        let end = self.array(8)?;
        let mut fields = Fields::default();
        while self.at < end {
            self.align(8)?;
            let code = self.byte()?;
            match (code, self.signature()?) {
                (field::REPLY_SERIAL, b"u") => fields.to = Some(self.number()?),
                (field::ERROR_NAME, b"s") => fields.error = Some(self.text()?.into_owned()),
                (field::SIGNATURE, b"g") => fields.signature = self.signature()?,
                (_, b"s" | b"o") => {
                    self.text()?;
                }
                (_, b"u") => {
                    self.number()?;
                }
                (_, b"g") => {
                    self.signature()?;
                }
                // The standard has no others.
                _ => return Err(Malformed),
            }
        }
        (self.at == end).then_some(fields).ok_or(Malformed)
    }

    fn value(&mut self, signature: &[u8]) -> Result<Value, Malformed> {
        match signature {
            b"s" => Ok(Value::Text(self.text()?.into_owned())),
            b"a(ss)" => self.entries().map(Value::Entries),
            b"v" => match self.signature()? {
                // No property that we ask for contains another variant.
                b"v" => Ok(Value::Other),
                inner => self.value(inner),
            },
            _ => Ok(Value::Other),
        }
    }

    fn entries(&mut self) -> Result<Vec<Entry>, Malformed> {
        let end = self.array(8)?;
        let mut entries = Vec::new();
        while self.at < end {
            self.align(8)?;
            let path = self.text()?.into_owned();
            entries.push((path, self.text()?.into_owned()));
        }
        (self.at == end).then_some(entries).ok_or(Malformed)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
