//! Determines the kind of machine and where its driver is.

use std::path::{Path, PathBuf};

use libnvc::host::is_wsl;
use nvc_generate::{driver_files, query_program};
use nvc_policy::config::Config;
use nvc_policy::config::keys::ROOT;
use nvc_policy::platform;

use super::{Finding, settings};

/// Where a driver container mounts its root.
const CONTAINER: &str = "/run/nvidia/driver";

/// The driver's place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) kind: Kind,
    /// The root of its files.
    pub(super) root: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// The kind of machine.
pub(super) enum Kind {
    /// The driver has a kernel module and libraries.
    Usual,
    /// The driver is that of Windows.
    Wsl,
    /// A Jetson's driver is part of its system.
    Tegra,
}

impl Place {
    /// Finds the driver in the configured root, or in the root that a driver container mounts.
    pub(super) fn find(config: &Config) -> Self {
        let configured = config.driver_root();
        let other = elsewhere(configured).filter(|_| !has_driver(configured));
        let root = other.unwrap_or_else(|| configured.into());
        let kind = if is_wsl() {
            Kind::Wsl
        } else if platform::is_jetson_here(&root, &query_program()) {
            Kind::Tegra
        } else {
            Kind::Usual
        };
        Self { kind, root }
    }

    /// Returns a path below the root.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(super) fn is_host(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns the directory of the device nodes: a driver container may have its own.
    pub(super) fn dev(&self) -> PathBuf {
        let own = self.path("/dev");
        if own.join("nvidiactl").exists() {
            own
        } else {
            "/dev".into()
        }
    }

    /// Checks that the configuration names the place.
    pub(super) fn finding(&self, config: &Config) -> Option<Finding> {
        let configured = config.driver_root();
        (configured != self.root).then(|| {
            let (named, found) = (configured.display(), self.root.display());
            let what = format!("{ROOT} is {named}, which has no driver; the driver is in {found}");
            let symptom = "containers: load library failed: libnvidia-ml.so.1, or no driver files";
            Finding::fatal(what, symptom, settings::set(config, ROOT, found))
        })
    }
}

/// Returns another root that has a driver.
fn elsewhere(configured: &Path) -> Option<PathBuf> {
    let mut usual = ["/", CONTAINER].into_iter().map(PathBuf::from);
    usual.find(|root| root != configured && has_driver(root))
}

fn has_driver(root: &Path) -> bool {
    driver_files::version(root).is_ok()
}
