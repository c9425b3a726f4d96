//! Renders a plan as JSON for programs.
//!
//! ```json
//! {
//!   "version": 1,
//!   "image": {
//!     "layout": { "bins_dir": "/usr/bin", "libs_dir": "/usr/lib64", "libs32_dir": "/usr/lib",
//!                 "cudart_dir": "/usr/local/cuda" },
//!     "ldconfig": "builtin",
//!     "compat_mounted": ["/usr/local/cuda-12.4/compat/libcuda.so.550.1"],
//!     "compat_searched": []
//!   },
//!   "common": [
//!     { "need": "required", "intent": "driver-proc", "gpus": [], "capabilities": "none" },
//!     { "need": "best-effort", "intent": "egl-profile", "minors": [] },
//!     { "need": "required", "intent": "mount", "source": "/usr/lib64/libcuda.so.535.1",
//!       "place": { "library": "libcuda.so.535.1" }, "class": "library" },
//!     { "need": "best-effort", "intent": "link", "at": { "library": "libcuda.so" }, "target": "libcuda.so.1" },
//!     { "need": "best-effort", "intent": "cuda-compat", "host_driver": "535.1", "how": "mount",
//!       "capabilities": ["compute"] },
//!     { "need": "required", "intent": "device", "source": "/dev/nvidiactl", "number": { "major": 195, "minor": 255 },
//!       "at": "/dev/nvidiactl", "bind": true, "allow": true },
//!     { "need": "required", "intent": "library-path", "directories": [{ "library": "" }, { "library32": "" }] },
//!     { "need": "required", "intent": "env", "name": "NVIDIA_VISIBLE_DEVICES", "value": "void" }
//!   ],
//!   "devices": [{ "kind": "gpu", "names": ["0", "GPU-…"], "intents": [] }]
//! }
//! ```
//!
//! `image` has the container's directories, the updater of its loader's cache
//! (`"builtin"`, `{"host": PATH}` or `{"image": PATH}`), and the CUDA compatibility libraries that are mounted or the
//! directories of them that are searched first. A place is `{"at": PATH}`, or a name in one of the image's own
//! directories: `library`, `library32`, `program`. Within a version, keys, kinds and values are added, never changed or
//! removed.

use serde_json::{Value, json};

use crate::container::ImageFacts;
use crate::plan::{Part, Plan, What};

/// Version of the format.
const VERSION: u32 = 1;

/// Renders a plan for an image.
pub fn json(plan: &Plan, image: &ImageFacts) -> Value {
    let part =
        |part: &Part| json!({ "kind": part.kind, "names": part.names, "intents": part.intents });
    json!({
        "version": VERSION,
        "common": plan.common,
        "devices": plan.devices.iter().map(part).collect::<Vec<_>>(),
        "image": of_image(plan, image),
    })
}

fn of_image(plan: &Plan, image: &ImageFacts) -> Value {
    let compat = plan.common.iter().filter_map(|intent| match &intent.what {
        What::CudaCompat(compat) => Some(compat),
        _ => None,
    });
    let found = &image.compat_libraries;
    let mounted: Vec<_> = compat
        .clone()
        .flat_map(|compat| compat.mounted(found))
        .collect();
    let searched: Vec<_> = compat.flat_map(|compat| compat.searched(found)).collect();
    json!({
        "layout": image.layout,
        "ldconfig": image.ldconfig,
        "compat_mounted": mounted,
        "compat_searched": searched,
    })
}
