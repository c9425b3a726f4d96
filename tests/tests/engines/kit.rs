//! Checks the simulated driver under a real runtime: a container sees it as it would see the kernel's modules.

use nvc_tests::bundle::Bundle;
use nvc_tests::world::{World, printed};

use super::runtimes::Body;

/// Name and body of each test; the argument is the low-level runtime.
pub(crate) const TESTS: &[(&str, Body)] = &[("shows_the_simulated_procfs_read_only", |runtime| {
    // Nobody asks for a GPU, so nothing of ours covers it.
    let world = World::new(runtime, "legacy", "");
    let script = "rm -r /proc/driver/nvidia 2>&1 | grep -c 'Read-only file system'; \
                      grep -c 'NVRM version' /proc/driver/nvidia/version";
    let bundle = Bundle::new(world, &[], script);
    let seen = printed(&mut bundle.run());
    let mut counts = seen.lines().filter_map(|line| line.parse::<u32>().ok());
    assert!(counts.next().is_some_and(|refused| refused > 0), "{seen}");
    assert_eq!(counts.next(), Some(1), "{seen}");
})];
