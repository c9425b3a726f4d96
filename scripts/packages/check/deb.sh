#!/bin/bash
# Checks the Debian packages in /packages from inside a fresh Debian; scripts/packages/check.sh runs it there.
#
#   deb.sh VERSION
#
# Stand-ins for NVIDIA's packages have the names, relations, configuration files and scripts of theirs at several times;
# their programs are text files.
set -euo pipefail
. /packages/common.sh

version=$1
libdir=usr/lib/$(cc -print-multiarch)
architecture=$(dpkg --print-architecture)
toolkit="nvidia-container-toolkit nvidia-container-toolkit-base nvidia-container-toolkit-operator-extensions"
library="libnvidia-container1 libnvidia-container-tools libnvidia-container-dev"

apt() { apt-get -qq -y -o Dpkg::Use-Pty=0 "$@" < /dev/null; }
ours() { apt install --no-install-recommends --allow-downgrades /packages/*.deb; }
# shellcheck disable=SC2086 # several words
purge_ours() { apt purge $library nvidia-docker nvidia-docker2 nvidia-dra-driver-gpu $toolkit; }
version_of() { dpkg-query -W -f '${db:Status-Abbrev}${Version}' "$1" 2>/dev/null; }

# All files except the package managers' own.
files() {
  find / -xdev \( -path /proc -o -path /tmp -o -path /packages -o -path /sim -o -path /var/lib/dpkg -o -path /var/lib/apt \
    -o -path /var/cache -o -path /var/log -o -path /etc/ld.so.cache -o -path '/etc/*-' -o -path /etc/.pwd.lock \
    -o -path /run/nvidia-container-toolkit -o -path ${config%/*} \) -prune -o -print | sort
}

# ---- stand-ins ---------------------------------------------------------------------------------------------------------

# begin NAME VERSION [FIELD...]; then files, conffile, script; then finish
begin() {
  root=/tmp/standin/$1_$2
  rm -rf "$root"
  mkdir -p "$root/DEBIAN"
  printf '%s: %s\n' Package "$1" Version "$2" Architecture "$architecture" Maintainer 'nobody <nobody@localhost>' \
    Description 'stands for a package of NVIDIA' > "$root/DEBIAN/control"
  shift 2
  [ $# = 0 ] || printf '%s\n' "$@" >> "$root/DEBIAN/control"
}
files_of() { local file; for file; do install -d "$root/${file%/*}"; echo old > "$root/$file"; done; }
conffile() { # PATH CONTENT
  install -d "$root${1%/*}"
  printf '%s\n' "$2" > "$root$1"
  echo "$1" >> "$root/DEBIAN/conffiles"
}
script() { { echo '#!/bin/sh'; echo 'set -e'; cat; } > "$root/DEBIAN/$1"; chmod 755 "$root/DEBIAN/$1"; }
finish() { # DIRECTORY
  local name=${root##*/}
  mkdir -p "$1"
  dpkg-deb --root-owner-group -Znone -b "$root" "$1/${name%%_*}.deb" > /dev/null
}

