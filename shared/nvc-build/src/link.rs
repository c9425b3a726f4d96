//! Sets linker options.

use std::path::Path;
use std::{env, fs};

use crate::variable;

/// The libraries that rustc names for a dynamic program on Linux with glibc.
const SHARED: [&str; 7] = ["gcc_s", "util", "rt", "pthread", "m", "dl", "c"];

/// A group, since the archives need each other.
const SCRIPT: &str = "GROUP(-l:libgcc_eh.a -l:libgcc.a -l:libc.a)\n";

/// Links the package's programs statically with the compiler's run time: a tenth of a millisecond less in each process
/// that starts with a container.
pub fn link_compiler_runtime() {
    println!("cargo::rerun-if-changed=build.rs");
    if has_glibc() {
        println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
    }
}

/// Links the package's programs statically. Engines start them as root, with an environment that can be a container's,
/// and a dynamic program loads what its environment names before its first instruction.
///
/// rustc's switch for this, `crt-static`, holds for all programs of a build, and the others must load NVML. So the
/// linker is told to make a static program. For each shared library that rustc names it finds a linker script in the
/// first directory that it searches, which names the archives that `crt-static` would.
///
/// # Panics
/// Cargo's directory cannot be written.
pub fn link_statically() {
    println!("cargo::rerun-if-changed=build.rs");
    if !has_glibc() {
        return;
    }
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    for name in SHARED {
        let script = Path::new(&out).join(format!("lib{name}.so"));
        fs::write(script, SCRIPT).expect("cargo's directory can be written");
    }
    println!("cargo::rustc-link-arg-bins=-L{}", out.display());
    println!("cargo::rustc-link-arg-bins=-static-pie");
}

/// With musl all programs are static already.
fn has_glibc() -> bool {
    variable("CARGO_CFG_TARGET_ENV").is_some_and(|name| name == "gnu")
}
