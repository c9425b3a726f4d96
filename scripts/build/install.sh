#!/bin/sh
# Installs the results of scripts/build/all.sh; with --uninstall, removes the same files.
#
#   [DESTDIR=…] [PREFIX=…] [LIBDIR=…] [...] scripts/build/install.sh [--uninstall]
#
# BUILD is the directory of the built files, default target/release. PREFIX is the prefix of the build.
#
# As root and without DESTDIR it also does what the packages do: it makes nvidia-docker-plugin's user and the links in
# /dev/char, and enables the units; --uninstall first undoes what `nvidia-ctk runtime configure` registered. Otherwise it
# prints the commands.
set -eu
umask 022
cd "$(dirname "$(readlink -f "$0")")/../.."
BUILD=${BUILD:-${CARGO_TARGET_DIR:-target}/release}
DESTDIR=${DESTDIR:-}
# By default, the place it was built for.
built() { sed -n "s|^$1=||p" "$BUILD/libnvidia-container.pc" 2>/dev/null || true; }
. scripts/build/release.sh
PREFIX=${PREFIX:-$(built prefix)}
. scripts/build/place.sh
BINDIR=${BINDIR:-$PREFIX/bin}
MANDIR=${MANDIR:-$PREFIX/share/man}
DOCDIR=${DOCDIR:-$PREFIX/share/doc/libnvidia-container-$version}
BASHDIR=${BASHDIR:-$PREFIX/share/bash-completion/completions}
ZSHDIR=${ZSHDIR:-$PREFIX/share/zsh/site-functions}
UNITDIR=${UNITDIR:-$PREFIX/lib/systemd/system}
SYSUSERSDIR=${SYSUSERSDIR:-$PREFIX/lib/sysusers.d}
FISHDIR=${FISHDIR:-$PREFIX/share/fish/vendor_completions.d}

uninstall=
case "${1:-}" in
  '') ;;
  --uninstall) uninstall=yes ;;
  *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

if [ ! "$uninstall" ] && [ ! -e "$BUILD/libnvidia-container.pc" ]; then
  echo "install: there is no build in $BUILD; build first: make build" >&2
  exit 1
fi
if [ "$uninstall" ] && [ ! -e "$DESTDIR$BINDIR/nvidia-ctk" ] && [ ! -e "$DESTDIR$BINDIR/nvidia-container-cli" ]; then
  echo "install: our programs are not in $DESTDIR$BINDIR; if they are elsewhere, name the PREFIX of their installation" >&2
fi

# Programs that link the static library look for nvc-query in one directory, fixed at build time; so does nvidia-ctk, if
# it is neither beside it nor in ../libexec from there.
if [ ! "$uninstall" ] && [ "$(built libexecdir)" != "$LIBEXECDIR" ]; then
  echo "install: the static library was built for $(built libexecdir), and not for $LIBEXECDIR;" \
    "build it for that place: make build PREFIX=$PREFIX LIBEXECDIR=$LIBEXECDIR" >&2
  exit 1
fi

# The units that are enabled; the first one only runs at boot, and the second one starts it.
units="nvidia-cdi-refresh.service nvidia-cdi-refresh.path nvidia-cdi-verify.timer nvidia-docker-plugin.socket"
is_host=
if [ ! "$DESTDIR" ] && [ "$(id -u)" = 0 ]; then is_host=yes; fi
runs_systemd() { [ -d /run/systemd/system ] && command -v systemctl >/dev/null; }
# A file of a package, if both kinds of installation are on the machine.
owned() { dpkg -S "$1" >/dev/null 2>&1 || rpm -qf "$1" >/dev/null 2>&1; }
# When the hook was installed, removed, installed again and so on, for `nvidia-ctk doctor`.
noted=/run/nvidia-container-toolkit/hook-installed
had_hook=
! PATH=$BINDIR:$PATH command -v nvidia-container-runtime-hook >/dev/null || had_hook=yes
had_units=
[ ! -e "$DESTDIR$UNITDIR/nvidia-docker-plugin.socket" ] || had_units=yes

