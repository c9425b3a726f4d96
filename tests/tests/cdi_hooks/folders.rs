//! Tests the places of folders in the loader's cache: those that the image knows keep theirs, and the others are still
//! searched after the container's own ldconfig has run.

use std::fs;
use std::path::Path;
use std::process::Command;

use nvc_testkit::cli::{Outcome, Run};
use nvc_testkit::driver::NATIVE;
use nvc_testkit::elf::SharedObject;
use nvc_testkit::machine::Scratch;
use nvc_testkit::rootfs::{self, Layout};
use nvc_testkit::{files, userland};

use super::hostile::line;

/// An image: its root below a scratch directory.
struct Image {
    scratch: Scratch,
    root: std::path::PathBuf,
}

impl Image {
    /// Builds an image that has a library of its own in /usr/local/lib and in the system's directory.
    fn new(layout: Layout) -> Self {
        let builder = rootfs::Builder::new(layout);
        let libraries = builder.libraries();
        let system = format!("{}/libown.so.1", &libraries[1..]);
        let builder = builder.edit(move |root| {
            library(root, "usr/local/lib/libown.so.1")?;
            library(root, &system)?;
            let before = root.join("etc/ld.so.conf.d/local.conf");
            files::file(&before, "/usr/local/lib\n", 0o644)?;
            let libraries = root.join("etc/ld.so.conf.d/libraries.conf");
            fs::rename(libraries, root.join("etc/ld.so.conf.d/system.conf"))
        });
        let scratch = Scratch::new().unwrap();
        let root = builder.build(scratch.join("root")).unwrap();
        Self { scratch, root }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.root.join(name)
    }

    /// Runs a hook with the root as a mount point, after a shell command in its mount namespace.
    fn hook(&self, words: &str, before: &str) -> Outcome {
        let words: Vec<String> = words.split(' ').map(String::from).collect();
        let script = format!("mount --bind \"$0\" \"$0\" && cd \"$0\" && {before} && exec \"$@\"");
        let unshare = ["--mount", "--propagation", "private", "sh", "-c", &script];
        let run = Run::other("unshare").args(unshare).args([&self.root]);
        let line = line(&self.scratch, &self.root, &words);
        run.args(&line).outcome().unwrap()
    }

    #[track_caller]
    fn update(&self, folders: &[&str]) {
        self.update_after(folders, "true");
    }

    #[track_caller]
    fn update_after(&self, folders: &[&str], before: &str) {
        let folders: String = folders
            .iter()
            .map(|folder| format!(" --folder {folder}"))
            .collect();
        let outcome = self.hook(&format!("update-ldcache{folders}"), before);
        assert_eq!(outcome.status, Some(0), "{outcome:#?}");
        assert_eq!(outcome.message(), "", "{outcome:#?}");
    }

    /// Runs the image's own ldconfig, as installing a package does.
    fn ldconfig(&self) {
        let mut command = Command::new(userland::host_ldconfig());
        let output = command.arg("-r").arg(&self.root).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Returns the paths of the libraries with a name, the first one that which the loader finds.
    fn found(&self, name: &str) -> Vec<String> {
        let mut command = Command::new(userland::host_ldconfig());
        let cache = self.path("etc/ld.so.cache");
        let output = command.args(["-p", "-C"]).arg(cache).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text
            .lines()
            .filter_map(|line| line.trim().split_once(" => "));
        let lines = lines.filter(|(key, _)| key.split(' ').next() == Some(name));
        lines.map(|(_, path)| path.to_owned()).collect()
    }

    /// Returns our files in ld.so.conf.d with their contents.
    fn drop_ins(&self) -> Vec<(String, String)> {
        let Ok(listed) = fs::read_dir(self.path("etc/ld.so.conf.d")) else {
            return Vec::new();
        };
        let entries = listed.map(|entry| entry.unwrap());
        let ours = entries.filter(|entry| entry.file_name().to_str().unwrap().contains("nvcr"));
        let read = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read_to_string(entry.path()).unwrap())
        };
        ours.map(read).collect()
    }

    /// Makes the cache newer than all directories, so that it is updated without a program, or older.
    fn age_cache(&self, is_new: bool) {
        let day = if is_new { "tomorrow" } else { "yesterday" };
        let mut command = Command::new("touch");
        let status = command
            .args(["-d", day])
            .arg(self.path("etc/ld.so.cache"))
            .status();
        assert!(status.unwrap().success());
    }
}

