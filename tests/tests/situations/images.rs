//! Rows about the image: its layout, and what it has of a driver itself.

use std::fs;
use std::path::Path;
use std::process::Command;

use nvc_testkit::driver::NATIVE;
use nvc_testkit::elf::SharedObject;
use nvc_testkit::rootfs::{self, Layout};
use nvc_testkit::{files, userland};

use super::hosts;
use super::machine::printed;
use super::row::{Row, Volume, row};

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = layouts();
    rows.extend(of_a_driver());
    rows.extend(of_its_own());
    rows
}

fn layouts() -> Vec<Row> {
    let mut split = row("an_image_before_the_usr_merge");
    split.image = rootfs::Builder::new(Layout::Debian).split_usr();
    vec![
        split,
        row("an_image_of_fedora").layout(Layout::Rhel),
        row("an_image_of_fedora_on_fedora")
            .profile("libraries=/usr/lib64")
            .layout(Layout::Rhel)
            .expect(hosts::lib64),
        row("an_image_of_arch_on_fedora")
            .profile("libraries=/usr/lib64")
            .layout(Layout::Arch)
            .expect(hosts::lib64),
        row("an_image_without_ld_so_conf").image(|root| {
            fs::remove_dir_all(root.join("etc/ld.so.conf.d")).unwrap();
            fs::remove_file(root.join("etc/ld.so.conf")).unwrap();
        }),
        row("an_image_that_includes_nothing").image(|root| {
            let text = fill("/LIB\n/opt/app/lib\n");
            files::file(&root.join("etc/ld.so.conf"), text, 0o644).unwrap();
            fs::remove_dir_all(root.join("etc/ld.so.conf.d")).unwrap();
        }),
        row("an_image_of_arch").layout(Layout::Arch),
    ]
}

/// Libraries of a driver in the image.
fn of_a_driver() -> Vec<Row> {
    let other = |name, version: &'static str| {
        row(name).image(move |root| {
            for stem in ["libcuda", "libnvidia-ml", "libGLX_nvidia"] {
                let soname = if stem == "libGLX_nvidia" { 0 } else { 1 };
                let soname = format!("{stem}.so.{soname}");
                library(root, &format!("LIB/{stem}.so.{version}"), &soname);
            }
        })
    };
    vec![
        other("libraries_of_a_newer_driver", "580.65.06"),
        other("libraries_of_an_older_driver", "535.54.03"),
        row("libraries_of_a_newer_driver_for_fedora")
            .layout(Layout::Rhel)
            .image(|root| library(root, "usr/lib64/libcuda.so.580.65.06", "libcuda.so.1")),
        row("empty_files_of_another_driver").image(|root| {
            for name in ["libcuda.so.535.54.03", "libnvidia-ml.so.535.54.03"] {
                files::file(&root.join(fill("LIB")).join(name), "", 0o644).unwrap();
            }
        }),
        row("plain_files_under_sonames").image(|root| {
            library(root, "LIB/libcuda.so.1", "libcuda.so.1");
            files::file(&root.join(fill("LIB/libnvidia-ml.so.1")), "", 0o644).unwrap();
        }),
        row("plain_files_under_our_names").image(|root| {
            library(root, "LIB/libcuda.so.570.124.06", "libcuda.so.1");
            files::file(
                &root.join(fill("LIB/libnvidia-ml.so.570.124.06")),
                "",
                0o644,
            )
            .unwrap();
            files::file(&root.join("usr/bin/nvidia-smi"), "", 0o755).unwrap();
        }),
        row("links_that_lead_away").image(|root| {
            library(root, "opt/libcuda.so.5", "libcuda.so.1");
            files::link(&root.join(fill("LIB/libcuda.so.1")), "/opt/libcuda.so.5").unwrap();
            files::link(&root.join(fill("LIB/libnvidia-ml.so.1")), "/nowhere").unwrap();
        }),
        row("stubs_in_the_configuration").image(|root| {
            library(
                root,
                "usr/local/cuda/lib64/stubs/libcuda.so",
                "libcuda.so.1",
            );
            library(
                root,
                "usr/local/cuda/lib64/stubs/libnvidia-ml.so",
                "libnvidia-ml.so.1",
            );
            let conf = root.join("etc/ld.so.conf.d/000-cuda-stubs.conf");
            files::file(&conf, "/usr/local/cuda/lib64/stubs\n", 0o644).unwrap();
        }),
        row("stubs_behind_the_usual_directory").image(|root| {
            library(
                root,
                "usr/local/cuda/lib64/stubs/libcuda.so",
                "libcuda.so.1",
            );
            let conf = root.join("etc/ld.so.conf.d/zz-cuda-stubs.conf");
            files::file(&conf, "/usr/local/cuda/lib64/stubs\n", 0o644).unwrap();
        }),
        row("a_newer_driver_and_stubs").image(|root| {
            library(root, "LIB/libcuda.so.580.65.06", "libcuda.so.1");
            library(root, "opt/lib/libcuda.so.999", "libcuda.so.1");
            let conf = root.join("etc/ld.so.conf.d/000-first.conf");
            files::file(&conf, "/opt/lib\n", 0o644).unwrap();
        }),
        row("a_mount_at_a_soname")
            .image(|root| {
                library(root, "opt/mine.so", "libcuda.so.1");
            })
            .host(|host| {
                let object = SharedObject::new(NATIVE.1).soname("libcuda.so.1");
                files::file(&host.path("/srv/mine.so"), object.bytes(), 0o644).unwrap();
            })
            .volume(Volume::File("/srv/mine.so", "/LIB/libcuda.so.1"))
            .expect(|expected| {
                expected
                    .host("libcuda.so.1", "/srv/mine.so")
                    .lost("libcuda.so.1")
                    .warns("libcuda.so.1")
            }),
    ]
}

