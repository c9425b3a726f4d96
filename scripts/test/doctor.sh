#!/bin/bash
# Tests `nvidia-ctk doctor` on broken machines: it must find every fault, and none on a healthy machine.
#
#   scripts/test/doctor.sh
#
# Needs ../shared/conformance-ctk and root. NVC_PROFILE=debug uses unoptimised programs.
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/../.."
profile=${NVC_PROFILE:-release}
suite=../shared/conformance-ctk
[ -x $suite/run.sh ] || { echo "test/doctor.sh: no $suite" >&2; exit 2; }
options=()
[ "$profile" != release ] || options=(--release)
cargo build "${options[@]}" -p nvc-ctk -p nvc-cdi-hook
cargo build "${options[@]}" -p libnvidia-container --bin nvc-query
../shared/conformance/fixture.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export DOCTOR_SAYS=$work/says
$suite/run.sh -b "${CARGO_TARGET_DIR:-target}/$profile" --cases scripts/test/doctor-machines.py \
  --record "$work/out" > /dev/null
python3 - "$work" <<'END'
import json
import sys

work, wrong = sys.argv[1], 0
says = json.load(open(work + '/says', encoding='utf-8'))
for name, texts in says.items():
    folder = '%s/out/doctor-%s/' % (work, name)
    found = [line for line in open(folder + 'stdout', encoding='utf-8') if line.startswith('WRONG')]
    status = open(folder + 'status', encoding='utf-8').read().strip()
    missing = [text for text in texts if not any(text in line for line in found)]
    right = not missing and status == ('1' if texts else '0') and bool(found) == bool(texts)
    print('%-6s %s: %d findings %s' % ('ok' if right else 'WRONG', name, len(found), missing or ''))
    wrong += not right
print('%d machines, %d wrong' % (len(says), wrong))
sys.exit(1 if wrong else 0)
END
