#!/bin/bash
# Checks the packages in target/packages: lintian and rpmlint find no error, and in a fresh Debian 12 the packages
# install over the ones they replace, work, can compile a C program, and leave no file behind when removed.
#
#   scripts/check-packages.sh
#
# As root. Builds the packages if there are none. debootstrap makes the bare Debian once, from the machine's own package
# mirror, and keeps it in ~/.cache/nvc-packages. Needs the programs that `scripts/setup.sh packages` installs.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)

say() { printf '%s\n' "$*"; }
title() { printf '\n== %s\n' "$*"; }

failures=0
# check WHAT COMMAND...: runs COMMAND, shows its output only on failure
check() {
  local what=$1 log
  shift
  if log=$("$@" 2>&1); then
    say "  PASS: $what"
  else
    say "  FAIL: $what (status $?)"
    printf '%s\n' "$log" | sed 's/^/    /'
    failures=$((failures + 1))
  fi
}

# ---- inside: in the fresh Debian ---------------------------------------------------------------------------------------

export DEBIAN_FRONTEND=noninteractive LC_ALL=C

apt() { apt-get -qq -y -o Dpkg::Use-Pty=0 "$@" < /dev/null; }

# All files except the package managers' own.
files() {
  find / -xdev \( -path /proc -o -path /tmp -o -path /packages -o -path /sim -o -path /var/lib/dpkg -o -path /var/lib/apt \
    -o -path /var/cache -o -path /var/log -o -path /etc/ld.so.cache -o -path '/etc/*-' -o -path /etc/.pwd.lock \) -prune -o -print | sort
}

# Older packages with the names and relations of the ones that ours replace.
make_predecessors() {
  local version=1.17.8-1 name depends file root
  while read -r name depends file; do
    root=/tmp/predecessor/$name
    mkdir -p "$root/DEBIAN" "$root/${file%/*}"
    echo old > "$root/$file"
    printf '%s: %s\n' Package "$name" Version $version Architecture "$(dpkg --print-architecture)" \
      Maintainer 'nobody <nobody@localhost>' Description 'stands for the package to replace' > "$root/DEBIAN/control"
    [ "$depends" = - ] || echo "Depends: ${depends//_/ }" >> "$root/DEBIAN/control"
    dpkg-deb --root-owner-group -b "$root" "/tmp/predecessor/$name.deb"
  done <<END
libnvidia-container1 - $libdir/libnvidia-container-go.so.1.17.8
libnvidia-container1-dbg libnvidia-container1_(=_$version) usr/lib/debug/$libdir/libnvidia-container.so.1
libnvidia-container-tools libnvidia-container1_(>=_$version) usr/bin/nvidia-container-cli
libnvidia-container-dev libnvidia-container1_(=_$version) usr/include/nvc.h
nvidia-container-toolkit-base - usr/bin/nvidia-container-runtime
nvidia-container-toolkit-operator-extensions nvidia-container-toolkit-base_(=_$version) usr/bin/nvidia-container-runtime.cdi
nvidia-container-toolkit libnvidia-container-tools_(>=_$version),_nvidia-container-toolkit-base_(=_$version) usr/bin/nvidia-container-runtime-hook
END
}

toolkit="nvidia-container-toolkit nvidia-container-toolkit-base nvidia-container-toolkit-operator-extensions"
config=/etc/nvidia-container-runtime/config.toml

version_of() { dpkg-query -W -f '${db:Status-Abbrev}${Version}' "$1" 2>/dev/null; }

replaced() {
  local package
  for package in libnvidia-container1 libnvidia-container-tools libnvidia-container-dev $toolkit; do
    [[ $(version_of "$package") == "ii $version"* ]] || { echo "$package: $(version_of "$package")"; return 1; }
  done
  [[ $(version_of libnvidia-container1-dbg) != ii* ]] || { echo "debug symbols of another library"; return 1; }
  [ -e "/$libdir/libnvidia-container-go.so.1" ] || { echo "no libnvidia-container-go.so.1"; return 1; }
  [ ! -e "/$libdir/libnvidia-container-go.so.1.17.8" ] || { echo "an old file is left"; return 1; }
  dpkg --audit && apt-get check
}

