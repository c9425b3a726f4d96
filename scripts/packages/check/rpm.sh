#!/bin/bash
# Checks the RPM packages in /packages with rpm and dnf, in a root that scripts/packages/check.sh makes: installs them
# over stand-ins of NVIDIA's RPMs, goes back, and removes them.
#
#   rpm.sh VERSION
#
# The root is a Debian with Debian's rpm and dnf. A package without files provides the libraries and programs that ours
# require of the system. Stand-ins have the names, relations, configuration files and scripts of NVIDIA's packages at
# several times; their programs are text files.
set -euo pipefail
. /packages/common.sh

version=$1
machine=$(uname -m)
toolkit="nvidia-container-toolkit nvidia-container-toolkit-base"
library="libnvidia-container1 libnvidia-container-tools libnvidia-container-devel"
ours="$library $toolkit nvidia-container-toolkit-operator-extensions nvidia-docker nvidia-docker2 nvidia-dra-driver-gpu"

# A script that fails is an error here; rpm and dnf only warn of it.
dnf_() {
  local log status=0
  log=$(mktemp)
  dnf -y --releasever=1 --disablerepo='*' "$@" > "$log" 2>&1 < /dev/null || status=$?
  cat "$log"
  ! grep -i 'scriptlet failed\|error in .* scriptlet' "$log" || status=9
  rm "$log"
  return $status
}
# `dnf install` leaves an older one alone if nothing requires the new one.
install_ours() { dnf_ --enablerepo=ours upgrade; dnf_ --enablerepo=ours install $ours; }
release_of() { rpm -q --qf '%{VERSION}-%{RELEASE}\n' "$1"; }

