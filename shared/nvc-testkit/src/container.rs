//! Creates containers: a root and a sleeping process in its own mount namespace, in the state in which a runtime calls
//! nvidia-container-cli.
//!
//! The root is mounted, with procfs, the driver's empty directory in it, and a /dev; the process has not pivoted.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::cgroup::DeviceCgroup;
use crate::machine::{Scratch, scratch_base};
use crate::mounts::{self, Mount};
use crate::tree::Tree;
use crate::{files, rootfs};

/// Options of a container.
#[derive(Debug)]
pub struct Builder {
    rootfs: Root,
    owner: u32,
    shared: bool,
    read_only: bool,
    no_proc: bool,
    pivoted: bool,
}

/// Origin of its root.
#[derive(Debug)]
enum Root {
    Built(rootfs::Builder),
    Ready(PathBuf),
}

/// A root and a process in it; ends on drop.
#[derive(Debug)]
pub struct Container {
    // Dropped in this order: first the process, then its mounts.
    process: Child,
    cgroup: Option<DeviceCgroup>,
    root: PathBuf,
    _scratch: Scratch,
}

/// Mounts a runtime's filesystems. Arguments: root, owner, `shared`, `read-only`, `no-proc`, `pivoted`; each empty if
/// unset.
const SCRIPT: &str = r#"
set -e
root=$1 owner=$2 shared=$3 read_only=$4 no_proc=$5 pivoted=$6
[ "$shared" ] || mount --bind "$root" "$root"
cd "$root"
if [ ! "$no_proc" ]; then
  mount -t proc proc proc
  mount -t tmpfs -o mode=555 tmpfs proc/driver
  mkdir -m 555 proc/driver/nvidia
  [ $owner = 0 ] || chown $owner:$owner proc/driver proc/driver/nvidia
fi
mount -t tmpfs -o mode=755 tmpfs dev
mknod -m 666 dev/null c 1 3
ln -s /proc/self/fd dev/fd
[ $owner = 0 ] || chown $owner:$owner dev
[ ! "$read_only" ] || mount -o remount,bind,ro .
if [ "$pivoted" ]; then
  pivot_root . mnt
  cd /
  umount -l mnt
fi
echo ready
[ $owner = 0 ] || exec setpriv --reuid $owner --regid $owner --clear-groups sh -c 'echo ready; exec sleep 3600'
exec sleep 3600
"#;

impl Builder {
    /// Describes a default container on this root.
    pub fn new(rootfs: rootfs::Builder) -> Self {
        Self::with(Root::Built(rootfs))
    }

    /// Uses an existing root, which stays when the container ends.
    pub fn on(root: impl Into<PathBuf>) -> Self {
        Self::with(Root::Ready(root.into()))
    }

    fn with(rootfs: Root) -> Self {
        Self {
            rootfs,
            owner: 0,
            shared: false,
            read_only: false,
            no_proc: false,
            pivoted: false,
        }
    }

    /// Makes this user the owner of its process and files.
    #[must_use]
    pub fn owner(mut self, uid: u32) -> Self {
        self.owner = uid;
        self
    }

    /// Makes its root a shared mount, from which mounts would propagate to the host.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Mounts its root read-only.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Mounts no procfs in it.
    #[must_use]
    pub fn no_proc(mut self) -> Self {
        self.no_proc = true;
        self
    }

