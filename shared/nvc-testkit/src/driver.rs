//! Builds simulated driver roots: directories that look like a machine with the NVIDIA driver installed and loaded.
//!
//! A root has libraries with the real names and SONAMEs and a linker cache over them, a libnvidia-ml.so.1 that answers
//! from a profile, programs, firmware, sockets, device nodes and procfs files. libnvc takes it as its driver root.
//! Files that this process may not create (device nodes without the privilege) are omitted and reported.

mod hardware;
mod libraries;
mod procfs;

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use nix::errno::Errno;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

pub use libraries::Library;
pub(crate) use procfs::use_majors_of;
pub use procfs::{Majors, compute_instance_minor, free_majors, gpu_instance_minor};

use crate::compile::{Source, compiled};
use crate::elf::Machine;
use crate::profile::hardware::Display;
use crate::profile::{Fault, MigMode, Profile};
use crate::{files, userland};

/// Debian's name for this computer's architecture, as in /usr/lib/x86_64-linux-gnu.
pub const TRIPLET: &str = NATIVE.0;

/// Multiarch names and machines of this computer's architecture and its 32-bit companion.
pub const NATIVE: (&str, Machine) = if cfg!(target_arch = "aarch64") {
    ("aarch64-linux-gnu", Machine::NATIVE)
} else {
    ("x86_64-linux-gnu", Machine::NATIVE)
};
pub(crate) const NATIVE_32: (&str, Machine) = if cfg!(target_arch = "aarch64") {
    ("arm-linux-gnueabihf", Machine::Arm)
} else {
    ("i386-linux-gnu", Machine::I386)
};

/// A change to a root before its linker cache is generated.
type Edit = Box<dyn Fn(&Path) -> io::Result<()>>;

/// Options of a driver root.
pub struct Builder {
    profile: Profile,
    library_dir: String,
    library_dir_32: Option<String>,
    legacy_gl: bool,
    rare: bool,
    without: Vec<String>,
    nodes: bool,
    capability_nodes: bool,
    imex_channels: Vec<u32>,
    majors: Option<Majors>,
    libc: bool,
    cuda: bool,
    edits: Vec<Edit>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}

/// A simulated driver root.
#[derive(Debug)]
pub struct Driver {
    root: PathBuf,
    profile: Profile,
    majors: Majors,
    /// Other drivers, with their major numbers.
    modules: Vec<(String, u32)>,
    left_out: Vec<String>,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new(Profile::default())
    }
}

