//! Converts the configuration of a context.

use std::ffi::{CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;

use libc::{gid_t, uid_t};
use libnvc::host::{DriverConfig, Identity};
use libnvc::{HostPath, Result};

use crate::arg::Arg;
use crate::environment::environment;
use crate::memory::invalid_argument;

/// An IMEX channel. Filled in by the caller.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvc_imex_channel {
    /// Its number, from 0.
    pub id: c_int,
}

/// IMEX channels.
#[repr(C)]
#[derive(Debug)]
pub struct nvc_imex_info {
    /// An array; NULL if there are none.
    pub chans: *mut nvc_imex_channel,
    /// Number of channels.
    pub nchans: usize,
}

/// How to reach the driver. Created by nvc_config_new; the caller sets the fields.
#[repr(C)]
#[derive(Debug)]
pub struct nvc_config {
    /// The driver root. NULL: "/".
    pub root: *mut c_char,
    /// The ld.so.cache below the driver root. NULL: "/etc/ld.so.cache".
    pub ldcache: *mut c_char,
    /// The user that the driver's library runs as. (uid_t)-1: the overflow user, which owns nothing.
    pub uid: uid_t,
    /// Its group. (gid_t)-1: the overflow group.
    pub gid: gid_t,
    /// The IMEX channels whose device nodes nvc_init creates, with the option "load-kmods", if the driver has them.
    pub imex: nvc_imex_info,
}

/// A context's configuration, without unset fields.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) driver: DriverConfig,
    /// The user of `driver`.
    pub(crate) user: Identity,
    /// The IMEX channels whose nodes nvc_init may create.
    pub(crate) imex_channels: Vec<u32>,
}

/// The active configuration as C strings.
#[derive(Debug)]
pub(crate) struct ConfigStrings {
    root: CString,
    ldcache: CString,
    identity: Identity,
    channels: Vec<nvc_imex_channel>,
}

/// The loader's cache that a configuration shows, unless the caller has set another.
const LDCACHE: &str = "/etc/ld.so.cache";

impl ConfigStrings {
    pub(crate) fn of(settings: &Settings) -> Self {
        let config = &settings.driver;
        let text = |path: &OsStr| CString::new(path.as_bytes()).unwrap_or_default();
        let ldcache = config.ldcache.as_ref().map(HostPath::as_path);
        let channels = settings.imex_channels.iter().copied();
        Self {
            root: text(config.root.as_os_str()),
            ldcache: text(ldcache.map_or(OsStr::new(LDCACHE), |p| p.as_os_str())),
            identity: settings.user,
            channels: channels
                .map(|id| nvc_imex_channel {
                    id: id.cast_signed(),
                })
                .collect(),
        }
    }

    pub(crate) fn for_c(&self) -> nvc_config {
        nvc_config {
            root: self.root.as_ptr().cast_mut(),
            ldcache: self.ldcache.as_ptr().cast_mut(),
            uid: self.identity.uid,
            gid: self.identity.gid,
            imex: nvc_imex_info {
                chans: self.channels.as_ptr().cast_mut(),
                nchans: self.channels.len(),
            },
        }
    }
}

/// Returns a configuration without values.
pub(crate) fn nothing() -> nvc_config {
    nvc_config {
        root: ptr::null_mut(),
        ldcache: ptr::null_mut(),
        uid: 0,
        gid: 0,
        imex: nvc_imex_info {
            chans: ptr::null_mut(),
            nchans: 0,
        },
    }
}

/// Converts C's configuration, with defaults for unset fields.
pub(crate) fn settings(config: Arg<'_, nvc_config>) -> Result<Settings> {
    let mut driver = DriverConfig {
        deadline: DriverConfig::deadline_of(environment(c"NVC_DRIVER_TIMEOUT").as_deref()),
        ..DriverConfig::default()
    };
    if config.is_null() {
        return with_user(driver, uid_t::MAX, gid_t::MAX);
    }
    let root = config.string(|config| &config.root)?;
    let ldcache = config.string(|config| &config.ldcache)?;
    if root.is_some_and(OsStr::is_empty) || ldcache.is_some_and(OsStr::is_empty) {
        return Err(invalid_argument());
    }
    let imex_channels = channel_numbers(config.part(|config| &config.imex)?)?;
    let config = config.get()?;
    driver.root = root.map_or(driver.root, PathBuf::from);
    driver.ldcache = ldcache.map(HostPath::new);
    Ok(Settings {
        imex_channels,
        ..with_user(driver, config.uid, config.gid)?
    })
}

/// Adds C's user and group; each can be the overflow one.
fn with_user(driver: DriverConfig, uid: uid_t, gid: gid_t) -> Result<Settings> {
    let mut user = Identity { uid, gid };
    if uid == uid_t::MAX || gid == gid_t::MAX {
        let overflow = Identity::overflow()?;
        let or_overflow = |id, overflow| if id == u32::MAX { overflow } else { id };
        user = Identity {
            uid: or_overflow(uid, overflow.uid),
            gid: or_overflow(gid, overflow.gid),
        };
    }
    let driver = DriverConfig {
        user: Some(user),
        ..driver
    };
    Ok(Settings {
        driver,
        user,
        imex_channels: Vec::new(),
    })
}

/// Returns the numbers of channels.
fn channel_numbers(info: Arg<'_, nvc_imex_info>) -> Result<Vec<u32>> {
    let channels = info.array(|info| (&info.chans, &info.nchans))?;
    channels
        .map(|channel| channel_number(*channel.get()?))
        .collect()
}

/// Returns the number of a channel.
pub(crate) fn channel_number(channel: nvc_imex_channel) -> Result<u32> {
    u32::try_from(channel.id).map_err(|_| invalid_argument())
}
