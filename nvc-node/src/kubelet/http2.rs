//! The server's side of an HTTP/2 connection with unary gRPC calls of small messages, which does not judge `:authority`.
//!
//! The kubelet's registration call has the socket's path there, and h2 answers that with a protocol error (up to
//! Kubernetes 1.36). This is a state machine without I/O: it takes the peer's bytes and returns the calls that are
//! complete and the bytes to send. Neither side uses HPACK's dynamic table.

use std::borrow::Cow;

use loona_hpack::Decoder;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEAD_LEN: usize = 9;

/// Limits. The largest message of a registration or a probe has some hundred bytes.
const MAX_FRAME: usize = 16 << 10;
const MAX_BLOCK: usize = 4 << 10;
const MAX_MESSAGE: usize = 4 << 10;
const MAX_PATH: usize = 256;
const MAX_STREAMS: usize = 4;
/// The window of a connection and of a stream, likewise.
const WINDOW: i64 = 65535;

// Frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

// Flags.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

// Settings.
const HEADER_TABLE_SIZE: u16 = 1;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// Errors of a connection or a stream (RFC 9113, section 7).
const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const COMPRESSION_ERROR: u32 = 9;
const ENHANCE_YOUR_CALM: u32 = 11;

/// Codes of gRPC.
pub(super) const INVALID_ARGUMENT: u8 = 3;
pub(super) const NOT_FOUND: u8 = 5;
pub(super) const UNIMPLEMENTED: u8 = 12;

/// A connection.
pub struct Connection {
    /// What has arrived and makes no whole frame yet.
    input: Vec<u8>,
    is_greeted: bool,
    decoder: Decoder<'static>,
    /// A header block that continues in the next frame.
    block: Option<Block>,
    streams: Vec<Stream>,
    last_stream: u32,
    /// What the peer lets us send, on the connection and on a new stream.
    window: i64,
    stream_window: i64,
}

struct Block {
    stream: u32,
    ends: bool,
    bytes: Vec<u8>,
}

struct Stream {
    id: u32,
    path: String,
    body: Vec<u8>,
}

/// A call whose request is complete.
#[derive(Debug, PartialEq, Eq)]
pub struct Call {
    stream: u32,
    /// `/package.Service/Method`.
    pub path: String,
    pub message: Vec<u8>,
}

/// Why a connection must end.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken(u32);

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Default for Connection {
    fn default() -> Self {
        let mut decoder = Decoder::new();
        // With a table, each byte of a block could stand for 4 KiB.
        decoder.set_max_allowed_table_size(0);
        decoder.set_max_table_size(0);
        Self {
            input: Vec::new(),
            is_greeted: false,
            decoder,
            block: None,
            streams: Vec::new(),
            last_stream: 0,
            window: WINDOW,
            stream_window: WINDOW,
        }
    }
}

impl Connection {
    /// Returns the first bytes to send.
    pub fn greeting() -> Vec<u8> {
        let mut output = Vec::new();
        let mut settings = Vec::new();
        for (setting, value) in [
            (HEADER_TABLE_SIZE, 0),
            (MAX_CONCURRENT_STREAMS, number(MAX_STREAMS)),
        ] {
            settings.extend(setting.to_be_bytes());
            settings.extend(value.to_be_bytes());
        }
        frame(&mut output, SETTINGS, 0, 0, &settings);
        output
    }

    /// Takes bytes of the peer, appends bytes to send, and returns the calls that are now complete.
    ///
    /// # Errors
    /// The connection must be closed; the last bytes to send are among the others.
    pub fn receive(&mut self, bytes: &[u8], output: &mut Vec<u8>) -> Result<Vec<Call>, Broken> {
        self.input.extend_from_slice(bytes);
        let mut calls = Vec::new();
        let done = self.frames(&mut calls, output);
        if let Err(Broken(code)) = &done {
            let mut payload = self.last_stream.to_be_bytes().to_vec();
            payload.extend(code.to_be_bytes());
            frame(output, GOAWAY, 0, 0, &payload);
        }
        done.map(|()| calls)
    }