    /// Lets its process pivot, as in a running container. The root must have programs.
    #[must_use]
    pub fn pivoted(mut self) -> Self {
        self.pivoted = true;
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// Something cannot be made or mounted.
    pub fn start(&self) -> io::Result<Container> {
        let scratch = Scratch::new()?;
        let root = match &self.rootfs {
            Root::Built(rootfs) => rootfs.build(scratch.join("rootfs"))?,
            Root::Ready(root) => root.canonicalize()?,
        };
        if self.owner != 0 {
            let owner = format!("{0}:{0}", self.owner);
            run(Command::new("chown").args(["-R", "-h", &owner]).arg(&root))?;
        }
        let propagation = if self.shared {
            run(Command::new("mount").args(["--bind"]).args([&root, &root]))?;
            run(Command::new("mount").arg("--make-shared").arg(&root))?;
            "unchanged"
        } else {
            "private"
        };
        let word = |is: bool, word: &'static str| if is { word } else { "" };
        let mut process = Command::new("unshare")
            .args(["--mount", "--propagation", propagation, "--"])
            .args(["/bin/sh", "-c", SCRIPT, "container"])
            .arg(&root)
            .arg(self.owner.to_string())
            .arg(word(self.shared, "shared"))
            .arg(word(self.read_only, "read-only"))
            .arg(word(self.no_proc, "no-proc"))
            .arg(word(self.pivoted, "pivoted"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take();
        let container = Container {
            process,
            cgroup: None,
            root,
            _scratch: scratch,
        };
        let mut lines = BufReader::new(output.ok_or(io::ErrorKind::BrokenPipe)?).lines();
        // A process that changes its owner reports twice: after mounting, and after changing the owner.
        let wanted = if self.owner == 0 { 1 } else { 2 };
        for _ in 0..wanted {
            match lines.next() {
                Some(Ok(line)) if line == "ready" => {}
                other => return Err(io::Error::other(format!("no container: {other:?}"))),
            }
        }
        Ok(container)
    }
}

impl Container {
    /// Returns the host path of its root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns its pid.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Kills its process and waits for it, so that its pid is free.
    pub fn end(&mut self) {
        // It may have ended by itself; it is reaped either way.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Moves it into a device cgroup, which is removed with it.
    ///
    /// # Errors
    /// As of the system calls.
    pub fn join(&mut self, cgroup: DeviceCgroup) -> io::Result<()> {
        cgroup.add(self.pid())?;
        self.cgroup = Some(cgroup);
        Ok(())
    }

    /// Returns its cgroup.
    pub fn cgroup(&self) -> Option<&DeviceCgroup> {
        self.cgroup.as_ref()
    }

    /// Returns its mount table, without the mounts of other containers: its namespace was copied from the test's, and
    /// those copies vanish with their containers. Some are mounted over files of their processes in /proc.
    ///
    /// # Errors
    /// It has ended.
    pub fn mounts(&self) -> io::Result<Vec<Mount>> {
        let scratch = scratch_base();
        let mut table = mounts::of(self.pid())?;
        table.retain(|mount| {
            let in_proc = mount
                .point
                .strip_prefix("/proc")
                .ok()
                .and_then(|path| path.to_str());
            let of_process =
                in_proc.is_some_and(|path| path.starts_with(|c: char| c.is_ascii_digit()));
            mount.point.starts_with(&self.root)
                || !(of_process || mount.point.starts_with(&scratch))
        });
        Ok(table)
    }

    /// Reads the files below its root as the host sees them, without mounts.
    ///
    /// # Errors
    /// Something cannot be read.
    pub fn files(&self) -> io::Result<Tree> {
        Tree::of(&self.root)
    }

    /// Reads the files below its root as the container sees them.
    ///
    /// # Errors
    /// Something cannot be read.
    pub fn files_inside(&self) -> io::Result<Tree> {
        Tree::seen_by(self.pid(), &self.root)
    }

    /// Returns the host path of a file in the container; links in the path must be relative.
    pub fn inside(&self, path: impl AsRef<Path>) -> PathBuf {
        let seen = Path::new("/proc").join(self.pid().to_string()).join("root");
        files::below(&files::below(&seen, &self.root), path.as_ref())
    }

    /// Returns the path of a file below its root, as in its mount table.
    pub fn point(&self, path: impl AsRef<Path>) -> PathBuf {
        files::below(&self.root, path.as_ref())
    }

    /// Prepares a command in its mount namespace, with the host's root.
    pub fn enter(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        let pid = self.pid().to_string();
        command
            .args(["--target", &pid, "--mount", "--"])
            .arg(program);
        command
    }

    /// Prepares a command in the container, chrooted, as a user.
    pub fn run(&self, uid: u32, program: &str) -> Command {
        let mut command = self.enter("chroot");
        command
            .arg(format!("--userspec={uid}:{uid}"))
            .arg(&self.root);
        command
            .arg(program)
            .env_clear()
            .env("PATH", crate::cli::PATH);
        command
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.end();
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{command:?}: {output:?}")))
}
