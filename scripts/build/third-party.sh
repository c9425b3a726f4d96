#!/bin/sh
# Prints the licences of all linked crates, as those licences require. The packages contain the text of the Apache
# licence once; it is not repeated for each crate.
set -eu
cd "$(dirname "$(readlink -f "$0")")/../.."
. scripts/build/release.sh

cat <<'END'
The programs and the library contain code of these Rust crates, and of Rust's standard library (MIT OR Apache-2.0,
https://github.com/rust-lang/rust).
END
packages='-p nvc-cli'
! grep -q '^name = "libnvidia-container"' Cargo.lock || packages="$packages -p libnvidia-container"
# shellcheck disable=SC2086 # several words
cargo tree --locked $packages -e normal,no-proc-macro --prefix none --no-dedupe -f '{p}|{l}|{r}' |
  grep -v -e '(/' -e '^$' | sort -u |
  while IFS='|' read -r package licence repository; do
    name=${package% v*} number=${package##* v}
    for directory in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$name-${number%% *}"; do :; done
    [ -d "$directory" ] || { echo "third-party: no sources of $package" >&2; exit 1; }
    printf '\n%s\n%s %s\nLicence: %s\nSource: %s\n' \
      "$(printf '%080d' 0 | tr 0 =)" "$name" "${number%% *}" "$licence" "${repository:-https://crates.io/crates/$name}"
    find "$directory" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'copyright*' \) \
      ! -iname '*apache*' ! -iname '*gpl*' | sort | while read -r file; do
      grep -q 'Apache License' "$file" && grep -q 'Version 2.0, January 2004' "$file" && continue
      printf '\n--- %s\n\n' "${file##*/}"
      tr -d '\r' < "$file"
    done
  done
