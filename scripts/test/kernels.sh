#!/bin/bash
# Runs the end-to-end tests on simulated older kernels and sandboxes: a system-call filter (nvc-without) stands in for
# them.
#
#   scripts/test/kernels.sh [WORDS...]
#
# Each WORDS lists, with commas, what one such kernel lacks: linux-5.4, openat2,clone3 or EPERM,open_tree. By default
# the oldest kernel with the most important tests; with NVC_TEST_LONG=1 every kernel and call with all of them.
# tests/tests/old_kernels.rs tests the refusals, where a fallback would be unsafe: without fsopen and memfd_create
# nothing protects the host's ldconfig, and if clone3 is forbidden, not missing, the C library creates no threads.
#
# Builds nothing: scripts/test.sh does.
set -uo pipefail

cd "$(dirname "$(readlink -f "$0")")/../.." || exit 1
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
  # The short form of each test: the long one varies other things than the kernel.
  NVC_TEST_LONG=0 NVC_TEST_WITHOUT=$words cargo test --no-fail-fast -p nvc-tests "${suites[@]}" || status=$?
done
exit $status
