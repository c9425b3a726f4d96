//! Checks sizes and offsets of structs, on which programs compiled against upstream's header depend.
//!
//! Checked by the compiler, for 64-bit machines; tests/c/layout.c makes a C compiler check the header.

use std::mem::{align_of, offset_of, size_of};

use crate::config::{nvc_config, nvc_imex_channel, nvc_imex_info};
use crate::container::{self, nvc_container_config};
use crate::device::{nvc_device, nvc_device_info, nvc_mig_device, nvc_mig_device_info};
use crate::driver::{nvc_device_node, nvc_driver_info};
use crate::state;
use crate::version::nvc_version;

macro_rules! layout {
    ($($type:ty: $size:literal, $align:literal { $($field:ident: $offset:literal),* $(,)? })*) => {
        $(const _: () = {
            assert!(size_of::<$type>() == $size);
            assert!(align_of::<$type>() == $align);
            $(assert!(offset_of!($type, $field) == $offset);)*
        };)*
    };
}

layout! {
    nvc_imex_channel: 4, 4 { id: 0 }
    nvc_imex_info: 16, 8 { chans: 0, nchans: 8 }
    nvc_version: 24, 8 { major: 0, minor: 4, patch: 8, string: 16 }
    nvc_config: 40, 8 { root: 0, ldcache: 8, uid: 16, gid: 20, imex: 24 }
    nvc_device_node: 16, 8 { path: 0, id: 8 }
    nvc_driver_info: 112, 8 {
        nvrm_version: 0, cuda_version: 8, bins: 16, nbins: 24, libs: 32, nlibs: 40, libs32: 48, nlibs32: 56, ipcs: 64,
        nipcs: 72, devs: 80, ndevs: 88, firmwares: 96, nfirmwares: 104,
    }
    nvc_mig_device: 40, 8 { parent: 0, uuid: 8, gi: 16, ci: 20, gi_caps_path: 24, ci_caps_path: 32 }
    nvc_mig_device_info: 16, 8 { devices: 0, ndevices: 8 }
    nvc_device: 88, 8 {
        model: 0, uuid: 8, busid: 16, arch: 24, brand: 32, node: 40, mig_capable: 56, mig_caps_path: 64, mig_devices: 72,
    }
    nvc_device_info: 16, 8 { gpus: 0, ngpus: 8 }
    nvc_container_config: 56, 8 {
        pid: 0, rootfs: 8, bins_dir: 16, libs_dir: 24, libs32_dir: 32, cudart_dir: 40, ldconfig: 48,
    }
    state::Front: 96, 8 {
        initialized: 0, error: 8, cfg: 24, mnt_ns: 64, no_pivot: 68, dxcore: 72,
    }
    state::FrontError: 16, 8 { code: 0, message: 8 }
    container::Front: 120, 8 {
        flags: 0, cfg: 8, uid: 64, gid: 68, mnt_ns: 72, dev_cg_version: 80, dev_cg: 88, libs: 96, nlibs: 104,
        cuda_compat_dir: 112,
    }
}

// C finds them at the beginning.
const _: () = assert!(offset_of!(state::Context, front) == 0);
const _: () = assert!(offset_of!(container::Container, front) == 0);
