//! Compiles the protocols, and says how the program is linked.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let files = [
        "registration",
        "dra",
        "dra_health",
        "health",
        "podresources",
    ];
    let files = files.map(|name| format!("proto/{name}.proto"));
    for file in &files {
        println!("cargo::rerun-if-changed={file}");
    }
    let protocols = protox::compile(&files, ["proto"])?;
    tonic_prost_build::configure().compile_fds(protocols)?;
    nvc_build::link_statically();
    Ok(())
}
