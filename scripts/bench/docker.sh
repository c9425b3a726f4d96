#!/bin/bash
# Measures nvidia-docker and nvidia-docker-plugin on the simulated driver: the time that the wrapper adds to docker's own
# calls, and the latency and memory of the plugin at 200 requests a second with 16 GPUs.
#
#   scripts/bench/docker.sh [RUNS]
#
# docker's answers are recorded once from a real daemon and replayed by a small program, so that docker's time is known.
# Needs root, docker.io, a C compiler, and release builds of nvc-docker and nvc-simdriver.
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/../.."
target=$(readlink -f "${CARGO_TARGET_DIR:-target}")
work=$(mktemp -d -p /var/lib) # no driver may be below a directory of all users
trap 'rm -rf --one-file-system "$work"' EXIT
# shellcheck source=scripts/bench/programs.sh
. scripts/bench/programs.sh
simdriver=$(newer nvc-simdriver)
"$simdriver" build "$work/two" > /dev/null
"$simdriver" build "$work/sixteen" --size 16 0 > /dev/null
"$simdriver" rootfs "$work/image" > /dev/null
mkdir "$work/world"
cat > "$work/replay.c" <<'END'
/* Writes the recorded answer and returns the recorded status. The file's name is the FNV-1a hash of the arguments. */
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
  unsigned long hash = 14695981039346656037ul;
  char path[64], buffer[1 << 16];
  for (int i = 1; i < argc; i++) {
    for (char *c = argv[i]; *c; c++)
      hash = (hash ^ (unsigned char)*c) * 1099511628211ul;
    hash = (hash ^ '\n') * 1099511628211ul;
  }
  snprintf(path, sizeof path, "/srv/answers/%016lx", hash);
  FILE *file = fopen(path, "r");
  if (!file)
    return 99;
  int status = fgetc(file);
  size_t length = fread(buffer, 1, sizeof buffer, file);
  fwrite(buffer, 1, length, stdout);
  return status;
}
END
cc -O1 -static -o "$work/replay" "$work/replay.c"
compile run

in_world() { # GPUS WORDS...: runs docker.py in a world with this driver
  local bench=$work/$1-image/bench
  mkdir "$work/$1-image"
  cp -a "$work/image/." "$work/$1-image/"
  mkdir "$bench"
  cp "$work/replay" "$work/run" scripts/bench/docker.py "$bench/"
  echo 'mkdir /srv/bench /srv/answers; start_plugin' > "$bench/script"
  [ "$1" = sixteen ] || echo 'start_docker; import_images' >> "$bench/script"
  echo "python3 /srv/image/bench/docker.py ${*:2} \$plugin_pid" >> "$bench/script"
  unshare --mount --pid --net --fork --kill-child --propagation private bash tests/tests/nvidia_docker/world.sh \
    "$work/$1" "$work/$1-image" "$work/world" "$target/release" ". /srv/image/bench/script"
}
in_world two wrapper "${1:-100}"
in_world sixteen plugin 200 15
