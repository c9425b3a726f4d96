//! Exposes internals to tests outside the crate: parsers to fuzz targets, bpf(2) to the device cgroup tests; makes
//! intents for plans of golden tests.
//!
//! Not part of the library's interface. Each function of a parser passes its arguments on and converts the result to
//! plain data; the callers (`fuzz/fuzz_targets`) state the invariants.

use std::cell::Cell;
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

use crate::apply::cgroup::systemd::wire::{self, Value};
use crate::apply::cgroup::v1;
use crate::apply::ldconfig;
use crate::container::{self, DeviceCgroup};
use crate::elf;
use crate::error::Result;
use crate::frame;
use crate::host::query::protocol::{MAX_SIZE, Message};
use crate::host::{
    DeviceInfo, DeviceNode, DeviceNumber, DriverVersions, FileClass, Gpu, Inventory,
    device as devices, majors, nvcaps, procfs,
};
use crate::ldcache::listing::Listing;
use crate::ldcache::merge::{self, DirectoryAction, FoundLibrary, SearchedDirectory};
use crate::ldcache::{conf, format};
use crate::mountinfo;
use crate::path::{ContainerPath, HostPath};
use crate::plan::{Device, DriverProc, Intent, Place, ProcDevices, What, profile};

pub use crate::apply::cgroup::program::interpret::decide;
pub use crate::apply::cgroup::program::{extend, obstacle};
pub use crate::apply::cgroup::v2::exchange_one_after_the_other;
pub use crate::apply::cgroup::{DeviceRules, WantedDevice, allow as allow_devices};
pub use crate::apply::ldconfig::program::has_interpreter;
pub use crate::apply::ldconfig::{PreparedLdconfig, Snapshot};
pub use crate::host::query::client::{Query, QueryReply};
pub use crate::sys::bpf::creation::{create_link, create_map};
pub use crate::sys::bpf::{
    AttachedPrograms, BPF_F_ALLOW_MULTI, BPF_F_ALLOW_OVERRIDE, BPF_F_REPLACE, Instruction,
    ProgramInfo, attach, load_program, program_by_id, program_info, query,
};

/// Returns the intent of a device at the same path in host and container.
pub fn device(path: &str, major: u32, minor: u32) -> Intent {
    let node = DeviceNode::new(path, major, minor);
    Intent::required(What::Device(Device {
        at: ContainerPath::from(&node.path),
        source: node.path,
        number: node.number,
        owner: None,
        bind: true,
        allow: true,
    }))
}

/// Returns the intent of a file at the same path in host and container.
pub fn mount(path: &str, class: FileClass) -> Intent {
    let path = HostPath::new(path);
    let place = Place::same(&path);
    Intent::mount(path, place, class)
}

/// Returns the intent of the driver's procfs directory with these devices.
pub fn proc_with(devices: ProcDevices) -> Intent {
    Intent::required(What::DriverProc(DriverProc {
        no_new_nodes: true,
        devices,
    }))
}

/// Flags, name and path of an entry of a loader cache.
pub type CacheEntry<'a> = (i32, &'a [u8], &'a [u8]);

/// Returns the entries of a loader cache; None if the bytes are not one.
pub fn ldcache(bytes: &[u8]) -> Option<Vec<CacheEntry<'_>>> {
    let entries = format::Cache::parse(bytes)?.entries();
    Some(entries.map(|e| (e.flags, e.key, e.value)).collect())
}

/// A loader cache that was read and written again.
#[derive(Debug)]
pub struct RewrittenCache {
    /// Written unchanged.
    pub same: Vec<u8>,
    /// Written after a directory was searched.
    pub updated: Vec<u8>,
}

/// Rewrites a loader cache after libraries were found in `directory`, which replaces the cache's directories for which
/// `is_searched` is true. None if the cache is invalid, or the result too large.
pub fn rewritten_ldcache(
    bytes: &[u8],
    directory: &[u8],
    found: &[(&[u8], i32)],
    is_searched: impl Fn(&[u8]) -> bool,
) -> Option<RewrittenCache> {
    let listing = Listing::parse(bytes).ok()?;
    let found = found
        .iter()
        .map(|(name, flags)| FoundLibrary::new(name, *flags));
    let searched = [SearchedDirectory {
        path: directory.to_vec(),
        found: found.collect(),
        rank: 0,
    }];
    let routes = merge::routes(&listing.directories().ok()?, &searched, |base| {
        if is_searched(base) {
            DirectoryAction::Search(0)
        } else {
            DirectoryAction::Keep(usize::MAX)
        }
    });
    let lines = merge::update(&listing, &routes, &searched);
    Some(RewrittenCache {
        same: listing.form.write(&listing.lines)?,
        updated: listing.form.write(&lines)?,
    })
}

/// The facts read from an ELF file.
#[derive(Debug, PartialEq, Eq)]
pub struct Elf {
    /// Its ABI note; None if it has no valid one.
    pub abi: Option<[u32; 4]>,
    /// Its build id; None if it has no valid one.
    pub build_id: Option<Vec<u8>>,
    /// True if it needs a library with a given name prefix; None if that is unknown.
    pub needs: Option<bool>,
    /// Number of bytes read.
    pub read: usize,
}