fn library(root: &Path, path: &str) -> std::io::Result<()> {
    let path = root.join(path);
    let soname = path.file_name().unwrap().to_str().unwrap();
    let object = SharedObject::new(NATIVE.1)
        .soname(soname)
        .needed("libc.so.6");
    files::file(&path, object.bytes(), 0o644)
}

/// The image's own library wins, as it does without a GPU, and directories keep the names that they have in the cache.
pub(super) fn known_ones_keep_their_place() {
    for (layout, folder) in [
        (Layout::Debian, format!("/usr/lib/{}", NATIVE.0)),
        (Layout::Rhel, "/usr/lib64".into()),
    ] {
        for is_new in [true, false] {
            let context = format!("{layout:?}, {is_new}");
            let image = Image::new(layout);
            let own = image.found("libown.so.1");
            assert_eq!(own.len(), 2, "{context}: {own:?}");
            assert_eq!(own[0], "/usr/local/lib/libown.so.1", "{context}");
            let libraries = image.path(&folder[1..]);
            // New libraries go where the others of their directory are.
            for name in ["libcuda.so.1", "liblate.so.1"] {
                library(&libraries, name).unwrap();
            }
            library(&image.root, "usr/local/lib/liblate.so.1").unwrap();
            image.age_cache(is_new);
            image.update(&[&folder]);
            assert_eq!(image.found("libown.so.1"), own, "{context}");
            let directory = own[1].strip_suffix("/libown.so.1").unwrap();
            let driver = format!("{directory}/libcuda.so.1");
            assert_eq!(image.found("libcuda.so.1"), [driver], "{context}");
            assert_eq!(image.drop_ins(), [], "{context}");
            let cache = fs::read(image.path("etc/ld.so.cache")).unwrap();
            if !is_new {
                // The next run of ldconfig changes nothing.
                image.ldconfig();
                let again = fs::read(image.path("etc/ld.so.cache")).unwrap();
                assert!(cache == again, "{context}");
            }
        }
    }
}

/// A cache that is right is not written again.
pub(super) fn a_right_cache_stays() {
    let image = Image::new(Layout::Debian);
    let folder = format!("/usr/lib/{}", NATIVE.0);
    image.age_cache(true);
    let look = || {
        use std::os::unix::fs::MetadataExt;
        let stat = fs::metadata(image.path("etc/ld.so.cache")).unwrap();
        (
            stat.ino(),
            stat.mtime(),
            fs::read(image.path("etc/ld.so.cache")).unwrap(),
        )
    };
    let before = look();
    image.update(&[&folder]);
    assert!(look() == before);
}