impl Builder {
    /// Describes a root with the contents of an ordinary package and its services.
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            library_dir: format!("/usr/lib/{}", NATIVE.0),
            library_dir_32: Some(format!("/usr/lib/{}", NATIVE_32.0)),
            legacy_gl: false,
            rare: false,
            without: Vec::new(),
            nodes: true,
            capability_nodes: true,
            imex_channels: vec![0, 1, 2047],
            majors: None,
            libc: true,
            cuda: false,
            edits: Vec::new(),
        }
    }

    /// Sets the library directories; without the second there are no 32-bit libraries.
    #[must_use]
    pub fn library_dirs(mut self, native: &str, narrow: Option<&str>) -> Self {
        self.library_dir = native.into();
        self.library_dir_32 = narrow.map(str::to_owned);
        self
    }

    /// Sets the majors, for a driver that takes another one's place.
    #[must_use]
    pub fn majors(mut self, majors: Majors) -> Self {
        self.majors = Some(majors);
        self
    }

    /// Adds the GL libraries from before GLVND.
    #[must_use]
    pub fn legacy_gl(mut self) -> Self {
        self.legacy_gl = true;
        self
    }

    /// Adds libraries that few packages have.
    #[must_use]
    pub fn rare_libraries(mut self) -> Self {
        self.rare = true;
        self
    }

    /// Omits a library, named up to `.so`, or any other path.
    #[must_use]
    pub fn without(mut self, what: &str) -> Self {
        self.without.push(what.into());
        self
    }

    /// Omits device nodes, as in a user namespace.
    #[must_use]
    pub fn no_nodes(mut self) -> Self {
        self.nodes = false;
        self
    }

    /// Omits capability nodes and their major number, as in drivers before 450.
    #[must_use]
    pub fn no_capability_nodes(mut self) -> Self {
        self.capability_nodes = false;
        self
    }

    /// Adds these IMEX channels.
    #[must_use]
    pub fn imex_channels(mut self, channels: &[u32]) -> Self {
        self.imex_channels = channels.to_vec();
        self
    }

    /// Omits the C library, as in a driver container built from scratch.
    #[must_use]
    pub fn no_libc(mut self) -> Self {
        self.libc = false;
        self
    }

    /// Adds a libcuda.so.1 that answers calls.
    #[must_use]
    pub fn answering_cuda(mut self) -> Self {
        self.cuda = true;
        self
    }

    /// Applies a change before the linker cache is generated.
    #[must_use]
    pub fn edit(mut self, change: impl Fn(&Path) -> io::Result<()> + 'static) -> Self {
        self.edits.push(Box::new(change));
        self
    }

    /// Creates the root in a directory, which must be empty or missing.
    ///
    /// # Errors
    /// A file cannot be created, except for device nodes without the privilege.
    pub fn build(&self, root: impl AsRef<Path>) -> io::Result<Driver> {
        let root = root.as_ref();
        files::directory(root)?;
        let majors = self.majors.unwrap_or_else(procfs::majors);
        let mut driver = Driver {
            root: fs::canonicalize(root)?,
            profile: self.profile.clone(),
            majors,
            modules: procfs::majors_of(&self.profile.hardware.modules, majors),
            left_out: Vec::new(),
        };
        files::file(
            &driver.path("/etc/nvidia-sim/profile"),
            self.profile.to_string(),
            0o644,
        )?;
        self.libraries(&driver)?;
        self.programs(&driver)?;
        self.firmware_and_sockets(&driver)?;
        self.procfs(&driver)?;
        hardware::sysfs(&driver)?;
        if self.nodes {
            self.nodes(&mut driver)?;
        } else {
            driver.left_out.push("device nodes: not wanted".into());
        }
        for edit in &self.edits {
            edit(&driver.root)?;
        }
        run(Command::new(userland::host_ldconfig())
            .arg("-r")
            .arg(&driver.root))?;
        Ok(driver)
    }

    fn wants(&self, what: &str) -> bool {
        !self.without.iter().any(|unwanted| unwanted == what)
    }

    fn libraries(&self, driver: &Driver) -> io::Result<()> {
        let version = &self.profile.driver;
        let mut names = vec![libraries::CURRENT, libraries::UNWANTED];
        names.extend(self.legacy_gl.then_some(libraries::LEGACY_GL));
        names.extend(self.rare.then_some(libraries::RARE));
        let wanted = || {
            let all = names.iter().copied().flatten();
            all.filter(|library| self.wants(library.stem))
        };
        let native = files::below(&driver.root, Path::new(&self.library_dir));
        for library in wanted() {
            let path = native.join(library.file_name(version));
            if library.stem == "libnvidia-ml" {
                files::file(&path, self.nvml()?.as_slice(), 0o755)?;
            } else if library.stem == "libcuda" && self.cuda {
                let program = compiled(Source::Cuda, &[])?;
                files::file(&path, program.as_slice(), 0o644)?;
            } else {
                files::file(&path, library.object(NATIVE.1, version).bytes(), 0o644)?;
            }
        }
        let mut directories = format!("/lib/{0}\n/usr/lib/{0}\n", NATIVE.0);
        directories += &format!("{}\n", self.library_dir);
        if let Some(narrow) = &self.library_dir_32 {
            for library in wanted().filter(|library| library.in_32_bit) {
                let object = library.object(NATIVE_32.1, version);
                let path = files::below(&driver.root, Path::new(narrow));
                files::file(
                    &path.join(library.file_name(version)),
                    object.bytes(),
                    0o644,
                )?;
            }
            directories += &format!("{narrow}\n");
        }
        if self.libc {
            let libraries = format!("/lib/{}", NATIVE.0);
            userland::install(&driver.root, &["sh"], &libraries)?;
        }
        files::file(&driver.path("/etc/ld.so.conf"), directories, 0o644)
    }

    /// Returns the fake NVML without the entry points configured as missing.
    fn nvml(&self) -> io::Result<std::sync::Arc<Vec<u8>>> {
        let mut arguments: Vec<_> = self
            .profile
            .faults
            .iter()
            .filter_map(|fault| match fault {
                Fault::Missing(symbol) => Some(format!("-D{symbol}=absent_{symbol}")),
                _ => None,
            })
            .collect();
        arguments.sort();
        compiled(Source::Nvml, &arguments)
    }

    fn programs(&self, driver: &Driver) -> io::Result<()> {
        if self.wants("/usr/bin/nvidia-smi") {
            let program = compiled(Source::NvidiaSmi, &[])?;
            files::file(
                &driver.path("/usr/bin/nvidia-smi"),
                program.as_slice(),
                0o755,
            )?;
        }
        for name in [
            "nvidia-debugdump",
            "nvidia-persistenced",
            "nv-fabricmanager",
            "nvidia-cuda-mps-control",
            "nvidia-cuda-mps-server",
            "nvidia-modprobe",
        ] {
            let path = format!("/usr/bin/{name}");
            if self.wants(&path) {
                let script = format!("#!/bin/sh\necho 'this {name} is simulated'\n");
                files::file(&driver.path(&path), script, 0o755)?;
            }
        }
        Ok(())
    }

    fn firmware_and_sockets(&self, driver: &Driver) -> io::Result<()> {
        for name in ["gsp_ga10x.bin", "gsp_tu10x.bin"] {
            let path = format!("/lib/firmware/nvidia/{}/{name}", self.profile.driver);
            if self.wants(&path) {
                files::file(&driver.path(&path), name.repeat(300), 0o644)?;
            }
        }
        for service in ["persistenced", "fabricmanager"] {
            let path = format!("/var/run/nvidia-{service}/socket");
            if self.wants(&path) {
                socket(&driver.path(&path))?;
            }
        }
        if self.wants("/tmp/nvidia-mps") {
            files::directory(&driver.path("/tmp/nvidia-mps"))?;
            files::file(&driver.path("/tmp/nvidia-mps/control"), "", 0o666)?;
        }
        Ok(())
    }

    fn procfs(&self, driver: &Driver) -> io::Result<()> {
        procfs::write(&driver.path("/proc/driver/nvidia"), &self.profile)?;
        let mut devices = procfs::devices(driver.majors, &driver.modules);
        if self.capability_nodes {
            let minors = driver.path("/proc/driver/nvidia-caps/mig-minors");
            files::file(&minors, procfs::mig_minors(&self.profile), 0o444)?;
        } else {
            let line = format!("{:3} nvidia-caps\n", driver.majors.caps);
            devices = devices.replace(&line, "");
        }
        files::file(&driver.path("/proc/devices"), devices, 0o444)
    }

    fn nodes(&self, driver: &mut Driver) -> io::Result<()> {
        let Majors { caps, imex, uvm } = driver.majors;
        let mut nodes = vec![
            ("/dev/null".to_owned(), 0o666, 1, 3),
            ("/dev/nvidiactl".into(), 0o666, 195, 255),
            ("/dev/nvidia-modeset".into(), 0o666, 195, 254),
            ("/dev/nvidia-uvm".into(), 0o666, uvm, 0),
            ("/dev/nvidia-uvm-tools".into(), 0o666, uvm, 1),
        ];
        for gpu in &self.profile.gpus {
            nodes.push((format!("/dev/nvidia{}", gpu.minor), 0o666, 195, gpu.minor));
        }
        if self.capability_nodes {
            let mut cap = |mode, minor| {
                nodes.push((
                    format!("/dev/nvidia-caps/nvidia-cap{minor}"),
                    mode,
                    caps,
                    minor,
                ));
            };
            cap(0o400, 1);
            cap(0o444, 2);
            for mig in &self.profile.mig_devices {
                let gpu = self.profile.gpus.get(mig.gpu).map_or(0, |gpu| gpu.minor);
                cap(0o444, gpu_instance_minor(gpu, mig.gpu_instance));
                let (gi, ci) = (mig.gpu_instance, mig.compute_instance);
                cap(0o444, compute_instance_minor(gpu, gi, ci));
            }
        }
        let channels = match self.profile.hardware.channels.as_slice() {
            [] => &self.imex_channels,
            own => own,
        };
        for channel in channels {
            let path = format!("/dev/nvidia-caps-imex-channels/channel{channel}");
            nodes.push((path, 0o666, imex, *channel));
        }
        for (name, minor) in self
            .profile
            .hardware
            .displays
            .iter()
            .flat_map(Display::nodes)
        {
            nodes.push((format!("/dev/dri/{name}"), 0o660, hardware::DRM, minor));
        }
        for (path, mode, major, minor) in nodes {
            if !self.wants(&path) {
                continue;
            }
            match node(&driver.path(&path), mode, major, minor) {
                Ok(()) => {}
                Err(Errno::EPERM) => {
                    let why = "device nodes: this process may not make any";
                    driver.left_out.push(why.into());
                    return Ok(());
                }
                Err(error) => return Err(io::Error::other(format!("{path}: {error}"))),
            }
        }
        let mut odd = self.profile.hardware.nodes.iter();
        odd.try_for_each(|node| driver.replace(node))
    }
}

