//! Rows about the host: where its driver is, what its loader knows, and which of its services run.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvc_testkit::driver::{Builder, Driver};
use nvc_testkit::elf::SharedObject;
use nvc_testkit::files;
use nvc_testkit::machine::Scratch;
use nvc_testkit::rootfs::Layout;
use nvc_testkit::{driver::NATIVE, userland};
use serde_json::json;

use super::expectation::Expected;
use super::machine::printed;
use super::modes::{Configure, Hook, Jit, Legacy, Live, Specification};
use super::row::{Row, row};

const SMI: &str = "/usr/bin/nvidia-smi";

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = caches();
    rows.extend(places());
    rows.extend(needs());
    rows.extend(programs());
    rows.extend(narrow());
    rows.extend(manifests());
    rows.extend(sockets());
    rows.extend(ldconfigs());
    rows.extend(incomplete());
    rows.extend(closed());
    rows
}

const LDCONFIG: &str = "/sbin/ldconfig";
const BY_HAND: &str = "by hand no config.toml is read";

/// Which ldconfig there is, and what config.toml says about it.
fn ldconfigs() -> Vec<Row> {
    let without = |name| row(name).host(|host| remove(host, LDCONFIG));
    let elsewhere = |name| row(name).cli("ldconfig = \"@/opt/glibc/ldconfig\"");
    vec![
        without("no_ldconfig"),
        without("no_ldconfig_and_auto").cli("ldconfig = \"auto\""),
        without("no_ldconfig_and_at_auto").cli("ldconfig = \"@auto\""),
        without("no_ldconfig_where_packages_expect_it").cli("ldconfig = \"@/sbin/ldconfig.real\""),
        without("no_ldconfig_although_it_is_wanted").cli("ldconfig = \"program:@/sbin/ldconfig\""),
        without("no_ldconfig_and_an_image_without_a_cache")
            .layout(Layout::Empty)
            .expect(|expected| expected.fails(&["run ldconfig in the image"])),
        elsewhere("an_ldconfig_elsewhere")
            .host(|host| rename(host, LDCONFIG, "/opt/glibc/ldconfig")),
        elsewhere("no_ldconfig_where_the_configuration_names_it")
            .expect(|expected| {
                expected.fails(&["open failed: /opt/glibc/ldconfig: no such file", "or auto"])
            })
            .but(&[Configure], BY_HAND, |_| Expected::default()),
    ]
}

/// What the loader's cache knows.
fn caches() -> Vec<Row> {
    vec![
        row("an_ordinary_host"),
        row("no_cache").host(|host| remove(host, "/etc/ld.so.cache")),
        row("an_empty_cache").host(|host| put(host, "/etc/ld.so.cache", b"")),
        row("a_cache_without_the_driver").host(|host| {
            let other = Scratch::new().unwrap();
            let libraries = format!("/lib/{}", NATIVE.0);
            userland::install(other.path(), &["sh"], &libraries).unwrap();
            files::file(&other.join("etc/ld.so.conf"), &libraries, 0o644).unwrap();
            ldconfig(other.path());
            copy(
                &other.join("etc/ld.so.cache"),
                &host.path("/etc/ld.so.cache"),
            );
        }),
        row("a_cache_of_the_former_driver").host(|host| {
            let (former, _scratch) = another(host, "550.54.14", "/LIB");
            copy(
                &former.path("/etc/ld.so.cache"),
                &host.path("/etc/ld.so.cache"),
            );
        }),
        row("an_older_driver_beside").host(|host| install(host, "550.54.14", "/LIB")),
        row("a_newer_driver_beside").host(|host| install(host, "580.65.06", "/LIB")),
    ]
}

const STORE: &str = "/nix/store/k3x9a7-nvidia-x11-570.124.06";

