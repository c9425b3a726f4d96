//! Makes containers: a root and a sleeping process in a mount namespace of its own, as a runtime has them at the moment
//! when it calls nvidia-container-cli.
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

/// What a container is to be like.
#[derive(Debug)]
pub struct Builder {
    rootfs: Root,
    owner: u32,
    shared: bool,
    read_only: bool,
    no_proc: bool,
    pivoted: bool,
}

/// Where its root comes from.
#[derive(Debug)]
enum Root {
    Built(rootfs::Builder),
    Ready(PathBuf),
}

/// A root and a process in it; ends with the value.
#[derive(Debug)]
pub struct Container {
    // Dropped in this order: first the process, then what it has mounted.
    process: Child,
    cgroup: Option<DeviceCgroup>,
    root: PathBuf,
    _scratch: Scratch,
}

/// Mounts what a runtime mounts. Arguments: root, owner, `shared`, `read-only`, `no-proc`, `pivoted`; empty if not so.
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
    /// An ordinary container on this root.
    pub fn new(rootfs: rootfs::Builder) -> Self {
        Self::with(Root::Built(rootfs))
    }

    /// The same on a root that is there already and stays when the container ends.
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

    /// Its process and all its files belong to this user.
    #[must_use]
    pub fn owner(mut self, uid: u32) -> Self {
        self.owner = uid;
        self
    }

    /// Its root is a shared mount: what is mounted there would show on the host.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Its root is mounted read-only.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// No procfs is mounted in it.
    #[must_use]
    pub fn no_proc(mut self) -> Self {
        self.no_proc = true;
        self
    }

    /// Its process has pivoted: it runs. The root must have programs.
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
        // A process that changes its owner says so twice: with mounts made, and with the owner changed.
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
    /// Its root, as the host names it.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Ends its process and waits for it, so that its number is free.
    pub fn end(&mut self) {
        // It may have ended by itself; it is reaped in any case.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Puts it into a device cgroup, which ends with it.
    ///
    /// # Errors
    /// As of the system calls.
    pub fn join(&mut self, cgroup: DeviceCgroup) -> io::Result<()> {
        cgroup.add(self.pid())?;
        self.cgroup = Some(cgroup);
        Ok(())
    }

    /// The cgroup it was put into.
    pub fn cgroup(&self) -> Option<&DeviceCgroup> {
        self.cgroup.as_ref()
    }

    /// Its mount table, without the mounts of other containers: its namespace began as a copy of the tests', and the
    /// copies go when those containers do. Some are mounted over files of their processes in /proc.
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

    /// The files below its root as the host has them, beneath all mounts.
    ///
    /// # Errors
    /// Something cannot be read.
    pub fn files(&self) -> io::Result<Tree> {
        Tree::of(&self.root)
    }

    /// The files below its root as it sees them.
    ///
    /// # Errors
    /// Something cannot be read.
    pub fn files_inside(&self) -> io::Result<Tree> {
        Tree::seen_by(self.pid(), &self.root)
    }

    /// The host's path of a file as the container sees it; links on the way must be relative.
    pub fn inside(&self, path: impl AsRef<Path>) -> PathBuf {
        let seen = Path::new("/proc").join(self.pid().to_string()).join("root");
        files::below(&files::below(&seen, &self.root), path.as_ref())
    }

    /// Path of something below its root as its mount table names it.
    pub fn point(&self, path: impl AsRef<Path>) -> PathBuf {
        files::below(&self.root, path.as_ref())
    }

    /// A command that runs in its mount namespace with the host's root as its own.
    pub fn enter(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        let pid = self.pid().to_string();
        command
            .args(["--target", &pid, "--mount", "--"])
            .arg(program);
        command
    }

    /// A command that runs in it, chrooted, as a user.
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
