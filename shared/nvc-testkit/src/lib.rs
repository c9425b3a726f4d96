//! Simulated drivers, container roots and the harness of the privileged tests.
//!
//! A test program lists its tests with their needs ([`harness`]), which runs them in a private mount namespace of a
//! [`machine`] with a simulated [`driver`]. A test starts a [`container`], runs the program under test ([`cli`]) and
//! examines the container's [`mounts`], its [`tree`] of files and its [`cgroup`].

// run
pub mod harness;
pub mod machine;

// create
pub mod cgroup;
pub mod container;
pub mod driver;
pub mod elf;
pub mod hostile;
pub mod inside;
pub mod profile;
pub mod rootfs;
pub mod systemd;

// run the program under test and examine the result
pub mod cli;
pub mod faults;
pub mod mounts;
pub mod tree;

// used everywhere
pub mod compile;
pub mod files;
pub mod helper;
pub mod syscalls;
pub mod userland;
