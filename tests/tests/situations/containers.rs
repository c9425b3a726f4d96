//! Rows about the container: volumes, a read-only root, a user namespace.

use std::fs;
use std::path::Path;

use nvc_testkit::{files, machine};
use serde_json::{Value, json};

use super::modes::Specification;
use super::row::{Row, Volume, row};

const ENGINE: &str = "the engine mounts what a specification lists, on a volume too";

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row("a_volume_on_etc")
            .volume(Volume::Copy("/etc"))
            .expect(|expected| expected.warns("/etc")),
        row("a_read_only_volume_on_etc")
            .volume(Volume::ReadOnly("/etc"))
            .expect(|expected| expected.warns("/etc")),
        row("a_volume_on_usr")
            .volume(Volume::Copy("/usr"))
            .expect(|expected| expected.fails(&["/usr"])),
        row("a_volume_on_usr_lib")
            .volume(Volume::Copy("/usr/lib"))
            .expect(|expected| expected.fails(&["/usr/lib"])),
        row("a_read_only_volume_on_usr")
            .volume(Volume::ReadOnly("/usr"))
            .expect(|expected| expected.fails(&["/usr"])),
        row("a_volume_on_usr_bin")
            .volume(Volume::Copy("/usr/bin"))
            .expect(|expected| expected.nothing("nvidia-smi").warns("/usr/bin"))
            .but(&[Specification], ENGINE, |expected| {
                expected
                    .program("nvidia-smi", "/usr/bin/nvidia-smi")
                    .silent()
            }),
        row("a_volume_on_the_libraries_directory")
            .volume(Volume::Copy("/LIB"))
            .expect(|expected| expected.fails(&["/LIB"])),
        row("a_read_only_volume_on_usr_bin")
            .volume(Volume::ReadOnly("/usr/bin"))
            .expect(|expected| expected.nothing("nvidia-smi").warns("/usr/bin"))
            .but(&[Specification], ENGINE, |expected| {
                expected.fails(&["/usr/bin"])
            }),
        row("a_volume_on_usr_local").volume(Volume::Empty("/usr/local")),
        row("a_volume_on_var").volume(Volume::Empty("/var")),
        row("a_volume_on_tmp").volume(Volume::Empty("/tmp")),
        row("a_read_only_root").container(|config| config["root"]["readonly"] = json!(true)),
        row("a_volume_on_usr_with_mount_points")
            .image(mount_points)
            .volume(Volume::Copy("/usr")),
        row("an_ordinary_user").container(|config| {
            config["process"]["user"] = json!({ "uid": 1000, "gid": 1000 });
        }),
        row("a_read_only_root_with_a_volume_on_etc")
            .volume(Volume::Copy("/etc"))
            .container(|config| config["root"]["readonly"] = json!(true))
            .expect(|expected| expected.warns("/etc")),
        row("a_read_only_root_in_a_user_namespace")
            .container(|config| config["root"]["readonly"] = json!(true))
            .container(user_namespace),
        row("a_user_namespace").container(user_namespace),
        row("a_volume_on_usr_that_its_root_may_change")
            .volume(Volume::Copy("/usr"))
            .container(user_namespace),
    ]
}

/// The container's root is the machine's user 0, so that the image's files are its own.
fn user_namespace(config: &mut Value) {
    let namespaces = config["linux"]["namespaces"].as_array_mut().unwrap();
    namespaces.push(json!({ "type": "user" }));
    let mapping = json!([{ "containerID": 0, "hostID": 0, "size": 65536 }]);
    config["linux"]["uidMappings"] = mapping.clone();
    config["linux"]["gidMappings"] = mapping;
}

/// Makes a file for each library and program of the driver, and their links, as a container did that ran before.
fn mount_points(root: &Path) {
    let driver = machine::driver();
    for directory in ["/LIB", "/LIB32", "/usr/bin"] {
        let directory = driver.fill(directory);
        for entry in fs::read_dir(driver.path(&directory)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let at = files::below(root, directory.as_ref()).join(name);
            match fs::read_link(&path) {
                _ if at.exists() => {}
                Ok(target) => files::link(&at, target.to_str().unwrap()).unwrap(),
                Err(_) => files::file(&at, "", 0o644).unwrap(),
            }
        }
    }
}
