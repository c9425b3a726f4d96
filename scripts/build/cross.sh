# Sourced in the repository's root: settings of a build for another machine, with NVC_MACHINE=aarch64. Sets `triple`,
# empty for this machine: where cargo puts the results, below its target directory; and `run`, which executes them.
#
# Needs `rustup target add aarch64-unknown-linux-gnu` and the packages of `scripts/setup.sh arm64`.
# shellcheck shell=sh disable=SC2034 # used by the sourcing script

triple= run=
if [ "${NVC_MACHINE:-$(uname -m)}" != "$(uname -m)" ]; then
  triple=$NVC_MACHINE-unknown-linux-gnu
  tools=$NVC_MACHINE-linux-gnu
  export CC="$tools-gcc" AR="$tools-ar" OBJCOPY="$tools-objcopy" STRIP="$tools-strip"
  # Of crates that run here, while others are built.
  export HOST_CC=cc HOST_AR=ar
  export CARGO_BUILD_TARGET="$triple"
  variable=CARGO_TARGET_$(echo "$triple" | tr a-z- A-Z_)
  run="qemu-$NVC_MACHINE-static -L /usr/$tools"
  export "${variable}_LINKER=$CC" "${variable}_RUNNER=$run"
fi
