//! Frames messages between two processes: the length (four bytes, little-endian) and JSON.
//!
//! Either process may have been taken over by others: a message has a limit, and is parsed without panics.
#![forbid(unsafe_code)]

use std::io::{self, Read};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Serialises a message.
///
/// # Errors
/// It is too long: `InvalidInput`.
pub fn encode(message: &impl Serialize, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "it is too long");
    let length = bytes.len().checked_sub(4).filter(|n| *n <= limit);
    let length = length.and_then(|n| u32::try_from(n).ok());
    let length = length.ok_or_else(too_long)?.to_le_bytes();
    for (byte, value) in bytes.iter_mut().zip(length) {
        *byte = value;
    }
    Ok(bytes)
}

/// Removes the first message from the front of `bytes`; None if it is incomplete.
///
/// # Errors
/// They are no message.
pub fn take<T: DeserializeOwned>(bytes: &mut Vec<u8>, limit: usize) -> io::Result<Option<T>> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > limit {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let Some(body) = rest.get(..length) else {
        return Ok(None);
    };
    let message = serde_json::from_slice(body)?;
    bytes.drain(..4 + length);
    Ok(Some(message))
}

/// Waits for a message, and reads no byte more; None at the end.
///
/// # Errors
/// What arrives is no message, or ends within one; the system's.
pub fn receive<T: DeserializeOwned>(mut from: impl Read, limit: usize) -> io::Result<Option<T>> {
    let mut bytes = Vec::new();
    from.by_ref().take(4).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    // Refuses a length beyond the limit before its bytes are read.
    take::<T>(&mut bytes, limit)?;
    let length = bytes.first_chunk().map_or(0, |n| u32::from_le_bytes(*n));
    from.take(length.into()).read_to_end(&mut bytes)?;
    let message = take(&mut bytes, limit)?;
    message.map(Some).ok_or(io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_one_by_one() {
        let mut stream = Vec::new();
        for text in ["a\nb", "", "c"] {
            stream.extend(encode(&text, 6).unwrap());
        }
        let sent = stream.clone();
        let mut from = sent.as_slice();
        for text in ["a\nb", "", "c"] {
            let received: Option<String> = receive(&mut from, 6).unwrap();
            assert_eq!(received.as_deref(), Some(text));
            let taken: Option<String> = take(&mut stream, 6).unwrap();
            assert_eq!(taken.as_deref(), Some(text));
            assert_eq!(from, stream);
        }
        assert_eq!(receive::<String>(from, 6).unwrap(), None);
    }

    #[test]
    fn halves_wait_and_nonsense_is_refused() {
        let whole = encode(&7, 1).unwrap();
        for end in 0..whole.len() {
            let mut half = whole.get(..end).unwrap().to_vec();
            assert_eq!(receive::<u8>(half.as_slice(), 1).is_ok(), end == 0, "{end}");
            assert_eq!(take::<u8>(&mut half, 1).unwrap(), None, "{end}");
        }
        let deep = [&1000_u32.to_le_bytes()[..], &[b'['; 1000]].concat();
        for bytes in [
            &b"\xff\xff\xff\xff"[..],
            b"\x02\x00\x80\x00",
            b"\x00\x00\x00\x00",
            b"\x02\x00\x00\x00{}",
            b"\x03\x00\x00\x00\xff\xfe\xfd",
            b"\x02\x00\x00\x00-1",
            &deep,
        ] {
            assert!(receive::<u8>(bytes, 1000).is_err(), "{bytes:?}");
            assert!(take::<u8>(&mut bytes.to_vec(), 1000).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_neither_sent_nor_taken() {
        let text = "x".repeat(98);
        let bytes = encode(&text, 100).unwrap();
        assert_eq!(
            encode(&text, 99).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert!(receive::<String>(bytes.as_slice(), 99).is_err());
        assert!(take::<String>(&mut bytes.clone(), 99).is_err());
    }
}
