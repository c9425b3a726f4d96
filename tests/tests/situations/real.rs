//! Rows of a real machine, an H100's: its driver is below /usr/local/nvidia, scripts of its programs' names are in /usr/bin,
//! and /dev/nvidia-modeset is missing. Each capability alone is whole: what its libraries need of the driver is there.

use nvc_testkit::profile::Profile;

use super::expectation::Expected;
use super::row::{Row, row};

/// What an image without X11, OpenSSL and the compiler's library lacks.
pub(crate) const LACKS: [&str; 4] = [
    "libX11.so.6",
    "libXext.so.6",
    "libcrypto.so.3",
    "libgcc_s.so.1",
];

/// Returns where a real machine has a file of an ordinary one.
pub(crate) fn place(path: &'static str) -> &'static str {
    let place = match path.strip_prefix("/usr/bin/") {
        Some(name) => format!("/usr/local/nvidia/bin/{name}"),
        None => path.replace("/LIB/", "/usr/local/nvidia/lib64/"),
    };
    place.leak()
}

/// A name that programs load, and the host's file.
type Library = (&'static str, &'static str);

const CUDA: Library = ("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.VER");
const NVML: Library = (
    "libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.VER",
);
const COMPILER: Library = (
    "libnvidia-gpucomp.so.VER",
    "/usr/local/nvidia/lib64/libnvidia-gpucomp.so.VER",
);
const EGL: Library = (
    "libEGL_nvidia.so.0",
    "/usr/local/nvidia/lib64/libEGL_nvidia.so.VER",
);
const GL: Library = (
    "libnvidia-glcore.so.VER",
    "/usr/local/nvidia/lib64/libnvidia-glcore.so.VER",
);
const ENCODER: Library = (
    "libnvidia-encode.so.1",
    "/usr/local/nvidia/lib64/libnvidia-encode.so.VER",
);

pub(crate) fn rows() -> Vec<Row> {
    let smi = |it: Expected| it.program("nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi");
    vec![
        real("a_real_machine_compute", "compute", &[CUDA, COMPILER]),
        real("a_real_machine_utility", "utility", &[NVML]).expect(smi),
        real("a_real_machine_graphics", "graphics", &[EGL, GL, COMPILER]),
        real("a_real_machine_display", "display", &[]),
        real("a_real_machine_video", "video", &[ENCODER]),
        real("a_real_machine_ngx", "ngx", &[]),
        real("a_real_machine_compat32", "compat32", &[]),
        real(
            "a_real_machine_graphics_and_display",
            "graphics,display",
            &[EGL, GL],
        ),
        real("a_real_machine_all", "all", &[CUDA, NVML, EGL, GL, ENCODER]).expect(smi),
    ]
}

fn real(name: &'static str, capabilities: &'static str, libraries: &[Library]) -> Row {
    let profile = Profile::real("h100").unwrap().to_string();
    row(name)
        .profile(&profile)
        .capabilities(capabilities)
        .expect(|it| {
            let it = it.wordless().lacks(&LACKS);
            let found = libraries.iter();
            found.fold(it, |it, (name, file)| it.host(name, file))
        })
}
