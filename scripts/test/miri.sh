#!/bin/bash
# Runs the unit tests of libnvc's pure modules under Miri, which detects undefined behaviour.
#
#   scripts/test/miri.sh [FILTER...]      (instead of all pure modules)
#
# Skips tests that read files or start processes or threads with system calls that Miri does not support. Property tests
# run a few cases only, since Miri is slow. Needs `rustup toolchain install nightly -c miri -c rust-src`.
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/../.."
PATH=$PATH:${CARGO_HOME:-~/.cargo}/bin

if ! cargo +nightly miri --version >/dev/null 2>&1; then
  echo "test/miri.sh: no Miri here: rustup toolchain install nightly -c miri -c rust-src" >&2
  exit 1
fi
. scripts/test/pure-modules.sh
[ $# -eq 0 ] || modules=("$@")
# Tests with files, with rbpf (not our code), or with millions of steps.
skipped=(a_file_leads_to_its_device copies_for_containers a_gpu_has_either_name reads_a_real_program
  more_rules_than_one_jump_leads_past arithmetic_agrees_with_rbpf exactly_the_added_devices_become_allowed a_mask_that_the_container_wrote_may_be_long
  a_message_that_is_too_long_is_not_sent messages_survive_the_way truncated_names_do_not_match agrees_with_the_general_way
  it_is_an_order an_impostor_is_not_opened)
arguments=()
for test in "${skipped[@]}"; do arguments+=(--skip "$test"); done

MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-disable-isolation" PROPTEST_CASES=${PROPTEST_CASES:-2} \
  cargo +nightly miri test -p libnvc --lib --target-dir "${CARGO_TARGET_DIR:-target}/miri" -- "${modules[@]}" "${arguments[@]}"