# Before the programs go. An engine that knows a missing runtime does not start its containers. Here and below, a service
# manager or an engine that fails must not leave half of the files: it has said why, and the rest goes on.
if [ "$uninstall" ] && [ "$is_host" ]; then
  [ ! -x "$BINDIR/nvidia-ctk" ] || "$BINDIR/nvidia-ctk" runtime unregister || true
  # shellcheck disable=SC2086 # several words
  if [ "$had_units" ] && runs_systemd; then
    # A package's unit of the same name stays as it is: it was hidden, and counts again.
    kept='' gone=''
    for unit in $units nvidia-docker-plugin.service; do
      if owned "/usr/lib/systemd/system/$unit" || owned "/lib/systemd/system/$unit"; then
        ! systemctl is-enabled -q "$unit" 2>/dev/null || kept="$kept $unit"
      else
        gone="$gone $unit"
      fi
    done
    [ ! "$gone" ] || systemctl disable --now $gone || true
  fi
elif [ "$uninstall" ] && [ ! "$DESTDIR" ]; then
  echo "install: as root, before this: $BINDIR/nvidia-ctk runtime unregister; systemctl disable --now $units"
fi

# put MODE SOURCE DESTINATION
put() {
  if [ "$uninstall" ]; then
    [ "$DESTDIR" ] || ! owned "$3" || return 0
    rm -f "$DESTDIR$3"
  else
    [ -e "$2" ] || { echo "install: $2 is missing; build it first (make build)" >&2; exit 1; }
    install -D -m "$1" "$2" "$DESTDIR$3"
  fi
}

# link TARGET NAME
link() {
  if [ "$uninstall" ]; then put '' '' "$2"; else ln -sfn "$1" "$DESTDIR$2"; fi
}

soname=libnvidia-container.so.${version%%.*}
put 755 "$BUILD/libnvidia-container.so.$version" "$LIBDIR/libnvidia-container.so.$version"
link "libnvidia-container.so.$version" "$LIBDIR/$soname"
put 755 "$BUILD/libnvidia-container-go.so.$version" "$LIBDIR/libnvidia-container-go.so.$version"
link "libnvidia-container-go.so.$version" "$LIBDIR/libnvidia-container-go.so.${version%%.*}"
put 755 "$BUILD/nvc-query" "$LIBEXECDIR/libnvidia-container/nvc-query"

put 755 "$BUILD/nvidia-container-cli" "$BINDIR/nvidia-container-cli"
for page in nvidia-container-cli nvidia-container-cli-info nvidia-container-cli-list nvidia-container-cli-configure; do
  put 644 "$BUILD/share/man/man1/$page.1" "$MANDIR/man1/$page.1"
done
put 644 "$BUILD/share/bash-completion/completions/nvidia-container-cli" "$BASHDIR/nvidia-container-cli"
put 644 "$BUILD/share/zsh/site-functions/_nvidia-container-cli" "$ZSHDIR/_nvidia-container-cli"
put 644 "$BUILD/share/fish/vendor_completions.d/nvidia-container-cli.fish" "$FISHDIR/nvidia-container-cli.fish"

# The toolkit. Old and additional names are links: the runtime checks the name it is called by.
for program in nvidia-container-runtime-hook nvidia-container-runtime nvidia-cdi-hook nvidia-ctk; do
  put 755 "$BUILD/$program" "$BINDIR/$program"
done
link nvidia-container-runtime-hook "$BINDIR/nvidia-container-toolkit"
link nvidia-container-runtime "$BINDIR/nvidia-container-runtime.cdi"
link nvidia-container-runtime "$BINDIR/nvidia-container-runtime.legacy"
for page in nvidia-container-runtime nvidia-container-runtime-hook; do
  put 644 "$BUILD/share/man/man8/$page.8" "$MANDIR/man8/$page.8"
done
put 644 "$BUILD/share/man/man5/nvidia-container-runtime-config.toml.5" "$MANDIR/man5/nvidia-container-runtime-config.toml.5"
# The programs look for it from where they are.
put 644 "$BUILD/share/nvidia-container-toolkit/build-ids" "${BINDIR%/*}/share/nvidia-container-toolkit/build-ids"
# Not in podman's default directory, where podman would run the hook for every container.
hooks=$PREFIX/share/nvidia-container-toolkit/hooks.d
put 644 pkg/hooks/oci-nvidia-hook.json "$hooks/oci-nvidia-hook.json"
[ "$uninstall" ] || sed -i "s|/usr/bin/nvidia|$BINDIR/nvidia|" "$DESTDIR$hooks/oci-nvidia-hook.json"

