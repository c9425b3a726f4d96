//! Checks the effects of a `configure` on a container: exactly its plan, or nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::mount::{MntFlags, umount2};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::{chdir, chroot};
use nvc_testkit::files::below;
use nvc_testkit::mounts::Mount;
use nvc_testkit::tree::{Difference, Entry, Tree};
use serde_json::Value;

use super::{Arena, Mode, Seen, difference, told};
use crate::plan::{Step, Wanted, steps};

/// Fails unless the container is unchanged.
pub(super) fn nothing_changed(before: &Seen, after: &Seen) -> Result<(), String> {
    if before.mounts != after.mounts {
        let lines = difference(&before.mounts, &after.mounts);
        return Err(format!("refused, but mounted: {lines}"));
    }
    let changes = after.files.changes_since(&before.files);
    if changes.is_empty() {
        return Ok(());
    }
    Err(format!("refused, but changed: {changes:#?}"))
}

impl Arena {
    /// Fails unless the new mounts match the plan and show the right files, and nothing but expected files changed.
    pub(super) fn plan_was_carried_out(
        &self,
        mode: Mode,
        root: &Path,
        plan: &Value,
        before: &Seen,
        after: &[(u64, Mount)],
    ) -> Result<(), String> {
        let new = new_mounts(before, after)?;
        let steps = steps(plan, self.driver());
        let paired = self.pair(&steps, &new, before)?;
        if let Some(mount) = new.iter().find(|mount| !mount.point.starts_with(root)) {
            return Err(format!("outside the root: {mount}"));
        }
        // In the caller's own namespace, peers of mounts are up to the caller.
        let mut shared = new.iter().filter(|mount| !mount.propagation.is_empty());
        if let (Mode::Supervised, Some(mount)) = (mode, shared.next()) {
            return Err(format!("shown elsewhere too: {mount}"));
        }
        let hidden = told(self.inside().run(|| visible(root, &paired)))??;
        let left = self.inside().run(|| {
            for mount in new.iter().rev() {
                let flags = MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW;
                let unmounted = umount2(&mount.point, flags);
                unmounted.map_err(|errno| format!("{mount}: {errno}"))?;
            }
            told(Tree::of(root))
        });
        let left = told(left)??;
        let changes = left.differences(&before.files);
        if let Some(hidden) = hidden
            && !changes.iter().any(is_redirected)
        {
            return Err(hidden);
        }
        let surplus: Vec<_> = changes
            .into_iter()
            .filter(|change| !is_expected(change))
            .collect();
        if surplus.is_empty() {
            return Ok(());
        }
        Err(format!("done, but changed too: {surplus:#?}"))
    }

    /// Pairs each new mount with its step of the plan; fails if one has none, or a required step has no mount.
    fn pair<'a>(
        &self,
        steps: &'a [Step],
        new: &[&'a Mount],
        before: &Seen,
    ) -> Result<Vec<(&'a Step, &'a Mount)>, String> {
        let known = before.mounts.iter();
        let known: Vec<&str> = known.map(|(_, mount)| mount.device.as_str()).collect();
        let mut new = new.iter().copied().peekable();
        let mut paired = Vec::new();
        for step in steps {
            if let Some(mount) = new.next_if(|mount| self.is(mount, step, &known)) {
                paired.push((step, mount));
            } else if step.is_required && step.wanted != Wanted::Tmpfs {
                return Err(format!("no mount for {step:#?} but {:?}", new.peek()));
            } // otherwise one of an earlier run existed, or the mount is best effort
        }
        match new.next() {
            Some(mount) => Err(format!("not in the plan: {mount}")),
            None => Ok(paired),
        }
    }

    fn is(&self, mount: &Mount, step: &Step, known: &[&str]) -> bool {
        let of_tests = mount.device == self.device();
        let wanted = match &step.wanted {
            Wanted::Driver(path) => of_tests && mount.root == *path,
            Wanted::Image(name) => {
                let last = mount.root.file_name();
                !of_tests
                    && known.contains(&mount.device.as_str())
                    && last.is_some_and(|last| last == name.as_str())
            }
            Wanted::Tmpfs => {
                mount.fs_type == "tmpfs"
                    && mount.root == Path::new("/")
                    && !known.contains(&mount.device.as_str())
            }
        };
        wanted && step.options.iter().all(|option| mount.has(option))
    }
}

