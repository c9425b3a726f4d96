"""Compares the results of a suite's tests with two runtimes, both as TAP.

compare.py [--files] SUITE WAY PLAIN OURS [AGAIN] EXPECTED: prints the tests that pass plain and not with ours, or that
did not run; --files prints the files of those that are not expected, a line each. Tests in AGAIN count if they pass
there. Lines of EXPECTED are `SUITE WAY NAME | REASON`; a WAY of `*` is each. Exits with 1 if a difference is not
expected, or if an expected one does not happen any more.
"""

import sys

arguments = sys.argv[1:]
only_files = arguments[0] == "--files"
suite, way, plain_file, *our_files, expected_file = arguments[only_files:]


def results(path):
    """Returns each test's result; several of one name are numbered."""
    found = {}
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            good, _, rest = line.rstrip("\n").partition(" 0 ")
            name, _, _ = rest.partition(" # skip")
            name = name.partition(" #SKIP")[0]
            while name in found:
                name += "'"
            found[name] = good == "ok"
    return found


def expected():
    reasons = {}
    with open(expected_file, encoding="utf-8") as file:
        for line in file:
            if not line.strip() or line.startswith("#"):
                continue
            of_suite, of_way, rest = line.rstrip("\n").split(" ", 2)
            name, _, reason = rest.partition(" | ")
            if of_suite == suite and of_way in (way, "*"):
                reasons[name] = reason
    return reasons


plain, reasons = results(plain_file), expected()
ours = {}
for path in our_files:
    for name, good in results(path).items():
        ours[name] = ours.get(name, False) or good
failures = [name for name, good in plain.items() if good and not ours.get(name, False)]
better = [name for name, good in plain.items() if not good and ours.get(name, False)]
bad = [name for name in failures if name not in reasons]
stale = [name for name in reasons if name in plain and name not in failures]
if only_files:
    print(*sorted({name.partition(":")[0] for name in bad}), sep="\n", end="\n" if bad else "")
    sys.exit()
if not plain:
    print(f"{suite}, {way}: no test ran")
    sys.exit(1)
for name in failures:
    print(f"  {'expected' if name in reasons else 'DIFFERS'}: {name}" + (f" ({reasons[name]})" if name in reasons else ""))
for name in stale:
    print(f"  no longer differs, remove it from the list: {name}")
for name in better:
    print(f"  passes with ours only: {name}")
print(f"{suite}, {way}: {len(plain)} tests, {len(failures) - len(bad)} differ as expected, {len(bad)} differ")
sys.exit(1 if bad or stale else 0)