link "$soname" "$LIBDIR/libnvidia-container.so"
put 644 "$BUILD/libnvidia-container.a" "$LIBDIR/libnvidia-container.a"
put 644 include/nvc.h "$INCLUDEDIR/nvc.h"
put 644 "$BUILD/share/man/man3/nvc.3" "$MANDIR/man3/nvc.3"
# It was written for the place of installation that was known at build time.
put 644 "$BUILD/libnvidia-container.pc" "$LIBDIR/pkgconfig/libnvidia-container.pc"
if [ ! "$uninstall" ]; then
  sed -i "s|^prefix=.*|prefix=$PREFIX|; s|^exec_prefix=.*|exec_prefix=\${prefix}|
    s|^libdir=.*|libdir=$LIBDIR|; s|^includedir=.*|includedir=$INCLUDEDIR|" \
    "$DESTDIR$LIBDIR/pkgconfig/libnvidia-container.pc"
fi

put 644 "$BUILD/share/man/man1/nvidia-ctk.1" "$MANDIR/man1/nvidia-ctk.1"
put 644 "$BUILD/share/man/man8/nvidia-cdi-hook.8" "$MANDIR/man8/nvidia-cdi-hook.8"
put 644 "$BUILD/share/bash-completion/completions/nvidia-ctk" "$BASHDIR/nvidia-ctk"
put 644 "$BUILD/share/zsh/site-functions/_nvidia-ctk" "$ZSHDIR/_nvidia-ctk"
put 644 "$BUILD/share/fish/vendor_completions.d/nvidia-ctk.fish" "$FISHDIR/nvidia-ctk.fish"
for unit in nvidia-cdi-refresh.service nvidia-cdi-refresh.path nvidia-cdi-verify.service nvidia-cdi-verify.timer; do
  put 644 "pkg/systemd/$unit" "$UNITDIR/$unit"
  [ "$uninstall" ] || sed -i "s|/usr/bin/nvidia-ctk|$BINDIR/nvidia-ctk|g" "$DESTDIR$UNITDIR/$unit"
done
put 644 pkg/systemd/90-nvidia-cdi-refresh.preset "${UNITDIR%/*}/system-preset/90-nvidia-cdi-refresh.preset"
put 644 pkg/udev/99-nvidia-cdi-refresh.rules "$PREFIX/lib/udev/rules.d/99-nvidia-cdi-refresh.rules"
links=$PREFIX/lib/udev/rules.d/71-nvidia-dev-char.rules
put 644 pkg/udev/71-nvidia-dev-char.rules "$links"
[ "$uninstall" ] || sed -i "s|/usr/bin/nvidia-ctk|$BINDIR/nvidia-ctk|" "$DESTDIR$links"

put 755 "$BUILD/nvidia-docker" "$BINDIR/nvidia-docker"
# Not readable for its own user: the kernel then makes the copy that asks NVML undumpable, so it cannot be traced.
put 711 "$BUILD/nvidia-docker-plugin" "$BINDIR/nvidia-docker-plugin"
put 644 "$BUILD/share/man/man1/nvidia-docker.1" "$MANDIR/man1/nvidia-docker.1"
put 644 "$BUILD/share/man/man8/nvidia-docker-plugin.8" "$MANDIR/man8/nvidia-docker-plugin.8"
put 644 pkg/completions/nvidia-docker.bash "$BASHDIR/nvidia-docker"
put 644 pkg/completions/_nvidia-docker "$ZSHDIR/_nvidia-docker"
put 644 pkg/completions/nvidia-docker.fish "$FISHDIR/nvidia-docker.fish"
for unit in nvidia-docker-plugin.service nvidia-docker-plugin.socket; do
  put 644 "pkg/systemd/$unit" "$UNITDIR/$unit"
  [ "$uninstall" ] || sed -i "s|=/usr/bin/nvidia-docker|=$BINDIR/nvidia-docker|" "$DESTDIR$UNITDIR/$unit"
done
put 644 pkg/systemd/nvidia-docker.sysusers "$SYSUSERSDIR/nvidia-docker.conf"

# For Kubernetes, which starts it from an image.
put 755 "$BUILD/gpu-kubelet-plugin" "$BINDIR/gpu-kubelet-plugin"
put 644 "$BUILD/share/man/man8/gpu-kubelet-plugin.8" "$MANDIR/man8/gpu-kubelet-plugin.8"
put 644 "$BUILD/share/bash-completion/completions/gpu-kubelet-plugin" "$BASHDIR/gpu-kubelet-plugin"
put 644 "$BUILD/share/zsh/site-functions/_gpu-kubelet-plugin" "$ZSHDIR/_gpu-kubelet-plugin"
put 644 "$BUILD/share/fish/vendor_completions.d/gpu-kubelet-plugin.fish" "$FISHDIR/gpu-kubelet-plugin.fish"
for file in examples/kubernetes/*.yaml; do put 644 "$file" "$DOCDIR/kubernetes/${file##*/}"; done