impl Driver {
    /// Returns the root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the host path of a file in the root.
    pub fn path(&self, inside: impl AsRef<Path>) -> PathBuf {
        files::below(&self.root, inside.as_ref())
    }

    /// Returns the driver's answers.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the major numbers of its devices.
    pub fn majors(&self) -> Majors {
        self.majors
    }

    /// Expands placeholders in a text: `VER` is the driver's version, `LIB32` and `LIB` are Debian's multiarch
    /// directories, `CAPS`, `IMEX` and `UVM` the major numbers.
    pub fn fill(&self, text: &str) -> String {
        text.replace("VER", &self.profile.driver)
            .replace("LIB32", &format!("usr/lib/{}", NATIVE_32.0))
            .replace("LIB", &format!("usr/lib/{}", NATIVE.0))
            .replace("CAPS", &self.majors.caps.to_string())
            .replace("IMEX", &self.majors.imex.to_string())
            .replace("UVM", &self.majors.uvm.to_string())
    }

    /// Returns the files that could not be created, with the reasons.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Changes the answers from now on; missing entry points and procfs files stay as built.
    ///
    /// # Errors
    /// The profile cannot be written.
    pub fn answer(&self, profile: &Profile) -> io::Result<()> {
        let path = self.path("/etc/nvidia-sim/profile");
        files::file(&path, profile.to_string(), 0o644)
    }

