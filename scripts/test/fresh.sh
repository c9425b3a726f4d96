#!/bin/bash
# Runs both commands of the README, `make demo` and `make test`, on fresh Debian roots, and reports failures.
#
#   scripts/test/fresh.sh [ROOT...] [-- COMMAND...]
#
# ROOT is bookworm (Debian 12), trixie (Debian 13), or trixie-script: trixie with a shell script for /sbin/ldconfig and
# the program in /sbin/ldconfig.real, as on Ubuntu. Default: all three. COMMAND replaces the two commands.
# NVC_FRESH_KEEP=1 keeps the last root and reuses it the next time.
#
# debootstrap makes each root (once, kept in target/fresh). The script copies it and enters it with pivot_root in new
# mount and pid namespaces, with git, make and a clone of the last commit. The host provides the kernel, the network,
# the Rust toolchain and the sources that cargo has downloaded (read-only mounts), and the authorities that it trusts
# (a network may have one of its own); scripts/setup.sh must install everything else. As in .ci/run, builds are
# without debug information. Needs root, debootstrap, network, and 8 GB of disk.
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/../.."
PATH=$PATH:/usr/sbin:/sbin:${CARGO_HOME:-~/.cargo}/bin
die() { echo "test/fresh.sh: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || die "needs root"
for tool in debootstrap git cargo unshare pivot_root; do command -v $tool >/dev/null || die "$tool is missing"; done
fresh=$(readlink -m "${CARGO_TARGET_DIR:-target}/fresh")
toolchain=$(rustc --print sysroot)
registry=${CARGO_HOME:-~/.cargo}/registry

roots=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do roots+=("$1"); shift; done
[ $# -eq 0 ] || shift
[ ${#roots[@]} -gt 0 ] || roots=(bookworm trixie trixie-script)
commands=("make demo" "make test")
[ $# -eq 0 ] || commands=("$*")

base() { # SUITE: a minimal system with the README's prerequisites
  [ ! -e "$fresh/$1.complete" ] || return 0
  rm -rf "${fresh:?}/$1"
  mkdir -p "$fresh"
  echo "test/fresh.sh: making $fresh/$1" >&2
  unshare --mount debootstrap --variant=minbase --include=git,make,ca-certificates "$1" "$fresh/$1" \
    "${NVC_DEBIAN_URI:-http://deb.debian.org/debian}" > "$fresh/$1.debootstrap.log"
  touch "$fresh/$1.complete"
}

# As in Ubuntu's package.
behind_a_script() { # ROOT
  mv "$1/usr/sbin/ldconfig" "$1/usr/sbin/ldconfig.real"
  cat > "$1/usr/sbin/ldconfig" <<'SCRIPT'
#!/bin/sh
if test $# = 0 && test x"$LDCONFIG_NOTRIGGER" = x && test x"$DPKG_RUNNING_VERSION" != x; then
  dpkg-trigger --check-supported 2>/dev/null && dpkg-trigger --no-await ldconfig && exit 0
fi
exec /sbin/ldconfig.real "$@"
SCRIPT
  chmod 755 "$1/usr/sbin/ldconfig"
}

prepare() { # NAME: the root to enter
  local root=$fresh/work
  rm -rf "$root"
  base "${1%-script}"
  cp -a "$fresh/${1%-script}" "$root"
  [ "$1" = "${1%-script}" ] || behind_a_script "$root"
  git clone -q . "$root/root/nvc"
  mkdir -p "$root/toolchain" "$root/root/.cargo/registry"
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  cp -L /etc/ssl/certs/ca-certificates.crt "$root/authorities.crt"
  echo "$1" > "$root/name"
}

# Runs in the new namespaces. Arguments: root, toolchain, registry, command.
inside=$(cat <<'SCRIPT'
set -e
root=$1
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mount --rbind /sys sys
mount --rbind /dev dev
mount -t proc proc proc
mount -t tmpfs -o mode=755 tmpfs run
mount --bind "$2" toolchain && mount -o remount,bind,ro toolchain
mount --bind "$3" root/.cargo/registry && mount -o remount,bind,ro root/.cargo/registry
mkdir -p old
pivot_root . old
umount -l old
rmdir old
cd /root/nvc
exec env -i HOME=/root TERM=dumb LANG=C.UTF-8 PATH=/toolchain/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  CARGO_NET_OFFLINE=true CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 SSL_CERT_FILE=/authorities.crt \
  DEBIAN_FRONTEND=noninteractive NVC_TEST_LONG="$5" sh -c "$4"
SCRIPT
)

# Inside a root, cargo is offline.
cargo fetch --quiet --locked

failed=()
for name in "${roots[@]}"; do
  case $name in bookworm | trixie | trixie-script) ;; *) die "unknown root $name" ;; esac
  [ "${NVC_FRESH_KEEP:-}" = 1 ] && [ "$(cat "$fresh/work/name" 2>/dev/null)" = "$name" ] || prepare "$name"
  for command in "${commands[@]}"; do
    log=$fresh/$name-$(tr -c 'a-zA-Z0-9\n' - <<< "$command").log
    echo "== $name: $command (log: $log)"
    if unshare --mount --pid --fork --kill-child sh -c "$inside" sh "$fresh/work" "$toolchain" "$registry" "$command" \
      "${NVC_TEST_LONG:-}" > "$log" 2>&1; then
      echo "   passed"
    else
      echo "   FAILED"
      failed+=("$name: $command")
    fi
    sed -n '/^== Summary/,$p' "$log" | sed 's/^/   /'
  done
  [ "${NVC_FRESH_KEEP:-}" = 1 ] || rm -rf "$fresh/work"
done
[ ${#failed[@]} -eq 0 ] || { printf 'test/fresh.sh: failed: %s\n' "${failed[@]}" >&2; exit 1; }
