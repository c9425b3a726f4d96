#!/usr/bin/python3
"""Applies deliberate differences to recorded results of the runtime, so that no other difference is accepted.

    scripts/test/conformance/hook.py EXPECTED

EXPECTED is a copy of the suite's recorded results. docs/differences.md explains the changes: a createContainer hook of a
specification without env gets a PATH, NVIDIA_VISIBLE_DEVICES=void replaces the container's own value, and the sockets of
daemons are not mounted by the low-level runtime.
"""
import glob
import json
import sys

CASES = ('zero', 'all', 'two', 'annotations', 'spec-dirs', 'removes-hook', 'mounts', 'program', 'broken-spec-beside')
ENV = ['PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin']


VARIABLE = 'NVIDIA_VISIBLE_DEVICES='


def without_others(env):
    """Returns the variables, with `void` in place of other values."""
    if VARIABLE + 'void' not in env:
        return env
    places = [place for place, entry in enumerate(env) if entry.startswith(VARIABLE)]
    left = [entry for place, entry in enumerate(env) if place not in places[1:]]
    left[places[0]] = VARIABLE + 'void'
    return left


def is_socket(mount):
    """Returns true for the socket of a daemon, which our hook mounts when the container starts."""
    return mount.get('destination', '').endswith(('/nvidia-persistenced/socket', '/nvidia-fabricmanager/socket'))


def main():
    """Changes the results."""
    for path in glob.glob('%s/rt-*/config.json' % sys.argv[1]):
        with open(path, encoding='utf-8') as file:
            spec = json.load(file)
        process = spec.get('process') or {}
        before = process.get('env') or []
        after = without_others(before)
        mounts = spec.get('mounts') or []
        left = [mount for mount in mounts if not is_socket(mount)]
        if after != before or left != mounts:
            if after != before:
                process['env'] = after
            if left != mounts:
                spec['mounts'] = left
            with open(path, 'w', encoding='utf-8') as file:
                file.write(json.dumps(spec, indent=1, sort_keys=True, ensure_ascii=False) + '\n')
    for case in CASES:
        path = '%s/rt-cdi-%s/config.json' % (sys.argv[1], case)
        with open(path, encoding='utf-8') as file:
            spec = json.load(file)
        for hook in spec['hooks']['createContainer']:
            hook.setdefault('env', ENV)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(json.dumps(spec, indent=1, sort_keys=True, ensure_ascii=False) + '\n')


main()
