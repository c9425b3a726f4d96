#!/bin/sh
# Demonstrates a runc container that gets GPUs from our runtime: config.json before and after, and nvidia-smi -L inside.
# Called by scripts/demo.sh, in separate mount and pid namespaces.
#
#   demo-runtime.sh DEVICE        environment: work, driver, programs, cli
set -eu

device=$1
bundle=$work/bundle
show() { printf '  # %s\n' "$*"; "$@"; }
pretty() { python3 -m json.tool --sort-keys "$1"; }

# The machine's state with the driver's modules loaded; sim-runc shows it in the container too.
mount --bind "$driver/proc/devices" /proc/devices
mount --bind "$driver/proc/driver" /proc/driver

rm -rf --one-file-system "$bundle"
mkdir -p "$bundle" "$work/bin"
for program in nvidia-container-runtime nvidia-container-runtime-hook; do
  install -m 755 "$programs/$program" "$work/bin/$program"
done
install -m 755 "$programs/nvc-simruntime" "$work/bin/sim-runc"
"$programs/nvc-simdriver" rootfs "$bundle/rootfs"
cat > "$work/config.toml" <<END
[nvidia-container-cli]
root = "$driver"
path = "$cli"
[nvidia-container-runtime]
mode = "legacy"
runtimes = ["$work/bin/sim-runc"]
[nvidia-container-runtime-hook]
path = "$work/bin/nvidia-container-runtime-hook"
END
export NVIDIA_CTK_CONFIG_FILE_PATH="$work/config.toml"

cd "$bundle"
show runc spec
sed -i "s|\"sh\"|\"nvidia-smi\", \"-L\"|; s|\"terminal\": true|\"terminal\": false|; s|\"readonly\": true|\"readonly\": false|
  s|\"TERM=xterm\"|\"NVIDIA_VISIBLE_DEVICES=$device\"|" config.json
pretty config.json > "$work/before"
echo "  config.json asks for NVIDIA_VISIBLE_DEVICES=$device"
show "$work/bin/nvidia-container-runtime" --root "$work/state" run "demo-$$"
pretty config.json > "$work/after"
echo "  what nvidia-container-runtime put into config.json (and the simulated kernel's own hook):"
diff "$work/before" "$work/after" | sed -n 's/^>/   +/p' | grep -v '[]}{[],\{0,1\}$' | grep -e path -e minor -e args -e nvidia || true