without_driver() {
  local text status=0
  text=$(nvidia-container-cli info 2>&1) || status=$?
  printf '%s\n' "$text"
  [ $status = 1 ] && [[ $text == 'hint: '*$'\n''nvidia-container-cli: initialization error: '* ]]
}

# The command line and a C program both see the GPUs of the simulated driver.
gpus() { nvidia-container-cli --root=/sim info --csv | sed '1,/^$/d' | awk -F, 'NR > 1 { print "gpu " $5 }'; }
c_program() {
  local program=$1
  diff <(gpus) <("$program" /sim | grep '^gpu ') && [ "$(gpus | wc -l)" -ge 1 ]
}
lists_libraries() { nvidia-container-cli --root=/sim list --libraries | grep '/libcuda\.so\.'; }

flags='-std=c99 -Wall -Wextra -Werror'
# shellcheck disable=SC2046,SC2086 # several words
compile() { cc $flags -o /tmp/devices "$@" $(pkg-config --cflags --libs libnvidia-container); }
# shellcheck disable=SC2046,SC2086
compile_statically() {
  cc $flags -o /tmp/devices-static /packages/devices.c $(pkg-config --cflags libnvidia-container) \
    $(pkg-config --static --libs libnvidia-container | sed 's/-lnvidia-container/-l:libnvidia-container.a/') &&
    ! readelf -d /tmp/devices-static | grep 'NEEDED.*libnvidia-container'
}
# The man page's example.
compile_example() {
  zcat /usr/share/man/man3/nvc.3.gz | sed -n '/^#include <stdio/,/^}/p' | sed 's/\\e/\\/g; s/\\-/-/g' > /tmp/example.c
  grep -q nvc_init /tmp/example.c && compile /tmp/example.c
}
needed_names() { [[ $(readelf -d /tmp/devices) == *'[libnvidia-container.so.1]'* ]]; }
remove_all() {
  purge_ours &&
    files > /tmp/after && diff /tmp/before /tmp/after && ! ldconfig -p | grep libnvidia-container
}

# Every program of the toolkit runs, by each of its names.
# The programs know each other by what was recorded before the packages were stripped.
build_ids_fit() {
  local id name count=0
  while read -r id name; do
    readelf -n "/usr/bin/$name" | grep -q "Build ID: $id\$" || { echo "$name has another build id than $id"; return 1; }
    count=$((count + 1))
  done < /usr/share/nvidia-container-toolkit/build-ids
  [ $count = 3 ] || { echo "$count build ids are recorded"; return 1; }
}

# Programs that start with every container: at most 3 MB.
are_small() {
  local name size status=0
  for name in nvidia-container-runtime-hook nvidia-container-runtime nvidia-cdi-hook; do
    size=$(stat -c %s "/usr/bin/$name")
    [ "$size" -le 3000000 ] || { echo "$name has $size bytes"; status=1; }
  done
  return $status
}

