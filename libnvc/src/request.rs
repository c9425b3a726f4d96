//! Defines a container's request and the administrator's policy: typed and pure, without any I/O.
//!
//! Front ends read command lines, environments and configuration files and fill in a [`Request`]. Only they know option
//! words, and the bit values of the C library's interface.

#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

pub use crate::capability::{Capabilities, Capability};
use crate::error::{Error, ErrorKind, Result};
use crate::host::DriverConfig;
use crate::options::{CudaCompatMode, DriverOptions, Ldconfig};
use crate::require::Requirement;

/// Most device names in one request, duplicates included. The largest machines have some hundreds of devices; beyond
/// that an image, which writes these lists, only takes time and memory from the host.
pub const MAX_NAMES: usize = 1024;

/// A complete request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The requested devices.
    pub devices: DeviceRequest,
    /// The requested parts of the driver.
    pub capabilities: Capabilities,
    /// Conditions on the driver and the chosen GPUs.
    pub requirements: Vec<Requirement>,
    /// The administrator's policy.
    pub policy: Policy,
}

/// The devices that a container requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceRequest {
    /// GPUs and MIG devices: indices, UUIDs, PCI addresses, `GPU:MIG` or `all`.
    pub ids: Vec<String>,
    /// GPUs whose MIG configuration it may change: `all` or nothing.
    pub mig_config: Vec<String>,
    /// GPUs whose MIG instances it may monitor: `all` or nothing.
    pub mig_monitor: Vec<String>,
    /// IMEX channels.
    pub imex_channels: Vec<u32>,
}

impl DeviceRequest {
    /// Checks that no list is longer than [`MAX_NAMES`], before any of them is used.
    ///
    /// # Errors
    /// `too many devices: <number>`, or the same of another list.
    pub(crate) fn check(&self) -> Result<()> {
        for (what, number) in [
            ("devices", self.ids.len()),
            ("mig-config devices", self.mig_config.len()),
            ("mig-monitor devices", self.mig_monitor.len()),
            ("IMEX channels", self.imex_channels.len()),
        ] {
            check_number(what, number)?;
        }
        Ok(())
    }
}

/// Takes blanks and one pair of quotes off the value of an option or variable: neither docker's --env-file nor a YAML
/// list of variables removes them.
pub fn unquoted(value: &str) -> &str {
    let value = value.trim();
    let inner = ['"', '\''].into_iter().find_map(|quote| {
        let inner = value.strip_prefix(quote)?.strip_suffix(quote)?;
        (!inner.contains(quote)).then(|| inner.trim())
    });
    inner.unwrap_or(value)
}

/// Splits the value of an option or a variable at its commas; skips blanks and empty names.
pub fn names(list: &str) -> impl Iterator<Item = &str> + Clone {
    let names = unquoted(list).split(',').map(str::trim);
    names.filter(|name| !name.is_empty())
}

/// Returns the names in an option's values, which are lists of `what`, counted before any of them takes memory.
///
/// # Errors
/// As `DeviceRequest::check`.
pub fn parse_names<S: AsRef<str>>(what: &str, values: &[S]) -> Result<Vec<String>> {
    let all = values.iter().flat_map(|list| names(list.as_ref()));
    check_number(what, all.clone().count())?;
    Ok(all.map(str::to_owned).collect())
}

/// Fails if `what` are more than [`MAX_NAMES`].
fn check_number(what: &str, number: usize) -> Result<()> {
    if number <= MAX_NAMES {
        return Ok(());
    }
    let error = Error::new(ErrorKind::InvalidArgument, format!("too many {what}"));
    Err(error
        .of(number.to_string())
        .hint(format!("a request names at most {MAX_NAMES}")))
}

/// How to grant a request.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The driver root and the query.
    pub driver: DriverConfig,
    /// Parts of the driver that no container gets.
    pub driver_options: DriverOptions,
    /// Mount device nodes.
    pub device_nodes: bool,
    /// Allow the devices in the device cgroup.
    pub device_rules: bool,
    /// Fail if a part of a chosen device or the driver's node is missing, instead of planning without it.
    pub demand_nodes: bool,
    /// Use of the image's own CUDA compatibility libraries.
    pub cuda_compat: CudaCompatMode,
    /// Placement of files.
    pub placement: Placement,
    /// Plan for a container that does not exist yet: environment variables too, and what limits a container to its
    /// devices looks at those that it then has.
    pub before_start: bool,
    /// Known facts about the image, and how to update its library path.
    pub image: ImageOptions,
    /// Confine ldconfig with a move and chroot instead of pivot_root, for roots on a ramdisk.
    pub no_pivot: bool,
    /// The user that the container's process will have, for warnings of nodes that it may not open.
    pub process_user: Option<ProcessUser>,
}

/// User and groups of a container's process, with the container's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessUser {
    /// The user.
    pub uid: u32,
    /// Its group, then the supplementary ones.
    pub groups: Vec<u32>,
}

