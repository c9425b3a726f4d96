#!/bin/sh
# Demonstrates a runc container that gets GPUs from our runtime: config.json before and after, and nvidia-smi -L inside.
# Called by scripts/demo.sh, in separate mount and pid namespaces.
#
#   scripts/demo/runtime.sh MODE DEVICE        environment: work, driver, programs, cli
#
# MODE is auto (the default: a specification made for this container, jit-cdi), legacy (the prestart hook), or cdi (a
# specification in a file, made by nvidia-ctk).
set -eu

mode=$1 device=$2
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
bundle=$work/bundle
show() { printf '  # %s\n' "$*"; "$@"; }

# The machine's state with the driver's modules loaded; sim-runc shows it in the container too.
mount --bind "$driver/proc/devices" /proc/devices
mount --bind "$driver/proc/driver" /proc/driver

rm -rf --one-file-system "$bundle" "$work/cdi"
mkdir -p "$bundle" "$work/bin" "$work/share/nvidia-container-toolkit"
for program in nvidia-container-runtime nvidia-container-runtime-hook nvidia-cdi-hook nvidia-ctk nvc-query; do
  install -m 755 "$programs/$program" "$work/bin/$program"
done
install -m 755 "$cli" "$work/bin/nvidia-container-cli"
# As the packages do: our programs recognise each other by it.
"$here/../build/ids.sh" "$work/bin" > "$work/share/nvidia-container-toolkit/build-ids"
install -m 755 "$programs/nvc-simruntime" "$work/bin/sim-runc"
"$programs/nvc-simdriver" rootfs "$bundle/rootfs"
# shellcheck source=scripts/demo/runtime-config.sh
. "$here/runtime-config.sh"
runtime_config "$driver" "$work/bin" "$mode" "$work/bin/sim-runc" "$work/cdi" > "$work/config.toml"
export NVIDIA_CTK_CONFIG_FILE_PATH="$work/config.toml"

if [ "$mode" = cdi ]; then
  show "$work/bin/nvidia-ctk" --quiet cdi generate "--driver-root=$driver" "--output=$work/cdi/nvidia.yaml" \
    "--nvidia-cdi-hook-path=$work/bin/nvidia-cdi-hook"
  printf '  %s lines; its devices, also by UUID: ' "$(wc -l < "$work/cdi/nvidia.yaml")"
  "$work/bin/nvidia-ctk" --quiet cdi list "--spec-dir=$work/cdi" | grep -v -e =GPU- -e =MIG- | tr '\n' ' '
  echo
fi

cd "$bundle"
show runc spec
sed -i "s|\"sh\"|\"nvidia-smi\", \"-L\"|; s|\"terminal\": true|\"terminal\": false|; s|\"readonly\": true|\"readonly\": false|
  s|\"TERM=xterm\"|\"NVIDIA_VISIBLE_DEVICES=$device\"|" config.json
cp config.json "$work/before"
status=0
show "$work/bin/nvidia-container-runtime" --root "$work/state" run "demo-$$" || status=$?
python3 - "$work/before" config.json <<'END'
import json, sys

def parts(file):
    """What concerns GPUs in a config.json, as lists of short texts."""
    with open(file, encoding='utf-8') as text:
        spec = json.load(text)
    linux, hooks = spec['linux'], spec.get('hooks', {})
    return {
        'process.env': spec['process']['env'],
        'mounts': [mount['destination'] for mount in spec['mounts']],
        'linux.devices': [device['path'] for device in linux.get('devices', [])],
        'device rules': ['%s %s:%s' % (rule.get('type', 'a'), rule.get('major', '*'), rule.get('minor', '*'))
                         for rule in linux['resources']['devices']],
        # The simulated kernel's own hook is no part of this.
        'hooks': ['%s: %s' % (stage, ' '.join(hook['args'])) for stage, all in hooks.items() for hook in all
                  if not hook['path'].endswith('/sim-runc')],
    }

def line(name, texts):
    text = ' '.join(texts) or '-'
    print('    %-14s %s' % (name, text if len(text) <= 96 else text[:92] + ' ...'))

before, after = map(parts, sys.argv[1:])
print('  config.json before:')
for name, texts in before.items():
    line(name, texts)
print('  config.json afterwards, what has been added:')
for name, texts in after.items():
    added = [text for text in texts if text not in before[name]]
    line(name, ['%d:' % len(added)] * bool(added) + added)
END
exit $status
