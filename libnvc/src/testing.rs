//! Lets tests outside of the crate in: fuzz targets to the parsers, the tests of device cgroups to bpf(2).
//!
//! Not part of the library's interface. Each function hands its arguments on and turns what it gets into plain data;
//! what must hold of that is said by whoever calls (`fuzz/fuzz_targets`).

use std::cell::Cell;
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

use crate::apply::cgroup::{program, v1};
use crate::apply::ldconfig;
use crate::apply::mount::attach;
use crate::container::{self, DeviceCgroup};
use crate::elf;
use crate::error::Result;
use crate::host::query::protocol::{self, Message};
use crate::host::{DeviceInfo, DeviceNumber, DriverVersions, device, nvcaps, procfs};
use crate::ldcache::listing::Listing;
use crate::ldcache::merge::{self, Fate, Found, Searched};
use crate::ldcache::{conf, format};
use crate::plan::profile;

pub use crate::apply::cgroup::v2::exchange_one_after_the_other;
pub use crate::sys::bpf::{
    Attached, BPF_F_ALLOW_MULTI, BPF_F_ALLOW_OVERRIDE, BPF_F_REPLACE, Instruction, ProgramInfo,
    attach, create_link, create_map, load_program, program_by_id, program_info, query,
};

/// Flags, name and path of an entry of a loader cache.
pub type CacheEntry<'a> = (i32, &'a [u8], &'a [u8]);

/// The entries of a loader cache; none if the bytes are not one.
pub fn ldcache(bytes: &[u8]) -> Option<Vec<CacheEntry<'_>>> {
    let entries = format::Cache::parse(bytes)?.entries();
    Some(entries.map(|e| (e.flags, e.key, e.value)).collect())
}

/// A loader cache, read and written again.
#[derive(Debug)]
pub struct Rewritten {
    /// As it is.
    pub same: Vec<u8>,
    /// After a directory was searched.
    pub updated: Vec<u8>,
}

/// Writes a loader cache again after libraries were found in `directory`, which the cache calls as one of those that
/// `is_searched` tells. None if it is not sound, or would be too large.
pub fn rewritten_ldcache(
    bytes: &[u8],
    directory: &[u8],
    found: &[(&[u8], i32)],
    is_searched: impl Fn(&[u8]) -> bool,
) -> Option<Rewritten> {
    let listing = Listing::parse(bytes).ok()?;
    let found = found.iter().map(|(name, flags)| Found::new(name, *flags));
    let searched = [Searched {
        path: directory.to_vec(),
        found: found.collect(),
    }];
    let routes = merge::routes(
        &listing.directories().ok()?,
        &searched,
        |base| match is_searched(base) {
            true => Fate::Search(0),
            false => Fate::Keep,
        },
    );
    let lines = merge::update(&listing, &routes, &searched);
    Some(Rewritten {
        same: listing.form.write(&listing.lines)?,
        updated: listing.form.write(&lines)?,
    })
}

/// What an ELF file says.
#[derive(Debug, PartialEq, Eq)]
pub struct Elf {
    /// Its ABI note, or why it has none.
    pub abi: std::result::Result<[u32; 4], String>,
    /// Whether it needs a library whose name begins with a given one, or why that is not known.
    pub needs: std::result::Result<bool, String>,
    /// How many bytes were read for all that.
    pub read: usize,
}

/// Looks into an ELF file; none if it has no such headers.
pub fn elf(bytes: &[u8], names: &[&str]) -> Option<Elf> {
    let read = Cell::new(0);
    let library = elf::Library::open(Counted { bytes, read: &read }).ok()?;
    Some(Elf {
        abi: library.abi().map_err(|oddity| oddity.to_string()),
        needs: library.needs(names).map_err(|oddity| oddity.to_string()),
        read: read.get(),
    })
}

/// A file in memory that counts how much of it is read.
struct Counted<'a> {
    bytes: &'a [u8],
    read: &'a Cell<usize>,
}

impl elf::Source for Counted<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let tail = usize::try_from(offset)
            .ok()
            .and_then(|at| self.bytes.get(at..));
        let length = io::Read::read(&mut tail.unwrap_or_default(), buffer)?;
        self.read.set(self.read.get().saturating_add(length));
        Ok(length)
    }
}

/// Whether the first bytes of a program name a loader; none if they are not an ELF program's.
pub fn has_interpreter(head: &[u8]) -> Option<bool> {
    ldconfig::program::has_interpreter(head)
}

/// The device cgroup that a `/proc/PID/cgroup` and a `/proc/PID/mountinfo` lead to.
///
/// # Errors
/// As [`Container::discover`](crate::container::Container::discover).
pub fn device_cgroup(proc_cgroup: &[u8], mountinfo: &[u8]) -> Result<DeviceCgroup> {
    container::cgroup::locate(proc_cgroup, mountinfo)
}