# NVIDIA's packages of one version, to /tmp/nvidia/VERSION.
nvidia_packages() {
  local v=$1 to=/tmp/nvidia/$1 equal='>='
  since() { dpkg --compare-versions "$v" ge "$1~"; }
  ! since 1.18 || equal='='
  begin libnvidia-container1 "$v" 'Multi-Arch: same'
  files_of "$libdir/libnvidia-container.so.${v%-*}" "$libdir/libnvidia-container-go.so.${v%-*}"
  finish "$to"
  begin libnvidia-container1-dbg "$v" "Depends: libnvidia-container1 (= $v)"
  files_of "usr/lib/debug/$libdir/libnvidia-container.so.${v%-*}"
  finish "$to"
  begin libnvidia-container-dev "$v" "Depends: libnvidia-container1 (= $v)"
  files_of usr/include/nvc.h "$libdir/libnvidia-container.a"
  finish "$to"
  begin libnvidia-container-tools "$v" "Depends: libnvidia-container1 ($equal $v)"
  files_of usr/bin/nvidia-container-cli
  finish "$to"

  begin nvidia-container-toolkit-base "$v" \
    'Breaks: nvidia-container-runtime (<= 3.5.0-1), nvidia-container-runtime-hook, nvidia-container-toolkit (<= 1.10.0-1)' \
    'Replaces: nvidia-container-runtime (<= 3.5.0-1), nvidia-container-runtime-hook, nvidia-container-toolkit (<= 1.10.0-1)'
  files_of usr/bin/nvidia-container-runtime usr/bin/nvidia-ctk
  if since 1.14; then
    files_of usr/bin/nvidia-cdi-hook
    script postinst <<< "[ -e $config ] || { mkdir -p ${config%/*}; echo '#theirs' > $config; }"
  else
    conffile $config '#theirs'
  fi
  if since 1.20; then
    files_of usr/lib/systemd/system/nvidia-cdi-refresh.service usr/lib/systemd/system/nvidia-cdi-refresh.path
  elif since 1.18; then
    conffile /etc/systemd/system/nvidia-cdi-refresh.service old
    conffile /etc/systemd/system/nvidia-cdi-refresh.path old
  fi
  ! since 1.18 || conffile /etc/nvidia-container-toolkit/nvidia-cdi-refresh.env '#'
  finish "$to"
  begin nvidia-container-toolkit-operator-extensions "$v" "Depends: nvidia-container-toolkit-base (= $v)"
  files_of usr/bin/nvidia-container-runtime.cdi usr/bin/nvidia-container-runtime.legacy
  finish "$to"
  begin nvidia-container-toolkit "$v" "Depends: nvidia-container-toolkit-base (= $v), libnvidia-container-tools ($equal $v)" \
    'Breaks: nvidia-container-runtime (<= 3.5.0-1), nvidia-container-runtime-hook' \
    'Replaces: nvidia-container-runtime (<= 3.5.0-1), nvidia-container-runtime-hook'
  files_of usr/bin/nvidia-container-runtime-hook
  # No package owns the link.
  script postinst <<< '[ -e /usr/bin/nvidia-container-toolkit ] ||
    ln -s /usr/bin/nvidia-container-runtime-hook /usr/bin/nvidia-container-toolkit'
  script postrm <<< 'if [ "$1" = purge ] && [ -L /usr/bin/nvidia-container-toolkit ]; then
    rm /usr/bin/nvidia-container-toolkit; fi'
  finish "$to"
}
all="libnvidia-container1 libnvidia-container1-dbg libnvidia-container-dev libnvidia-container-tools $toolkit"

# Packages of other times, each tried by itself: NAME VERSION CONFFILE FILE...
older() {
  cat <<END
nvidia-container-runtime 3.4.0-1 - usr/bin/nvidia-container-runtime
nvidia-container-runtime-hook 1.4.0-1 $config usr/bin/nvidia-container-runtime-hook
nvidia-container-toolkit 1.5.1-1 $config usr/bin/nvidia-container-toolkit usr/bin/nvidia-container-runtime
nvidia-container-toolkit 1.10.0-1 $config usr/bin/nvidia-container-toolkit usr/bin/nvidia-container-runtime usr/bin/nvidia-ctk
nvidia-docker 1.0.1-1 - usr/bin/nvidia-docker usr/bin/nvidia-docker-plugin lib/systemd/system/nvidia-docker.service
nvidia-docker2 2.13.0-1 /etc/docker/daemon.json usr/bin/nvidia-docker
nvidia-docker2 2.14.0-1 -
END
}