    /// Returns the expected output of `nvidia-smi -L` in a container with GPU `index` and those MIG devices (NVML's
    /// indices).
    pub fn listing(&self, index: usize, mig_slots: &[u32]) -> String {
        let Some(gpu) = self.profile.gpus.get(index) else {
            return String::new();
        };
        let mut text = format!("GPU 0: {} (UUID: {})\n", gpu.model, gpu.uuid);
        let on_gpu = self
            .profile
            .mig_devices
            .iter()
            .filter(|mig| mig.gpu == index);
        let wanted = on_gpu.filter(|mig| gpu.mig == MigMode::On && mig_slots.contains(&mig.slot));
        for (place, mig) in wanted.enumerate() {
            text += &format!(
                "  MIG {:<15} Device {place:2}: (UUID: {})\n",
                mig.name, mig.uuid
            );
        }
        text
    }
}

/// Creates a listening socket. Binds through a directory's descriptor, because a socket's path is limited to 107 bytes
/// and temporary directories are deep.
fn socket(path: &Path) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    let parent = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().unwrap_or_default();
    files::directory(parent)?;
    let directory = fs::File::open(parent)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    UnixListener::bind(short.join(name))?;
    files::mode(path, 0o666)
}

/// Creates a character device node.
fn node(path: &Path, mode: u32, major: u32, minor: u32) -> Result<(), Errno> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    files::directory(parent).map_err(|_| Errno::ENOTDIR)?;
    let number = makedev(major.into(), minor.into());
    mknod(path, SFlag::S_IFCHR, Mode::from_bits_truncate(mode), number)?;
    // The umask has cleared bits.
    files::mode(path, mode).map_err(|_| Errno::EPERM)
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?}: {text}")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};

    use super::*;

    #[test]
    fn a_root_has_the_drivers_files() {
        let directory = tempfile::tempdir().unwrap();
        let driver = Builder::default()
            .legacy_gl()
            .build(directory.path())
            .unwrap();
        let lib = format!("/usr/lib/{}", NATIVE.0);
        for (link, target) in [
            ("libcuda.so.1", "libcuda.so.570.124.06"),
            ("libnvidia-ml.so.1", "libnvidia-ml.so.570.124.06"),
            ("libnvidia-nvvm.so.4", "libnvidia-nvvm.so.570.124.06"),
            ("libEGL_nvidia.so.0", "libEGL_nvidia.so.570.124.06"),
            ("libGL.so.1", "libGL.so.570.124.06"),
        ] {
            let found = fs::read_link(driver.path(format!("{lib}/{link}"))).unwrap();
            assert_eq!(found, Path::new(target));
        }
        let listed = Command::new(userland::host_ldconfig())
            .args(["-p", "-r"])
            .arg(driver.root())
            .output()
            .unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let narrow = format!("/usr/lib/{}", NATIVE_32.0);
        for expected in [
            format!("{lib}/libcuda.so.1"),
            format!("{lib}/libnvidia-glcore.so.570.124.06"),
            format!("{narrow}/libcuda.so.1"),
            format!("/lib/{}/libc.so.6", NATIVE.0),
        ] {
            assert!(
                listed.contains(&format!("=> {expected}\n")),
                "{expected}: {listed}"
            );
        }
        let socket = fs::metadata(driver.path("/var/run/nvidia-persistenced/socket")).unwrap();
        assert!(socket.file_type().is_socket());
        if driver.left_out().is_empty() {
            let node = fs::metadata(driver.path("/dev/nvidia1")).unwrap();
            assert!(node.file_type().is_char_device() && node.rdev() == makedev(195, 1));
            assert_eq!(node.mode() & 0o7777, 0o666);
            assert!(driver.path("/dev/nvidia-caps/nvidia-cap148").exists());
        }
        let access = "/proc/driver/nvidia/capabilities/gpu1/mig/gi1/ci0/access";
        let text = fs::read_to_string(driver.path(access)).unwrap();
        assert!(text.starts_with("DeviceFileMinor: 148\n"), "{text}");
        let minors =
            fs::read_to_string(driver.path("/proc/driver/nvidia-caps/mig-minors")).unwrap();
        assert!(minors.contains("gpu1/gi1/ci0/access 148\n"));
    }

    #[test]
    fn unwanted_files_are_absent() {
        let directory = tempfile::tempdir().unwrap();
        let driver = Builder::new(Profile::without_gpus())
            .without("libcuda")
            .without("/usr/bin/nvidia-smi")
            .without("/tmp/nvidia-mps")
            .library_dirs("/usr/lib64", None)
            .no_nodes()
            .no_libc()
            .no_capability_nodes()
            .build(directory.path().join("deep/root"))
            .unwrap();
        assert!(driver.path("/usr/lib64/libnvidia-ml.so.1").exists());
        for gone in [
            "/usr/lib64/libcuda.so.570.124.06",
            "/usr/bin/nvidia-smi",
            "/tmp/nvidia-mps",
            "/dev",
            "/bin/sh",
            "/proc/driver/nvidia-caps",
        ] {
            assert!(!driver.path(gone).exists(), "{gone}");
        }
        let devices = fs::read_to_string(driver.path("/proc/devices")).unwrap();
        assert!(devices.contains("195 nvidia\n") && !devices.contains("nvidia-caps\n"));
    }

    #[test]
    fn missing_entry_points_are_missing() {
        let directory = tempfile::tempdir().unwrap();
        let symbols = |driver: &Driver| {
            let library = driver.path(format!("/usr/lib/{}/libnvidia-ml.so.1", NATIVE.0));
            let output = Command::new("nm").arg("-D").arg(library).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let profile = Profile::default().fault(Fault::Missing("nvmlDeviceGetMigMode".into()));
        let driver = Builder::new(profile).build(directory.path()).unwrap();
        assert!(!symbols(&driver).contains(" nvmlDeviceGetMigMode\n"));
        assert!(symbols(&driver).contains(" nvmlDeviceGetName\n"));
    }
}
