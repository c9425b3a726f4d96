//! Writes the files of a driver root: libraries, programs, firmware, sockets, procfs.

use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use super::builder::Builder;
use super::native::{NATIVE, NATIVE_32};
use super::root::Driver;
use super::{libraries as package, procfs};
use crate::compile::{Source, compiled};
use crate::profile::Fault;
use crate::{files, userland};

/// Writes everything but device nodes.
pub(super) fn write(builder: &Builder, driver: &Driver) -> io::Result<()> {
    libraries(builder, driver)?;
    programs(builder, driver)?;
    firmware_and_sockets(builder, driver)?;
    procfs_files(builder, driver)
}

fn libraries(builder: &Builder, driver: &Driver) -> io::Result<()> {
    let version = &builder.profile.driver;
    let mut names = vec![package::CURRENT, package::UNWANTED];
    names.extend(builder.legacy_gl.then_some(package::LEGACY_GL));
    names.extend(builder.rare.then_some(package::RARE));
    let wanted = || {
        let all = names.iter().copied().flatten();
        all.filter(|library| builder.wants(library.stem))
    };
    let native = files::below(&driver.root, Path::new(&builder.library_dir));
    for library in wanted() {
        let path = native.join(library.file_name(version));
        if library.stem == "libnvidia-ml" {
            files::file(&path, nvml(builder)?.as_slice(), 0o755)?;
        } else if library.stem == "libnvidia-sandboxutils" {
            let program = compiled(Source::SandboxUtils, &[])?;
            files::file(&path, program.as_slice(), 0o644)?;
        } else if library.stem == "libcuda" && builder.cuda {
            let program = compiled(Source::Cuda, &[])?;
            files::file(&path, program.as_slice(), 0o644)?;
        } else {
            files::file(&path, library.object(NATIVE.1, version).bytes(), 0o644)?;
        }
    }
    let mut directories = format!("/lib/{0}\n/usr/lib/{0}\n", NATIVE.0);
    directories += &format!("{}\n", builder.library_dir);
    if let Some(narrow) = &builder.library_dir_32 {
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
    if builder.libc {
        let libraries = format!("/lib/{}", NATIVE.0);
        userland::install(&driver.root, &["sh"], &libraries)?;
    }
    files::file(&driver.path("/etc/ld.so.conf"), directories, 0o644)
}

/// Returns the fake NVML without the entry points configured as missing.
fn nvml(builder: &Builder) -> io::Result<std::sync::Arc<Vec<u8>>> {
    let mut arguments: Vec<_> = builder
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

fn programs(builder: &Builder, driver: &Driver) -> io::Result<()> {
    if builder.wants("/usr/bin/nvidia-smi") {
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
        if builder.wants(&path) {
            let program = compiled(Source::Program, &[])?;
            files::file(&driver.path(&path), program.as_slice(), 0o755)?;
        }
    }
    Ok(())
}

fn firmware_and_sockets(builder: &Builder, driver: &Driver) -> io::Result<()> {
    for name in ["gsp_ga10x.bin", "gsp_tu10x.bin"] {
        let path = format!("/lib/firmware/nvidia/{}/{name}", builder.profile.driver);
        if builder.wants(&path) {
            files::file(&driver.path(&path), name.repeat(300), 0o644)?;
        }
    }
    for service in ["persistenced", "fabricmanager"] {
        let path = format!("/var/run/nvidia-{service}/socket");
        if builder.wants(&path) {
            socket(&driver.path(&path))?;
        }
    }
    if builder.wants("/tmp/nvidia-mps") {
        socket(&driver.path("/tmp/nvidia-mps/control"))?;
    }
    Ok(())
}

fn procfs_files(builder: &Builder, driver: &Driver) -> io::Result<()> {
    procfs::write(&driver.path("/proc/driver/nvidia"), &builder.profile)?;
    let mut devices = procfs::devices(driver.majors, &driver.modules);
    if builder.capability_nodes {
        let minors = driver.path("/proc/driver/nvidia-caps/mig-minors");
        files::file(&minors, procfs::mig_minors(&builder.profile), 0o444)?;
    } else {
        let line = format!("{:3} nvidia-caps\n", driver.majors.caps);
        devices = devices.replace(&line, "");
    }
    files::file(&driver.path("/proc/devices"), devices, 0o444)
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