/// `UID:GID[,GID...]`
impl FromStr for ProcessUser {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = || {
            let (uid, groups) = text.split_once(':')?;
            let groups = groups.split(',').map(str::parse).collect::<Result<_, _>>();
            Some(Self {
                uid: uid.parse().ok()?,
                groups: groups.ok()?,
            })
        };
        let invalid = || Error::new(ErrorKind::InvalidArgument, "invalid user of the process");
        let hint = "expected UID:GID[,GID...], numbers in the container";
        parsed().ok_or_else(|| invalid().of(text).hint(hint))
    }
}

impl fmt::Display for ProcessUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<String> = self.groups.iter().map(u32::to_string).collect();
        write!(f, "{}:{}", self.uid, groups.join(","))
    }
}

/// Placement of the driver's files in a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// In the directories that the image's loader and shell search, which apply detects.
    #[default]
    AsImage,
    /// At their host paths: the image is unknown.
    AsHost,
}

/// Facts about an image that override detection.
#[derive(Clone, Debug, Default)]
pub struct ImageOptions {
    /// Directory of programs; detected if None.
    pub bins_dir: Option<PathBuf>,
    /// Directory of native libraries; detected if None.
    pub libs_dir: Option<PathBuf>,
    /// Directory of 32-bit libraries; detected if None.
    pub libs32_dir: Option<PathBuf>,
    /// The image's CUDA directory; /usr/local/cuda if None.
    pub cudart_dir: Option<PathBuf>,
    /// What updates its loader's cache.
    pub ldconfig: Ldconfig,
}

impl Default for Policy {
    /// All device nodes and rules, with files in the image's own directories.
    fn default() -> Self {
        Self {
            driver: DriverConfig::default(),
            driver_options: DriverOptions::empty(),
            device_nodes: true,
            device_rules: true,
            demand_nodes: false,
            cuda_compat: CudaCompatMode::Mount,
            placement: Placement::AsImage,
            before_start: false,
            image: ImageOptions::default(),
            no_pivot: false,
            process_user: None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::host::query::{QueryProcess, QueryProgram};

    /// Returns a request with this many names in one of its lists.
    fn listing(which: usize, number: usize) -> DeviceRequest {
        let list = vec!["0".to_owned(); number];
        let mut devices = DeviceRequest::default();
        match which {
            0 => devices.ids = list,
            1 => devices.mig_config = list,
            2 => devices.mig_monitor = list,
            _ => devices.imex_channels = vec![0; number],
        }
        devices
    }

    #[test]
    fn users_are_numbers() {
        for text in ["1000:1000", "1000:100,44,109"] {
            assert_eq!(text.parse::<ProcessUser>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "1000",
            "a:1",
            "1:",
            "1:2,",
            "1:2,x",
            "-1:2",
            "1:4294967296",
        ] {
            assert!(text.parse::<ProcessUser>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_list_is_longer_than_the_limit(which in 0..4_usize, number in 0..3 * MAX_NAMES) {
            let checked = listing(which, number).check();
            prop_assert_eq!(checked.is_ok(), number <= MAX_NAMES);
            if let Err(error) = checked {
                let end = format!(": {number}");
                prop_assert!(error.message().ends_with(&end));
            }
        }
    }

    #[test]
    fn lists_are_split_once() {
        let of = |values: &[&str]| parse_names("devices", values).unwrap();
        assert_eq!(of(&[]), [""; 0]);
        assert_eq!(of(&[",0,,GPU-1, 1:0,", "7"]), ["0", "GPU-1", "1:0", "7"]);
        for value in ["\"0,1\"", " '0 , 1' ", "\" 0,1\""] {
            assert_eq!(of(&[value]), ["0", "1"], "{value}");
        }
        for empty in ["\"\"", "''", " ' ' ", " "] {
            assert_eq!(of(&[empty]), [""; 0], "{empty}");
        }
        for (odd, name) in [
            ("\"0", "\"0"),
            ("'0\"", "'0\""),
            ("\"", "\""),
            ("\"'0'\"", "'0'"),
        ] {
            assert_eq!(of(&[odd]), [name]);
        }
        let error = parse_names("devices", &["0,".repeat(2000)]).unwrap_err();
        assert_eq!(error.message(), "too many devices: 2000");
    }

    /// It is checked before the driver is asked for.
    #[test]
    fn no_configuration_begins_with_more() {
        let request = Request {
            devices: listing(0, MAX_NAMES + 1),
            ..Request::default()
        };
        let error = Error::new(ErrorKind::DriverUnavailable, "not asked");
        let query = QueryProcess::start(&QueryProgram::Path(Err(error)));
        let error = crate::Configuration::begin(&request, query).unwrap_err();
        assert_eq!(error.message(), "too many devices: 1025");
    }
}
