//! Names of this computer's architecture and of its 32-bit companion.

use crate::elf::Machine;

/// Debian's name for this computer's architecture, as in /usr/lib/x86_64-linux-gnu.
pub const TRIPLET: &str = NATIVE.0;

/// Multiarch names and machines of this computer's architecture and its 32-bit companion.
pub const NATIVE: (&str, Machine) = if cfg!(target_arch = "aarch64") {
    ("aarch64-linux-gnu", Machine::NATIVE)
} else {
    ("x86_64-linux-gnu", Machine::NATIVE)
};
pub(crate) const NATIVE_32: (&str, Machine) = if cfg!(target_arch = "aarch64") {
    ("arm-linux-gnueabihf", Machine::Arm)
} else {
    ("i386-linux-gnu", Machine::I386)
};
