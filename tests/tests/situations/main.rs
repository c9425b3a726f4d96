//! Checks what a container gets, in one table: the rows are situations of a host, an image or a container, the columns
//! are the ways to give it GPUs. Each cell runs a container by runc on a machine of its own.
//!
//! All cells of a row have the row's expectation. One that differs needs a reason, which the table contains.
#![allow(clippy::unwrap_used)]

mod containers;
mod expectation;
mod hosts;
mod images;
mod machine;
mod modes;
mod row;

use std::process::ExitCode;

use nvc_testkit::harness::Need::{Command, Root};
use nvc_testkit::harness::{self, Test, test};

use modes::MODES;
use row::Row;

/// Cells that are not right yet: they are run and reported, and do not fail. The list must become empty.
const WAITING: &[(&str, &str)] = &[
    ("a_cache_without_the_driver", "configure"),
    ("a_cache_without_the_driver", "hook"),
    ("a_cache_without_the_driver", "legacy"),
    ("a_cache_of_the_former_driver", "configure"),
    ("a_cache_of_the_former_driver", "hook"),
    ("a_cache_of_the_former_driver", "legacy"),
    ("an_older_driver_beside", "jit-cdi"),
    ("an_older_driver_beside", "specification"),
    ("an_older_driver_beside", "live"),
    ("a_newer_driver_beside", "configure"),
    ("a_newer_driver_beside", "hook"),
    ("a_newer_driver_beside", "legacy"),
    ("a_newer_driver_beside", "jit-cdi"),
    ("a_newer_driver_beside", "specification"),
    ("a_newer_driver_beside", "live"),
    ("libraries_behind_alternatives", "configure"),
    ("libraries_behind_alternatives", "hook"),
    ("libraries_behind_alternatives", "legacy"),
    ("two_drivers_behind_alternatives", "configure"),
    ("two_drivers_behind_alternatives", "hook"),
    ("two_drivers_behind_alternatives", "legacy"),
    ("a_store_without_a_cache", "jit-cdi"),
    ("a_store_without_a_cache", "specification"),
    ("a_store_without_a_cache", "live"),
    ("a_tree_in_opt", "configure"),
    ("a_tree_in_opt", "hook"),
    ("a_tree_in_opt", "legacy"),
    ("a_tree_in_opt", "jit-cdi"),
    ("a_tree_in_opt", "specification"),
    ("a_tree_in_opt", "live"),
    ("a_library_that_needs_another_capabilitys", "configure"),
    ("a_library_that_needs_another_capabilitys", "hook"),
    ("a_library_that_needs_another_capabilitys", "legacy"),
    ("programs_in_opt", "jit-cdi"),
    ("programs_in_opt", "specification"),
    ("programs_in_opt", "live"),
    ("programs_in_sbin", "jit-cdi"),
    ("programs_in_sbin", "specification"),
    ("programs_in_sbin", "live"),
    ("a_script_in_a_programs_place", "configure"),
    ("a_script_in_a_programs_place", "hook"),
    ("a_script_in_a_programs_place", "legacy"),
    ("a_script_in_a_programs_place", "jit-cdi"),
    ("a_script_in_a_programs_place", "specification"),
    ("a_script_in_a_programs_place", "live"),
    ("libraries_of_32_bits", "jit-cdi"),
    ("libraries_of_32_bits", "specification"),
    ("libraries_of_32_bits", "live"),
    ("libraries_of_32_bits_of_fedora", "jit-cdi"),
    ("libraries_of_32_bits_of_fedora", "specification"),
    ("libraries_of_32_bits_of_fedora", "live"),
    ("libraries_of_32_bits_of_fedora_on_fedora", "jit-cdi"),
    ("libraries_of_32_bits_of_fedora_on_fedora", "specification"),
    ("libraries_of_32_bits_of_fedora_on_fedora", "live"),
    ("libraries_of_32_bits_of_arch", "jit-cdi"),
    ("libraries_of_32_bits_of_arch", "specification"),
    ("libraries_of_32_bits_of_arch", "live"),
    ("a_manifest_with_an_absolute_path", "configure"),
    ("a_manifest_with_an_absolute_path", "hook"),
    ("a_manifest_with_an_absolute_path", "legacy"),
    ("manifests_in_a_tree_of_the_drivers_own", "configure"),
    ("manifests_in_a_tree_of_the_drivers_own", "hook"),
    ("manifests_in_a_tree_of_the_drivers_own", "legacy"),
    ("manifests_in_a_tree_of_the_drivers_own", "jit-cdi"),
    ("manifests_in_a_tree_of_the_drivers_own", "specification"),
    ("manifests_in_a_tree_of_the_drivers_own", "live"),
    ("a_manifest_of_a_library_that_no_list_has", "configure"),
    ("a_manifest_of_a_library_that_no_list_has", "hook"),
    ("a_manifest_of_a_library_that_no_list_has", "legacy"),
    ("a_gbm_backend_of_fedora", "configure"),
    ("a_gbm_backend_of_fedora", "hook"),
    ("a_gbm_backend_of_fedora", "legacy"),
    ("a_gbm_backend_of_fedora", "jit-cdi"),
    ("a_gbm_backend_of_fedora", "specification"),
    ("a_gbm_backend_of_fedora", "live"),
    ("a_gbm_backend_for_an_image_of_fedora", "configure"),
    ("a_gbm_backend_for_an_image_of_fedora", "hook"),
    ("a_gbm_backend_for_an_image_of_fedora", "legacy"),
    ("a_gbm_backend_for_an_image_of_fedora", "jit-cdi"),
    ("a_gbm_backend_for_an_image_of_fedora", "specification"),
    ("a_gbm_backend_for_an_image_of_fedora", "live"),
    ("an_x_module_of_fedora", "configure"),
    ("an_x_module_of_fedora", "hook"),
    ("an_x_module_of_fedora", "legacy"),
    ("an_x_module_of_fedora", "jit-cdi"),
    ("an_x_module_of_fedora", "specification"),
    ("an_x_module_of_fedora", "live"),
    ("libraries_of_a_newer_driver", "configure"),
    ("libraries_of_a_newer_driver", "hook"),
    ("libraries_of_a_newer_driver", "legacy"),
    ("libraries_of_a_newer_driver", "specification"),
    ("libraries_of_a_newer_driver_for_fedora", "configure"),
    ("libraries_of_a_newer_driver_for_fedora", "hook"),
    ("libraries_of_a_newer_driver_for_fedora", "legacy"),
    ("plain_files_under_sonames", "configure"),
    ("plain_files_under_sonames", "hook"),
    ("plain_files_under_sonames", "legacy"),
    ("a_mount_at_a_soname", "configure"),
    ("a_mount_at_a_soname", "hook"),
    ("a_mount_at_a_soname", "legacy"),
    ("a_mount_at_a_soname", "specification"),
    ("stubs_in_the_configuration", "jit-cdi"),
    ("stubs_in_the_configuration", "specification"),
    ("stubs_in_the_configuration", "live"),
    ("an_order_of_its_own", "configure"),
    ("an_order_of_its_own", "hook"),
    ("an_order_of_its_own", "legacy"),
    ("an_order_of_its_own_on_fedora", "configure"),
    ("an_order_of_its_own_on_fedora", "hook"),
    ("an_order_of_its_own_on_fedora", "legacy"),
    ("a_driver_in_its_own_order", "jit-cdi"),
    ("a_driver_in_its_own_order", "specification"),
    ("a_driver_in_its_own_order", "live"),
    ("a_volume_on_usr", "configure"),
    ("a_volume_on_usr", "hook"),
    ("a_volume_on_usr", "legacy"),
    ("a_volume_on_usr", "jit-cdi"),
    ("a_volume_on_usr", "specification"),
    ("a_volume_on_usr", "live"),
    ("a_volume_on_usr_lib", "configure"),
    ("a_volume_on_usr_lib", "hook"),
    ("a_volume_on_usr_lib", "legacy"),
    ("a_volume_on_usr_lib", "jit-cdi"),
    ("a_volume_on_usr_lib", "specification"),
    ("a_volume_on_usr_lib", "live"),
    ("a_read_only_volume_on_usr", "configure"),
    ("a_read_only_volume_on_usr", "hook"),
    ("a_read_only_volume_on_usr", "legacy"),
    ("a_read_only_volume_on_usr", "jit-cdi"),
    ("a_read_only_volume_on_usr", "specification"),
    ("a_read_only_volume_on_usr", "live"),
    ("a_volume_on_usr_bin", "specification"),
];

fn main() -> ExitCode {
    let tables = [hosts::rows(), images::rows(), containers::rows()];
    let rows: Vec<Row> = tables.into_iter().flatten().collect();
    let tests = rows.into_iter().map(|row| {
        let needs = [Root, Command("runc"), Command("cc")];
        test(row.name, &needs, move || check(&row))
    });
    harness::main(tests.collect::<Vec<Test>>())
}

/// Checks the cells of a row.
fn check(row: &Row) {
    let prepared = machine::Machine::new(row);
    let only = std::env::var("ONLY").ok();
    let mut wrong = Vec::new();
    for mode in MODES {
        if only.as_deref().is_some_and(|only| only != mode.name()) {
            continue;
        }
        let faults = modes::run(&prepared, row, mode).faults(&prepared, &row.expected(mode));
        let waits = WAITING.contains(&(row.name, mode.name()));
        if faults.is_empty() {
            if waits {
                println!("right now: {} by {}", row.name, mode.name());
            }
            continue;
        }
        let text = format!(
            "{} by {}:\n  {}",
            row.name,
            mode.name(),
            faults.join("\n  ")
        );
        if waits {
            println!("not right yet: {text}");
        } else {
            wrong.push(text);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
