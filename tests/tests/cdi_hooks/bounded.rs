//! Tests hooks with little memory on images with much to read, with links to the kernel's files, and on volumes that
//! change meanwhile.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nvc_testkit::cli::{self, Outcome, Run};
use nvc_testkit::harness;
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::rootfs::{self, Layout};

use super::hostile::exchange;

/// Address space limit of a hook.
const MEMORY: &str = "--as=33554432";
const CONFIGURATION: &str = "etc/ld.so.conf.d";

struct Image {
    scratch: Scratch,
    root: PathBuf,
}

impl Image {
    fn new() -> Self {
        machine::driver();
        let scratch = Scratch::new().unwrap();
        let root = scratch.join("root");
        rootfs::Builder::new(Layout::Debian).build(&root).unwrap();
        fs::create_dir_all(root.join(CONFIGURATION)).unwrap();
        // The loader's own configuration is not the subject here.
        fs::write(root.join("etc/ld.so.conf"), "").unwrap();
        Self { scratch, root }
    }

    /// Runs shell commands in namespaces of their own; `hook` runs nvidia-cdi-hook with little memory.
    fn run(&self, script: &str) -> Outcome {
        let state = self.scratch.join("state.json");
        fs::write(&state, format!(r#"{{"root": "{}"}}"#, self.root.display())).unwrap();
        let program = cli::beside("nvidia-cdi-hook").unwrap();
        let script = format!(
            "set -e; cd {root}; mount --bind . .; cd {root}; \
             hook() {{ prlimit {MEMORY} -- {program} \"$@\" --container-spec={state}; }}; {script}",
            root = self.root.display(),
            program = program.display(),
            state = state.display()
        );
        let namespaces = ["--mount", "--uts", "--propagation", "private"];
        let run = Run::other("unshare").args(namespaces);
        run.args(["sh", "-c", &script]).outcome().unwrap()
    }

    #[track_caller]
    fn succeeds(&self, script: &str) {
        let outcome = self.run(script);
        assert_eq!(outcome.status, Some(0), "{outcome:#?}");
    }

    fn cache(&self) -> String {
        let cache = fs::read(self.root.join("etc/ld.so.cache")).unwrap_or_default();
        String::from_utf8_lossy(&cache).into_owned()
    }
}

fn update() -> String {
    machine::driver().fill("hook update-ldcache --folder /LIB")
}

/// Any number of files with names that enable-cuda-compat uses.
pub(super) fn many_directories() {
    let image = Image::new();
    let first = image.root.join(CONFIGURATION).join("00-compat-0.conf");
    // More than the hook may hold in memory.
    fs::write(&first, "/a\n".repeat(500)).unwrap();
    for n in 1..20_000 {
        fs::hard_link(&first, first.with_file_name(format!("00-compat-{n}.conf"))).unwrap();
    }
    image.succeeds(&update());
}

/// The image's ldconfig does not read them, and ours does not begin to.
pub(super) fn much_that_is_not_included() {
    let image = Image::new();
    let lines = "/a\n".repeat(1 << 20);
    let mut file = File::create(image.root.join(CONFIGURATION).join("x.conf")).unwrap();
    for _ in 0..40 {
        file.write_all(lines.as_bytes()).unwrap();
    }
    image.succeeds(&update());
    let main = fs::read_to_string(image.root.join("etc/ld.so.conf")).unwrap();
    assert_eq!(main, "");
}

/// A hole of any size is one line, which ldconfig would hold in memory.
pub(super) fn a_sparse_configuration() {
    let image = Image::new();
    for name in ["etc/ld.so.conf", "etc/ld.so.conf.d/x.conf"] {
        fs::write(
            image.root.join("etc/ld.so.conf"),
            "include ld.so.conf.d/*.conf\n",
        )
        .unwrap();
        let path = image.root.join(name);
        File::create(&path).unwrap().set_len(8 << 40).unwrap();
        let outcome = image.run(&update());
        let said = format!("ldconfig would block: /{name}: it has more than 1048576 bytes");
        assert_eq!(outcome.status, Some(1), "{outcome:#?}");
        assert!(outcome.stderr.contains(&said), "{outcome:#?}");
        fs::remove_file(&path).unwrap();
    }
}

/// The headers of a large library are read, not the library.
pub(super) fn a_large_library() {
    let image = Image::new();
    let compat = image.root.join("usr/local/cuda/compat");
    fs::create_dir_all(&compat).unwrap();
    let mut library = File::create(compat.join("libcuda.so.999.1")).unwrap();
    library.write_all(b"\x7fELF\x02\x01").unwrap();
    library.set_len(200 << 20).unwrap();
    image.succeeds("hook enable-cuda-compat --host-driver-version=1.0");
    let conf = image.root.join(CONFIGURATION).join("00-compat-nvidia.conf");
    assert!(conf.exists());
}

/// A link to a file of procfs counts as nothing: this one holds a directory's name.
pub(super) fn files_of_the_kernel_are_not_read() {
    for from_kernel in [false, true] {
        let image = Image::new();
        let odd = image.root.join("odd");
        fs::create_dir(&odd).unwrap();
        let library = fs::canonicalize("/lib/x86_64-linux-gnu/libc.so.6").unwrap();
        fs::copy(library, odd.join("libc.so.6")).unwrap();
        let conf = image.root.join(CONFIGURATION).join("00-compat-x.conf");
        if from_kernel {
            symlink("/proc/sys/kernel/hostname", conf).unwrap();
        } else {
            fs::write(conf, "/odd\n").unwrap();
        }
        let script = format!(
            "echo /odd > /proc/sys/kernel/hostname; mount -t proc proc proc; {}",
            update()
        );
        image.succeeds(&script);
        assert_eq!(image.cache().contains("/odd/"), !from_kernel);
    }
}

/// A process on a volume exchanges a link into the root with a directory of the volume: nothing is created there.
pub(super) fn a_volume_that_changes() {
    let runs = harness::cases(200, 5_000);
    let image = Image::new();
    let volume = image.scratch.join("volume");
    for directory in [&volume, &volume.join("other"), &image.root.join("data")] {
        fs::create_dir(directory).unwrap();
    }
    for directory in ["opt/own", "usr/share"] {
        fs::create_dir_all(image.root.join(directory)).unwrap();
    }
    symlink("/opt/own", volume.join("x")).unwrap();
    symlink("/data/x", image.root.join("usr/share/raced")).unwrap();
    let script = format!(
        "mount --bind {} data; for n in $(seq {runs}); do \
         hook create-symlinks --link t::/usr/share/raced/a$n/b/link 2>/dev/null; done",
        volume.display()
    );
    let (one, other) = (volume.join("x"), volume.join("other"));
    let stop = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        scope.spawn(|| exchange(&one, &other, &stop));
        let outcome = image.run(&script);
        stop.store(true, Ordering::Relaxed);
        outcome
    });
    let places = [&one, &other].map(|path| path.as_path());
    let of_volume = places.into_iter().find(|path| !path.is_symlink()).unwrap();
    assert_eq!(names(of_volume), Vec::<String>::new(), "{outcome:#?}");
    // Otherwise no run has met the link.
    assert!(
        !names(&image.root.join("opt/own")).is_empty(),
        "{outcome:#?}"
    );
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect()
}
