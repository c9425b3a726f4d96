//! Answers on a socket like systemd: a unit with a list of devices, or an answer that no systemd would give.
//!
//! It reads calls by itself, without the code under test.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// An entry of `DeviceAllow=`: a path and the access.
pub type Entry = (String, String);

/// Called with the whole list when it was changed.
pub type Change = Box<dyn Fn(&[Entry]) + Send + Sync>;

/// The way to answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// As systemd.
    #[default]
    Honest,
    /// Accepts connections and says nothing.
    Silent,
    /// Refuses the authentication.
    Rejects,
    /// Answers questions, and refuses changes.
    ReadOnly,
    /// Answers questions, and never a change, which it makes.
    SilentAboutChanges,
    /// Answers every call with these bytes.
    Says(Vec<u8>),
    /// Sends signals without end.
    Signals,
}

/// A unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Its name.
    pub name: String,
    /// The path of its cgroup in the hierarchy.
    pub control_group: String,
    /// `auto`, `closed` or `strict`.
    pub policy: String,
    /// Its list.
    pub allowed: Vec<Entry>,
}

/// A socket that is served as long as the process lives.
pub struct Systemd {
    state: Arc<State>,
}

struct State {
    unit: Mutex<Unit>,
    /// Names of the called methods, with the arguments that are texts.
    calls: Mutex<Vec<String>>,
    manner: Manner,
    change: Option<Change>,
}

impl fmt::Debug for Systemd {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.unit.fmt(out)
    }
}

impl Systemd {
    /// Serves a unit on a new socket.
    ///
    /// # Errors
    /// As of the system calls.
    pub fn start(
        socket: &Path,
        unit: Unit,
        manner: Manner,
        change: Option<Change>,
    ) -> io::Result<Self> {
        let listener = UnixListener::bind(socket)?;
        let state = Arc::new(State {
            unit: Mutex::new(unit),
            calls: Mutex::default(),
            manner,
            change,
        });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || state.serve(stream));
            }
        });
        Ok(Self { state })
    }

    /// Returns the unit as it is now.
    pub fn unit(&self) -> Unit {
        locked(&self.state.unit).clone()
    }

    /// Returns the calls so far.
    pub fn calls(&self) -> Vec<String> {
        locked(&self.state.calls).clone()
    }
}

