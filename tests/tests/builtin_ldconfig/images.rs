//! Tests real images: the packages' own libraries, compared with each image's ldconfig and with the host's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvc_testkit::driver::NATIVE;
use nvc_testkit::rootfs::{self, Layout};
use nvc_testkit::{files, harness};

use super::{EVERYTHING, agree, agree_with, ldconfig};

/// Debian 11, 12 and 13 as packaged, with Fedora's layout, and with libraries for some CPUs.
pub(crate) fn real_images() {
    let images = harness::images();
    for name in ["bullseye", "bookworm", "trixie"] {
        let image = images.join(name);
        println!("{name} and its own ldconfig");
        let everything = [EVERYTHING, &["--compat32"]].concat();
        let own = "--ldconfig=/sbin/ldconfig";
        let lines = agree_with(own, || copy_of(&image), |_| (), &everything);
        assert!(lines.len() > 100, "{}", lines.len());
        if images.join(format!("{name}.without-32")).exists() {
            println!("{name} has no 32-bit libraries, which the mirror did not give");
        } else {
            let narrow = lines.iter().filter(|line| line.contains("(libc6) => "));
            assert!(narrow.count() > 10, "{lines:#?}");
        }
        println!("{name} and the host's ldconfig");
        agree(|| copy_of(&image), without_32_bits, EVERYTHING);
        println!("{name} as Fedora has it");
        agree(|| copy_of(&image), like_fedora, EVERYTHING);
    }
    println!("bookworm with libraries for some processors");
    let lines = agree(
        || copy_of(&images.join("bookworm")),
        with_features,
        EVERYTHING,
    );
    let of_feature = |line: &&String| line.contains("hwcap: \"x86-64-v3\"");
    assert!(lines.iter().filter(of_feature).count() > 10, "{lines:#?}");
}

/// Describes a root that is a copy of an image, with its times.
fn copy_of(image: &Path) -> rootfs::Builder {
    let image: PathBuf = image.to_owned();
    rootfs::Builder::new(Layout::Empty).edit(move |root| {
        let mut command = Command::new("cp");
        let status = command.arg("-a").arg(image.join(".")).arg(root).status()?;
        assert!(status.success());
        Ok(())
    })
}

/// Removes the 32-bit libraries: other versions of ldconfig classify those that do not need libc.so.6 differently.
fn without_32_bits(root: &Path) {
    for path in ["usr/lib/i386-linux-gnu", "lib/i386-linux-gnu"] {
        let _ = fs::remove_dir_all(root.join(path));
    }
    for path in ["usr/lib/ld-linux.so.2", "lib/ld-linux.so.2"] {
        let _ = fs::remove_file(root.join(path));
    }
    let status = Command::new("chroot")
        .arg(root)
        .arg("/sbin/ldconfig")
        .status();
    assert!(status.unwrap().success());
}

/// Moves the libraries to /usr/lib64, as on Fedora; its ldconfig searches there by default, ours must be told.
fn like_fedora(root: &Path) {
    let wide = root.join("usr/lib64");
    files::directory(&wide).unwrap();
    for directory in ["usr/lib", "lib"] {
        let directory = root.join(directory).join(NATIVE.0);
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries.map(Result::unwrap) {
            let at = wide.join(entry.file_name());
            if at.symlink_metadata().is_err() {
                fs::rename(entry.path(), at).unwrap();
            }
        }
    }
    let etc = root.join("etc");
    let _ = fs::remove_file(etc.join("os-release"));
    let _ = fs::remove_file(etc.join("debian_version"));
    files::file(&etc.join("os-release"), "ID=fedora\n", 0o644).unwrap();
    files::file(&etc.join("ld.so.conf.d/0.conf"), "/usr/lib64\n", 0o644).unwrap();
    ldconfig(root, &[]);
}

/// Copies some real libraries into the directory for newer CPUs.
fn with_features(root: &Path) {
    let libraries = root.join("usr/lib").join(NATIVE.0);
    for level in ["x86-64-v2", "x86-64-v3"] {
        let directory = libraries.join("glibc-hwcaps").join(level);
        files::directory(&directory).unwrap();
        let entries = fs::read_dir(&libraries).unwrap().map(Result::unwrap);
        let is_library = |path: &PathBuf| path.is_file() && path.to_string_lossy().contains(".so.");
        for path in entries
            .map(|entry| entry.path())
            .filter(is_library)
            .take(40)
        {
            fs::copy(&path, directory.join(path.file_name().unwrap())).unwrap();
        }
    }
    ldconfig(root, &[]);
}