# Lists every set of NVIDIA's packages that their dependencies allow, each with a version in turn.
combinations() {
  local versions=(1.13.5-1 1.17.8-1 1.18.1-1 1.20.2-1) index=0 number bits set package
  has() { case $set in *" $1 "*) ;; *) return 1 ;; esac }
  for number in {1..127}; do
    bits=$number set=' '
    for package in $all; do
      [ $((bits & 1)) = 0 ] || set="$set$package "
      bits=$((bits >> 1))
    done
    for package in libnvidia-container1-dbg libnvidia-container-dev libnvidia-container-tools; do
      ! has $package || has libnvidia-container1 || continue 2
    done
    ! has nvidia-container-toolkit-operator-extensions || has nvidia-container-toolkit-base || continue
    ! has nvidia-container-toolkit || { has nvidia-container-toolkit-base && has libnvidia-container-tools; } || continue
    echo "${versions[index++ % 4]}$set"
  done
}

# ---- what holds after each change --------------------------------------------------------------------------------------

replaced() {
  local package
  for package in $library $toolkit nvidia-docker; do
    [[ $(version_of "$package") == "ii $version"*nvc* ]] || { echo "$package: $(version_of "$package")"; return 1; }
  done
  [[ $(version_of libnvidia-container1-dbg) != ii* ]] || { echo "debug symbols of another library"; return 1; }
  [ -e "/$libdir/libnvidia-container-go.so.1" ] || { echo "no libnvidia-container-go.so.1"; return 1; }
  # They would hide ours.
  [ ! -e /etc/systemd/system/nvidia-cdi-refresh.service ] || { echo "NVIDIA's unit hides ours"; return 1; }
  [ ! -e /etc/systemd/system/nvidia-cdi-refresh.path ] || { echo "NVIDIA's unit hides ours"; return 1; }
  nothing_old
  dpkg --verify $library $toolkit nvidia-docker
  dpkg --audit && apt-get check
}

install_theirs() { # VERSION PACKAGE...
  local v=$1 package debs=()
  shift
  for package; do debs+=("/tmp/nvidia/$v/$package.deb"); done
  dpkg --force-confold -i "${debs[@]}"
}

# From some of NVIDIA's packages to ours: everything is ours, the administrator's file stays, nothing is left afterwards.
over_theirs() { # VERSION PACKAGE...
  install_theirs "$@"
  edit_config
  ours
  replaced
  keeps_config
  purge_ours
  keeps_config
  rm $config
  nothing_left
}

# And back to NVIDIA's, and to ours again.
there_and_back() { # VERSION
  # Debug symbols cannot be unpacked beside our library, and the way back does not need them.
  local packages=${all/libnvidia-container1-dbg /}
  # shellcheck disable=SC2086 # several words
  install_theirs "$1" $packages
  edit_config
  ours
  replaced
  toolkit_answers
  purge_docker
  # shellcheck disable=SC2086
  install_theirs "$1" $packages
  [[ $(version_of nvidia-container-toolkit-base) == "ii $1" ]]
  [ -L /usr/bin/nvidia-container-toolkit ]
  keeps_config
  ours
  replaced
  purge_ours
  keeps_config
  rm $config
  nothing_left
}
# NVIDIA has no such packages any more.
purge_docker() { apt purge nvidia-docker nvidia-docker2 nvidia-dra-driver-gpu; }

over_older() { # NAME VERSION CONFFILE FILE...
  local name=$1 old=$2 file=$3
  shift 3
  begin "$name" "$old"
  [ $# = 0 ] || files_of "$@"
  case $file in
    -) ;;
    *.json) conffile "$file" '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}}' ;;
    *) conffile "$file" '#theirs' ;;
  esac
  finish /tmp/older
  dpkg --force-confold -i "/tmp/older/$name.deb"
  [ "$file" != /etc/docker/daemon.json ] ||
    printf '{"log-driver": "local", "runtimes": {"x": {"path": "/x"}, "nvidia": {"path": "nvidia-container-runtime"}}}' > "$file"
  edit_config
  ours
  replaced
  keeps_config
  grep -q '"nvidia"' /etc/docker/daemon.json
  [ "$file" != /etc/docker/daemon.json ] || has_runtime
  purge_ours
  case $name in
    # Its configuration goes if the administrator purges it, which is another package than ours.
    nvidia-container-runtime-hook) keeps_config; apt purge $name ;;
    *) keeps_config ;;
  esac
  rm -rf "${config%/*}"
  if [ "$file" = /etc/docker/daemon.json ]; then
    grep -q '"log-driver": "local"' $file
    rm -r /etc/docker
  fi
  mkdir -p "${config%/*}"
  nothing_left
}

