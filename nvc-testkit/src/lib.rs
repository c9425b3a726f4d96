//! Simulated drivers, container roots and the harness of the privileged tests.

// make
pub mod driver;
pub mod elf;
pub mod profile;

mod compile;
mod files;
mod userland;