    fn frames(&mut self, calls: &mut Vec<Call>, output: &mut Vec<u8>) -> Result<(), Broken> {
        let input = std::mem::take(&mut self.input);
        let mut rest = input.as_slice();
        if !self.is_greeted {
            match rest.strip_prefix(PREFACE) {
                Some(after) => rest = after,
                None if PREFACE.starts_with(rest) => {
                    self.input = input;
                    return Ok(());
                }
                None => return Err(Broken(PROTOCOL_ERROR)),
            }
            self.is_greeted = true;
        }
        while let Some((head, after)) = rest.split_first_chunk::<HEAD_LEN>() {
            let [l2, l1, l0, kind, flags, id @ ..] = *head;
            let len = usize::from(l2) << 16 | usize::from(l1) << 8 | usize::from(l0);
            if len > MAX_FRAME {
                return Err(Broken(FRAME_SIZE_ERROR));
            }
            let Some((payload, after)) = after.split_at_checked(len) else {
                break;
            };
            let id = u32::from_be_bytes(id) & !(1 << 31);
            calls.extend(self.frame(kind, flags, id, payload, output)?);
            rest = after;
        }
        self.input = rest.to_vec();
        Ok(())
    }

    fn frame(
        &mut self,
        kind: u8,
        flags: u8,
        id: u32,
        payload: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Option<Call>, Broken> {
        if self.block.is_some() != (kind == CONTINUATION) {
            return Err(Broken(PROTOCOL_ERROR));
        }
        match kind {
            DATA => return self.data(flags, id, payload, output),
            HEADERS => {
                let mut bytes = unpadded(flags, payload)?;
                if flags & PRIORITY != 0 {
                    bytes = bytes.get(5..).ok_or(Broken(FRAME_SIZE_ERROR))?;
                }
                let block = Block {
                    stream: id,
                    ends: flags & END_STREAM != 0,
                    bytes: bytes.to_vec(),
                };
                return self.block(block, flags, output);
            }
            CONTINUATION => {
                let mut block = self.block.take().ok_or(Broken(PROTOCOL_ERROR))?;
                if block.stream != id {
                    return Err(Broken(PROTOCOL_ERROR));
                }
                block.bytes.extend_from_slice(payload);
                return self.block(block, flags, output);
            }
            RST_STREAM => self.streams.retain(|stream| stream.id != id),
            SETTINGS if flags & ACK == 0 => {
                self.settings(payload)?;
                frame(output, SETTINGS, ACK, 0, &[]);
            }
            PING if payload.len() != 8 => return Err(Broken(FRAME_SIZE_ERROR)),
            PING if flags & ACK == 0 => frame(output, PING, ACK, 0, payload),
            WINDOW_UPDATE if id == 0 => {
                let bytes = payload.try_into().map_err(|_| Broken(FRAME_SIZE_ERROR))?;
                self.window += i64::from(u32::from_be_bytes(bytes) & !(1 << 31));
                if self.window > i64::from(u32::MAX >> 1) {
                    return Err(Broken(FLOW_CONTROL_ERROR));
                }
            }
            PUSH_PROMISE => return Err(Broken(PROTOCOL_ERROR)),
            _ => {}
        }
        Ok(None)
    }

    fn settings(&mut self, payload: &[u8]) -> Result<(), Broken> {
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(Broken(FRAME_SIZE_ERROR));
        }
        for [i1, i0, value @ ..] in settings {
            if u16::from_be_bytes([*i1, *i0]) == INITIAL_WINDOW_SIZE {
                self.stream_window = i64::from(u32::from_be_bytes(*value));
            }
        }
        Ok(())
    }

    /// Takes a header block, or a part of it.
    fn block(
        &mut self,
        block: Block,
        flags: u8,
        output: &mut Vec<u8>,
    ) -> Result<Option<Call>, Broken> {
        if block.bytes.len() > MAX_BLOCK {
            return Err(Broken(ENHANCE_YOUR_CALM));
        }
        if flags & END_HEADERS == 0 {
            self.block = Some(block);
            return Ok(None);
        }
        let (id, ends, bytes) = (block.stream, block.ends, block.bytes);
        let mut path = None;
        let take = |name: Cow<'_, [u8]>, value: Cow<'_, [u8]>| {
            if *name == *b":path" && value.len() <= MAX_PATH {
                path = String::from_utf8(value.into_owned()).ok();
            }
        };
        let decoded = self.decoder.decode_with_cb(&bytes, take);
        decoded.map_err(|_| Broken(COMPRESSION_ERROR))?;
        if self.streams.iter().any(|stream| stream.id == id) {
            // Trailers.
            return Ok(if ends { self.end(id, output) } else { None });
        }
        if id <= self.last_stream || id.is_multiple_of(2) {
            return Err(Broken(PROTOCOL_ERROR));
        }
        self.last_stream = id;
        let code = match path {
            Some(path) if self.streams.len() < MAX_STREAMS => {
                let body = Vec::new();
                self.streams.push(Stream { id, path, body });
                return Ok(if ends { self.end(id, output) } else { None });
            }
            Some(_) => REFUSED_STREAM,
            None => PROTOCOL_ERROR,
        };
        frame(output, RST_STREAM, 0, id, &code.to_be_bytes());
        Ok(None)
    }

