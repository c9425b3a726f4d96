#!/bin/bash
# Runs the end-to-end tests on older kernels and in sandboxes, as a system-call filter makes them (nvc-without).
#
#   scripts/test-kernels.sh [WORDS...]
#
# Each WORDS is what one such kernel lacks, with commas: linux-5.4, openat2,clone3 or EPERM,open_tree. Without any, the oldest
# kernel with the tests that matter most; with NVC_TEST_LONG=1 every kernel and call with all of them. What is
# refused instead, because safety would be lost, is tested in tests/tests/old_kernels.rs: without fsopen and memfd_create
# nothing protects the host's ldconfig, and where clone3 is forbidden, not missing, the C library makes no threads.
#
# Builds nothing: scripts/test.sh does.
set -uo pipefail

cd "$(dirname "$(readlink -f "$0")")/.." || exit 1
suites=(--test configure --test cgroups)
if [ $# -eq 0 ]; then
  set -- linux-4.18
  if [ "${NVC_TEST_LONG:-0}" = 1 ]; then
    calls=(openat2 open_tree move_mount mount_setattr close_range)
    all=$(IFS=,; echo "${calls[*]}")
    set -- linux-4.18 linux-5.4 linux-5.10 "${calls[@]}" memfd_create clone3 "$all,clone3" "${calls[@]/#/EPERM,}" "EPERM,$all"
  fi
fi
if [ "${NVC_TEST_LONG:-0}" = 1 ]; then
  suites=(--test discovery --test configure --test all_or_nothing --test bad_input --test cgroups --test unprivileged
    --test hostile_images --test capi)
fi

status=0
for words; do
  echo "== without: $words"
  # One form of each test: the many cases are about other things than the kernel.
  NVC_TEST_LONG=0 NVC_TEST_WITHOUT=$words cargo test --no-fail-fast -p nvc-tests "${suites[@]}" || status=$?
done
exit $status