/// Devices without one of their parts: a container's request fails, a specification of all devices leaves them out.
fn incomplete() -> Vec<Row> {
    const MIGS: &str = "gpu minor=1 bus=0000:af:00.0 cc=9.0 brand=14 mig=on \
        uuid=GPU-9e0b7d54-2c3f-4b18-a6d9-7f1e8c4a5b21 name=NVIDIA H100\n\
        mig gpu=1 slot=0 gi=5 ci=0 uuid=MIG-7c5f2b9e-1d84-5a06-9b3c-e2f4a6d81030 name=3g.40gb\n";
    let missing = |name, path: &'static str, left_out, fails: &'static [&'static str]| {
        row(name)
            .profile(MIGS)
            .host(move |host| remove(host, path))
            .expect(|it| it.warns(left_out))
            .but(
                &[Configure, Hook, Legacy, Jit],
                "a request is an error",
                move |it| it.fails(fails),
            )
    };
    vec![
        missing(
            "a_gpu_without_its_node",
            "/dev/nvidia0",
            "left out: GPU 0: /dev/nvidia0 is missing",
            &["GPU 0", "/dev/nvidia0"],
        ),
        missing(
            "a_mig_device_without_the_node_of_its_gpu",
            "/dev/nvidia1",
            "left out: MIG device 1:0: /dev/nvidia1 is missing",
            &["MIG device 1:0", "/dev/nvidia1"],
        ),
        missing(
            "a_mig_device_without_its_node",
            "/dev/nvidia-caps/nvidia-cap183",
            "left out: MIG device 1:0: /dev/nvidia-caps/nvidia-cap183 is missing",
            &[
                "MIG device 1:0",
                "/dev/nvidia-caps/nvidia-cap183",
                "nvidia-modprobe -f",
            ],
        ),
        missing(
            "a_mig_device_without_the_node_of_its_compute_instance",
            "/dev/nvidia-caps/nvidia-cap184",
            "left out: MIG device 1:0: /dev/nvidia-caps/nvidia-cap184 is missing",
            &["MIG device 1:0", "/dev/nvidia-caps/nvidia-cap184"],
        ),
        missing(
            "a_mig_device_without_the_file_of_its_gpu_instance",
            "/proc/driver/nvidia/capabilities/gpu1/mig/gi5/access",
            "left out: MIG device 1:0: /proc/driver/nvidia/capabilities/gpu1/mig/gi5/access is missing",
            &[
                "MIG device 1:0",
                "/proc/driver/nvidia/capabilities/gpu1/mig/gi5/access",
            ],
        ),
        missing(
            "a_mig_device_without_its_file",
            "/proc/driver/nvidia/capabilities/gpu1/mig/gi5/ci0/access",
            "left out: MIG device 1:0: /proc/driver/nvidia/capabilities/gpu1/mig/gi5/ci0/access is missing",
            &[
                "MIG device 1:0",
                "/proc/driver/nvidia/capabilities/gpu1/mig/gi5/ci0/access",
            ],
        ),
        missing(
            "the_only_named_device_without_its_node",
            "/dev/nvidia0",
            "",
            &["GPU 0", "/dev/nvidia0"],
        )
        .devices("0")
        .but(&[Specification, Live], "it is named", |it| {
            it.fails(&["GPU 0: /dev/nvidia0 is missing"])
        }),
    ]
}

/// Nodes of root and a group, as on SUSE and Gentoo, in a container whose process is no root.
fn closed() -> Vec<Row> {
    let user = |name, groups: &'static [u32]| {
        row(name)
            .host(|host| {
                let node = host.path("/dev/nvidia0");
                chown(&node, None, Some(44)).unwrap();
                fs::set_permissions(node, Permissions::from_mode(0o660)).unwrap();
            })
            .container(move |config| {
                config["process"]["user"] =
                    json!({ "uid": 1000, "gid": 1000, "additionalGids": groups });
            })
    };
    vec![
        user("a_node_that_the_user_may_not_open", &[29])
            .expect(|it| it.warns("may not open /dev/nvidia0 (mode 0660, owner 0:44)"))
            .but(
                &[Configure],
                "a hook that does not say who the user is",
                |it| it.silent(),
            )
            .but(
                &[Legacy, Jit, Specification, Live],
                "config.json names the node, as CDI with the user as its owner",
                |it| it.silent().never_says("may not open"),
            ),
        user("a_node_of_a_group_of_the_user", &[29, 44]).expect(|it| it.never_says("may not open")),
    ]
}

