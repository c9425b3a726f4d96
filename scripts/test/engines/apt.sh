# A library is installed by apt in containers of docker whose /etc is a volume, and volumes that lack the driver's mount
# points are named: the image is the suite's own Debian. To be sourced by systemd.sh.
# shellcheck shell=bash disable=SC2154 # suite

. /srv/engines/ways/docker.sh

run_all() {
  { up && debian && package; } > /tmp/log 2>&1 || { line FAILED "docker, image or package cannot be made" /tmp/log; return; }
  expect "--gpus, no volume" installs --gpus device=0
  expect "--gpus, a volume on /etc" installs --gpus device=0 -v new:/etc
  expect "--gpus, a volume on /usr is named" refuses /usr --gpus device=0
  expect "--gpus, a volume on /usr/lib is named" refuses /usr/lib --gpus device=0
  expect "the runtime, a volume on /etc" installs --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=0 -v new:/etc
  expect "the runtime, a volume on /usr is named" refuses /usr --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=0
  expect "the runtime, a volume on /usr/lib is named" refuses /usr/lib --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=0
}

# An image of the machine's base, without the engines and what nobody reads.
debian() {
  tar -C /srv/base -c --exclude=./usr/share/{doc,locale,man,i18n,zoneinfo,info} --exclude=./usr/libexec \
    --exclude=./usr/lib/{systemd,podman,modules} --exclude=./var/lib/apt/lists --exclude=./var/cache \
    --exclude=./usr/bin/{docker,dockerd,docker-proxy,podman,buildah,ctr,containerd,containerd-shim\*,rootlesskit\*,crun,runc} \
    --exclude=./usr/sbin/{dockerd,docker-proxy,runc} . | docker import - debian
}
# A package as Debian's of a library: dpkg runs ldconfig for it, by a trigger of libc-bin.
package() {
  local tree=/tmp/package
  local directory=$tree/usr/lib/x86_64-linux-gnu
  rm -rf $tree
  mkdir -p $tree/DEBIAN $directory
  install -m 644 /srv/libfresh.so $directory/libfresh.so.1.0
  ln -s libfresh.so.1.0 $directory/libfresh.so.1
  printf 'Package: libfresh1\nVersion: 1.0\nArchitecture: all\nMulti-Arch: foreign\nMaintainer: nobody <nobody@localhost>\nDescription: a library\n' \
    > $tree/DEBIAN/control
  echo 'activate-noawait ldconfig' > $tree/DEBIAN/triggers
  dpkg-deb --root-owner-group -b $tree /srv/libfresh1.deb
}
# shellcheck disable=SC2016 # expanded in the container
try_apt='
nvidia-smi -L | grep ^GPU || exit 11
! ldconfig -p | grep libfresh || exit 12
mkdir -p /var/cache/apt/archives/partial
DEBIAN_FRONTEND=noninteractive apt-get install -y /libfresh1.deb || exit 13
dpkg -s libfresh1 libc-bin | grep -c "^Status: install ok installed" | grep -x 2 || exit 14
ldconfig -p | grep "libfresh.so.1 .*=> /" || exit 15
ldconfig -p | grep "libcuda.so.1 .*=> /" || exit 16
ldconfig && nvidia-smi -L | grep ^GPU || exit 17'
installs() { # OPTION...: docker's, for a container with GPU 0
  local result=1
  run_apt "$@" && grep 'GPU 0: NVIDIA L4' /tmp/seen && result=0
  docker volume rm -f new
  return $result
}
run_apt() {
  docker run --rm --net=none -v /srv/libfresh1.deb:/libfresh1.deb:ro "$@" debian sh -c "$try_apt" > /tmp/seen 2>&1
  local status=$?
  cat /tmp/seen
  echo "status $status"
  return $status
}
refuses() { # DIRECTORY OPTION...: the container does not start, since that volume lacks the driver's mount points
  local result=1
  run_apt -v "new:$1" "${@:2}" || ! grep -F "$1 is a volume, which may not be changed" /tmp/seen || result=0
  docker volume rm -f new
  return $result
}
