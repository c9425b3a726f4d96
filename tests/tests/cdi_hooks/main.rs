//! Tests the hooks of CDI specifications: on hostile roots, against racers, with failing system calls, and under real
//! runtimes.
#![allow(clippy::unwrap_used)]

mod bounded;
mod bundle;
mod faults;
mod folders;
mod hostile;
mod replaced;
mod reported;
mod runtimes;
mod volumes;

use std::process::ExitCode;

use nvc_testkit::harness::Need::{Command, Root};
use nvc_testkit::harness::{self, Test, test};
use nvc_testkit::machine;
use nvc_tests::apply;

/// Name and body of each test.
const TESTS: &[(&str, fn())] = &[
    ("hostile_trees", hostile::trees),
    ("races", hostile::races),
    ("failing_calls", faults::failing_calls),
    ("many_directories", bounded::many_directories),
    (
        "much_that_is_not_included",
        bounded::much_that_is_not_included,
    ),
    ("a_sparse_configuration", bounded::a_sparse_configuration),
    ("a_large_library", bounded::a_large_library),
    (
        "files_of_the_kernel_are_not_read",
        bounded::files_of_the_kernel_are_not_read,
    ),
    ("a_volume_that_changes", bounded::a_volume_that_changes),
    (
        "a_root_that_stays_writable",
        faults::a_root_that_stays_writable,
    ),
    ("files_replaced_by_links", replaced::by_several_links),
    ("a_replaced_file", replaced::by_a_file),
    ("a_link_out_of_nothing", replaced::by_a_link_out_of_nothing),
    (
        "known_folders_keep_their_place",
        folders::known_ones_keep_their_place,
    ),
    ("a_right_cache_stays", folders::a_right_cache_stays),
    (
        "other_folders_survive_the_next_ldconfig",
        folders::others_survive_the_next_ldconfig,
    ),
    (
        "the_configuration_includes_folders",
        folders::the_configuration_includes_them,
    ),
    (
        "volumes_get_no_configuration",
        folders::volumes_get_no_configuration,
    ),
    (
        "a_mounted_configuration_stays",
        folders::a_mounted_configuration_stays,
    ),
    (
        "a_loader_that_cannot_be_told",
        folders::a_loader_that_cannot_be_told,
    ),
    (
        "compatibility_libraries_have_notes",
        folders::compatibility_libraries_have_notes,
    ),
    (
        "a_failure_undoes_the_configuration",
        folders::a_failure_undoes_the_configuration,
    ),
    ("warnings_of_the_library", reported::warnings_of_the_library),
    ("the_reason_of_a_failure", reported::the_reason_of_a_failure),
];

/// The same for tests with a runtime.
type OfRuntime = (&'static str, fn(&str));

const WITH_RUNTIMES: &[OfRuntime] = &[
    ("a_live_specification", runtimes::a_live_specification),
    ("a_driver_update", runtimes::a_driver_update),
    (
        "a_failure_undoes_everything",
        runtimes::a_failure_undoes_everything,
    ),
    ("a_read_only_root", runtimes::a_read_only_root),
    ("volumes_stay", volumes::volumes_stay),
    (
        "volumes_stay_in_a_user_namespace",
        volumes::volumes_stay_in_a_user_namespace,
    ),
    ("links_replace_files", runtimes::links_replace_files),
    (
        "hidden_directories",
        runtimes::hidden_directories_stay_empty,
    ),
    (
        "a_file_of_the_image_stays_empty",
        runtimes::a_file_of_the_image_stays_empty,
    ),
    (
        "a_failing_filter_undoes_everything",
        runtimes::a_failing_filter_undoes_everything,
    ),
    ("device_rules_count", runtimes::device_rules_count),
    (
        "nodes_on_a_volume",
        volumes::nodes_on_a_volume_count_by_device_rules,
    ),
    ("a_shared_volume_stays", volumes::a_shared_volume_stays),
    ("a_shared_procfs", runtimes::a_shared_procfs),
    (
        "made_directories",
        runtimes::made_directories_are_not_writable_by_all,
    ),
    (
        "a_masked_directory_stays",
        runtimes::a_masked_directory_stays,
    ),
];

fn main() -> ExitCode {
    let tests = TESTS.iter();
    let mut tests: Vec<Test> = tests
        .map(|(name, run)| test(*name, &[Root], *run))
        .collect();
    for runtime in ["runc", "crun"] {
        let named = |(name, run): &OfRuntime| {
            let (name, needs, run) = (format!("{name}_{runtime}"), [Root, Command(runtime)], *run);
            test(name, &needs, move || run(runtime))
        };
        tests.extend(WITH_RUNTIMES.iter().map(named));
    }
    harness::main(tests)
}

/// The arguments of each hook, as `cdi generate` writes them for the simulated driver.
fn hooks() -> Vec<Vec<String>> {
    let driver = machine::driver();
    let library = driver.fill("/LIB/libcuda.so.VER");
    let folder = driver.fill("/LIB");
    let link = |name: &str| format!("{}::{folder}/{name}", library.rsplit('/').next().unwrap());
    let links = [
        "--link".into(),
        link("libcuda.so.1"),
        "--link".into(),
        link("x/y/libcuda.so"),
    ];
    let planned_links = || {
        let name = library.rsplit('/').next().unwrap();
        ["libcuda.so.1", "x/y/libcuda.so"].map(|at| apply::link(name, &format!("{folder}/{at}")))
    };
    let rest = || {
        let version = driver.fill("VER");
        [
            apply::compat(&version),
            apply::own_devices(true),
            apply::profile(),
        ]
    };
    let folders = ["--folder".to_owned(), folder.clone()];
    let path = [apply::folder(&folder)];
    let whole = apply::plan(&[&planned_links()[..], &rest(), &path].concat());
    let filter_alone = [apply::own_devices(false)];
    let filter_alone = apply::plan(&[&filter_alone[..], &planned_links(), &path].concat());
    let one = |name: &str, words: &[String]| [&[name.to_owned()], words].concat();
    let root = format!("--driver-root={}", driver.root().display());
    let modes = [
        "--mode",
        "755",
        "--path",
        "/usr/bin",
        "--path",
        "/dev/nvidia0",
    ];
    vec![
        one("create-symlinks", &links),
        one("update-ldcache", &folders),
        one("update-ldcache", &["--folder=/usr/bin".into()]),
        one("create-soname-symlinks", &folders),
        one("enable-cuda-compat", &["--host-driver-version=1.0".into()]),
        one("disable-device-node-modification", &[]),
        one("filter-driver-proc", &[]),
        one("update-application-profile", &[]),
        one("chmod", &modes.map(String::from)),
        one("apply", &[whole]),
        one("apply", &["--discover".into(), root, apply::plan(&rest())]),
        one("apply", &[filter_alone]),
    ]
}
