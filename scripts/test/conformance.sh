#!/bin/bash
# Compares release binaries with recorded results of upstream, except for deliberate differences.
#
#   scripts/test/conformance.sh [cli|hook|docker1|ctk] [ARGUMENTS OF run.sh]
#
# Without a suite's name, runs all suites that exist. Needs ../shared/conformance* and root; the first run of
# `cli` downloads 300 MB of Debian packages. NVC_PROFILE=debug compares unoptimised binaries.
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/../.."
profile=${NVC_PROFILE:-release}
built=${CARGO_TARGET_DIR:-target}/$profile
build() {
  local options=()
  [ "$profile" != release ] || options=(--release)
  cargo build "${options[@]}" "$@"
}

# nvidia-container-cli
cli() {
  local suite=../shared/conformance
  [ -x $suite/run.sh ] || { echo "test/conformance.sh: no $suite" >&2; return 2; }
  build -p nvc-cli
  $suite/fixture.sh
  # Mounts that are deliberately read-only here. Accepting these cases would hide any other difference of their mounts.
  # So the recorded results are changed instead, and no other difference of the mounts is accepted.
  local work status=0
  work=$(mktemp -d)
  cp -r $suite/expected "$work/expected"
  sed -i -E '/^\+ ROOTFS\/(.*\/socket|dev\/nvidia-caps) type=/ s/opts=rw,/opts=ro,/' "$work"/expected/*/mounts
  grep -v ' mounts sockets and /dev/nvidia-caps are read-only$' docs/conformance-accepted > "$work/accepted"
  $suite/run.sh -b "$built/nvidia-container-cli" --expected "$work/expected" --accepted "$work/accepted" "$@" || status=$?
  rm -rf "$work"
  return $status
}

# nvidia-container-runtime-hook and nvidia-container-runtime
hook() {
  local suite=../shared/conformance-hook work status=0
  [ -x $suite/run.sh ] || { echo "test/conformance.sh: no $suite" >&2; return 2; }
  build -p nvc-hook -p nvc-cdi-hook
  NVC_BUILD_IDS=$(scripts/build/ids.sh "$built") build -p nvc-runtime
  # As above: a deliberate difference of config.json is applied to the recorded results.
  work=$(mktemp -d)
  cp -r $suite "$work/suite"
  mv "$work/suite/expected" "$work/expected"
  ln -s "$(readlink -f ../shared/conformance)" "$work/conformance"
  scripts/test/conformance/hook.py "$work/expected"
  # The runtime does not work without our hook program beside it.
  sed -i "s/^NAMES = {/&'nvidia-cdi-hook': PROGRAMS[0], /" "$work/suite/world.py"
  "$work/suite/run.sh" -b "$built" --agreed --expected "$work/expected" --accepted docs/conformance-hook-accepted "$@" || status=$?
  rm -rf "$work"
  return $status
}

# nvidia-docker and nvidia-docker-plugin
docker1() {
  local suite=../shared/conformance-docker1 work status=0
  [ -x $suite/run.sh ] || { echo "test/conformance.sh: no $suite" >&2; return 2; }
  build -p nvc-docker
  # Two cases have an empty file as a node, which is an error here. They are repeated with a node.
  work=$(mktemp -d)
  cp -r $suite/expected "$work/expected"
  # The volume is made before the container, and --volume-driver, which concerns all volumes, is not used.
  local line name
  grep -l '^--volume=nvidia_driver' "$work"/expected/w-*/exec | while read -r line; do
    name=$(sed -n 's/^--volume=\(nvidia_driver[^:]*\):.*/\1/p' "$line")
    sed -i '/^--volume-driver=nvidia-docker$/d' "$line"
    echo "volume create --driver=nvidia-docker --name=$name" >> "${line%exec}calls"
  done
  for case in w-uvm-tools p-uvm-tools; do cp -r "$work/expected/$case" "$work/expected/$case-node"; done
  $suite/run.sh -b "$built" --cases $suite/cases.py --cases scripts/test/conformance/docker1-cases.py \
    --expected "$work/expected" --accepted docs/conformance-docker1-accepted "$@" || status=$?
  rm -rf "$work"
  return $status
}

# nvidia-ctk and nvidia-cdi-hook
ctk() {
  local suite=../shared/conformance-ctk work status=0
  [ -x $suite/run.sh ] || { echo "test/conformance.sh: no $suite" >&2; return 2; }
  build -p nvc-ctk -p nvc-cdi-hook
  build -p libnvidia-container --bin nvc-query
  ../shared/conformance/fixture.sh
  # As above: deliberate differences of specifications are applied to the recorded results.
  work=$(mktemp -d)
  cp -r $suite/expected "$work/expected"
  scripts/test/conformance/ctk.py "$work/expected"
  # Specifications have what upstream's lack: 32-bit libraries and application profiles. The fixture has none here.
  local fixture=${NVC_FIXTURE:-${XDG_CACHE_HOME:-$HOME/.cache}/nvc-conformance}
  local native=$fixture.native
  rm -rf "$native"
  cp -al "$fixture" "$native"
  rm -rf "$native"/droot/usr/lib/i386-linux-gnu "$native"/droot/usr/share/nvidia/nvidia-application-profiles*
  NVC_FIXTURE=$native $suite/run.sh -b "$built" --agreed --cases $suite/cases.py --cases scripts/test/conformance/ctk-cases.py \
    --expected "$work/expected" --accepted docs/conformance-ctk-accepted "$@" || status=$?
  rm -rf "$work" "$native"
  return $status
}

case ${1:-} in
  cli | hook | docker1 | ctk)
    suite=$1
    shift
    "$suite" "$@"
    ;;
  *)
    status=0
    for suite in cli hook docker1 ctk; do
      "$suite" "$@" || status=$?
    done
    exit $status
    ;;
esac
