#!/bin/bash
# Tests `nvidia-ctk doctor` on broken machines: the first finding must be the one that a person would expect, a healthy
# machine has none, and each printed command repairs what it is printed for.
#
#   scripts/test/doctor.sh [WORD]
#
# With a word, only the machines that have it in their names. Needs ../shared/conformance-ctk, a static busybox and root.
# NVC_PROFILE=debug uses unoptimised programs.
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
export DOCTOR_SAYS=$work/says DOCTOR_ONLY=${1:-}
$suite/run.sh -b "${CARGO_TARGET_DIR:-target}/$profile" --cases scripts/test/doctor-machines.py \
  --record "$work/out" > /dev/null
python3 - "$work" <<'END'
import json
import sys

work, wrong = sys.argv[1], 0
says, repairs = json.load(open(work + '/says', encoding='utf-8')), 0
for name, expected in says.items():
    folder = '%s/out/doctor-%s/' % (work, name)
    text = open(folder + 'stdout', encoding='utf-8').read()
    text, _, repaired = text.rstrip().rpartition('\n')
    text, repaired = text.rstrip() + '\n', json.loads(repaired)
    repairs += len(repaired['commands'])
    status = open(folder + 'status', encoding='utf-8').read().strip()
    lines = text.splitlines()
    found = [line for line in lines if line.startswith(('WRONG', 'advice'))]
    bad = [line for line in found if line.startswith('WRONG')]
    first, faults = expected['first'], repaired['faults']
    if first is None:
        faults += ['nothing is wrong here: ' + line for line in found]
    elif not (lines[0].startswith(expected['level']) and first in lines[0]):
        faults.append('the first finding should be %s ... %s: %s' % (expected['level'], first, lines[0]))
    faults += ['no finding says: ' + also for also in expected['also'] if not any(also in line for line in found)]
    number = 0 if first is None else 1 + len(expected['also']) + expected['more']
    if len(found) != number:
        faults.append('%d findings instead of %d: %s' % (len(found), number, found))
    if status != ('1' if bad else '0'):
        faults.append('exit code ' + status)
    ok = sum(line.startswith('ok ') for line in lines)
    if lines[-1] != '%d wrong, %d advice, %d ok' % (len(bad), len(found) - len(bad), ok):
        faults.append('the last line: ' + lines[-1])
    if text.count('symptom: ') != len(found) or text.count('repair: ') != len(found):
        faults.append('a finding without symptom or repair')
    if '--quiet' in text:
        faults.append('a repair that says nothing')
    print('%-6s %s%s' % ('WRONG' if faults else 'ok', name, ''.join('\n       ' + fault for fault in faults)))
    wrong += bool(faults)
print('%d machines, %d wrong; %d repairs carried out' % (len(says), wrong, repairs))
sys.exit(1 if wrong else 0)
END
