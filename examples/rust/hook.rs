//! A createContainer hook: gives the container that is being created the driver and one GPU.
//!
//!     "hooks": { "createContainer": [{ "path": "/path/to/hook", "args": ["hook", "GPU", "DRIVER-ROOT"], "env": [] }] }
//!
//! The runtime passes the container's state on standard input. The hook already runs in the container's mount
//! namespace, and has no process to name: only the root matters.

use std::env::args;
use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};

use libnvc::host::query;
use libnvc::options::Ldconfig;
use libnvc::request::{Capabilities, DeviceRequest, Request};
use libnvc::{Target, configure, printable};
use serde_json::Value;

fn main() -> Result<(), Box<dyn Error>> {
    // A separate process queries NVML: this program, executed again.
    query::serve_if_asked();

    let words: Vec<String> = args().skip(1).collect();
    let [gpu, driver_root, options @ ..] = words.as_slice() else {
        return Err("usage: hook GPU DRIVER-ROOT [LDCONFIG] < STATE".into());
    };
    let mut request = Request {
        devices: DeviceRequest {
            ids: vec![gpu.clone()],
            ..DeviceRequest::default()
        },
        capabilities: Capabilities::UTILITY | Capabilities::COMPUTE | Capabilities::GRAPHICS,
        ..Request::default()
    };
    request.policy.driver.root = driver_root.into();
    if let Some(word) = options.first() {
        request.policy.image.ldconfig = Ldconfig::parse(word.as_ref());
    }

    let state: Value = serde_json::from_reader(std::io::stdin())?;
    let root = File::open(root(&state)?)?;
    let report = configure(&request, Target::Here { root: root.into() })?;
    for reason in report.skipped {
        // It can contain names from the image; this function escapes them.
        eprintln!("skipped (optional): {}", printable(&reason.message()));
    }
    Ok(())
}

/// Returns the container's root: crun names it in the state, other runtimes in the bundle's config.json.
fn root(state: &Value) -> Result<PathBuf, Box<dyn Error>> {
    let text = |value: &Value| value.as_str().map(PathBuf::from);
    let bundle = text(&state["bundle"]).ok_or("no bundle in the state")?;
    let root = match text(&state["root"]) {
        Some(root) => root,
        None => {
            let config: Value = serde_json::from_reader(File::open(bundle.join("config.json"))?)?;
            text(&config["root"]["path"]).ok_or("no root in config.json")?
        }
    };
    Ok(Path::new(&bundle).join(root))
}