/// Returns the mounts that were not there before; fails if an earlier one is gone or changed.
fn new_mounts<'a>(before: &Seen, after: &'a [(u64, Mount)]) -> Result<Vec<&'a Mount>, String> {
    let mut new = Vec::new();
    let mut old = before.mounts.iter();
    for (id, mount) in after {
        match before.mounts.iter().find(|(old, _)| old == id) {
            None => new.push(mount),
            // A shared mount may have become a slave, so that nothing propagates.
            Some((_, was)) if same_but_for_propagation(was, mount) => drop(old.next()),
            Some((_, was)) => return Err(format!("changed: {was} is {mount}")),
        }
    }
    if old.next().is_some() {
        let lines = difference(&before.mounts, after);
        return Err(format!("unmounted: {lines}"));
    }
    Ok(new)
}

/// Checks that a process with this root finds each mount at its planned path; changes the calling thread's root.
///
/// Returns a mount that is no longer found, but was mounted at the place to which the image's links pointed at the
/// time.
fn visible(root: &Path, paired: &[(&Step, &Mount)]) -> Result<Option<String>, String> {
    let mut hidden = None;
    told(chroot(root).and_then(|()| chdir("/")))?;
    for (number, (step, mount)) in paired.iter().enumerate() {
        let later = paired.get(number + 1..).unwrap_or_default();
        // The image's links made two places equal, or put one inside the other.
        if later
            .iter()
            .any(|(_, later)| mount.point.starts_with(&later.point))
        {
            continue;
        }
        let found = match (&step.wanted, step.identity) {
            (Wanted::Driver(_), Some(identity)) => {
                fs::metadata(&step.at).is_ok_and(|stat| (stat.dev(), stat.ino()) == identity)
            }
            (Wanted::Tmpfs, _) => {
                statfs(&step.at).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC)
            }
            _ => fs::metadata(&step.at).is_ok_and(|stat| stat.is_file()),
        };
        if !found {
            let text = format!("not to be seen: {step:#?} at {mount}");
            if mount.point == below(root, &step.at) {
                return Err(text);
            }
            hidden.get_or_insert(text);
        }
    }
    Ok(hidden)
}

/// Returns true if a change is ldconfig's legitimate replacement or removal of an image's link: a library's, or one in
/// place of ldconfig's own files.
fn is_redirected((path, was, _): &Difference<'_>) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    (name.contains(".so") || name == "aux-cache") && was.is_some_and(|was| was.kind == 'l')
}

fn same_but_for_propagation(was: &Mount, is: &Mount) -> bool {
    let mut was = was.clone();
    was.propagation.clone_from(&is.propagation);
    was == *is
}

/// Returns true if a change is a mount point, one of the plan's links, or ldconfig's work.
fn is_expected((path, was, is): &Difference<'_>) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_link = |entry: &Entry| entry.kind == 'l';
    let is_link_beside = |entry: &Entry| {
        let parent = entry.link.as_deref().and_then(Path::parent);
        // A GBM backend is a library in the directory above.
        let beside = if path.parent().is_some_and(|place| place.ends_with("gbm")) {
            ".."
        } else {
            ""
        };
        parent.is_some_and(|parent| parent == Path::new(beside))
    };
    let is_mount_point = |entry: &Entry| entry.kind == 'd' || entry.kind == 'f' && entry.size == 0;
    let of_ldconfig = name == "ld.so.cache" || name == "aux-cache" || name.starts_with("00-nvcr-");
    let is_removed = |was: &Entry| {
        matches!(&*name, "ld.so.cache~" | "aux-cache~") || is_link(was) && name.contains(".so.")
    };
    match (was, is) {
        (None, Some(is)) => is_mount_point(is) || is_link_beside(is) || of_ldconfig,
        // A file mounted while ldconfig runs may be missing because ldconfig removed it.
        (Some(was), Some(is)) => {
            of_ldconfig
                // The driver's links replace what the image has at their names.
                || was.kind != 'd' && is_link_beside(is)
                || is_removed(was) && is_mount_point(is)
        }
        // ldconfig removes leftovers of an earlier run, and dangling links.
        (Some(was), None) => is_removed(was),
        (None, None) => true,
    }
}