    fn data(
        &mut self,
        flags: u8,
        id: u32,
        payload: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Option<Call>, Broken> {
        if id == 0 || id > self.last_stream {
            return Err(Broken(PROTOCOL_ERROR));
        }
        if !payload.is_empty() {
            let len = number(payload.len()).to_be_bytes();
            frame(output, WINDOW_UPDATE, 0, 0, &len);
        }
        let bytes = unpadded(flags, payload)?;
        // Of a stream that was refused, some may still come.
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id) else {
            return Ok(None);
        };
        stream.body.extend_from_slice(bytes);
        if stream.body.len() > MAX_MESSAGE {
            self.streams.retain(|stream| stream.id != id);
            frame(output, RST_STREAM, 0, id, &ENHANCE_YOUR_CALM.to_be_bytes());
            return Ok(None);
        }
        let ends = flags & END_STREAM != 0;
        Ok(if ends { self.end(id, output) } else { None })
    }

    /// Returns the call of a stream whose request has ended.
    fn end(&mut self, id: u32, output: &mut Vec<u8>) -> Option<Call> {
        let place = self.streams.iter().position(|stream| stream.id == id)?;
        let Stream { path, body, .. } = self.streams.swap_remove(place);
        // One message, not compressed, after its length.
        if let Some(([0, len @ ..], message)) = body.split_first_chunk::<5>()
            && usize::try_from(u32::from_be_bytes(*len)) == Ok(message.len())
        {
            return Some(Call {
                stream: id,
                path,
                message: message.to_vec(),
            });
        }
        refuse(output, id, INVALID_ARGUMENT);
        None
    }

    /// Appends the answer to a call: a message, or a code of gRPC.
    ///
    /// # Errors
    /// The peer does not let us send it.
    pub fn answer(
        &mut self,
        call: &Call,
        answer: Result<Vec<u8>, u8>,
        output: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        let message = match answer {
            Ok(message) => message,
            Err(code) => {
                refuse(output, call.stream, code);
                return Ok(());
            }
        };
        let mut body = vec![0];
        body.extend(number(message.len()).to_be_bytes());
        body.extend(message);
        let len = i64::from(number(body.len()));
        // Nobody who calls these methods gives less than the protocol's default.
        if len > self.window || len > self.stream_window {
            return Err(Broken(FLOW_CONTROL_ERROR));
        }
        self.window -= len;
        frame(output, HEADERS, END_HEADERS, call.stream, &head());
        frame(output, DATA, 0, call.stream, &body);
        let flags = END_HEADERS | END_STREAM;
        frame(output, HEADERS, flags, call.stream, &status(0));
        Ok(())
    }
}

/// Appends an answer without a message.
fn refuse(output: &mut Vec<u8>, id: u32, code: u8) {
    let block = [head(), status(code)].concat();
    frame(output, HEADERS, END_HEADERS | END_STREAM, id, &block);
}

/// Encodes `:status: 200` and the type of the content.
fn head() -> Vec<u8> {
    // Entries 8 and 31 of the static table.
    literal(vec![0x88, 0x0f, 31 - 15], "application/grpc")
}

/// Encodes the trailer with a code of gRPC.
fn status(code: u8) -> Vec<u8> {
    let name = literal(vec![0], "grpc-status");
    literal(name, &code.to_string())
}

/// Appends a string as HPACK has it.
fn literal(mut block: Vec<u8>, text: &str) -> Vec<u8> {
    // All of them are shorter than 127 bytes.
    block.push(u8::try_from(text.len()).unwrap_or_default());
    block.extend(text.bytes());
    block
}

fn frame(output: &mut Vec<u8>, kind: u8, flags: u8, id: u32, payload: &[u8]) {
    let [_, l2, l1, l0] = number(payload.len()).to_be_bytes();
    output.extend([l2, l1, l0, kind, flags]);
    output.extend(id.to_be_bytes());
    output.extend(payload);
}

/// Removes the padding of a frame.
fn unpadded(flags: u8, payload: &[u8]) -> Result<&[u8], Broken> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let (len, rest) = payload.split_first().ok_or(Broken(FRAME_SIZE_ERROR))?;
    let end = rest.len().checked_sub(usize::from(*len));
    let bytes = end.and_then(|end| rest.get(..end));
    bytes.ok_or(Broken(PROTOCOL_ERROR))
}

/// Converts a length, which is always small.
fn number(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "http2/tests.rs"] // the fuzz target has this file by its path
mod tests;