/// Where the libraries are.
fn places() -> Vec<Row> {
    let store = |expected: Expected| {
        expected
            .libraries([
                "/nix/store/k3x9a7-nvidia-x11-570.124.06/lib/libcuda.so.VER",
                "/nix/store/k3x9a7-nvidia-x11-570.124.06/lib/libnvidia-ml.so.VER",
                "/nix/store/k3x9a7-nvidia-x11-570.124.06/lib/libGLX_nvidia.so.VER",
                "/nix/store/k3x9a7-nvidia-x11-570.124.06/lib/libnvidia-glcore.so.VER",
            ])
            .program(
                "nvidia-smi",
                "/nix/store/k3x9a7-nvidia-x11-570.124.06/bin/nvidia-smi",
            )
    };
    let alternatives = |expected: Expected| {
        expected
            .libraries([
                "/LIB/nvidia/current/libcuda.so.VER",
                "/LIB/nvidia/current/libnvidia-ml.so.VER",
                "/LIB/nvidia/current/libGLX_nvidia.so.VER",
                "/LIB/nvidia/current/libnvidia-glcore.so.VER",
            ])
            .program("nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    };
    let opt = |expected: Expected| {
        expected
            .libraries([
                "/opt/nvidia/lib64/libcuda.so.VER",
                "/opt/nvidia/lib64/libnvidia-ml.so.VER",
                "/opt/nvidia/lib64/libGLX_nvidia.so.VER",
                "/opt/nvidia/lib64/libnvidia-glcore.so.VER",
            ])
            .program("nvidia-smi", "/opt/nvidia/bin/nvidia-smi")
    };
    vec![
        row("libraries_behind_alternatives")
            .profile("libraries=/LIB/nvidia/current")
            .host(|host| alternatives_of_debian(host, "current"))
            .expect(alternatives),
        row("two_drivers_behind_alternatives")
            .profile("libraries=/LIB/nvidia/current")
            .host(|host| {
                alternatives_of_debian(host, "current");
                install(host, "470.256.02", "/LIB/nvidia/tesla-470");
            })
            .expect(alternatives),
        row("a_store_without_a_cache")
            .profile("libraries=/nix/store/k3x9a7-nvidia-x11-570.124.06/lib")
            .host(|host| {
                let program = format!("{STORE}/bin/nvidia-smi");
                rename(host, SMI, &program);
                link(host, "/run/opengl-driver/lib", &format!("{STORE}/lib"));
                link(host, "/run/current-system/sw/bin/nvidia-smi", &program);
                remove(host, "/etc/ld.so.cache");
            })
            .path("/run/current-system/sw/bin")
            .expect(store),
        row("a_tree_in_opt")
            .profile("libraries=/opt/nvidia/lib64")
            .host(|host| rename(host, SMI, "/opt/nvidia/bin/nvidia-smi"))
            .expect(opt),
        // As old Ubuntu packages and many administrators do.
        row("a_directory_that_the_configuration_names")
            .profile("libraries=/usr/lib/nvidia-570")
            .expect(|expected| {
                expected.libraries([
                    "/usr/lib/nvidia-570/libcuda.so.VER",
                    "/usr/lib/nvidia-570/libnvidia-ml.so.VER",
                    "/usr/lib/nvidia-570/libGLX_nvidia.so.VER",
                    "/usr/lib/nvidia-570/libnvidia-glcore.so.VER",
                ])
            }),
        // The loader's cache has the name of the link.
        row("a_directory_behind_a_link")
            .profile("libraries=/srv/drivers/570/lib")
            .host(|host| {
                link(host, "/usr/lib/nvidia", "/srv/drivers/570/lib");
                let conf = format!("/lib/{}\n/usr/lib/nvidia\n", NATIVE.0);
                put(host, "/etc/ld.so.conf", conf.as_bytes());
                ldconfig(host.root());
            })
            .expect(|expected| {
                expected.libraries([
                    "/srv/drivers/570/lib/libcuda.so.VER",
                    "/srv/drivers/570/lib/libnvidia-ml.so.VER",
                    "/srv/drivers/570/lib/libGLX_nvidia.so.VER",
                    "/srv/drivers/570/lib/libnvidia-glcore.so.VER",
                ])
            }),
        row("usr_lib64")
            .profile("libraries=/usr/lib64")
            .expect(lib64),
        row("usr_lib64_without_a_cache")
            .profile("libraries=/usr/lib64")
            .host(|host| remove(host, "/etc/ld.so.cache"))
            .expect(lib64),
    ]
}

pub(crate) fn lib64(expected: Expected) -> Expected {
    expected.libraries([
        "/usr/lib64/libcuda.so.VER",
        "/usr/lib64/libnvidia-ml.so.VER",
        "/usr/lib64/libGLX_nvidia.so.VER",
        "/usr/lib64/libnvidia-glcore.so.VER",
    ])
}

/// What libraries need, and what a host lacks.
fn needs() -> Vec<Row> {
    vec![
        row("a_library_that_needs_another_capabilitys")
            .host(|host| {
                let version = &host.profile().driver;
                for stem in ["libnvidia-glcore", "libnvidia-eglcore"] {
                    let name = format!("{stem}.so.{version}");
                    let object = SharedObject::new(NATIVE.1)
                        .soname(&*name)
                        .needed("libc.so.6")
                        .needed(format!("libnvidia-gpucomp.so.{version}"));
                    put(host, &format!("/LIB/{name}"), &object.bytes());
                }
            })
            .capabilities("graphics")
            .expect(|expected| {
                expected
                    .without("libcuda.so.1")
                    .without("libnvidia-ml.so.1")
                    .without("nvidia-smi")
                    .host("libnvidia-gpucomp.so.VER", "/LIB/libnvidia-gpucomp.so.VER")
            }),
        row("a_host_without_cuda")
            .profile("remove path=/LIB/libcuda.so.VER")
            .expect(|expected| expected.nothing("libcuda.so.1").warns("libcuda")),
        row("no_library_at_all")
            .host(|host| {
                for entry in fs::read_dir(host.path(host.fill("/LIB"))).unwrap() {
                    let path = entry.unwrap().path();
                    if path.to_string_lossy().contains("570.124.06") {
                        fs::remove_file(path).unwrap();
                    }
                }
            })
            .expect(|expected| expected.fails(&[])),
        row("a_host_without_unified_memory")
            .host(|host| remove(host, "/dev/nvidia-uvm"))
            .expect(|expected| expected.warns("/dev/nvidia-uvm is missing")),
        row("a_host_without_the_control_node")
            .host(|host| remove(host, "/dev/nvidiactl"))
            .expect(|expected| {
                expected.fails(&["/dev/nvidiactl is missing here", "nvidia-modprobe -c 255"])
            }),
        row("a_host_without_graphics")
            .profile("only=libcuda libnvidia-ml libnvidia-ptxjitcompiler /usr/bin/nvidia-smi")
            .expect(|expected| {
                expected
                    .without("libGLX_nvidia.so.0")
                    .without("libnvidia-glcore.so.VER")
                    .host(
                        "libnvidia-ptxjitcompiler.so.1",
                        "/LIB/libnvidia-ptxjitcompiler.so.VER",
                    )
            }),
    ]
}

const NO_PATH: &str =
    "the files are found when a container starts, and a hook has no PATH of the user's";

/// Where programs are.
fn programs() -> Vec<Row> {
    vec![
        row("programs_in_opt")
            .host(|host| rename(host, SMI, "/opt/bin/nvidia-smi"))
            .expect(|expected| expected.program("nvidia-smi", "/opt/bin/nvidia-smi")),
        row("programs_in_a_directory_of_path")
            .host(|host| rename(host, SMI, "/opt/nv/bin/nvidia-smi"))
            .path("/opt/nv/bin")
            .expect(|expected| expected.program("nvidia-smi", "/opt/nv/bin/nvidia-smi"))
            .but(&[Live], NO_PATH, |expected| expected.nothing("nvidia-smi")),
        row("programs_in_sbin")
            .host(|host| rename(host, SMI, "/usr/sbin/nvidia-smi"))
            .expect(|expected| expected.program("nvidia-smi", "/usr/sbin/nvidia-smi")),
        row("a_script_in_a_usual_directory_before_the_program").host(|host| {
            let script = "#!/bin/sh\nexec /usr/bin/nvidia-smi \"$@\"\n";
            files::file(&host.path("/usr/local/bin/nvidia-smi"), script, 0o755).unwrap();
        }),
        row("a_link_to_the_program")
            .host(|host| {
                rename(host, SMI, "/srv/nvidia/nvidia-smi");
                link(host, SMI, "/srv/nvidia/nvidia-smi");
            })
            .expect(|expected| expected.program("nvidia-smi", "/srv/nvidia/nvidia-smi")),
        row("a_script_in_a_programs_place")
            .profile("libraries=/opt/nvidia/lib64")
            .host(|host| {
                rename(host, SMI, "/opt/nvidia/bin/nvidia-smi");
                let script = "#!/bin/sh\nexec /opt/nvidia/bin/nvidia-smi \"$@\"\n";
                files::file(&host.path(SMI), script, 0o755).unwrap();
            })
            .expect(|expected| {
                expected
                    .libraries([
                        "/opt/nvidia/lib64/libcuda.so.VER",
                        "/opt/nvidia/lib64/libnvidia-ml.so.VER",
                        "/opt/nvidia/lib64/libGLX_nvidia.so.VER",
                        "/opt/nvidia/lib64/libnvidia-glcore.so.VER",
                    ])
                    .program("nvidia-smi", "/opt/nvidia/bin/nvidia-smi")
            }),
    ]
}

/// A Fedora host has 32-bit libraries in /usr/lib.
const FEDORA: &str = "libraries=/usr/lib64\n\
    library path=/usr/lib/libGLX_nvidia.so.VER called=libGLX_nvidia.so.0 bits=32\n\
    link path=/usr/lib/libGLX_nvidia.so.0 to=libGLX_nvidia.so.VER\nremove path=/LIB32";

/// An Arch host has them in /usr/lib32.
const ARCH: &str = "libraries=/usr/lib\n\
    library path=/usr/lib32/libGLX_nvidia.so.VER called=libGLX_nvidia.so.0 bits=32\n\
    link path=/usr/lib32/libGLX_nvidia.so.0 to=libGLX_nvidia.so.VER\nremove path=/LIB32";

/// Libraries for 32-bit programs.
fn narrow() -> Vec<Row> {
    let fedora = |expected: Expected| {
        lib64(expected).host("32:libGLX_nvidia.so.0", "/usr/lib/libGLX_nvidia.so.VER")
    };
    let arch = |expected: Expected| {
        expected
            .libraries([
                "/usr/lib/libcuda.so.VER",
                "/usr/lib/libnvidia-ml.so.VER",
                "/usr/lib/libGLX_nvidia.so.VER",
                "/usr/lib/libnvidia-glcore.so.VER",
            ])
            .host("32:libGLX_nvidia.so.0", "/usr/lib32/libGLX_nvidia.so.VER")
    };
    vec![
        row("libraries_of_32_bits").expect(|expected| {
            expected.host("32:libGLX_nvidia.so.0", "/LIB32/libGLX_nvidia.so.VER")
        }),
        row("libraries_of_32_bits_of_fedora")
            .profile(FEDORA)
            .host(conf_of_32_bits)
            .expect(fedora),
        row("libraries_of_32_bits_of_fedora_on_fedora")
            .profile(FEDORA)
            .host(conf_of_32_bits)
            .layout(Layout::Rhel)
            .expect(fedora),
        row("libraries_of_32_bits_of_fedora_on_arch")
            .profile(FEDORA)
            .host(conf_of_32_bits)
            .layout(Layout::Arch)
            .expect(lib64),
        row("libraries_of_32_bits_of_debian_on_fedora")
            .layout(Layout::Rhel)
            .expect(|expected| {
                expected.host("32:libGLX_nvidia.so.0", "/LIB32/libGLX_nvidia.so.VER")
            }),
        row("libraries_of_32_bits_of_arch_on_arch")
            .profile(ARCH)
            .host(conf_of_32_bits)
            .layout(Layout::Arch)
            .expect(arch),
        row("libraries_of_32_bits_of_arch")
            .profile(ARCH)
            .host(conf_of_32_bits)
            .expect(arch),
    ]
}

const NO_MANIFESTS: &str =
    "nvidia-container-cli gives libraries and programs, as upstream's; our runtime adds the rest";

/// What programs open by a path of their own.
fn manifests() -> Vec<Row> {
    let manifest = |library: &str| {
        format!("{{\"file_format_version\":\"1.0.1\",\"ICD\":{{\"library_path\":\"{library}\"}}}}")
    };
    vec![
        row("a_manifest_with_an_absolute_path")
            .profile("libraries=/usr/lib64")
            .host(move |host| {
                let text = manifest("/usr/lib64/libGLX_nvidia.so.0");
                put(
                    host,
                    "/usr/share/vulkan/icd.d/nvidia_icd.json",
                    text.as_bytes(),
                );
            })
            .expect(|expected| {
                lib64(expected).host(
                    "/usr/lib64/libGLX_nvidia.so.0",
                    "/usr/lib64/libGLX_nvidia.so.VER",
                )
            })
            .but(&[Configure, Hook], NO_MANIFESTS, |expected| {
                expected.without("/usr/lib64/libGLX_nvidia.so.0")
            }),
        row("manifests_in_a_tree_of_the_drivers_own")
            .profile("libraries=/opt/nvidia/lib64")
            .host(move |host| {
                let text = manifest("libGLX_nvidia.so.0");
                put(
                    host,
                    "/opt/nvidia/share/vulkan/icd.d/nvidia_icd.json",
                    text.as_bytes(),
                );
                let text = manifest("libEGL_nvidia.so.0");
                put(
                    host,
                    "/opt/nvidia/share/glvnd/egl_vendor.d/10_nvidia.json",
                    text.as_bytes(),
                );
            })
            .expect(|expected| {
                expected
                    .libraries([
                        "/opt/nvidia/lib64/libcuda.so.VER",
                        "/opt/nvidia/lib64/libnvidia-ml.so.VER",
                        "/opt/nvidia/lib64/libGLX_nvidia.so.VER",
                        "/opt/nvidia/lib64/libnvidia-glcore.so.VER",
                    ])
                    .host(
                        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
                        "/opt/nvidia/share/glvnd/egl_vendor.d/10_nvidia.json",
                    )
            })
            .but(&[Configure, Hook], NO_MANIFESTS, |expected| {
                expected.without("/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
            }),
        row("a_manifest_of_a_library_that_no_list_has")
            .profile("library path=/LIB/libnvidia-present.so.VER called=libnvidia-present.so.VER")
            .host(move |host| {
                let text = host
                    .fill(&manifest("libnvidia-present.so.VER"))
                    .replace("ICD", "layer");
                let file = "/usr/share/vulkan/implicit_layer.d/nvidia_layers.json";
                put(host, file, text.as_bytes());
            })
            .expect(|expected| {
                expected.host("libnvidia-present.so.VER", "/LIB/libnvidia-present.so.VER")
            })
            .but(&[Configure, Hook], NO_MANIFESTS, |expected| {
                expected.without("libnvidia-present.so.VER")
            }),
        row("a_gbm_backend_of_fedora")
            .profile("libraries=/usr/lib64")
            .host(|host| {
                link(
                    host,
                    "/usr/lib64/gbm/nvidia-drm_gbm.so",
                    "../libnvidia-allocator.so.1",
                );
            })
            .expect(|expected| {
                lib64(expected).host(
                    "/LIB/gbm/nvidia-drm_gbm.so",
                    "/usr/lib64/libnvidia-allocator.so.VER",
                )
            })
            .but(&[Configure, Hook], NO_MANIFESTS, |expected| {
                expected.without("/LIB/gbm/nvidia-drm_gbm.so")
            }),
        row("a_gbm_backend_for_an_image_of_fedora")
            .layout(Layout::Rhel)
            .host(|host| {
                link(
                    host,
                    "/LIB/gbm/nvidia-drm_gbm.so",
                    "../libnvidia-allocator.so.1",
                );
            })
            .expect(|expected| {
                expected.host(
                    "/usr/lib64/gbm/nvidia-drm_gbm.so",
                    "/LIB/libnvidia-allocator.so.VER",
                )
            })
            .but(&[Configure, Hook], NO_MANIFESTS, |expected| {
                expected.without("/usr/lib64/gbm/nvidia-drm_gbm.so")
            }),
        row("an_x_module_of_fedora")
            .profile("libraries=/usr/lib64")
            .host(|host| {
                let object = SharedObject::new(NATIVE.1).needed("libc.so.6");
                put(
                    host,
                    "/usr/lib64/xorg/modules/drivers/nvidia_drv.so",
                    &object.bytes(),
                );
            })
            .expect(|expected| {
                lib64(expected).host(
                    "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
                    "/usr/lib64/xorg/modules/drivers/nvidia_drv.so",
                )
            })
            .but(&[Configure, Hook], NO_MANIFESTS, |expected| {
                expected.without("/usr/lib/xorg/modules/drivers/nvidia_drv.so")
            }),
    ]
}

const SOCKET: &str = "/var/run/nvidia-persistenced/socket";

/// Services that start, stop and restart after a specification was written.
fn sockets() -> Vec<Row> {
    vec![
        row("a_daemon_runs").expect(|expected| expected.host(SOCKET, SOCKET)),
        row("a_daemon_stops")
            .service(listen, stop)
            .expect(|expected| expected.nothing(SOCKET)),
        row("a_daemon_starts_late")
            .service(stop, listen)
            .expect(|expected| expected.host(SOCKET, SOCKET)),
        row("a_daemon_restarts")
            .service(listen, restart)
            .expect(|expected| expected.host(SOCKET, SOCKET)),
    ]
}

fn stop(host: &Driver) {
    let _ = fs::remove_file(host.path(SOCKET));
}

fn restart(host: &Driver) {
    let old = host.path(SOCKET);
    // The inode number must be another.
    fs::rename(&old, old.with_extension("old")).unwrap();
    listen(host);
}

/// Creates the socket again, like a daemon that restarts.
fn listen(host: &Driver) {
    use std::os::fd::AsRawFd as _;

    let socket = host.path(SOCKET);
    stop(host);
    let directory = fs::File::open(socket.parent().unwrap()).unwrap();
    let short = format!("/proc/self/fd/{}/socket", directory.as_raw_fd());
    UnixListener::bind(short).unwrap();
}

/// Builds a driver of another version, with its libraries in this directory.
fn another(host: &Driver, version: &str, libraries: &str) -> (Driver, Scratch) {
    let scratch = Scratch::new().unwrap();
    let mut profile = host.profile().clone();
    profile.driver = version.into();
    profile.layout = nvc_testkit::profile::layout::Layout::default();
    let driver = Builder::new(profile)
        .library_dirs(&host.fill(libraries), None)
        .majors(host.majors())
        .no_nodes()
        .no_libc()
        .build(scratch.join("another"))
        .unwrap();
    (driver, scratch)
}

/// Installs another driver's libraries beside, and runs ldconfig.
fn install(host: &Driver, version: &str, libraries: &str) {
    let (other, _scratch) = another(host, version, libraries);
    let from = other.path(host.fill(libraries)).join(".");
    let to = host.path(host.fill(libraries));
    files::directory(&to).unwrap();
    printed(
        Command::new("cp")
            .args(["-a", "--no-clobber"])
            .args([from, to]),
    );
    ldconfig(host.root());
}

/// Makes Debian's links: those of the usual directory lead by /etc/alternatives to a directory that nothing names.
fn alternatives_of_debian(host: &Driver, name: &str) {
    let real = host.fill(&format!("/LIB/nvidia/{name}"));
    for entry in fs::read_dir(host.path(&real)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_symlink() {
            let file = path.file_name().unwrap().to_string_lossy().into_owned();
            let alternative = format!("/etc/alternatives/glx--{file}");
            link(host, &alternative, &format!("{real}/{file}"));
            link(host, &format!("/LIB/{file}"), &alternative);
        }
    }
    let program = format!("/usr/lib/nvidia/{name}/nvidia-smi");
    rename(host, SMI, &program);
    link(host, "/etc/alternatives/nvidia--nvidia-smi", &program);
    link(host, SMI, "/etc/alternatives/nvidia--nvidia-smi");
    let conf = host
        .fill("/lib/TRIPLET\n/LIB\n/LIB32\n")
        .replace("TRIPLET", NATIVE.0);
    put(host, "/etc/ld.so.conf", conf.as_bytes());
    ldconfig(host.root());
}

/// Names the directories of 32-bit libraries to the host's loader.
fn conf_of_32_bits(host: &Driver) {
    let conf = format!("/lib/{}\n/usr/lib64\n/usr/lib\n/usr/lib32\n", NATIVE.0);
    put(host, "/etc/ld.so.conf", conf.as_bytes());
    ldconfig(host.root());
}

fn ldconfig(root: &Path) {
    printed(Command::new(userland::host_ldconfig()).arg("-r").arg(root));
}

fn at(host: &Driver, path: &str) -> PathBuf {
    host.path(host.fill(path))
}

fn put(host: &Driver, path: &str, bytes: &[u8]) {
    let path = at(host, path);
    let _ = fs::remove_file(&path);
    files::file(&path, bytes, 0o644).unwrap();
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap();
}

fn link(host: &Driver, path: &str, target: &str) {
    files::link(&at(host, path), &host.fill(target)).unwrap();
}

fn rename(host: &Driver, from: &str, to: &str) {
    let to = at(host, to);
    files::directory(to.parent().unwrap()).unwrap();
    fs::rename(at(host, from), to).unwrap();
}

fn remove(host: &Driver, path: &str) {
    fs::remove_file(at(host, path)).unwrap();
}
