//! Links a program statically. Engines start it as root, with an environment that can be a container's, and a dynamic
//! program loads what its environment names before its first instruction.
//!
//! rustc's switch for this, `crt-static`, holds for all programs of a build, and the others must load NVML. So the
//! linker is told to make a static program. For each shared library that rustc names it finds a linker script in the
//! first directory that it searches, which names the archives that `crt-static` would.

use std::path::PathBuf;
use std::{env, fs};

/// The libraries that rustc names for a dynamic program on Linux with glibc.
const SHARED: [&str; 7] = ["gcc_s", "util", "rt", "pthread", "m", "dl", "c"];

/// A group, since the archives need each other.
const SCRIPT: &str = "GROUP(-l:libgcc_eh.a -l:libgcc.a -l:libc.a)\n";

fn main() {
    // With musl all programs are static.
    if env::var("CARGO_CFG_TARGET_ENV").as_deref() != Ok("gnu") {
        return;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for name in SHARED {
        let script = out.join(format!("lib{name}.so"));
        fs::write(script, SCRIPT).expect("cargo's directory can be written");
    }
    println!("cargo::rustc-link-arg-bins=-L{}", out.display());
    println!("cargo::rustc-link-arg-bins=-static-pie");
}
