//! Rows about the container: volumes, a read-only root, a user namespace.

use std::fs;
use std::path::Path;
use std::process::Command;

use nvc_testkit::{files, machine};
use serde_json::{Value, json};

use super::machine::printed;
use super::modes::Specification;
use super::row::{Row, Volume, row};

const ENGINE: &str = "the engine mounts what a specification lists, on a volume too";

/// A user who may only read what is the host's, as one who runs rootless containers.
const FIRST: u32 = 100_000;
const OTHERS: &str = "100000:100000";

/// The second GPU's first MIG device, which is hidden if the container may not open its node.
const MIG: &str = "/proc/driver/nvidia/capabilities/gpu1/mig/gi1/access";

const SECOND_GPU: &str = "gpu minor=1 bus=0000:af:00.0 cc=9.0 brand=14 mig=on uuid=GPU-9e0b7d54-2c3f-4b18-a6d9-7f1e8c4a5b21 name=NVIDIA H100\n\
    mig gpu=1 slot=0 gi=1 ci=0 uuid=MIG-7c5f2b9e-1d84-5a06-9b3c-e2f4a6d81030 name=3g.40gb\n";

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
        row("the_hosts_dev_in_another_users_namespace")
            .profile(SECOND_GPU)
            .image(|root| {
                printed(Command::new("chown").args(["-R", OTHERS]).arg(root));
            })
            .container(|config| of_user(config, FIRST))
            .container(|config| {
                let options = ["rbind", "rslave"];
                let dev = json!({ "destination": "/dev", "type": "bind", "source": "/dev", "options": options });
                config["mounts"].as_array_mut().unwrap().push(dev);
            })
            .expect(|expected| expected.own(MIG, MIG)),
        row("a_volume_on_usr_that_its_root_may_change")
            .volume(Volume::Copy("/usr"))
            .container(user_namespace),
    ]
}

/// The container's root is the machine's user 0, so that the image's files are its own.
fn user_namespace(config: &mut Value) {
    of_user(config, 0);
}

/// The container's root is this user of the machine.
fn of_user(config: &mut Value, first: u32) {
    let namespaces = config["linux"]["namespaces"].as_array_mut().unwrap();
    namespaces.push(json!({ "type": "user" }));
    let mapping = json!([{ "containerID": 0, "hostID": first, "size": 65536 }]);
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
