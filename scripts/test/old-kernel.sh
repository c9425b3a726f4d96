#!/bin/bash
# Runs end-to-end tests on a real old kernel: Linux 5.10 of Debian 11, in an emulator.
#
#   scripts/test/old-kernel.sh [TEST...]
#
# As root, with network the first time: apt downloads the kernel into target/old-kernel, with a separate apt state. The
# emulator needs no hardware support, and is about twenty times slower than the machine. The guest's root is this
# machine's files, read-only over 9p; it writes to memory only. The tests' output comes over the serial console. TEST is
# a test of tests/tests/; default: the tests that depend most on the kernel. Each takes minutes.
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/../.."
tests=("$@")
[ $# -gt 0 ] || tests=(renamed_mount_points host_objects)
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
target=$(readlink -f "${CARGO_TARGET_DIR:-target}")
work=$target/old-kernel
modules=(virtio virtio_ring virtio_pci fscache 9pnet 9pnet_virtio 9p overlay)
[ "$(uname -m)" = x86_64 ] || { echo "test/old-kernel.sh: for x86_64 only" >&2; exit 2; }
scripts/setup.sh old-kernel

fetch() { # Debian 11's newest kernel, unpacked into $work/kernel
  local apt=$work/apt source
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
  : > "$apt/status"
  # The machine's own mirror.
  source=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m 1 '/debian/*$') || {
    echo "test/old-kernel.sh: apt on this machine has no Debian mirror" >&2
    exit 2
  }
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $source bullseye main" > "$apt/sources.list"
  cat > "$apt/apt.conf" <<CONF
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Sandbox::User "root";
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State "$apt";
Dir::State::Lists "$apt/lists";
Dir::State::Status "$apt/status";
Dir::Cache "$apt/cache";
Acquire::Languages "none";
CONF
  export APT_CONFIG=$apt/apt.conf
  apt-get -qq update
  local package
  package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-5\.10[^ ]*\)$/\1/p')
  rm -rf "$work/kernel.new"
  mkdir -p "$work/kernel.new"
  (cd "$work/kernel.new" && apt-get -qq download "$package" && dpkg-deb -x ./*.deb . && rm -f ./*.deb)
  mv "$work/kernel.new" "$work/kernel"
  unset APT_CONFIG
}

[ -d "$work/kernel" ] || fetch
kernel=$(echo "$work"/kernel/boot/vmlinuz-*)

cargo build --workspace
names=()
for name in "${tests[@]}"; do names+=(--test "$name"); done
programs=$(cargo test -p nvc-tests "${names[@]}" --no-run 2>&1 | sed -n 's/^ *Executable .*(\(.*\))$/\1/p')

# Small copies for the guest's memory, since 9p is slow.
rm -rf "$work/programs"
mkdir -p "$work/programs/deps"
for program in $programs; do strip -o "$work/programs/deps/${program##*/}" "$program"; done
for program in nvidia-container-cli nvc-fault nvc-without; do
  strip -o "$work/programs/$program" "$target/debug/$program"
done

# The first programs of the guest.
first=$work/initramfs
rm -rf "$first"
mkdir -p "$first"/{bin,modules,root,proc,sys}
cp "$(command -v busybox)" "$first/bin/busybox"
for module in "${modules[@]}"; do
  find "$work/kernel/lib/modules" -name "$module.ko" -exec cp {} "$first/modules/" \;
done
cat > "$first/init" <<INIT
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
for module in ${modules[*]}; do insmod /modules/\$module.ko; done
mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=262144,ro machine /root || poweroff -f
mount -t proc proc /root/proc
mount -t sysfs sysfs /root/sys
mount -t devtmpfs devtmpfs /root/dev
mkdir -p /root/dev/pts /root/dev/shm
mount -t devpts devpts /root/dev/pts
for directory in dev/shm tmp run var/tmp; do mount -t tmpfs -o mode=1777 tmpfs /root/\$directory; done
mount -t tmpfs tmpfs /root/sys/fs/cgroup
mkdir /root/sys/fs/cgroup/devices /root/sys/fs/cgroup/unified
mount -t cgroup -o devices cgroup /root/sys/fs/cgroup/devices
mount -t cgroup2 cgroup2 /root/sys/fs/cgroup/unified
ip link set lo up
exec switch_root /root /bin/bash $work/guest.sh
INIT
chmod +x "$first/init" "$first/bin/busybox"
ln -s busybox "$first/bin/sh"
(cd "$first" && find . | cpio --quiet -o -H newc | gzip -1) > "$work/initramfs.gz"

cat > "$work/guest.sh" <<GUEST
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TMPDIR=/tmp
cp -r $work/programs /run/programs
export NVC_CLI=/run/programs/nvidia-container-cli NVC_TEST_SLOW=20
cd $PWD/tests
echo "== \$(uname -sr), \$(nproc) processors"
status=0
for program in /run/programs/deps/*; do
  echo "== \${program##*/}"
  \$program --test-threads=1 --color=never || status=1
done
echo "== old kernel: status \$status after \$(cut -d. -f1 /proc/uptime) s"
busybox poweroff -f
GUEST

log=$work/console.log
qemu-system-x86_64 -accel tcg,thread=multi -machine q35 -cpu max -smp 2 -m 3072 -nodefaults -no-reboot -display none \
  -serial stdio -kernel "$kernel" -initrd "$work/initramfs.gz" -append "console=ttyS0 quiet panic=-1" \
  -virtfs local,path=/,mount_tag=machine,security_model=none,readonly=on,multidevs=remap </dev/null | tee "$log"
grep -q '^== old kernel: status 0 ' "$log"
