//! Finds containers, and updates their linker cache.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use libc::pid_t;
use libnvc::apply::{ApplyOptions, apply};
use libnvc::container::{CgroupVersion, ContainerConfig};
use libnvc::host::{DriverInfo, DriverSession, DriverVersions};
use libnvc::options::{CudaCompatMode, Ldconfig};
use libnvc::plan::{Intent, Item, Part, PartKind, naming_device};
use libnvc::request::{Capability, ImageOptions, Request};
use libnvc::{ContainerPath, Error, Result, Target};

use crate::arg::{Arg, args};
use crate::boundary::{call, guard};
use crate::handles::{self, Kind};
use crate::memory::{array, invalid_argument, one, optional_path, path, release, release_strings};
use crate::options::ContainerOptions;
use crate::state::{State, nvc_context};

/// A container. Created by nvc_container_new.
#[derive(Debug)]
pub struct nvc_container {
    _opaque: [u8; 0],
}

/// Identifies a container. Created by nvc_container_config_new; the caller sets the fields.
#[repr(C)]
#[derive(Debug)]
pub struct nvc_container_config {
    /// A process of the container.
    pub pid: pid_t,
    /// Its root directory, absolute.
    pub rootfs: *mut c_char,
    /// Directory of programs in it. NULL: "/usr/bin".
    pub bins_dir: *mut c_char,
    /// Directory of libraries in it. NULL: the default of its distribution.
    pub libs_dir: *mut c_char,
    /// Directory of 32-bit libraries in it. NULL: the default of its distribution.
    pub libs32_dir: *mut c_char,
    /// The image's CUDA directory. NULL: "/usr/local/cuda".
    pub cudart_dir: *mut c_char,
    /// The program that updates its linker cache: "@/path" on the host, "/path" in the image, or "auto": none if the
    /// image's cache is valid, else "@/sbin/ldconfig". NULL: "auto".
    pub ldconfig: *mut c_char,
}

/// The first bytes of a container; upstream's command line since 1.17.7 reads `flags` and replaces `libs`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) flags: u32,
    pub(crate) cfg: nvc_container_config,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mnt_ns: *mut c_char,
    pub(crate) dev_cg_version: c_int,
    pub(crate) dev_cg: *mut c_char,
    pub(crate) libs: *mut *mut c_char,
    pub(crate) nlibs: usize,
    pub(crate) cuda_compat_dir: *mut c_char,
}

/// A container: upstream's first bytes, followed by our own state.
#[repr(C)]
pub(crate) struct Container {
    pub(crate) front: UnsafeCell<Front>,
    pub(crate) found: libnvc::container::Container,
    /// The request in the container's options; later calls name the devices.
    pub(crate) request: Request,
    /// Files and links that calls have mounted or created in it.
    placed: Mutex<Vec<ContainerPath>>,
}

impl Container {
    fn find(config: &Config, options: ContainerOptions) -> Result<Self> {
        let request = options.request()?;
        let found = libnvc::container::Container::discover(config.to_container(options, &request))?;
        let front = UnsafeCell::new(Front::of(
            &found,
            config,
            options,
            request.policy.cuda_compat,
        ));
        Ok(Self {
            front,
            found,
            request,
            placed: Mutex::default(),
        })
    }