# All files except the package managers' own.
files() {
  find / -xdev \( -path /proc -o -path /tmp -o -path /packages -o -path /repositories -o -path /root -o -path /var/lib/rpm \
    -o -path /var/lib/dnf -o -path /var/cache -o -path /var/log -o -path /etc/ld.so.cache -o -path '/etc/*-' \
    -o -path /etc/.pwd.lock -o -path /run/nvidia-container-toolkit -o -path ${config%/*} -o -name '*.pyc' -o -name __pycache__ \) -prune -o -print | sort
}

# ---- stand-ins ---------------------------------------------------------------------------------------------------------

# begin REPOSITORY; then package, files_of, scripts; then finish
begin() {
  repository=/repositories/$1
  work=/tmp/standin/$1
  mkdir -p "$repository" "$work/root"
  cat > "$work/spec" <<'END'
Name: standin
Version: 1
Release: 1
Summary: Stands for packages of NVIDIA
License: none
%description
END
  : > "$work/files"
}
package() { # NAME VERSION-RELEASE [FIELD...]
  name=$1
  printf '%%package -n %s\nSummary: Stands for a package of NVIDIA\nVersion: %s\nRelease: %s\nAutoReqProv: no\n' \
    "$1" "${2%-*}" "${2##*-}" >> "$work/spec"
  shift 2
  [ $# = 0 ] || printf '%s\n' "$@" >> "$work/spec"
  printf '%%description -n %s\n' "$name" >> "$work/spec"
  printf '%%files -n %s\n' "$name" >> "$work/files"
}
# files_of [FLAGS] FILE...: flags such as %config
files_of() {
  local flag='' file
  for file; do
    case $file in
      %*) flag="$file " ;;
      *)
        mkdir -p "$work/root${file%/*}"
        case $file in /etc/*.toml) echo '#theirs' ;; /etc/*.json) echo '{}' ;; *) echo old ;; esac > "$work/root$file"
        echo "$flag$file" >> "$work/files"
        ;;
    esac
  done
}
script() { printf '%%%s -n %s\n' "$1" "$name"; cat; } >> "$work/spec"
finish() {
  printf '%%%%install\ncp -a %s/root/. %%{buildroot}/\n' "$work" >> "$work/spec"
  cat "$work/files" >> "$work/spec"
  rpmbuild -bb --quiet --buildroot "$work/build" --define "_topdir $work" --define "_rpmdir $repository" --define '_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' \
    --define 'debug_package %{nil}' --define '__os_install_post %{nil}' --define '_build_id_links none' "$work/spec"
  createrepo_c -q "$repository"
}

# NVIDIA's packages of one version, as a repository of that name.
nvidia_packages() {
  local v=$1 equal='>='
  since() { dpkg --compare-versions "$v" ge "$1~"; }
  ! since 1.18 || equal='='
  begin "nvidia-$v"
  package libnvidia-container1 "$v"
  files_of /usr/lib64/libnvidia-container.so.${v%-*} /usr/lib64/libnvidia-container-go.so.${v%-*}
  package libnvidia-container1-debuginfo "$v" "Requires: libnvidia-container1 = $v"
  files_of /usr/lib/debug/usr/lib64/libnvidia-container.so.${v%-*}
  package libnvidia-container-devel "$v" "Requires: libnvidia-container1 = $v"
  files_of /usr/include/nvc.h
  package libnvidia-container-static "$v" "Requires: libnvidia-container-devel = $v"
  files_of /usr/lib64/libnvidia-container.a
  package libnvidia-container-tools "$v" "Requires: libnvidia-container1 $equal $v"
  files_of /usr/bin/nvidia-container-cli

  package nvidia-container-toolkit-base "$v" 'Obsoletes: nvidia-container-runtime <= 3.5.0-1' \
    'Conflicts: nvidia-container-toolkit <= 1.10.0-1'
  files_of /usr/bin/nvidia-container-runtime /usr/bin/nvidia-ctk
  ! since 1.14 || files_of /usr/bin/nvidia-cdi-hook
  since 1.14 || files_of %config $config
  if since 1.19; then
    files_of /usr/lib/systemd/system/nvidia-cdi-refresh.service /usr/lib/systemd/system/nvidia-cdi-refresh.path
  elif since 1.18; then
    files_of /etc/systemd/system/nvidia-cdi-refresh.service /etc/systemd/system/nvidia-cdi-refresh.path
  fi
  ! since 1.18 || files_of '%config(noreplace)' /etc/nvidia-container-toolkit/nvidia-cdi-refresh.env
  package nvidia-container-toolkit "$v" "Requires: nvidia-container-toolkit-base = $v" \
    "Requires: libnvidia-container-tools $equal $v" \
    'Obsoletes: nvidia-container-runtime <= 3.5.0-1, nvidia-container-runtime-hook <= 1.4.0-2' \
    'Provides: nvidia-container-runtime' 'Provides: nvidia-container-runtime-hook'
  files_of /usr/bin/nvidia-container-runtime-hook
  script posttrans <<END
ln -sf /usr/bin/nvidia-container-runtime-hook /usr/bin/nvidia-container-toolkit
[ -e $config ] || { mkdir -p ${config%/*}; echo '#theirs' > $config; }
END
  script postun <<< 'if [ "$1" = 0 ] && [ -L /usr/bin/nvidia-container-toolkit ]; then rm -f /usr/bin/nvidia-container-toolkit; fi'
  finish
}
names_of_theirs="libnvidia-container1 libnvidia-container1-debuginfo libnvidia-container-devel libnvidia-container-static
  libnvidia-container-tools $toolkit"

# Packages of other times, each in a repository of its own.
older() {
  local v
  begin runtime
  package nvidia-container-runtime 3.5.0-1
  files_of /usr/bin/nvidia-container-runtime
  finish
  begin runtime-hook
  package nvidia-container-runtime-hook 1.4.0-1
  files_of /usr/bin/nvidia-container-runtime-hook %config $config
  finish
  for v in 1.5.1-1 1.10.0-1; do
    begin toolkit-$v
    package nvidia-container-toolkit $v
    files_of /usr/bin/nvidia-container-toolkit /usr/bin/nvidia-container-runtime %config $config
    script posttrans <<< 'ln -sf /usr/bin/nvidia-container-toolkit /usr/bin/nvidia-container-runtime-hook'
    # Also when another package has taken over.
    script postun <<< 'rm -f /usr/bin/nvidia-container-runtime-hook'
    finish
  done
  begin docker-1.0.1-1
  package nvidia-docker 1.0.1-1
  files_of /usr/bin/nvidia-docker /usr/bin/nvidia-docker-plugin /usr/lib/systemd/system/nvidia-docker.service
  finish
  begin docker2-2.4.0-1
  package nvidia-docker2 2.4.0-1 'BuildArch: noarch' 'Conflicts: nvidia-docker < 2.0.0'
  files_of /usr/bin/nvidia-docker /etc/docker/daemon.json
  finish
  begin docker2-2.13.0-1
  package nvidia-docker2 2.13.0-1 'BuildArch: noarch' 'Conflicts: nvidia-docker < 2.0.0'
  files_of /usr/bin/nvidia-docker %config /etc/docker/daemon.json
  finish
  begin docker2-2.14.0-1
  package nvidia-docker2 2.14.0-1 'BuildArch: noarch' 'Conflicts: nvidia-docker < 2.0.0'
  finish
}

# The libraries and programs that our packages require of the system.
system() {
  local provides
  mapfile -t provides < <(rpm -qp --requires /packages/*.rpm | grep -v '^rpmlib\|^libnvidia\|^nvidia' | sed 's/ [<>=].*//' |
    sort -u | sed 's/^/Provides: /')
  begin system
  package system 1-1 "${provides[@]}" 'Provides: /bin/sh'
  finish
  # Debian's rpm hesitates to install anything.
  rpm -i --force-debian "$repository"/*.rpm
}

repositories() {
  local repository
  mkdir -p /etc/yum.repos.d
  for repository in /repositories/*; do
    printf '[%s]\nname=%s\nbaseurl=file://%s\ngpgcheck=0\nenabled=0\n' \
      "${repository##*/}" "${repository##*/}" "$repository" > "/etc/yum.repos.d/${repository##*/}.repo"
  done
}

# ---- what holds after each change --------------------------------------------------------------------------------------

replaced() {
  local package
  for package in $ours; do
    [[ $(release_of "$package") == *"$version"-*nvc* ]] || { release_of "$package"; return 1; }
  done
  for package in libnvidia-container1-debuginfo libnvidia-container-static nvidia-container-runtime nvidia-container-runtime-hook; do
    if rpm -q "$package"; then return 1; fi
  done
  nothing_old
  # The user and the time of a directory are not files' contents.
  rpm -V --nodeps $ours
  [ "$(readlink -f /usr/bin/nvidia-container-toolkit)" = /usr/bin/nvidia-container-runtime-hook ]
  if find /etc /usr -xdev -name '*.rpmsave' -o -xdev -name '*.rpmnew' -o -xdev -name '*.rpmorig' | grep .; then return 1; fi
  [ ! -e /var/lib/rpm-state ] || [ -z "$(find /var/lib/rpm-state ! -type d)" ]
}
remove_ours() { dnf_ remove --noautoremove $ours; }
leaves_nothing() {
  same_settings /etc/docker/daemon.json
  rm -r /etc/docker
  keeps_config
  rm $config
  rm -rf /var/lib/rpm-state
  nothing_left
}

fresh() {
  write_daemon_json
  edit_config
  install_ours
  replaced
  keeps_config
  has_runtime
  toolkit_answers
  build_ids_fit
  [ "$(stat -c %U /var/lib/nvidia-docker)" = nvidia-docker ]
  remove_ours
  leaves_nothing
}

there_and_back() { # VERSION
  write_daemon_json
  dnf_ --enablerepo="nvidia-$1" install $names_of_theirs
  edit_config
  [ ! -e /etc/nvidia-container-toolkit ] || echo '# mine' >> /etc/nvidia-container-toolkit/nvidia-cdi-refresh.env
  # An upgrade finds ours.
  dnf_ --enablerepo=ours upgrade
  [[ $(release_of nvidia-container-toolkit) == "$version"-*nvc* ]]
  keeps_config
  install_ours
  replaced
  keeps_config
  has_runtime
  toolkit_answers
  keeps_env
  dnf_ remove --noautoremove nvidia-docker nvidia-docker2 nvidia-dra-driver-gpu nvidia-container-toolkit-operator-extensions
  same_settings /etc/docker/daemon.json
  dnf_ --enablerepo="nvidia-$1" distro-sync
  [ "$(release_of nvidia-container-toolkit)" = "$1" ]
  [ -e /usr/bin/nvidia-container-runtime-hook ]
  [ -L /usr/bin/nvidia-container-toolkit ]
  # RPM replaces an edited file for a package that says %config; only NVIDIA's old ones do.
  if dpkg --compare-versions "$1" lt 1.14; then restore_config; fi
  keeps_config
  keeps_env
  rm -f /etc/nvidia-container-toolkit/*.rpmnew
  install_ours
  replaced
  keeps_config
  remove_ours
  rm -rf /etc/nvidia-container-toolkit
  leaves_nothing
}
keeps_env() {
  local env=/etc/nvidia-container-toolkit
  [ ! -e $env ] || { ls -l $env && grep -qx '# mine' $env/nvidia-cdi-refresh.env; }
}
restore_config() {
  local saved
  for saved in $config.rpmsave $config.rpmorig; do [ ! -e $saved ] || mv $saved $config; done
}

over_older() { # REPOSITORY
  local repository=$1
  dnf_ --enablerepo="$repository" install $(rpm -qp --qf '%{NAME} ' "/repositories/$repository"/*.rpm)
  edit_config
  write_daemon_json
  install_ours
  replaced
  keeps_config
  has_runtime
  toolkit_answers
  remove_ours
  leaves_nothing
}

# Removing one package alone works, whatever the order; the runtime's entry goes with nvidia-docker2.
in_parts() {
  write_daemon_json
  edit_config
  install_ours
  rpm -e nvidia-docker2
  same_settings /etc/docker/daemon.json
  dnf_ --enablerepo=ours install nvidia-docker2
  has_runtime
  # This also removes nvidia-docker2, whose script still needs nvidia-ctk.
  dnf_ remove --noautoremove nvidia-container-toolkit-base
  if rpm -q nvidia-docker2; then return 1; fi
  same_settings /etc/docker/daemon.json
  dnf_ remove --noautoremove nvidia-docker $library
  leaves_nothing
}

# What the administrator registered stays over upgrades and another package's removal, and goes with ours.
registrations() {
  local file=/etc/docker/daemon.json
  write_daemon_json
  edit_config
  install_ours
  rpm -e nvidia-docker2
  same_settings $file
  nvidia-ctk runtime configure --runtime=docker --nvidia-set-as-default
  nvidia-ctk runtime configure --runtime=crio
  # An engine that is not there is not restarted.
  install -m 755 /dev/null /usr/bin/crio
  cp $file /tmp/registered
  dnf_ --enablerepo=ours install nvidia-docker2
  dnf_ --enablerepo=ours reinstall $ours
  rpm -e nvidia-docker2
  cmp /tmp/registered $file
  rpm -e nvidia-docker nvidia-dra-driver-gpu $toolkit nvidia-container-toolkit-operator-extensions > /tmp/said 2>&1
  cat /tmp/said
  same_settings $file
  [ ! -e /etc/crio/crio.conf.d/99-nvidia.toml ]
  grep -F 'systemctl restart crio' /tmp/said
  rm -r /etc/crio /usr/bin/crio
  # A half-removed machine.
  install_ours
  rm /usr/bin/nvidia-ctk
  remove_ours
  rm -rf /etc/docker /var/lib/nvidia-container-toolkit
  write_daemon_json
  leaves_nothing
}

new_units() {
  local all_units="nvidia-cdi-refresh.service nvidia-cdi-refresh.path nvidia-cdi-verify.timer"
  install_systemctl
  forget
  write_daemon_json
  edit_config
  install_ours
  called daemon-reload
  called preset "$all_units"
  called start nvidia-cdi-refresh.path
  called enable nvidia-docker-plugin.socket
  called reload docker.service
  forget
  dnf_ --enablerepo=ours reinstall $ours
  not_called daemon-reload
  not_called preset
  not_called enable nvidia-docker-plugin.socket
  called try-restart nvidia-docker-plugin.service
  remove_ours
  called disable nvidia-cdi-refresh.path nvidia-cdi-refresh.service nvidia-cdi-verify.timer
  called stop nvidia-docker-plugin.socket nvidia-docker-plugin.service
  local v
  for v in 1.17.8-1 1.18.1-1 1.20.2-1; do
    dnf_ --enablerepo="nvidia-$v" install nvidia-container-toolkit-base
    forget
    dnf_ --enablerepo=ours upgrade
    called daemon-reload
    case $v in
      1.17*) called preset "$all_units" && not_called reenable ;;
      *) called preset nvidia-cdi-verify.timer && called reenable nvidia-cdi-refresh.path ;;
    esac
    dnf_ remove --noautoremove nvidia-container-toolkit-base libnvidia-container1 # which it needs, and NVIDIA's does not
  done
  dnf_ --enablerepo=docker-1.0.1-1 install nvidia-docker
  forget
  dnf_ --enablerepo=ours upgrade
  called disable --now nvidia-docker.service
  called enable nvidia-docker-plugin.socket
  dnf_ remove --noautoremove nvidia-docker
  remove_systemctl
  rm -rf /etc/nvidia-container-toolkit
  leaves_nothing
}

# NVIDIA's next release takes over, unless ours are excluded.
newer() {
  write_daemon_json
  edit_config
  dnf_ --enablerepo=ours install $library $toolkit
  nvidia-ctk runtime configure --runtime=docker
  cp /etc/docker/daemon.json /tmp/registered
  dnf_ --enablerepo="nvidia-$1" --exclude='libnvidia-container*,nvidia-container*' upgrade
  [[ $(release_of nvidia-container-toolkit) == "$version"-*nvc* ]]
  dnf_ --enablerepo="nvidia-$1" upgrade
  [ "$(release_of nvidia-container-toolkit)" = "$1" ]
  keeps_config
  cmp /tmp/registered /etc/docker/daemon.json
  rm -rf /var/lib/nvidia-container-toolkit
  cp /tmp/daemon.json /etc/docker/daemon.json
  dnf_ remove --noautoremove $library $toolkit
  rm -rf /etc/nvidia-container-toolkit
  leaves_nothing
}

# A check that failed may leave anything.
clean() {
  local packages
  packages=$(rpm -qa 'nvidia*' 'libnvidia*')
  # shellcheck disable=SC2086 # several words
  [ -z "$packages" ] || rpm -e --noscripts --nodeps $packages
  rm -rf ${config%/*} /etc/docker /etc/crio /etc/nvidia-container-toolkit /var/lib/nvidia-container-toolkit /var/lib/rpm-state /var/lib/nvidia-docker \
    /usr/bin/nvidia-container-toolkit /usr/bin/nvidia-container-runtime-hook
  remove_systemctl
  mkdir -p ${config%/*}
}

# ---- all of it ---------------------------------------------------------------------------------------------------------

mkdir -p ${config%/*} /repositories
ln -s /packages /repositories/ours
createrepo_c -q /packages
system
for v in 1.13.5-1 1.17.8-1 1.18.1-1 1.20.2-1 1.20.3-1; do nvidia_packages $v; done
older
repositories
# The system's own directories.
mkdir -p /usr/lib/systemd/system-preset /usr/lib/systemd/system /usr/lib/sysusers.d /usr/lib/udev/rules.d /usr/lib64/pkgconfig \
  /usr/lib/debug/usr/lib64 /usr/share/fish/vendor_completions.d /usr/share/zsh/site-functions
files > /tmp/before

try "the packages install, work, and can be removed" fresh
try "also one by one" in_parts
try "registrations stay until the packages go" registrations
try "systemd learns of new units, and only of those" new_units
for v in 1.13.5-1 1.17.8-1 1.18.1-1 1.20.2-1; do try "over NVIDIA's $v, back, and again" there_and_back $v; done
for repository in runtime runtime-hook toolkit-1.5.1-1 toolkit-1.10.0-1 docker-1.0.1-1 docker2-2.4.0-1 docker2-2.13.0-1 \
  docker2-2.14.0-1; do
  try "over NVIDIA's $repository" over_older $repository
done
try "NVIDIA's 1.20.3 takes over, unless ours are excluded" newer 1.20.3-1
[ $failures = 0 ]
