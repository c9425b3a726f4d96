//! Makes the shared object executable: run as a program, it prints its version and build.
//!
//! The dynamic loader, named by the section `.interp` as in any program, starts first; it jumps to the entry point that
//! scripts/build/capi.sh passes to the linker. Neither is part of the archive.

use std::arch::naked_asm;
use std::ffi::c_int;

#[cfg(target_arch = "x86_64")]
const LOADER: &[u8; 28] = b"/lib64/ld-linux-x86-64.so.2\0";
#[cfg(target_arch = "aarch64")]
const LOADER: &[u8; 28] = b"/lib/ld-linux-aarch64.so.1\0\0";

/// The loader's path; a named symbol, so that the linker can be told to keep it.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".interp")]
static NVC_INTERPRETER: [u8; 28] = *LOADER;

const TEXT: &str = concat!(
    "version: ",
    env!("CARGO_PKG_VERSION"),
    "\nbuild date: ",
    env!("NVC_BUILD_DATE"),
    "\nbuild revision: ",
    env!("NVC_BUILD_REVISION"),
    "\nbuild compiler: ",
    env!("NVC_BUILD_COMPILER"),
);
const FLAGS: &str = concat!("\nbuild flags: ", env!("NVC_BUILD_FLAGS"), "\n");

/// The loader's jump target: no return address, and the stack as set up by the kernel.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn nvc_entrypoint() -> ! {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "xor ebp, ebp",
        "and rsp, -16",
        "call {main}",
        "ud2",
        main = sym main
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x29, xzr", "bl {main}", "brk 1", main = sym main);
}

extern "C" fn main() -> ! {
    let text = format!("{TEXT}\nbuild platform: {}{FLAGS}", std::env::consts::ARCH);
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match nix::unistd::write(std::io::stdout(), rest) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(nix::errno::Errno::EINTR) => {}
            Err(_) => exit(1),
        }
    }
    exit(0)
}

fn exit(status: c_int) -> ! {
    // SAFETY: _exit(2) has no requirements.
    unsafe { libc::_exit(status) }
}