    /// Returns the container of a C pointer.
    ///
    /// # Errors
    /// `invalid argument` for NULL.
    pub(crate) fn of<'a>(container: Arg<'a, nvc_container>) -> Result<&'a Self> {
        let container: *const Self = handles::check(Kind::Container, container.pointer()).cast();
        // SAFETY: NULL or alive for 'a, as of every `Arg`; and every nvc_container is the front of a `Container`.
        unsafe { container.as_ref() }.ok_or_else(invalid_argument)
    }

    /// Applies a plan to the container, with the driver of an initialised context.
    pub(crate) fn apply(&self, state: &mut State, intents: &[Intent]) -> Result<()> {
        let (compat_libraries, placed) = (self.compat_libraries()?, self.placed());
        let options = ApplyOptions {
            no_pivot: state.no_pivot,
            stay: false,
            compat_libraries: Some(&compat_libraries),
            placed: &placed,
            ..ApplyOptions::default()
        };
        let root = state.driver()?.session.root();
        let report = apply(intents, root, &self.found, options)?;
        for reason in &report.skipped {
            log::warn!("skipped (optional): {}", reason.message());
        }
        self.note_placed(report.placed);
        Ok(())
    }

    /// Applies what a device needs. Errors about its files get its name.
    pub(crate) fn apply_device(
        &self,
        state: &mut State,
        kind: PartKind,
        name: String,
        item: Item<'_>,
    ) -> Result<()> {
        let part = Part {
            kind,
            names: vec![name],
            intents: item.plan(&self.request),
        };
        let done = self.apply(state, &part.intents);
        let root = state.driver()?.session.root();
        done.map_err(|error| naming_device(error, &[part], root))
    }

    /// Returns the compatibility libraries that upstream's command line has kept.
    fn compat_libraries(&self) -> Result<Vec<ContainerPath>> {
        let mut found = self.found.image.compat_libraries.clone();
        if self.request.policy.cuda_compat == CudaCompatMode::Mount {
            // SAFETY: inside the container, which is alive. C changes it only between calls, and replaces the array by
            // another one of strings.
            let front = unsafe { args(self.front.get()) };
            let libs = front.array(|front| (&front.libs, &front.nlibs))?;
            found = libs
                .filter_map(Arg::<*mut c_char>::text)
                .map(ContainerPath::new)
                .collect();
        }
        Ok(found)
    }

    /// Records the files that a call has mounted or created in the container.
    fn note_placed(&self, paths: Vec<ContainerPath>) {
        let placed = self.placed.lock();
        placed.unwrap_or_else(PoisonError::into_inner).extend(paths);
    }

    /// Returns the files that calls have mounted or created in the container.
    fn placed(&self) -> Vec<ContainerPath> {
        let placed = self.placed.lock();
        placed.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Front {
    fn of(
        found: &libnvc::container::Container,
        config: &Config,
        options: ContainerOptions,
        compat: CudaCompatMode,
    ) -> Self {
        let layout = &found.image.layout;
        let mode = match compat {
            CudaCompatMode::Mount => ContainerOptions::CUDA_COMPAT_MOUNT,
            CudaCompatMode::Ldconfig => ContainerOptions::CUDA_COMPAT_LDCONFIG,
            CudaCompatMode::Disabled => ContainerOptions::CUDA_COMPAT_DISABLED,
        };
        let proc = if options.contains(ContainerOptions::STANDALONE) {
            config.rootfs.join("proc")
        } else {
            PathBuf::from("/proc")
        };
        let libs = found
            .image
            .compat_libraries
            .iter()
            .map(|lib| path(lib.as_path()));
        let (libs, nlibs) = array(libs.collect());
        let (uid, gid) = found.owner();
        let cgroup = found.device_cgroup();
        Self {
            flags: (options | mode).bits(),
            cfg: nvc_container_config {
                pid: config.pid,
                rootfs: path(&config.rootfs),
                bins_dir: path(layout.bins_dir.as_path()),
                libs_dir: path(layout.libs_dir.as_path()),
                libs32_dir: path(layout.libs32_dir.as_path()),
                cudart_dir: path(layout.cudart_dir.as_path()),
                ldconfig: match &config.image.ldconfig {
                    Ldconfig::Auto => ptr::null_mut(),
                    program => path(program.to_string()),
                },
            },
            uid,
            gid,
            mnt_ns: path(proc.join(config.pid.to_string()).join("ns/mnt")),
            dev_cg_version: match cgroup.map(|cgroup| cgroup.version) {
                None => 0,
                Some(CgroupVersion::V1) => 1,
                Some(CgroupVersion::V2) => 2,
            },
            dev_cg: optional_path(cgroup.map(|cgroup| &cgroup.directory)),
            libs,
            nlibs,
            cuda_compat_dir: ptr::null_mut(),
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let front = self.front.get_mut();
        let cfg = &front.cfg;
        for text in [
            cfg.rootfs,
            cfg.bins_dir,
            cfg.libs_dir,
            cfg.libs32_dir,
            cfg.cudart_dir,
            cfg.ldconfig,
            front.mnt_ns,
            front.dev_cg,
            front.cuda_compat_dir,
        ] {
            // SAFETY: ours, or C's replacement, which is also on the C library's heap.
            unsafe { release(text) };
        }
        // SAFETY: an array of strings, ours or C's, on the C library's heap.
        unsafe { release_strings(front.libs, front.nlibs) };
    }
}

/// Converts C's configuration.
fn container_config(config: Arg<'_, nvc_container_config>) -> Result<Config> {
    let directory = |field| Ok::<_, Error>(config.string(field)?.map(PathBuf::from));
    Ok(Config {
        pid: config.get()?.pid,
        rootfs: config
            .string(|config| &config.rootfs)?
            .map(Path::new)
            .ok_or_else(invalid_argument)?
            .into(),
        image: ImageOptions {
            bins_dir: directory(|config| &config.bins_dir)?,
            libs_dir: directory(|config| &config.libs_dir)?,
            libs32_dir: directory(|config| &config.libs32_dir)?,
            cudart_dir: directory(|config| &config.cudart_dir)?,
            ldconfig: config
                .string(|config| &config.ldconfig)?
                .map(Ldconfig::parse)
                .unwrap_or_default(),
        },
    })
}

/// C's configuration in Rust types.
#[derive(Debug)]
struct Config {
    pid: pid_t,
    rootfs: PathBuf,
    image: ImageOptions,
}

impl Config {
    /// Checks everything that does not require access to the container.
    fn check(&self) -> Result<()> {
        let options = ContainerOptions::empty();
        self.to_container(options, &Request::default()).check()
    }

    fn to_container(&self, options: ContainerOptions, request: &Request) -> ContainerConfig {
        let (pid, rootfs) = (self.pid, self.rootfs.clone());
        ContainerConfig {
            target: if options.contains(ContainerOptions::STANDALONE) {
                Target::Inside { pid, rootfs }
            } else {
                Target::Process { pid, rootfs }
            },
            image: self.image.clone(),
            compat: if request.capabilities.include(Capability::Compute) {
                request.policy.cuda_compat
            } else {
                CudaCompatMode::Disabled
            },
            device_cgroup: request.policy.device_rules,
            loader: true,
            user: None,
        }
    }
}

/// Returns a driver with only the facts that every plan needs.
fn outline(session: &mut DriverSession, request: &Request) -> Result<DriverInfo> {
    let needs_version = request.policy.cuda_compat == CudaCompatMode::Ldconfig;
    Ok(DriverInfo {
        versions: if needs_version {
            session.versions()?
        } else {
            DriverVersions::default()
        },
        wsl: session.wsl().cloned(),
        ..DriverInfo::default()
    })
}

/// Creates the configuration of a container. rootfs is not copied; all other fields are NULL.
///
/// Returns a configuration, to be released with nvc_container_config_free.
#[unsafe(no_mangle)]
pub extern "C" fn nvc_container_config_new(
    pid: pid_t,
    rootfs: *const c_char,
) -> *mut nvc_container_config {
    guard(ptr::null_mut(), || {
        let config = nvc_container_config {
            pid,
            rootfs: rootfs.cast_mut(),
            bins_dir: ptr::null_mut(),
            libs_dir: ptr::null_mut(),
            libs32_dir: ptr::null_mut(),
            cudart_dir: ptr::null_mut(),
            ldconfig: ptr::null_mut(),
        };
        handles::give(Kind::ContainerConfig, one(config))
    })
}

/// Releases a configuration. The strings of its fields still belong to the caller. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_container_config_free(cfg: *mut nvc_container_config) {
    if let Some(config) = handles::take(Kind::ContainerConfig, cfg) {
        // SAFETY: `nvc_container_config_new` made it, and the caller gives it up.
        unsafe { release(config) };
    }
}

/// Finds a container, without changing it.
///
/// cfg is copied; the caller may change or release it afterwards.
/// opts may be NULL: "standalone no-cgroups no-devbind utility". Words are separated by spaces:
///   supervised     reach the container through the caller's /proc; or
///   standalone     through the /proc in the container's root: exactly one of the two
///   no-cgroups     do not change the device cgroup
///   no-devbind     do not mount device nodes
///   utility compute video graphics display ngx compat32
///                  the parts of the driver for the container
///   cuda-compat-mode=mount, =ldconfig or =disabled
///                  use of the image's CUDA compatibility libraries; no-cntlibs is a synonym of the last
///
/// Returns a container, to be released with nvc_container_free; it does not depend on the context. Returns NULL with an
/// error: "invalid argument" for a pid below 1, a rootfs that is not absolute, or an empty path; "invalid mode of
/// operation", "invalid option: ...", "too many options", "stat failed: ...".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_container_new(
    ctx: *mut nvc_context,
    cfg: *const nvc_container_config,
    opts: *const c_char,
) -> *mut nvc_container {
    // SAFETY: nvc.h requires of the caller what `args` requires.
    let (ctx, cfg, opts) = unsafe { args((ctx, cfg, opts)) };
    let body = |state: &mut State| {
        state.driver()?;
        let config = container_config(cfg)?;
        let options = opts.words(ContainerOptions::DEFAULT_WORDS);
        config.check()?;
        let container = Container::find(&config, ContainerOptions::parse(&options)?)?;
        let container = Box::into_raw(Box::new(container));
        Ok(handles::give(Kind::Container, container).cast::<nvc_container>())
    };
    call(ctx, body)
}