/// Reads an ELF file; None if it has no such headers.
pub fn elf(bytes: &[u8], names: &[&str]) -> Option<Elf> {
    let read = Cell::new(0);
    let library = elf::Library::open(Counted { bytes, read: &read }).ok()?;
    Some(Elf {
        abi: library.abi().ok(),
        build_id: library.build_id().ok().flatten(),
        needs: library.needs(names).ok(),
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

/// Finds the device cgroup for a `/proc/PID/cgroup` and a `/proc/PID/mountinfo`.
///
/// # Errors
/// As [`Container::discover`](crate::container::Container::discover).
pub fn device_cgroup(proc_cgroup: &[u8], mountinfo: &[u8]) -> Result<DeviceCgroup> {
    container::cgroup::locate(proc_cgroup, mountinfo)
}

/// Reads a reply of systemd: the serial number of the call, and the texts of the value, or the name of the error. None
/// if it is no message; the inner one if it is no reply.
#[allow(clippy::type_complexity)] // plain data
pub fn systemd_reply(
    bytes: &[u8],
) -> Option<Option<(u32, std::result::Result<Vec<String>, String>)>> {
    let head = bytes.first_chunk()?;
    let length = wire::message_length(head).ok()?;
    let reply = wire::parse(bytes.get(..length)?).ok()?;
    Some(reply.map(|wire::Reply { to, outcome }| {
        let texts = outcome.map(|value| match value {
            Value::Other => Vec::new(),
            Value::Text(text) => vec![text],
            Value::Entries(entries) => entries.into_iter().flat_map(<[_; 2]>::from).collect(),
        });
        (to, texts)
    }))
}

/// Returns the ids of the shared mounts in a mountinfo.
pub fn shared_mounts(mountinfo: &[u8]) -> HashSet<u64> {
    mountinfo::shared_mounts(mountinfo)
}

/// Returns the line to write to devices.allow for reading and writing a device, given a devices.list.
pub fn missing_rule(devices_list: &str, device: DeviceNumber) -> Option<String> {
    v1::Present::parse(devices_list).missing(device)
}

/// Returns name and device of each capability in a mig-minors.
pub fn mig_minors(text: &str) -> Vec<(String, u32)> {
    nvcaps::MigMinors::from(text).0
}

/// Returns the number on a line `key: number`, in a capability's file and in the kernel module's `params`.
pub fn procfs_number(text: &str, key: &str) -> Option<u32> {
    procfs::number(text, key)
}

/// Returns the major number of a driver in the text of /proc/devices.
pub fn major(devices: &[u8], driver: &str) -> Option<u32> {
    majors::major(devices, driver)
}

/// Returns the kernel module's version in its `version`.
pub fn module_version(text: &str) -> Option<&str> {
    procfs::parse_version(text)
}

/// Returns the `params` that a container gets.
pub fn container_params(text: &str) -> String {
    procfs::without_device_creation(text)
}

/// The parsed bytes of a query process.
#[derive(Debug)]
pub struct Reply {
    /// Each message, serialised again.
    pub messages: Vec<Vec<u8>>,
    /// Number of bytes of a trailing incomplete message.
    pub rest: usize,
    /// True if a message was invalid.
    pub garbled: bool,
    /// The last versions.
    pub versions: Option<Result<DriverVersions>>,
    /// The last GPUs.
    pub devices: Option<Result<DeviceInfo>>,
}

/// Parses a query process's reply.
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
        match frame::take::<Message>(&mut bytes, MAX_SIZE) {
            Ok(Some(message)) => {
                reply
                    .messages
                    .extend(frame::encode(&message, MAX_SIZE).ok());
                match message {
                    Message::Ready(versions) => reply.versions = Some(devices::versions(&versions)),
                    Message::Gpus(Ok(gpus)) => {
                        reply.devices = Some(DeviceInfo::from_reports(&gpus));
                    }
                    _ => {}
                }
            }
            Ok(None) => break,
            Err(_) => {
                reply.garbled = true;
                break;
            }
        }
    }
    reply.rest = bytes.len();
    reply
}

/// Longest text of an inventory.
pub const MAX_INVENTORY: usize = Inventory::MAX_LEN;

/// Returns the versions and the GPUs of an inventory.
pub fn inventory_parts(inventory: Inventory) -> Result<(DriverVersions, Vec<Gpu>)> {
    let mut answers = Query::from(inventory);
    Ok((answers.versions()?, answers.devices()?.gpus))
}

/// Returns the application profile for the GPUs with these minor numbers.
pub fn profile(minors: &[u32]) -> String {
    profile::text(&profile::mask(minors))
}

/// Returns an application profile with one more GPU; None if the old one cannot be parsed.
pub fn profile_with(old: &str, minor: u32) -> Option<String> {
    profile::with_visible(old, minor)
}

/// A line of an ld.so.conf: a directory, or the directory and the pattern of an include.
pub type ConfLine = (PathBuf, Option<Vec<u8>>);

/// Parses the lines of an ld.so.conf.
pub fn ld_so_conf(text: &[u8]) -> Vec<ConfLine> {
    let lines = conf::parse(text, std::path::Path::new("/etc")).into_iter();
    lines
        .map(|line| match line {
            conf::Line::Directory(path) => (path, None),
            conf::Line::Include(directory, pattern) => (directory, Some(pattern)),
        })
        .collect()
}

/// Returns the kept part of a program's output, and the length of the dropped part.
pub fn kept_output(pieces: &[&[u8]]) -> (Vec<String>, u64) {
    let mut output = ldconfig::output::Output::default();
    for piece in pieces {
        output.feed(piece);
    }
    output.finish();
    (output.lines().to_vec(), output.left_out())
}