/// What the image's programs load of the image itself.
fn of_its_own() -> Vec<Row> {
    vec![
        row("an_order_of_its_own")
            .image(|root| {
                library(root, "usr/local/lib/libown.so.1.0", "libown.so.1");
                library(root, "LIB/libown.so.1.0", "libown.so.1");
                let text = fill("/usr/local/lib\n/LIB\n");
                files::file(&root.join("etc/ld.so.conf.d/libraries.conf"), text, 0o644).unwrap();
            })
            .expect(|expected| expected.own("libown.so.1", "/usr/local/lib/libown.so.1.0")),
        row("an_order_of_its_own_on_fedora")
            .layout(Layout::Rhel)
            .image(|root| {
                library(root, "usr/local/lib/libown.so.1.0", "libown.so.1");
                library(root, "usr/lib64/libown.so.1.0", "libown.so.1");
                let text = "/usr/local/lib\n/usr/lib64\n";
                files::file(&root.join("etc/ld.so.conf.d/libraries.conf"), text, 0o644).unwrap();
            })
            .expect(|expected| expected.own("libown.so.1", "/usr/local/lib/libown.so.1.0")),
        row("a_driver_in_its_own_order").image(|root| {
            library(root, "usr/local/lib/libcuda.so.999", "libcuda.so.1");
            let text = fill("/usr/local/lib\n/LIB\n");
            files::file(&root.join("etc/ld.so.conf.d/libraries.conf"), text, 0o644).unwrap();
        }),
        row("libraries_beside_the_drivers")
            .image(|root| {
                library(root, "LIB/libown.so.1.0", "libown.so.1");
            })
            .expect(|expected| expected.own("libown.so.1", "/LIB/libown.so.1.0")),
    ]
}

fn fill(text: &str) -> String {
    text.replace("LIB", &format!("usr/lib/{}", NATIVE.0))
}

/// Writes a library, and the link that its package has.
fn library(root: &Path, path: &str, soname: &str) {
    let path = root.join(fill(path));
    let object = SharedObject::new(NATIVE.1)
        .soname(soname)
        .needed("libc.so.6");
    files::file(&path, object.bytes(), 0o644).unwrap();
    let directory = path.parent().unwrap();
    printed(
        Command::new(userland::host_ldconfig())
            .arg("-n")
            .arg(directory),
    );
}