for file in LICENSE README.md CHANGELOG.md; do put 644 $file "$DOCDIR/$file"; done
put 644 "$BUILD/share/doc/THIRD-PARTY" "$DOCDIR/THIRD-PARTY"

if [ "$uninstall" ]; then
  for directory in "$LIBEXECDIR/libnvidia-container" "$DOCDIR/kubernetes" "$DOCDIR" "$hooks" "${hooks%/*}"; do
    [ ! -d "$DESTDIR$directory" ] || rmdir --ignore-fail-on-non-empty "$DESTDIR$directory"
  done
fi
# The loader finds libraries in its directories only through its cache.
if [ ! "$DESTDIR" ] && [ "$(id -u)" = 0 ]; then ldconfig; fi

# ---- user and units, as the packages' scripts do -----------------------------------------------------------------------

state=/var/lib/nvidia-docker
if [ "$uninstall" ]; then
  # A reload makes some versions of runc take GPUs from running containers: only if a unit has gone.
  if [ "$is_host" ] && [ "$had_units" ] && runs_systemd; then
    systemctl daemon-reload || true
    # Their links named the files that have gone.
    # shellcheck disable=SC2086
    [ ! "$kept" ] || { systemctl reenable $kept && systemctl --no-block start nvidia-cdi-refresh.service; } || true
  fi
  [ ! "$is_host" ] || [ "${kept:-}" ] || rm -rf /run/nvidia-cdi-refresh
  if [ "$is_host" ] && [ "$had_hook" ] && [ ! -e "$BINDIR/nvidia-container-runtime-hook" ] && [ ! -e /usr/bin/nvidia-container-runtime-hook ]; then
    mkdir -p ${noted%/*}
    [ -e $noted ] || echo 0 > $noted
    case $(wc -l < $noted) in *[13579]) cut -d' ' -f1 /proc/uptime >> $noted ;; esac
  fi
  # As the packages do it: what docker has not removed stays for the containers that use it.
  case $is_host,${kept:-} in
    yes,*nvidia-docker-plugin*) ;;
    yes,*)
      for volume in $state/volumes/nvidia_driver/*; do
        (cd -P "$volume" && [ "$(pwd -P)" = "$volume" ] && umount -l -c .) 2>/dev/null || true
      done
      ;;
  esac
elif [ "$is_host" ]; then
  # As the packages do it: a dockerd that was started without a hook does not know it.
  if [ ! "$had_hook" ]; then
    mkdir -p ${noted%/*}
    case $(cat $noted 2>/dev/null | wc -l) in *[13579]) ;; *) cut -d' ' -f1 /proc/uptime >> $noted ;; esac
  fi
  useradd="useradd --system --no-create-home --home-dir $state --shell /usr/sbin/nologin nvidia-docker"
  if command -v systemd-sysusers >/dev/null; then
    systemd-sysusers "$SYSUSERSDIR/nvidia-docker.conf" || true
  elif ! getent passwd nvidia-docker >/dev/null; then
    $useradd || true
  fi
  install -d -m 755 -o nvidia-docker -g nvidia-docker $state ||
    echo "install: nvidia-docker-plugin has no user; make it: $useradd" >&2
  # The udev rule acts when the driver is registered. Nothing depends on the links where there is no driver.
  if runs_systemd; then "$BINDIR/nvidia-ctk" --quiet system create-dev-char-symlinks || true; fi
  if ! runs_systemd; then
    echo "install: systemd does not run here; where it does: systemctl daemon-reload; systemctl enable --now $units"
  elif [ ! "$had_units" ]; then
    systemctl daemon-reload
    # shellcheck disable=SC2086
    systemctl enable $units
    systemctl start nvidia-cdi-refresh.path nvidia-cdi-verify.timer nvidia-docker-plugin.socket
    systemctl --no-block start nvidia-cdi-refresh.service
  else
    systemctl try-restart nvidia-docker-plugin.service || true
  fi
else
  cat <<END
install: then, as root on the machine itself:
  systemd-sysusers $SYSUSERSDIR/nvidia-docker.conf
  install -d -m 755 -o nvidia-docker -g nvidia-docker $state
  systemctl daemon-reload
  systemctl enable --now $units
  $BINDIR/nvidia-ctk system create-dev-char-symlinks
END
fi
