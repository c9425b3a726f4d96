#!/usr/bin/python3
"""Applies a deliberate difference to recorded results of the runtime, so that no other difference is accepted.

    scripts/test/conformance/hook.py EXPECTED

EXPECTED is a copy of the suite's recorded results. docs/differences.md explains the change: a createContainer hook of a
specification without env gets a PATH.
"""
import json
import sys

CASES = ('zero', 'all', 'two', 'annotations', 'spec-dirs', 'removes-hook', 'mounts', 'program', 'broken-spec-beside')
ENV = ['PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin']


def main():
    """Changes the results of the cases above."""
    for case in CASES:
        path = '%s/rt-cdi-%s/config.json' % (sys.argv[1], case)
        with open(path, encoding='utf-8') as file:
            spec = json.load(file)
        for hook in spec['hooks']['createContainer']:
            hook.setdefault('env', ENV)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(json.dumps(spec, indent=1, sort_keys=True, ensure_ascii=False) + '\n')


main()