/// Ids of the shared mounts in a mountinfo.
pub fn shared_mounts(mountinfo: &str) -> HashSet<u64> {
    attach::shared_mounts(mountinfo)
}

/// What is written to devices.allow so that a device can be read and written, for a devices.list.
pub fn missing_rule(devices_list: &str, device: DeviceNumber) -> Option<String> {
    v1::Present::parse(devices_list).missing(device)
}

/// Major number of a driver in a /proc/devices.
pub fn character_major(devices: &[u8], driver: &str) -> Option<u32> {
    nvcaps::character_major(devices, driver)
}

/// Name, GPU and device of each capability in a mig-minors.
pub fn mig_minors(text: &str) -> Vec<(&str, Option<u32>, u32)> {
    nvcaps::mig_minors(text)
        .map(|(name, minor)| (name, nvcaps::gpu_of(name), minor))
        .collect()
}

/// The number on a line `key: number`, in a capability's file and in the kernel module's `params`.
pub fn procfs_number(text: &str, key: &str) -> Option<u32> {
    procfs::number(text, key)
}

/// The kernel module's version in its `version`.
pub fn module_version(text: &str) -> Option<&str> {
    procfs::parse_version(text)
}

/// The `params` that a container gets.
pub fn container_params(text: &str) -> String {
    procfs::without_device_creation(text)
}

/// What a query process's bytes are taken for.
#[derive(Debug)]
pub struct Reply {
    /// Each message, written anew.
    pub messages: Vec<Vec<u8>>,
    /// How many bytes are left, of a message that is not complete.
    pub rest: usize,
    /// Whether a message was none.
    pub garbled: bool,
    /// The last versions.
    pub versions: Option<Result<DriverVersions>>,
    /// The last GPUs.
    pub devices: Option<Result<DeviceInfo>>,
}

/// Reads a query process's reply.
pub fn reply(bytes: &[u8]) -> Reply {
    let mut bytes = bytes.to_vec();
    let mut reply = Reply {
        messages: Vec::new(),
        rest: 0,
        garbled: false,
        versions: None,
        devices: None,
    };
    loop {
        match protocol::take::<Message>(&mut bytes) {
            Ok(Some(message)) => {
                reply.messages.extend(protocol::encode(&message));
                match message {
                    Message::Ready(versions) => reply.versions = Some(device::versions(&versions)),
                    Message::Gpus(Ok(gpus)) => {
                        reply.devices = Some(DeviceInfo::from_reports(&gpus));
                    }
                    _ => {}
                }
            }
            Ok(None) => break,
            Err(protocol::Garbled) => {
                reply.garbled = true;
                break;
            }
        }
    }
    reply.rest = bytes.len();
    reply
}

/// The application profile that shows the GPUs with these minor numbers.
pub fn profile(minors: &[u32]) -> String {
    profile::text(&profile::mask(minors))
}

/// An application profile with one more GPU; none if the old one is not understood.
pub fn profile_with(old: &str, minor: u32) -> Option<String> {
    profile::with_visible(old, minor)
}

/// A line of an ld.so.conf: a directory, or the directory and the pattern of what is included.
pub type ConfLine = (PathBuf, Option<Vec<u8>>);

/// The lines of an ld.so.conf.
pub fn ld_so_conf(text: &[u8]) -> Vec<ConfLine> {
    let lines = conf::parse(text).into_iter();
    lines
        .map(|line| match line {
            conf::Line::Directory(path) => (path, None),
            conf::Line::Include(directory, pattern) => (directory, Some(pattern)),
        })
        .collect()
}

/// Whether a pattern of an ld.so.conf has a name.
pub fn pattern_matches(pattern: &[u8], name: &[u8]) -> bool {
    conf::matches(pattern, name)
}

/// What is kept of a program's output, and how much is not.
pub fn kept_output(pieces: &[&[u8]]) -> (Vec<String>, u64) {
    let mut output = ldconfig::output::Output::default();
    for piece in pieces {
        output.feed(piece);
    }
    output.finish();
    (output.lines().to_vec(), output.left_out())
}

/// Whether a device program allows an access to a device; none if that is not known.
pub fn decide(
    program: &[Instruction],
    kind: u32,
    access: u32,
    device: DeviceNumber,
) -> Option<bool> {
    program::interpret::decide(program, kind, access, device)
}

/// A device program that allows some character devices more.
pub fn extend(program: &[Instruction], added: &[DeviceNumber]) -> Vec<Instruction> {
    program::extend(program, added)
}

/// Why a device program cannot be loaded again, if it cannot.
pub fn obstacle(program: &[Instruction]) -> Option<&'static str> {
    program::obstacle(program)
}