/// Makes a directory that can be mounted at /run: with systemd's sockets below the returned path of `systemd`.
///
/// # Errors
/// As of the system calls.
pub fn run_directory(directory: &Path) -> io::Result<PathBuf> {
    std::fs::create_dir_all(directory.join("systemd/system"))?;
    std::fs::create_dir_all(directory.join("dbus"))?;
    Ok(directory.join("systemd"))
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A received call.
struct Call {
    serial: u32,
    member: String,
    body: Vec<u8>,
}

impl State {
    fn serve(&self, mut stream: UnixStream) {
        if self.manner == Manner::Silent {
            thread::sleep(std::time::Duration::from_secs(3600));
        }
        // The client ends the connection.
        let _ = self.converse(&mut stream);
    }

    fn converse(&self, stream: &mut UnixStream) -> io::Result<()> {
        let mut line = Vec::new();
        while !line.ends_with(b"BEGIN\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            line.extend(byte);
        }
        let uid = nix::unistd::geteuid().to_string();
        let uid: String = uid.bytes().map(|digit| format!("{digit:02x}")).collect();
        let expected = format!("\0AUTH EXTERNAL {uid}\r\nBEGIN\r\n");
        if self.manner == Manner::Rejects || line != expected.as_bytes() {
            stream.write_all(b"REJECTED EXTERNAL\r\n")?;
        }
        stream.write_all(b"OK 0123456789abcdef0123456789abcdef\r\n")?;
        loop {
            let call = receive(stream)?;
            match &self.manner {
                Manner::Says(bytes) => stream.write_all(bytes)?,
                Manner::Signals => loop {
                    stream.write_all(&message(4, 0, "", &[]))?;
                },
                _ => {
                    let answer = self.answer(&call);
                    let is_change = call.member == "SetUnitProperties";
                    if !(is_change && self.manner == Manner::SilentAboutChanges) {
                        stream.write_all(&answer)?;
                    }
                }
            }
        }
    }

    fn answer(&self, call: &Call) -> Vec<u8> {
        let mut reader = Reader {
            bytes: &call.body,
            at: 0,
        };
        let mut texts = vec![call.member.clone()];
        let reply = match call.member.as_str() {
            "Hello" => message(2, call.serial, "s", &text(":1.7")),
            "Get" => {
                texts.extend([reader.text(), reader.text()]);
                self.property(call.serial, &texts[2])
            }
            "SetUnitProperties" => {
                texts.push(reader.text());
                texts.push(format!("runtime={}", reader.number()));
                let lists = reader.lists();
                texts.extend(lists.iter().map(|list| {
                    let entries: Vec<_> = list.iter().map(|(p, a)| format!("{p} {a}")).collect();
                    format!("[{}]", entries.join(", "))
                }));
                self.set(call.serial, &texts[1], &lists)
            }
            _ => error(call.serial, "org.freedesktop.DBus.Error.UnknownMethod"),
        };
        locked(&self.calls).push(texts.join(" "));
        reply
    }

    fn property(&self, serial: u32, name: &str) -> Vec<u8> {
        let unit = locked(&self.unit);
        let (kind, value) = match name {
            "ControlGroup" => ("s", text(&unit.control_group)),
            "DevicePolicy" => ("s", text(&unit.policy)),
            "DeviceAllow" => ("a(ss)", entries(&unit.allowed)),
            _ => return error(serial, "org.freedesktop.DBus.Error.UnknownProperty"),
        };
        let mut body = vec![u8::try_from(kind.len()).unwrap_or(0)];
        body.extend(kind.as_bytes());
        body.push(0);
        // For a list, this is a multiple of eight.
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(value);
        message(2, serial, "v", &body)
    }

    fn set(&self, serial: u32, name: &str, lists: &[Vec<Entry>]) -> Vec<u8> {
        let mut unit = locked(&self.unit);
        if name != unit.name {
            return error(serial, "org.freedesktop.systemd1.NoSuchUnit");
        }
        if self.manner == Manner::ReadOnly {
            return error(serial, "org.freedesktop.DBus.Error.AccessDenied");
        }
        for list in lists {
            if list.is_empty() {
                unit.allowed.clear();
            }
            let old = unit.allowed.iter().enumerate();
            let mut places: HashMap<String, usize> =
                old.map(|(at, (path, _))| (path.clone(), at)).collect();
            for (path, access) in list {
                let at = *places.entry(path.clone()).or_insert(unit.allowed.len());
                match unit.allowed.get_mut(at) {
                    Some((_, old)) => old.clone_from(access),
                    None => unit.allowed.push((path.clone(), access.clone())),
                }
            }
        }
        if let Some(change) = &self.change {
            change(&unit.allowed);
        }
        message(2, serial, "", &[])
    }
}

fn receive(stream: &mut UnixStream) -> io::Result<Call> {
    let mut head = [0; 16];
    stream.read_exact(&mut head)?;
    let number = |at: usize| {
        let bytes = head.get(at..at + 4).and_then(|b| b.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes)
    };
    let (body, serial, fields) = (number(4) as usize, number(8), number(12) as usize);
    let mut rest = vec![0; fields.next_multiple_of(8) + body];
    stream.read_exact(&mut rest)?;
    let body = rest.split_off(fields.next_multiple_of(8));
    let mut reader = Reader {
        bytes: &rest,
        at: 0,
    };
    let mut member = String::new();
    while reader.at < fields {
        reader.align(8);
        let code = reader.byte();
        let kind = reader.signature();
        let value = match kind.as_str() {
            "g" => reader.signature(),
            _ => reader.text(),
        };
        if code == 3 {
            member = value;
        }
    }
    Ok(Call {
        serial,
        member,
        body,
    })
}

/// Builds a reply or a signal.
pub fn message(kind: u8, to: u32, signature: &str, body: &[u8]) -> Vec<u8> {
    named_message(kind, to, signature, body, None)
}

fn error(to: u32, name: &str) -> Vec<u8> {
    named_message(3, to, "", &[], Some(name))
}

fn named_message(kind: u8, to: u32, signature: &str, body: &[u8], name: Option<&str>) -> Vec<u8> {
    let mut fields = vec![5, 1, b'u', 0];
    fields.extend(to.to_le_bytes());
    if let Some(name) = name {
        fields.extend([4, 1, b's', 0]);
        fields.extend(text(name));
        fields.resize(fields.len().next_multiple_of(8), 0);
    }
    if !signature.is_empty() {
        fields.extend([8, 1, b'g', 0, u8::try_from(signature.len()).unwrap_or(0)]);
        fields.extend(signature.as_bytes());
        fields.push(0);
    }
    let mut message = vec![b'l', kind, 0, 1];
    message.extend(length(body).to_le_bytes());
    message.extend(1u32.to_le_bytes());
    message.extend(length(&fields).to_le_bytes());
    message.extend(&fields);
    message.resize(message.len().next_multiple_of(8), 0);
    message.extend(body);
    message
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = length(text.as_bytes()).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes.push(0);
    bytes
}

/// Builds a list, at a position that is a multiple of eight.
fn entries(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    for (path, access) in entries {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.extend(text(path));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(text(access));
    }
    let length = length(&bytes[8..]).to_le_bytes();
    bytes[..4].copy_from_slice(&length);
    bytes
}

/// Reads arguments; what is missing is empty.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, length: usize) -> &[u8] {
        let end = self.at.saturating_add(length);
        let taken = self.bytes.get(self.at..end).unwrap_or_default();
        self.at = end;
        taken
    }

    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn number(&mut self) -> u32 {
        self.align(4);
        self.take(4).try_into().map_or(0, u32::from_le_bytes)
    }

    fn text(&mut self) -> String {
        let length = self.number() as usize;
        let text = String::from_utf8_lossy(self.take(length)).into_owned();
        self.byte();
        text
    }

    fn signature(&mut self) -> String {
        let length = self.byte();
        let text = String::from_utf8_lossy(self.take(length.into())).into_owned();
        self.byte();
        text
    }

    /// Reads an array of properties, all lists of devices.
    fn lists(&mut self) -> Vec<Vec<Entry>> {
        let length = self.number() as usize;
        self.align(8);
        let end = self.at + length;
        let mut lists = Vec::new();
        while self.at < end {
            self.align(8);
            assert_eq!(self.text(), "DeviceAllow");
            assert_eq!(self.signature(), "a(ss)");
            let length = self.number() as usize;
            self.align(8);
            let end = self.at + length;
            let mut list = Vec::new();
            while self.at < end {
                self.align(8);
                let path = self.text();
                list.push((path, self.text()));
            }
            lists.push(list);
        }
        assert_eq!(self.at, self.bytes.len());
        lists
    }
}
