//! Adds rules to a cgroup of the unified hierarchy, by exchanging the programs that filter its devices.
//!
//! Each program attached to the cgroup itself is replaced by one that also allows the devices, with the same attach
//! mode, so that there is always a filter (upstream detaches and attaches). Programs of ancestors are not changed,
//! because they apply to other groups too.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use log::{debug, warn};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::stat::Mode;
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs};

use crate::apply::cgroup::message::{explain, list};
use crate::apply::cgroup::program::{BLINDED, denies, extend, missing, obstacle};
use crate::error::{Error, ErrorKind, Result};
use crate::hint::Setting;
use crate::host::DeviceNumber;
use crate::inroot;
use crate::sys::bpf::{self, BPF_F_ALLOW_MULTI, BPF_F_REPLACE, Instruction};

/// Number of attempts if other processes exchange programs concurrently.
const ATTEMPTS: usize = 4;

/// Inode number of the hierarchy's root; a cgroup namespace may show another group as the root.
const ROOT_INODE: u64 = 1;

/// The other way out if the JIT compiler was hardened when the filter was loaded.
const HARDENED: &str = "set net.core.bpf_jit_harden to 0 or 1 before the container starts, or ";

/// An exchanged program.
#[derive(Debug)]
pub(in crate::apply) struct Exchange {
    way: AttachMode,
    old: OwnedFd,
    new: OwnedFd,
}

/// The way to replace a program.
#[derive(Debug)]
enum AttachMode {
    /// The only program, attached with these flags: attaching again replaces it.
    Only(u32),
    /// One of several.
    OneOfSeveral,
    /// One of several, on kernels before 5.6: the new one is attached before the old one is detached, and in between
    /// both must allow an access.
    OneAfterTheOther,
    /// Attached by a link.
    Link(OwnedFd),
}

/// A program to exchange.
struct Candidate {
    id: u32,
    old: OwnedFd,
    new: OwnedFd,
}

/// Allows all devices, or none; returns the exchanged programs. A filter above the cgroup that denies one of the `vital`
/// devices is an error, since it applies to other groups too and is not changed.
pub(in crate::apply) fn allow(
    cgroup: BorrowedFd<'_>,
    devices: &[DeviceNumber],
    vital: &HashSet<DeviceNumber>,
    name: &Path,
) -> Result<Vec<Exchange>> {
    let mut attempt = 1;
    loop {
        match allow_once(cgroup, devices, vital, name) {
            // A listed program is gone: a runtime is updating the container at the same time.
            Err(e)
                if e.errno() == Some(Errno::ENOENT)
                    && e.cleanup().is_empty()
                    && attempt < ATTEMPTS =>
            {
                attempt += 1;
            }
            done => return done,
        }
    }
}

fn allow_once(
    cgroup: BorrowedFd<'_>,
    devices: &[DeviceNumber],
    vital: &HashSet<DeviceNumber>,
    name: &Path,
) -> Result<Vec<Exchange>> {
    let mut exchanges = Vec::new();
    let attached = bpf::query(cgroup, false).map_err(|e| {
        explain(
            Error::system("bpf_prog_query(BPF_CGROUP_DEVICE) failed", e)
                .context("unable to find any existing device filters attached to the cgroup"),
        )
    })?;
    // All are built and verified before the first is exchanged.
    let mut candidates = Vec::new();
    for id in &attached.programs {
        candidates.extend(prepare(*id, devices)?);
    }
    let inherited = inherited(cgroup, &attached.programs);
    check_ancestors(cgroup, &inherited, devices, vital, name)?;
    for Candidate { id, old, new } in candidates {
        match exchange(cgroup, attached.flags, id, old.as_fd(), new.as_fd()) {
            Ok(way) => exchanges.push(Exchange { way, old, new }),
            Err(error) => {
                return Err(explain(error).with_cleanup(undo(cgroup, &exchanges, name)));
            }
        }
    }
    Ok(exchanges)
}

/// Puts the former programs back; returns the failures.
pub(in crate::apply) fn undo(
    cgroup: BorrowedFd<'_>,
    exchanges: &[Exchange],
    name: &Path,
) -> Vec<Error> {
    let mut failures = Vec::new();
    for Exchange { way, old, new } in exchanges.iter().rev() {
        match way.put_back(cgroup, new.as_fd(), old.as_fd()) {
            Ok(()) => {}
            Err(Errno::ENOENT) => debug!(
                "another device filter has replaced ours in cgroup {}",
                name.display()
            ),
            Err(errno) => failures.push(attach_failure(way, errno)),
        }
    }
    failures
}

