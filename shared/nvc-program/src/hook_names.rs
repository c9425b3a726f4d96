//! Names the hooks of nvidia-cdi-hook: nvc-generate writes them into specifications, the program implements them.

pub const APPLY_MEMORY_LIMITS: &str = "apply-cuda-memory-limits";
pub const CHMOD: &str = "chmod";
pub const CREATE_SONAME_SYMLINKS: &str = "create-soname-symlinks";
pub const CREATE_SYMLINKS: &str = "create-symlinks";
pub const DISABLE_NODE_MODIFICATION: &str = "disable-device-node-modification";
pub const ENABLE_CUDA_COMPAT: &str = "enable-cuda-compat";
pub const FILTER_DRIVER_PROC: &str = "filter-driver-proc";
pub const MOUNT_SOCKETS: &str = "mount-sockets";
pub const UPDATE_LDCACHE: &str = "update-ldcache";
pub const UPDATE_PROFILE: &str = "update-application-profile";

/// The hook that applies a plan.
pub const APPLY: &str = "apply";

/// The hooks that can be disabled and enabled.
pub const SELECTABLE: [&str; 9] = [
    CHMOD,
    CREATE_SYMLINKS,
    CREATE_SONAME_SYMLINKS,
    DISABLE_NODE_MODIFICATION,
    ENABLE_CUDA_COMPAT,
    FILTER_DRIVER_PROC,
    MOUNT_SOCKETS,
    UPDATE_PROFILE,
    UPDATE_LDCACHE,
];
