//! Simulated drivers, container roots and the harness of the privileged tests.

pub mod elf;