toolkit_answers() {
  local program
  for program in nvidia-container-runtime-hook nvidia-container-toolkit nvidia-cdi-hook nvidia-ctk; do
    "$program" --version | grep -F " version $version" || { echo "$program"; return 1; }
  done
  printf '#!/bin/sh\necho "low-level $*"\n' > /usr/local/bin/runc
  chmod 755 /usr/local/bin/runc
  for program in nvidia-container-runtime nvidia-container-runtime.cdi nvidia-container-runtime.legacy; do
    "$program" state x | grep -Fx 'low-level state x' || { echo "$program"; return 1; }
  done
  rm /usr/local/bin/runc
}
keeps_configuration() { [ "$(cat $config)" = '# mine' ]; }
# Downgrade: the stand-ins for upstream's packages replace ours again.
goes_back() {
  # Debug symbols cannot be unpacked beside our library, and nobody needs them to go back.
  rm /tmp/predecessor/libnvidia-container1-dbg.deb
  dpkg -i /tmp/predecessor/*.deb && [[ $(version_of nvidia-container-toolkit-base) == "ii 1.17.8-1" ]] &&
    apt install --allow-downgrades /packages/*.deb
}

# Stand-ins for packages of other times, each tried by itself: NAME VERSION FILE.
older() {
  cat <<END
nvidia-container-runtime 3.4.0-1 usr/bin/nvidia-container-runtime
nvidia-container-runtime-hook 1.4.0-1 usr/bin/nvidia-container-runtime-hook
nvidia-container-toolkit 1.5.1-1 usr/bin/nvidia-container-runtime
nvidia-container-toolkit 1.10.0-1 usr/bin/nvidia-ctk
nvidia-container-toolkit-base 1.13.5-1 usr/bin/nvidia-container-runtime.cdi
nvidia-docker 1.0.1-1 usr/bin/nvidia-docker-plugin
nvidia-docker2 2.13.0-1 usr/bin/nvidia-docker
nvidia-docker2 2.14.0-1 usr/bin/nvidia-docker
END
}
# From a stand-in to our packages: they install over it, every file is ours, and nothing is left afterwards.
over() { # NAME VERSION FILE
  local root=/tmp/older
  rm -rf $root
  mkdir -p "$root/DEBIAN" "$root/${3%/*}"
  echo old > "$root/$3"
  printf '%s: %s\n' Package "$1" Version "$2" Architecture "$(dpkg --print-architecture)" \
    Maintainer 'nobody <nobody@localhost>' Description 'stands for an older package' > $root/DEBIAN/control
  if [ "$1" = nvidia-docker2 ]; then
    mkdir -p $root/etc/docker
    printf '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}}' > $root/etc/docker/daemon.json
    echo /etc/docker/daemon.json > $root/DEBIAN/conffiles
  fi
  dpkg-deb --root-owner-group -b $root /tmp/older.deb
  dpkg -i /tmp/older.deb
  if [ "$1" = nvidia-docker2 ]; then
    printf '{"log-driver": "local", "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}}' \
      > /etc/docker/daemon.json
  fi
  apt install --no-install-recommends /packages/*.deb
  [ "$(cat "/$3")" != old ]
  dpkg --audit && apt-get check
  grep -q '"nvidia"' /etc/docker/daemon.json
  [ "$1" != nvidia-docker2 ] || grep -q '"log-driver": "local"' /etc/docker/daemon.json
  purge_ours
  if [ "$1" = nvidia-docker2 ]; then
    grep -q '"log-driver": "local"' /etc/docker/daemon.json
    rm -r /etc/docker
  fi
  files > /tmp/after && diff /tmp/before /tmp/after
}
purge_ours() {
  # shellcheck disable=SC2086 # several words
  apt purge libnvidia-container1 libnvidia-container-tools libnvidia-container-dev nvidia-docker nvidia-docker2 $toolkit
}
# The administrator's daemon.json gets the runtime, and is what it was afterwards, to the byte.
docker_configuration() {
  mkdir -p /etc/docker
  printf '{\n   "log-driver": "local"   ,"runtimes": {"x": {"path": "/x"}}\n}' > /etc/docker/daemon.json
  cp /etc/docker/daemon.json /tmp/daemon.json
  apt install --no-install-recommends /packages/*.deb
  grep -q '"nvidia"' /etc/docker/daemon.json && grep -q '"x"' /etc/docker/daemon.json
  ! grep -q default-runtime /etc/docker/daemon.json
  purge_ours
  cmp /tmp/daemon.json /etc/docker/daemon.json
  rm -r /etc/docker
}

# As strictly below, for functions of this side.
strictly_inside() {
  export toolkit
  bash -c "set -euo pipefail; $(declare -f apt files over purge_ours docker_configuration); \"\$@\"" bash "$@"
}

inside() {
  version=$1
  libdir=usr/lib/$(cc -print-multiarch)
  install -d ${config%/*}
  echo '# mine' > $config
  files > /tmp/before
  make_predecessors > /dev/null
  check "packages to replace, and a toolkit that needs them, are installed" dpkg -i /tmp/predecessor/*.deb
  check "apt installs the packages" apt install --no-install-recommends /packages/*.deb
  check "they took the others' place" replaced
  check "the toolkit's programs answer by all their names" toolkit_answers
  check "the toolkit's programs have the recorded build ids" build_ids_fit
  check "those that start with containers have at most 3 MB" are_small
  check "the administrator's config.toml is as it was" keeps_configuration
  check "upstream's packages can be installed again, and ours over them" goes_back
  check "the administrator's config.toml is still as it was" keeps_configuration
  check "the files are those of the packages" dpkg --verify libnvidia-container1 libnvidia-container-tools \
    libnvidia-container-dev
  check "the loader knows the library" bash -c 'ldconfig -p | grep -F "libnvidia-container.so.1 "'
  check "nvidia-container-cli --version" bash -c "nvidia-container-cli --version | grep -Fx 'cli-version: $version'"
  check "info without a driver says what is wrong, and a way out" without_driver
  check "info shows the simulated driver" nvidia-container-cli --root=/sim info
  check "list shows its libraries" lists_libraries
  check "pkg-config knows the version" pkg-config --exact-version="$version" libnvidia-container
  check "a C program compiles" compile /packages/devices.c
  check "it needs the library by its ABI's name" needed_names
  check "it sees the GPUs of the simulated driver" c_program /tmp/devices
  check "it compiles with the static library" compile_statically
  check "and then sees the GPUs too" c_program /tmp/devices-static
  check "the example of nvc(3) compiles" compile_example
  check "nvidia-docker-plugin -v" bash -c "nvidia-docker-plugin -v | grep -Fx 'NVIDIA Docker plugin: $version'"
  check "nvidia-docker belongs to a user of its own" bash -c '[ "$(stat -c %U /var/lib/nvidia-docker)" = nvidia-docker ]'
  check "the completions load in bash" bash -c '. /usr/share/bash-completion/completions/nvidia-container-cli'
  check "removal leaves nothing" remove_all
  check "but the administrator's config.toml" keeps_configuration
  check "docker's configuration gets the runtime, and is restored" strictly_inside docker_configuration
  local name old file
  while read -r name old file; do
    check "over $name $old" strictly_inside over "$name" "$old" "$file"
  done < <(older)
  [ $failures = 0 ]
}

if [ "${1:-}" = --inside ]; then
  inside "$2"
  exit
fi

# ---- outside -----------------------------------------------------------------------------------------------------------

[ $# = 0 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2; }
[ "$(id -u)" = 0 ] || { say "check-packages: needs root (a Debian of its own is made)" >&2; exit 1; }
cd "$here/.."
. scripts/release.sh
target=$(readlink -m "${CARGO_TARGET_DIR:-target}")
packages=$target/packages

scripts/setup.sh packages
[ -e "$packages/SHA256SUMS" ] || scripts/build-packages.sh
simdriver=${NVC_SIMDRIVER:-$target/debug/nvc-simdriver}
[ "${NVC_SIMDRIVER:-}" ] || cargo build -q -p nvc-testkit

work=$(mktemp -d "${TMPDIR:-/tmp}/nvc-packages.XXXXXX")
# All mounts below it are in namespaces that have ended by then.
trap 'rm -rf --one-file-system "$work"' EXIT
chmod 755 "$work"

bare_debian() {
  local architecture cache
  architecture=$(dpkg --print-architecture)
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/nvc-packages/bookworm-$architecture.tar
  if [ ! -e "$cache" ]; then
    title "Making a bare Debian 12 (once)"
    mkdir -p "${cache%/*}"
    # shellcheck disable=SC2016 # apt's variables
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Codename: bookworm' 2>/dev/null | head -n 1)
    debootstrap --variant=minbase --include=gcc,libc6-dev,pkgconf bookworm "$work/bare" \
      "${mirror:-http://deb.debian.org/debian}" > "$work/debootstrap.log" ||
      { tail -n 5 "$work/debootstrap.log"; return 1; }
    tar -C "$work/bare" --one-file-system -cf "$cache.new" .
    mv "$cache.new" "$cache"
    rm -rf --one-file-system "$work/bare"
  fi
  mkdir "$work/debian"
  tar -C "$work/debian" -xf "$cache"
}

# Man pages without warnings of groff, man and, if installed, mandoc.
manual_pages() {
  local page text
  for page in "$target"/package/release/share/man/man*/*; do
    text=$(man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null; groff -man -ww -Tutf8 -z "$page" 2>&1)
    [ -z "$text" ] || { printf '%s: %s\n' "$page" "$text"; return 1; }
  done
}