# ---- the packages at work ----------------------------------------------------------------------------------------------

without_driver() {
  local text status=0
  text=$(nvidia-container-cli info 2>&1) || status=$?
  printf '%s\n' "$text"
  [ $status = 1 ] && [[ $text == *'nvidia-container-cli: initialization error: '*$'\n''hint: '* ]]
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
# shellcheck disable=SC2046,SC2086
compile_all_static() {
  cc $flags -static -o /tmp/devices-all-static /packages/devices.c $(pkg-config --cflags libnvidia-container) \
    $(pkg-config --static --libs libnvidia-container) &&
    ! readelf -d /tmp/devices-all-static | grep NEEDED
}
# The man page's example.
compile_example() {
  zcat /usr/share/man/man3/nvc.3.gz | sed -n '/^#include <stdio/,/^}/p' | sed 's/\\e/\\/g; s/\\-/-/g' > /tmp/example.c
  grep -q nvc_init /tmp/example.c && compile /tmp/example.c
}
needed_names() { [[ $(readelf -d /tmp/devices) == *'[libnvidia-container.so.1]'* ]]; }

# Programs that engines may start as createContainer hooks.
are_static() {
  local name status=0
  for name in nvidia-ctk nvidia-cdi-hook; do
    ! readelf -lWd "/usr/bin/$name" | grep 'INTERP\|NEEDED' || { echo "$name is not static"; status=1; }
  done
  return $status
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

# The administrator's daemon.json gets the runtime, and has the settings that it had afterwards.
docker_configuration() {
  write_daemon_json
  ours
  has_runtime
  purge_ours
  same_settings /etc/docker/daemon.json
  rm -r /etc/docker
}

# What the administrator registered stays over upgrades, another package's removal and NVIDIA's packages, and goes with ours.
registrations() {
  local file=/etc/docker/daemon.json
  write_daemon_json
  ours
  purge_docker
  same_settings $file
  nvidia-ctk runtime configure --runtime=docker --nvidia-set-as-default
  nvidia-ctk runtime configure --runtime=crio
  # An engine that is not there is not restarted.
  install -m 755 /dev/null /usr/bin/crio
  cp $file /tmp/registered
  ours
  apt install --reinstall --no-install-recommends /packages/*.deb
  cmp /tmp/registered $file
  purge_docker
  cmp /tmp/registered $file
  # shellcheck disable=SC2086 # several words
  install_theirs 1.20.3-1 ${all/libnvidia-container1-dbg /}
  cmp /tmp/registered $file
  ours
  cmp /tmp/registered $file
  purge_ours > /tmp/said 2>&1
  cat /tmp/said
  same_settings $file
  [ ! -e /etc/crio/crio.conf.d/99-nvidia.toml ]
  grep -F 'systemctl restart crio' /tmp/said
  rm -r /etc/docker /etc/crio $config /usr/bin/crio
  nothing_left
}
# Removal succeeds with programs and files missing, and names what it leaves.
half_removed() {
  write_daemon_json
  ours
  rm /usr/bin/nvidia-ctk /usr/bin/nvidia-container-runtime
  purge_ours
  has_runtime
  write_daemon_json
  ours
  mkdir -p /etc/crio/crio.conf.d
  printf '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n' > /etc/crio/crio.conf.d/mine.conf
  echo '{"broken"' > /etc/docker/daemon.json
  purge_ours > /tmp/said 2>&1
  cat /tmp/said
  [ "$(cat /etc/docker/daemon.json)" = '{"broken"' ]
  grep -F 'Removed the runtime from /etc/crio/crio.conf.d/mine.conf' /tmp/said
  rm -r /etc/docker /etc/crio
  nothing_left
}

# systemd learns of new units, and only of those.
new_units() {
  local refresh="nvidia-cdi-refresh.service nvidia-cdi-refresh.path"
  install_systemctl
  forget
  ours
  called daemon-reload
  called preset $refresh nvidia-cdi-verify.timer
  called start nvidia-cdi-refresh.path
  called start nvidia-cdi-verify.timer
  called enable nvidia-docker-plugin.socket
  called reload docker.service
  forget
  apt install --reinstall --no-install-recommends /packages/*.deb
  not_called daemon-reload
  not_called preset
  not_called enable nvidia-docker-plugin.socket
  called try-restart nvidia-docker-plugin.service
  called --no-block start nvidia-cdi-refresh.service
  # shellcheck disable=SC2086
  apt remove $toolkit nvidia-docker nvidia-docker2 nvidia-dra-driver-gpu
  called disable nvidia-cdi-refresh.path nvidia-cdi-refresh.service nvidia-cdi-verify.timer
  called stop nvidia-docker-plugin.socket nvidia-docker-plugin.service
  forget
  ours
  called preset $refresh nvidia-cdi-verify.timer
  called enable nvidia-docker-plugin.socket
  purge_ours
  remove_systemctl
}
units_over() { # VERSION UNITS: over NVIDIA's packages of that version, only these units are new
  local v=$1
  shift
  install_systemctl
  install_theirs "$v" nvidia-container-toolkit-base
  forget
  ours
  called daemon-reload
  called preset "$*"
  if [ $# = 1 ]; then called reenable nvidia-cdi-refresh.path; else not_called reenable; fi
  purge_ours
  remove_systemctl
  rm $config
}
stops_the_first_plugin() {
  install_systemctl
  begin nvidia-docker 1.0.1-1
  files_of usr/bin/nvidia-docker lib/systemd/system/nvidia-docker.service
  finish /tmp/older
  dpkg -i /tmp/older/nvidia-docker.deb
  forget
  ours
  called disable --now nvidia-docker.service
  called enable nvidia-docker-plugin.socket
  purge_ours
  remove_systemctl
}

# Ours are above NVIDIA's of the same release and below their next, so that each can be chosen.
version_order() {
  local ours
  ours=$(dpkg-deb -f /packages/nvidia-container-toolkit_*.deb Version)
  dpkg --compare-versions "$ours" gt "$version-1" && dpkg --compare-versions "$ours" lt "$version-2" &&
    dpkg --compare-versions "$ours" lt "${version%.*}.$((${version##*.} + 1))-1" &&
    dpkg --compare-versions "$(dpkg-deb -f /packages/nvidia-docker2_*.deb Version)" gt 2.14.0-1
}
# NVIDIA's next release takes over, unless ours are held.
newer() {
  ours
  edit_config
  purge_docker
  # shellcheck disable=SC2086
  apt-mark hold $library $toolkit
  if apt install "/tmp/nvidia/$1/nvidia-container-toolkit-base.deb"; then return 1; fi
  # shellcheck disable=SC2086
  apt-mark unhold $library $toolkit
  # shellcheck disable=SC2086
  install_theirs "$1" ${all/libnvidia-container1-dbg /}
  keeps_config
  # shellcheck disable=SC2086
  apt purge ${all/libnvidia-container1-dbg /}
  keeps_config
  rm $config
  nothing_left
}

# A check that failed may leave anything.
clean() {
  local packages
  packages=$(dpkg-query -W -f '${Package}\n' 'nvidia*' 'libnvidia*')
  # shellcheck disable=SC2086 # several words
  [ -z "$packages" ] || dpkg --purge --force-all $packages
  rm -rf ${config%/*} /etc/docker /etc/crio /etc/nvidia-container-toolkit /var/lib/nvidia-container-toolkit /usr/bin/nvidia-container-toolkit
  remove_systemctl
  mkdir -p ${config%/*}
}

# ---- all of it ---------------------------------------------------------------------------------------------------------

echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/check-packages
mkdir -p ${config%/*}
files > /tmp/before
for v in 1.13.5-1 1.17.8-1 1.18.1-1 1.20.2-1 1.20.3-1; do nvidia_packages $v; done

check "our versions lie between NVIDIA's" version_order
edit_config
check "the packages install" ours
check "the files are those of the packages" replaced
check "the toolkit's programs answer by all their names" toolkit_answers
check "the toolkit's programs have the recorded build ids" build_ids_fit
check "those that start with containers have at most 3 MB" are_small
check "those that are createContainer hooks are static" are_static
check "the loader knows the library" bash -c 'ldconfig -p | grep -F "libnvidia-container.so.1 "'
check "info without a driver says what is wrong, and a way out" without_driver
check "info shows the simulated driver" nvidia-container-cli --root=/sim info
check "list shows its libraries" lists_libraries
check "pkg-config knows the version" pkg-config --exact-version="$version" libnvidia-container
check "a C program compiles" compile /packages/devices.c
check "it needs the library by its ABI's name" needed_names
check "it sees the GPUs of the simulated driver" c_program /tmp/devices
check "it compiles with the static library" compile_statically
check "and then sees the GPUs too" c_program /tmp/devices-static
check "it links with -static" compile_all_static
check "and sees the GPUs as well" c_program /tmp/devices-all-static
check "the example of nvc(3) compiles" compile_example
check "nvidia-docker-plugin -v" bash -c "nvidia-docker-plugin -v | grep -Fx 'NVIDIA Docker plugin: $version'"
check "nvidia-docker belongs to a user of its own" bash -c '[ "$(stat -c %U /var/lib/nvidia-docker)" = nvidia-docker ]'
check "the completions load in bash" bash -c '. /usr/share/bash-completion/completions/nvidia-container-cli'
check "removal leaves nothing" purge_ours
check "no file" nothing_left
check "the loader has forgotten the library" bash -c '! ldconfig -p | grep libnvidia-container'
check "but the administrator's config.toml is there" keeps_config
rm -f $config
try "docker's configuration gets the runtime, and is restored" docker_configuration
try "registrations stay until the packages go" registrations
try "half-removed machines" half_removed
try "systemd learns of new units, and only of those" new_units
try "all units are new over 1.17.8" units_over 1.17.8-1 nvidia-cdi-refresh.service nvidia-cdi-refresh.path nvidia-cdi-verify.timer
try "one unit is new over 1.18.1" units_over 1.18.1-1 nvidia-cdi-verify.timer
try "one unit is new over 1.20.2" units_over 1.20.2-1 nvidia-cdi-verify.timer
try "the plugin of nvidia-docker 1.0.1 is stopped" stops_the_first_plugin

title "Over NVIDIA's packages, and back"
for v in 1.13.5-1 1.17.8-1 1.18.1-1 1.20.2-1; do try "$v, back, and again" there_and_back $v; done
try "1.20.3 takes over, unless ours are held" newer 1.20.3-1
while read -r words; do
  # shellcheck disable=SC2086 # several words
  try "over $words" over_older $words
done < <(older)

title "Over every combination of NVIDIA's packages"
count=0
while read -r words; do
  # shellcheck disable=SC2086
  try "$words" over_theirs $words
  count=$((count + 1))
done < <(combinations)
check "$count combinations" [ "$count" = 34 ]
[ $failures = 0 ]
