# Sourced by the bench scripts, which set $target and $work.
# shellcheck shell=bash disable=SC2154 # set by the sourcing script

# Prints the path of a program of nvc-testkit: its release or its debug build, whichever is newer.
newer() {
  if [ "$target/release/$1" -nt "$target/debug/$1" ]; then echo "$target/release/$1"; else echo "$target/debug/$1"; fi
}

# Compiles scripts/bench/NAME.c to $work/NAME.
compile() { cc -O1 -static -o "$work/$1" "scripts/bench/$1.c"; }