# There is no RPM distribution here: the packages go into an empty root, without their dependencies.
rpms() {
  local root=$work/rpm
  mkdir -p "$root"
  rpm --root "$root" --dbpath /var/lib/rpm --initdb
  rpm --root "$root" --dbpath /var/lib/rpm --nodeps --noscripts -i "$packages"/*.rpm
  rpm --root "$root" --dbpath /var/lib/rpm --nodeps -Va
  "$root/usr/bin/nvidia-container-cli" --version | grep -Fx "cli-version: $version"
  cc -o "$work/devices" "-I$root/usr/include" pkg/check/devices.c "-L$root/usr/lib64" -lnvidia-container
  LD_LIBRARY_PATH=$root/usr/lib64 "$work/devices" "$work/debian/sim" | grep '^gpu '
  rpm --root "$root" --dbpath /var/lib/rpm --nodeps --noscripts -e libnvidia-container1 libnvidia-container-tools \
    libnvidia-container-devel
  [ -z "$(find "$root" -path "$root/var/lib/rpm" -prune -o ! -type d -print)" ]
}

installs_and_uninstalls() {
  local root=$work/install
  env BUILD="$target/package/release" DESTDIR="$root" scripts/install.sh
  "$root/usr/bin/nvidia-container-cli" --version | grep -Fx "cli-version: $version"
  cc -o "$work/devices" pkg/check/devices.c "-I$root/usr/include" "-L$root/usr/lib" -lnvidia-container
  LD_LIBRARY_PATH=$root/usr/lib "$work/devices" "$work/debian/sim" | grep '^gpu '
  env BUILD="$target/package/release" DESTDIR="$root" scripts/install.sh --uninstall
  [ -z "$(find "$root" ! -type d)" ]
}

# Runs a function with `set -e`, which `if` would disable in this shell.
strictly() {
  export work target packages version
  bash -c "set -euo pipefail; $(declare -f "$1"); $1"
}

title "The packages"
(cd "$packages" && sha256sum -- *.deb *.rpm)
check "lintian finds no error" lintian --fail-on error "$packages"/*.deb
check "rpmlint finds no error" rpmlint -c pkg/rpm/rpmlint.toml "$packages"/*.rpm
check "the manual pages are sound" manual_pages

bare_debian
mkdir "$work/debian/packages"
cp "$packages"/*.deb pkg/check/devices.c scripts/check-packages.sh "$work/debian/packages/"
"$simdriver" build "$work/debian/sim" > /dev/null

title "In a fresh Debian $(cat "$work/debian/etc/debian_version")"
# shellcheck disable=SC2016 # expanded by that shell
unshare --mount --pid --fork --kill-child --propagation private -- sh -c '
  mount -t proc proc "$0/proc" && exec chroot "$0" bash /packages/check-packages.sh --inside "$1"' \
  "$work/debian" "$version" || failures=$((failures + 1))

title "Elsewhere"
check "the RPMs install, work and can be removed" strictly rpms
check "make install and make uninstall" strictly installs_and_uninstalls

if [ $failures -gt 0 ]; then
  say "FAIL: $failures of the checks above"
  exit 1
fi
say "PASS: all checks of the packages"
