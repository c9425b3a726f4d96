//! Tests the driver for Kubernetes as a kubelet sees it: Python's gRPC with the protocols that Kubernetes publishes.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::ExitCode;

use api::{
    a_server_that_is_away_or_slow, a_token_that_is_rotated, certificates_that_are_not_accepted,
    other_authorities, sixteen_gpus_with_seven_mig_devices_each, slices_come_back,
    slices_follow_the_registration, what_the_server_kept_stays,
};
use claims::{
    a_damaged_record_still_guards, a_device_plugin_gives_the_same, a_full_disk,
    files_that_are_gone_or_damaged, given, refused, the_machine_changes, two_drivers,
};
use deaths::{
    a_call_that_is_cancelled, a_kubelet_that_hangs_up, killed_at_each_step, killed_while_it_starts,
    nvml_that_hangs,
};
use health::a_taint_outlives_restarts_and_ends_with_the_fault;
use hostile::{a_flood, another_user, answers, frames, held_locks, idle_connections};
use nvc_testkit::harness::Need::{Kubelet, Root, Tracing};
use nvc_testkit::harness::{self, kubelet_protocols};
use plugins::{a_device_of_a_plugin, a_kubelet_that_does_not_say, a_list_that_is_not_there};
use sides::{
    an_unprivileged_container, each_side_has_few_rights, hostile_words, the_sides_end_together,
};

mod api;
mod claims;
mod deaths;
mod health;
mod hostile;
mod node;
mod plugins;
mod protocols;
mod sides;

fn main() -> ExitCode {
    let mut tests = nvc_testkit::tests![&[Kubelet];
        each_number_is_the_published_one,
    ];
    tests.extend(nvc_testkit::tests![&[Kubelet, Root];
        slices_follow_the_registration,
        sixteen_gpus_with_seven_mig_devices_each,
        slices_come_back,
        what_the_server_kept_stays,
        a_server_that_is_away_or_slow,
        a_token_that_is_rotated,
        certificates_that_are_not_accepted,
        other_authorities,
        a_device_of_a_plugin,
        a_kubelet_that_does_not_say,
        a_list_that_is_not_there,
        refused,
        given,
        the_machine_changes,
        files_that_are_gone_or_damaged,
        a_damaged_record_still_guards,
        a_device_plugin_gives_the_same,
        a_full_disk,
        two_drivers,
        a_taint_outlives_restarts_and_ends_with_the_fault,
        answers,
        frames,
        idle_connections,
        a_flood,
        another_user,
        held_locks,
        killed_while_it_starts,
        a_call_that_is_cancelled,
        a_kubelet_that_hangs_up,
        nvml_that_hangs,
        each_side_has_few_rights,
        an_unprivileged_container,
        the_sides_end_together,
        hostile_words,
    ]);
    tests.extend(nvc_testkit::tests![&[Kubelet, Root, Tracing];
        killed_at_each_step,
    ]);
    harness::main_of_waiting(tests)
}

fn each_number_is_the_published_one() {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nvc-node/proto");
    let differences = protocols::differences(&ours, &kubelet_protocols());
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