/// Folders that the image does not know are searched first, and still searched after the next ldconfig.
pub(super) fn others_survive_the_next_ldconfig() {
    for (layout, folder) in [
        (Layout::Debian, "/usr/lib64"),
        (Layout::Debian, "/opt/driver/current"),
        (Layout::Rhel, "/usr/lib/x86_64-linux-gnu/nvidia/current"),
    ] {
        for is_new in [true, false] {
            let context = format!("{layout:?}, {folder}, {is_new}");
            let image = Image::new(layout);
            let own = image.found("libown.so.1");
            for name in ["libcuda.so.1", "libown.so.1"] {
                library(&image.path(&folder[1..]), name).unwrap();
            }
            image.age_cache(is_new);
            image.update(&[folder, "/missing"]);
            let check = |when: &str| {
                let driver = [format!("{folder}/libcuda.so.1")];
                assert_eq!(image.found("libcuda.so.1"), driver, "{context}: {when}");
                let all = [vec![format!("{folder}/libown.so.1")], own.clone()].concat();
                assert_eq!(image.found("libown.so.1"), all, "{context}: {when}");
                let drop_ins = image.drop_ins();
                let [(name, content)] = drop_ins.as_slice() else {
                    panic!("{context}: {when}: {drop_ins:?}");
                };
                assert!(name.starts_with("00-nvcr-"), "{name}");
                assert_eq!(*content, format!("{folder}\n"), "{context}: {when}");
            };
            check("first");
            image.ldconfig();
            check("after ldconfig");
            image.update(&[folder, "/missing"]);
            check("again");
        }
    }
}

/// ld.so.conf includes the new file, whatever it was.
pub(super) fn the_configuration_includes_them() {
    const LINE: &str = "include /etc/ld.so.conf.d/*.conf\n";
    const OTHER: &str = "include /etc/other/*.conf\n";
    for (conf, nested, expected) in [
        (None, "", LINE.to_owned()),
        (
            Some("/usr/local/lib\n"),
            "",
            format!("{LINE}/usr/local/lib\n"),
        ),
        (
            Some("include ld.so.conf.d/*.conf\n"),
            "",
            "include ld.so.conf.d/*.conf\n".into(),
        ),
        // An included file includes the directory.
        (Some(OTHER), LINE, OTHER.into()),
        (
            Some(OTHER),
            "include ../ld.so.conf.d/*.conf\n",
            format!("{LINE}{OTHER}"),
        ),
    ] {
        let image = Image::new(Layout::Debian);
        fs::remove_dir_all(image.path("etc/ld.so.conf.d")).unwrap();
        let path = image.path("etc/ld.so.conf");
        fs::remove_file(&path).unwrap();
        if let Some(conf) = conf {
            fs::write(&path, conf).unwrap();
        }
        files::file(&image.path("etc/other/a.conf"), nested, 0o644).unwrap();
        library(&image.path("opt/driver"), "libcuda.so.1").unwrap();
        image.update(&["/opt/driver"]);
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            expected,
            "{conf:?} {nested:?}"
        );
        for _ in 0..2 {
            assert_eq!(image.found("libcuda.so.1"), ["/opt/driver/libcuda.so.1"]);
            image.ldconfig();
        }
    }
}

/// A volume, or what no line can name, is left alone; the cache has the folder nevertheless.
pub(super) fn volumes_get_no_configuration() {
    let image = Image::new(Layout::Debian);
    for folder in ["/opt/driver", "/opt/a#b"] {
        library(&image.path(&folder[1..]), "libcuda.so.1").unwrap();
    }
    let volume = image.scratch.join("volume");
    fs::create_dir(&volume).unwrap();
    let mount = format!("mount --bind {} etc/ld.so.conf.d", volume.display());
    image.update_after(&["/opt/driver"], &mount);
    assert_eq!(image.found("libcuda.so.1"), ["/opt/driver/libcuda.so.1"]);
    assert_eq!(fs::read_dir(&volume).unwrap().count(), 0);
    image.update(&["/opt/a#b"]);
    assert_eq!(image.found("libcuda.so.1"), ["/opt/a#b/libcuda.so.1"]);
    assert_eq!(image.drop_ins(), []);
}

/// A bind mount of ld.so.conf alone, which cannot be replaced, is no reason for a warning at each start.
pub(super) fn a_mounted_configuration_stays() {
    let image = Image::new(Layout::Debian);
    library(&image.path("opt/driver"), "libcuda.so.1").unwrap();
    fs::write(image.path("etc/ld.so.conf"), "/usr/local/lib\n").unwrap();
    fs::write(image.path("etc/other.conf"), "/usr/local/lib\n").unwrap();
    image.update_after(
        &["/opt/driver"],
        "mount --bind etc/other.conf etc/ld.so.conf",
    );
    assert_eq!(image.drop_ins(), []);
    assert_eq!(image.found("libcuda.so.1"), ["/opt/driver/libcuda.so.1"]);
}

