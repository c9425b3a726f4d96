//! Makes the loader search the image's CUDA compatibility libraries first, if they are newer than the driver.
//!
//! Writes their directory to ld.so.conf.d; update-ldcache, which runs later, updates the loader's cache.

use libnvc::plan::{CompatUse, CudaCompat, Intent, Need, What};
use libnvc::request::Capabilities;
use libnvc::{ContainerPath, Result};
use nvc_options::Given;

pub(super) fn intents(given: &Given) -> Result<Vec<Intent>> {
    let value = |name: &str| given.text(name).filter(|value| !value.is_empty());
    let host_driver = value("host-driver-version").unwrap_or_default().to_owned();
    let host_cuda = value("host-cuda-version").map(str::to_owned);
    if host_driver.is_empty() && host_cuda.is_none() {
        return Ok(Vec::new());
    }
    let what = What::CudaCompat(CudaCompat {
        host_driver,
        host_cuda,
        root: value("cuda-compat-container-root").map(ContainerPath::new),
        how: CompatUse::Configure,
        capabilities: Capabilities::all(),
    });
    let need = Need::WherePermitted;
    Ok(vec![Intent { need, what }])
}