/// Builds the replacement of program `id`; `None` if it already allows all devices.
fn prepare(id: u32, devices: &[DeviceNumber]) -> Result<Option<Candidate>> {
    let context = |error: Error| error.context("unable to generate new device filter program");
    let failure = |operation: &str| {
        let operation = format!("{operation} device filter {id}");
        move |errno| explain(context(Error::system(operation, errno)))
    };
    let old = bpf::program_by_id(id).map_err(failure("opening"))?;
    let info = bpf::program_info(old.as_fd()).map_err(failure("reading"))?;
    let refuse = |reason: &str, other: &str| {
        let what = format!("device filter {id} cannot be extended");
        let hint = Setting::NoCgroups.between(
            format!("{other}use "),
            " and give the devices to the container's runtime",
        );
        context(Error::new(ErrorKind::Malformed, what).because(reason)).hint(hint)
    };
    let Some(original) = info.instructions else {
        return Err(refuse(
            "the kernel does not show its instructions",
            HARDENED,
        ));
    };
    let missing = missing(&original, devices);
    if missing.is_empty() {
        return Ok(None);
    }
    match obstacle(&original) {
        None => {}
        Some(BLINDED) => return Err(refuse(BLINDED, HARDENED)),
        Some(reason) => return Err(refuse(reason, "")),
    }
    let new = load(&extend(&original, &missing), info.name).map_err(context)?;
    Ok(Some(Candidate { id, old, new }))
}

/// Loads a program.
fn load(program: &[Instruction], name: [u8; 16]) -> Result<OwnedFd> {
    let loaded = match bpf::load_program(program, name, None) {
        Err(Errno::EPERM) => load_unlimited(program, name),
        done => done,
    };
    let call = "failed to call BPF_PROG_LOAD (BPF_CGROUP_DEVICE)";
    loaded.map_err(|errno| explain(Error::system(call, errno)))
}

/// Loads a program without the limit on locked memory, against which kernels before 5.11 count it.
///
/// The limit applies to the whole process, which may be the caller's: it is restored immediately.
fn load_unlimited(program: &[Instruction], name: [u8; 16]) -> Result<OwnedFd, Errno> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_MEMLOCK)?;
    if soft == RLIM_INFINITY {
        return Err(Errno::EPERM);
    }
    setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY)?;
    let loaded = bpf::load_program(program, name, None);
    let restored = setrlimit(Resource::RLIMIT_MEMLOCK, soft, hard);
    loaded.and_then(|fd| restored.map(|()| fd))
}

/// Replaces one program by another and returns the mode.
fn exchange(
    cgroup: BorrowedFd<'_>,
    flags: u32,
    old_id: u32,
    old: BorrowedFd<'_>,
    new: BorrowedFd<'_>,
) -> Result<AttachMode> {
    if flags & BPF_F_ALLOW_MULTI == 0 {
        return replace_program(AttachMode::Only(flags), cgroup, old, new);
    }
    match replace_program(AttachMode::OneOfSeveral, cgroup, old, new) {
        // The kernel does not support the flag.
        Err(e) if e.errno() == Some(Errno::EINVAL) => {
            replace_program(AttachMode::OneAfterTheOther, cgroup, old, new)
        }
        // A program attached by a link cannot be replaced this way.
        Err(e) if e.errno() == Some(Errno::ENOENT) => {
            let link = find_link(cgroup, old_id).map_err(|e| {
                Error::system("unable to find the link of the original device filter", e)
            })?;
            match link {
                Some(link) => replace_program(AttachMode::Link(link), cgroup, old, new),
                None => Err(e),
            }
        }
        done => done,
    }
}

fn replace_program(
    way: AttachMode,
    cgroup: BorrowedFd<'_>,
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
) -> Result<AttachMode> {
    match way.replace(cgroup, from, to) {
        Ok(()) => Ok(way),
        Err(errno) => Err(attach_failure(&way, errno)),
    }
}

impl AttachMode {
    /// Replaces program `from` by program `to`.
    fn replace(
        &self,
        cgroup: BorrowedFd<'_>,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        match self {
            Self::Only(flags) => bpf::attach(cgroup, to, *flags, None),
            Self::OneOfSeveral => {
                bpf::attach(cgroup, to, BPF_F_ALLOW_MULTI | BPF_F_REPLACE, Some(from))
            }
            Self::OneAfterTheOther => {
                bpf::attach(cgroup, to, BPF_F_ALLOW_MULTI, None)?;
                let detached = bpf::detach(cgroup, from);
                if detached.is_err() {
                    bpf::detach(cgroup, to)?;
                }
                detached
            }
            Self::Link(link) => match bpf::update_link(link.as_fd(), from, to) {
                // The kernel returns this error too if the link holds another program.
                Err(Errno::EPERM) if !self.is_attached(cgroup, from)? => Err(Errno::ENOENT),
                done => done,
            },
        }
    }

    /// Returns true if a program is attached in this mode.
    fn is_attached(&self, cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> Result<bool, Errno> {
        let id = bpf::program_info(program)?.id;
        match self {
            Self::Link(link) => {
                let held = bpf::device_link(link.as_fd())?;
                Ok(held.is_some_and(|held| held.program == id))
            }
            _ => Ok(bpf::query(cgroup, false)?.programs.contains(&id)),
        }
    }

    /// Does the same, but returns `ENOENT` if program `from` is not attached any more.
    fn put_back(
        &self,
        cgroup: BorrowedFd<'_>,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        match self {
            // The kernel checks for `from`, but check first whether `to` is already back.
            Self::OneOfSeveral => match self.replace(cgroup, from, to) {
                Err(Errno::EINVAL) if !self.is_attached(cgroup, from)? => Err(Errno::ENOENT),
                done => done,
            },
            _ if self.is_attached(cgroup, from)? => self.replace(cgroup, from, to),
            _ => Err(Errno::ENOENT),
        }
    }
}

