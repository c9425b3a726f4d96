//! Says what an XID means for the GPU that reports it.

/// What an XID says about its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// Nothing: a program's own fault.
    Program,
    /// It may be unwell; it is well again if it stays quiet.
    Passing,
    /// It does not work until it is reset.
    Lost,
}

/// XIDs of programs: those that NVIDIA's device plugin and DRA driver ignore. A kernel that writes to an unmapped address is
/// 31.
const PROGRAMS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// XIDs that NVIDIA's catalogue answers with a reset or a reboot: an engine or the GPU stopped (46, 62, 79), memory errors
/// that were not contained (48, 64, 95, 140), the GPU's firmware (119, 120), its start (143).
const LOST: [u64; 10] = [46, 48, 62, 64, 79, 95, 119, 120, 140, 143];

/// Returns the class of an XID. Unknown ones count, as with NVIDIA's.
pub(super) fn class(xid: u64, ignored: &[u64]) -> Class {
    if PROGRAMS.contains(&xid) || ignored.contains(&xid) {
        Class::Program
    } else if LOST.contains(&xid) {
        Class::Lost
    } else {
        Class::Passing
    }
}
