//! Configures images of all layouts, with and without CUDA, prepared and empty.

use super::*;

pub(crate) fn every_layout_runs_nvidia_smi() {
    for (builder, library) in [
        (debian_root(), "LIB/libnvidia-ml.so.VER"),
        (debian_root().split_usr(), "LIB/libnvidia-ml.so.VER"),
        (
            rootfs::Builder::new(Layout::Rhel),
            "usr/lib64/libnvidia-ml.so.VER",
        ),
        (
            rootfs::Builder::new(Layout::Rhel).split_usr(),
            "usr/lib64/libnvidia-ml.so.VER",
        ),
        // There everything is /usr/lib under several names.
        (
            rootfs::Builder::new(Layout::Arch),
            "usr/lib/libnvidia-ml.so.VER",
        ),
    ] {
        let what = format!("{builder:?}");
        let container = start(Builder::new(builder));
        let new = mounted(&container, &["--utility", "--device=0"]);
        assert!(has(&new, library), "{what}: {new:#?}");
        assert_eq!(
            nvidia_smi(&container),
            machine::driver().listing(0, &[]),
            "{what}"
        );
    }
}

pub(crate) fn an_image_without_glibc() {
    let container = start(Builder::new(rootfs::Builder::new(Layout::Alpine)));
    let new = mounted(&container, &["--utility", "--device=0"]);
    assert!(
        has(&new, "usr/lib64/libnvidia-ml.so.VER ") && has(&new, "lib/firmware/"),
        "{new:#?}"
    );
    assert!(!container.point("/ldconfig-was-run").exists());
}

pub(crate) fn an_empty_image() {
    let container = start(Builder::new(rootfs::Builder::new(Layout::Empty)));
    let new = mounted(&container, &["--utility", "--device=0"]);
    assert!(
        has(&new, "usr/bin/nvidia-smi ") && has(&new, "var/run/nvidia-persistenced/"),
        "{new:#?}"
    );
}

pub(crate) fn cuda_compatibility_libraries() {
    let root = debian_root().no_programs();
    let container = start(Builder::new(root.compat("575.57.08").compat("570.999.1")));
    let new = mounted(&container, &["--compute", "--device=0"]);
    assert!(
        has(&new, "LIB/libcuda.so.VER ") && has(&new, "LIB/libcuda.so.575.57.08 "),
        "{new:#?}"
    );
    assert!(
        has(
            &new,
            "LIB/libnvidia-ptxjitcompiler.so.575.57.08 nodev,nosuid,ro"
        ),
        "{new:#?}"
    );
    // The driver's own major version is not a forward-compatibility package.
    assert!(!has(&new, "LIB/libcuda.so.570.999.1"), "{new:#?}");
    let link = container.point(machine::driver().fill("LIB/libcuda.so.1"));
    assert_eq!(
        fs::read_link(link).unwrap(),
        Path::new("libcuda.so.575.57.08")
    );
}

pub(crate) fn cuda_compatibility_modes() {
    for (option, in_cache) in [
        ("--no-cntlibs", "=> /LIB/libcuda.so.1\n"),
        ("--cuda-compat-mode=disabled", "=> /LIB/libcuda.so.1\n"),
        (
            "--cuda-compat-mode=ldconfig",
            "=> /usr/local/cuda-12.9/compat/libcuda.so.1\n",
        ),
    ] {
        let root = debian_root().no_programs().compat("575.57.08");
        let container = start(Builder::new(root));
        let new = mounted(&container, &["--compute", "--device=0", option]);
        assert!(!has(&new, "LIB/libcuda.so.575"), "{option}: {new:#?}");
        let wanted = machine::driver().fill(in_cache);
        assert!(
            cache(&container).contains(&wanted),
            "{option}: {}",
            cache(&container)
        );
    }
}

/// A read-only root has no place for the libraries. A hint names the ways out.
pub(crate) fn a_read_only_image() {
    for has_dev in [true, false] {
        let container = start(Builder::new(debian_root().no_programs()).read_only());
        if !has_dev {
            let mut uncover = container.enter("umount");
            uncover.args(["-l"]).arg(container.point("dev"));
            assert!(uncover.status().unwrap().success());
        }
        let before = State::of(&container);
        let line = configure(&container, &["--utility", "--device=0"]);
        let line = line.outcome().unwrap();
        assert_eq!(line.status, Some(1), "{line:?}");
        for text in [
            ": read-only file system\n",
            "hint: the container's root is read-only",
        ] {
            assert!(line.stderr.contains(text), "{text}: {line:?}");
        }
        before.assert_unchanged(&container);
    }
}

pub(crate) fn the_images_ldconfig_does_not_run() {
    let trap = "#!/bin/sh\necho run > /ldconfig-was-run\n";
    let builder = debian_root().edit(move |root| {
        fs::remove_file(root.join("usr/sbin/ldconfig"))?;
        nvc_testkit::files::file(&root.join("usr/sbin/ldconfig"), trap, 0o755)
    });
    let container = start(Builder::new(builder));
    let pid = format!("--pid={}", container.pid());
    let words = ["configure", "--no-cgroups", &pid, "--utility", "--device=0"];
    let mut line = command_line(machine::driver(), &words);
    line.push(container.root().into());
    Run::cli(line).succeeds();
    assert!(!container.inside("/ldconfig-was-run").exists());
    assert_eq!(nvidia_smi(&container), machine::driver().listing(0, &[]));
}