/// Exposes the fallback for old kernels, which cannot replace one of several programs, to tests on newer kernels.
#[cfg(any(test, feature = "testing"))]
pub fn exchange_one_after_the_other(
    cgroup: BorrowedFd<'_>,
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
) -> Result<(), Errno> {
    AttachMode::OneAfterTheOther.replace(cgroup, from, to)
}

fn attach_failure(way: &AttachMode, errno: Errno) -> Error {
    let call = match way {
        AttachMode::Only(bpf::BPF_F_ALLOW_OVERRIDE) => {
            "BPF_PROG_ATTACH (BPF_CGROUP_DEVICE, BPF_F_ALLOW_OVERRIDE)"
        }
        AttachMode::Only(_) => "BPF_PROG_ATTACH (BPF_CGROUP_DEVICE)",
        AttachMode::OneOfSeveral | AttachMode::OneAfterTheOther => {
            "BPF_PROG_ATTACH (BPF_CGROUP_DEVICE, BPF_F_ALLOW_MULTI)"
        }
        AttachMode::Link(_) => "BPF_LINK_UPDATE (BPF_CGROUP_DEVICE)",
    };
    Error::system(format!("failed to call {call}"), errno)
        .context("unable to attach new device filters program")
}

/// Returns the link that attaches program `id` to the cgroup.
fn find_link(cgroup: BorrowedFd<'_>, id: u32) -> Result<Option<OwnedFd>, Errno> {
    let directory = inroot::stat(cgroup)?.st_ino;
    let mut at = 0;
    while let Some(next) = bpf::next_link(at)? {
        at = next;
        let link = match bpf::link_by_id(next) {
            Err(Errno::ENOENT) => continue,
            link => link?,
        };
        let found = bpf::device_link(link.as_fd())?;
        if found.is_some_and(|found| found.program == id && found.cgroup == directory) {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

/// Returns the programs of ancestors that apply to the cgroup; empty if the kernel does not report them.
fn inherited(cgroup: BorrowedFd<'_>, direct: &[u32]) -> Vec<u32> {
    let mut programs = bpf::query(cgroup, true).map_or_else(|_| Vec::new(), |all| all.programs);
    programs.retain(|id| !direct.contains(id));
    programs
}

/// Returns true if a program that applies to the cgroup is not known to allow all devices; false if none can be read.
pub(in crate::apply) fn may_deny(cgroup: BorrowedFd<'_>, devices: &[DeviceNumber]) -> bool {
    let programs = bpf::query(cgroup, true).or_else(|_| bpf::query(cgroup, false));
    programs.is_ok_and(|all| {
        let mut ids = all.programs.into_iter();
        ids.any(|id| !known_to_allow(id, devices))
    })
}

/// An ancestor's filter that denies devices, or may deny them.
struct AncestorFilter {
    /// The filter.
    id: u32,
    /// Devices that it is not known to allow.
    maybe_denied: Vec<DeviceNumber>,
    /// The vital ones that it is known to deny.
    denied: Vec<DeviceNumber>,
}

/// Looks for ancestors' filters that deny devices, whatever this cgroup's own filter allows.
///
/// # Errors
/// One is known to deny a vital device. If one only may deny it, or denies another, there is a warning.
fn check_ancestors(
    cgroup: BorrowedFd<'_>,
    inherited: &[u32],
    devices: &[DeviceNumber],
    vital: &HashSet<DeviceNumber>,
    name: &Path,
) -> Result<()> {
    let filter = |id: &u32| {
        let (maybe_denied, denied) = match instructions(*id) {
            None => (devices.to_vec(), Vec::new()),
            Some(program) => {
                let maybe_denied = missing(&program, devices);
                let denied = maybe_denied.iter().copied();
                let denied =
                    denied.filter(|device| vital.contains(device) && denies(&program, *device));
                let denied = denied.collect();
                (maybe_denied, denied)
            }
        };
        (!maybe_denied.is_empty()).then_some(AncestorFilter {
            id: *id,
            maybe_denied,
            denied,
        })
    };
    let mut filters: Vec<_> = inherited.iter().filter_map(filter).collect();
    let mut directory = None;
    for name in name.ancestors().skip(1) {
        if filters.is_empty() {
            return Ok(());
        }
        let here = directory.as_ref().map_or(cgroup, OwnedFd::as_fd);
        let Some((parent, programs)) = parent(here) else {
            break;
        };
        let (its, above): (Vec<_>, Vec<_>) = filters
            .into_iter()
            .partition(|filter: &AncestorFilter| programs.contains(&filter.id));
        let unit = unit(name);
        report(
            &its,
            &format!("of cgroup {}", name.display()),
            unit.as_deref(),
        )?;
        filters = above;
        directory = Some(parent);
    }
    let top = directory.as_ref().map_or(cgroup, OwnedFd::as_fd);
    if inroot::stat(top).is_ok_and(|stat| stat.st_ino == ROOT_INODE) {
        // No ancestor has them: they were this cgroup's own, and another process has exchanged them meanwhile.
        return Ok(());
    }
    let place = format!("above cgroup {}", name.display());
    report(&filters, &place, None)
}

/// Returns the name of systemd's unit that may have made a cgroup, as a word of a shell's command.
///
/// Users name the cgroups that systemd leaves to them: a name that no unit can have is none.
fn unit(cgroup: &Path) -> Option<String> {
    let name = cgroup.file_name()?.to_str()?;
    let kinds = [".slice", ".scope", ".service"];
    let is_one = kinds.iter().any(|kind| name.ends_with(kind))
        && !name.starts_with('-')
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c));
    is_one.then(|| match name.replace('\\', "?") {
        same if same == name => same,
        // A message has no backslash of its own, so systemd says the name: `?` is any letter.
        pattern => format!("\"$(systemctl show --property=Id --value '{pattern}')\""),
    })
}

/// Returns the error, or warns, as [`check_ancestors`] documents. `place` says where the filters are; `unit` is the
/// unit that may have attached them, as a shell's word.
fn report(filters: &[AncestorFilter], place: &str, unit: Option<&str>) -> Result<()> {
    let Some(AncestorFilter { denied, .. }) =
        filters.iter().find(|filter| !filter.denied.is_empty())
    else {
        for AncestorFilter { maybe_denied, .. } in filters {
            warn!(
                "the device filter {place} also applies to the container and may deny {}; leaving it unchanged",
                list(maybe_denied)
            );
        }
        return Ok(());
    };
    let text = format!("the device filter {place} denies {}", list(denied));
    let entries = denied.iter();
    let entries: Vec<_> = entries
        .map(|device| format!("DeviceAllow='/dev/char/{device} rw'"))
        .collect();
    let hint = format!(
        "it also applies to other processes and is left unchanged; if it is a unit of systemd, allow the devices by: \
         systemctl set-property --runtime {} {}",
        unit.unwrap_or("UNIT"),
        entries.join(" ")
    );
    Err(Error::new(ErrorKind::System, text).hint(hint))
}

fn known_to_allow(id: u32, devices: &[DeviceNumber]) -> bool {
    instructions(id).is_some_and(|program| missing(&program, devices).is_empty())
}

/// Returns a program's instructions; None if it is gone, or the kernel does not show them.
fn instructions(id: u32) -> Option<Vec<Instruction>> {
    let program = bpf::program_by_id(id).ok()?;
    bpf::program_info(program.as_fd()).ok()?.instructions
}

/// Returns the parent cgroup and its programs; `None` above the highest visible one.
fn parent(cgroup: BorrowedFd<'_>) -> Option<(OwnedFd, Vec<u32>)> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let parent = openat(cgroup, "..", flags, Mode::empty()).ok()?;
    if fstatfs(&parent).ok()?.filesystem_type() != CGROUP2_SUPER_MAGIC {
        return None;
    }
    let programs = bpf::query(parent.as_fd(), false).ok()?.programs;
    Some((parent, programs))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::unit;

    /// The hint is a command that is copied to a root shell.
    #[test]
    fn units_are_words_of_a_shell() {
        for (cgroup, word) in [
            ("/a/docker-1.scope", Some("docker-1.scope")),
            ("/user@1000.service", Some("user@1000.service")),
            (
                "/machine-a\\x2db.scope",
                Some("\"$(systemctl show --property=Id --value 'machine-a?x2db.scope')\""),
            ),
            ("/x.scope/init", None),
            ("/a;reboot.slice", None),
            ("/$(reboot).slice", None),
            ("/a b.slice", None),
            ("/a'b.slice", None),
            ("/--help.slice", None),
            ("/\u{e4}.slice", None),
        ] {
            assert_eq!(unit(Path::new(cgroup)).as_deref(), word, "{cgroup}");
        }
    }
}