/// Releases a container. Its mounts stay. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_container_free(cnt: *mut nvc_container) {
    if let Some(container) = handles::take(Kind::Container, cnt.cast::<Container>()) {
        // SAFETY: `nvc_container_new` made it from a box, and the caller gives it up.
        guard((), || drop(unsafe { Box::from_raw(container) }));
    }
}

/// Updates a container's linker cache: runs ldconfig in a sandbox for the directories with mounted libraries. With
/// "builtin" the library writes the cache itself, with the libraries that calls for this container have mounted.
///
/// Must be the last call for a container.
///
/// Returns 0, or -1 with an error, for instance "process /sbin/ldconfig failed with error code: 1".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_ldcache_update(
    ctx: *mut nvc_context,
    cnt: *const nvc_container,
) -> c_int {
    // SAFETY: nvc.h requires of the caller what `args` requires.
    let (ctx, cnt) = unsafe { args((ctx, cnt)) };
    let body = |state: &mut State| {
        let session = &mut state.driver()?.session;
        let container = Container::of(cnt)?;
        let request = &container.request;
        let driver = outline(session, request)?;
        // In the other mode, nvc_driver_mount has mounted them.
        let searches = request.policy.cuda_compat == CudaCompatMode::Ldconfig;
        let mut intents = Vec::new();
        if searches {
            intents.extend(Item::CudaCompat(&driver).plan(request));
        }
        intents.extend(Item::LibraryPath(&driver).plan(request));
        container.apply(state, &intents)
    };
    call(ctx, body)
}