/// An engine has mounted the libraries, but a volume keeps the loader's configuration from being written: the error
/// names the directory and the volume.
pub(super) fn a_loader_that_cannot_be_told() {
    let image = Image::new(Layout::Debian);
    library(&image.path("opt/driver"), "libcuda.so.1").unwrap();
    let volume = image.scratch.join("volume");
    fs::create_dir(&volume).unwrap();
    let library = "opt/driver/libcuda.so.1";
    let volume_on_etc = format!("mount --bind {} etc", volume.display());
    let mount = format!("mount --bind {library} {library} && {volume_on_etc}");
    let outcome = image.hook("update-ldcache --folder /opt/driver", &mount);
    assert_eq!(outcome.status, Some(1), "{outcome:#?}");
    for text in ["does not search /opt/driver by itself", "/etc is a volume"] {
        assert!(outcome.stderr.contains(text), "{text}: {outcome:#?}");
    }
    assert_eq!(fs::read_dir(&volume).unwrap().count(), 0);
}

/// If the cache cannot be written, the configuration is as before.
pub(super) fn a_failure_undoes_the_configuration() {
    for conf in [None, Some("/usr/local/lib\n")] {
        let image = Image::new(Layout::Debian);
        fs::remove_dir_all(image.path("etc/ld.so.conf.d")).unwrap();
        let path = image.path("etc/ld.so.conf");
        fs::remove_file(&path).unwrap();
        if let Some(conf) = conf {
            fs::write(&path, conf).unwrap();
        }
        library(&image.path("opt/driver"), "libcuda.so.1").unwrap();
        fs::remove_file(image.path("etc/ld.so.cache")).unwrap();
        fs::create_dir(image.path("etc/ld.so.cache")).unwrap();
        let outcome = image.hook("update-ldcache --folder /opt/driver", "true");
        assert_eq!(outcome.status, Some(1), "{outcome:#?}");
        assert_eq!(fs::read_to_string(&path).ok().as_deref(), conf);
        assert!(!image.path("etc/ld.so.conf.d").exists());
    }
}

/// Compatibility libraries with the note that the real ones have.
pub(super) fn compatibility_libraries_have_notes() {
    const PLACE: &str = "etc/ld.so.conf.d/00-compat-nvidia.conf";
    for (version, arguments, is_used, warns) in [
        // The same generation, but newer.
        ("575.57.08", "--host-driver-version=575.10.10", true, false),
        ("575.57.08", "--host-driver-version=v575.10.10", true, false),
        ("575.57.08", "--host-driver-version=575.57.08", false, false),
        // Older than the library, but not one of the note's.
        ("575.57.08", "--host-driver-version=525.1.1", false, false),
        ("575.57.08", "--host-cuda-version=12.8", true, false),
        ("575.57.08", "--host-cuda-version=12.9", false, false),
        ("575.57.08", "--host-driver-version=unknown", false, true),
        // No version of a driver.
        ("575.57.08.2", "--host-driver-version=535.1", false, false),
    ] {
        let scratch = Scratch::new().unwrap();
        let builder = rootfs::Builder::new(Layout::Debian).compat(version);
        let root = builder.build(scratch.join("root")).unwrap();
        let image = Image { scratch, root };
        let outcome = image.hook(&format!("enable-cuda-compat {arguments}"), "true");
        let context = format!("{version} {arguments}: {outcome:#?}");
        assert_eq!(outcome.status, Some(0), "{context}");
        assert_eq!(image.path(PLACE).exists(), is_used, "{context}");
        assert_eq!(outcome.message().contains("unknown"), warns, "{context}");
    }
}
