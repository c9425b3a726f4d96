#!/usr/bin/python3
"""Applies deliberate differences to recorded results of nvidia-ctk, so that no other difference is accepted.

    scripts/test/conformance/ctk.py EXPECTED

EXPECTED is a copy of the suite's recorded results. docs/differences.md explains the changes: groups of device nodes are
not recorded unless --gids is given, but their type is; configuration files are where containers look for them, and a
Jetson's specification tells programs not to create nodes, and makes each link once. `runtime configure` notes what it registered, and gives docker
a path where docker finds no such program; sockets of daemons are in no specification. The cases of ctk-cases.py get the results of the
suite's cases of which they are copies.
"""
import glob
import json
import os
import re
import shlex
import shutil
import sys

WITHOUT_GROUPS = ('gen-dri', 'gen-enable-chmod', 'gen-flag-no-gids', 'gen-sandboxutils', 'mode-csv', 'mode-auto-csv')
JETSONS = ('mode-csv', 'mode-auto-csv')
COPIES = ('mode-gds', 'mode-gdrcopy', 'mode-nvswitch')
STANDARD_PLACES = ('gen-graphics', 'gen-config-search')
RUNTIME = '/usr/bin/nvidia-container-runtime'
ENGINES = ('docker', 'containerd', 'crio')
PLACE = re.compile(r'^.*/((?:glvnd|egl|nvidia|X11)/(?:egl_vendor\.d/|egl_external_platform\.d/|xorg\.conf\.d/|nvoptix\.bin).*)$')


def all_edits(spec):
    """The edits of a specification and of its devices."""
    return [e for e in [spec.get('containerEdits')] + [d['containerEdits'] for d in spec.get('devices', [])] if e]


def without_groups(spec):
    """A specification without groups, of the version that it needs then."""
    for edits in all_edits(spec):
        edits.pop('additionalGids', None)
        for node in edits.get('deviceNodes', []):
            node.pop('gid', None)
    if spec['cdiVersion'] == '0.7.0':
        spec['cdiVersion'] = '0.5.0'


def standard_places(spec):
    """A specification with configuration files below /usr/share in the container."""
    for edits in all_edits(spec):
        mounts = edits.get('mounts', [])
        for mount in mounts:
            match = PLACE.match(mount['containerPath'])
            if match and not mount['containerPath'].startswith('/usr/lib'):
                mount['containerPath'] = '/usr/share/' + match[1]
        mounts.sort(key=lambda m: (m['containerPath'].count('/'), m['containerPath']))


def opened_by_path(spec):
    """A specification with the links to what programs open by path, in the directories of both families: those of GBM
    and VDPAU come after the library's own, and X modules have theirs."""
    families = ('/usr/lib/x86_64-linux-gnu', '/usr/lib64')
    opened = (('libnvidia-allocator.so', 'gbm', 'nvidia-drm_gbm.so'), ('libvdpau_nvidia.so', 'vdpau', 'libvdpau_nvidia.so.1'))

    def more(library, directory, name, target, at):
        home = os.path.dirname(at)
        file = home + '/' + target
        own = [] if home.endswith('/' + directory) else ['../%s.1::%s/%s/%s' % (library, home, directory, name)]
        places = ['%s/%s/%s' % (family, directory, name) for family in families]
        own_place = '%s/%s/%s' % (home.removesuffix('/' + directory), directory, name)
        return own + ['%s::%s' % (file, place) for place in places if place != own_place]

    for edits in all_edits(spec):
        for hook in list(edits.get('hooks', [])):
            words = hook['args']
            if 'create-symlinks' not in words:
                continue
            start = words.index('create-symlinks') + 1
            pairs = [pair for pair in words[start + 1::2] if not pair.endswith('/gbm/nvidia-drm_gbm.so')]
            for library, directory, name in opened:
                of_it = [n for n, pair in enumerate(pairs) if os.path.basename(pair).startswith(library)]
                target = [pair.split('::') for pair in pairs if re.match(re.escape(library) + r'\.[0-9.]*[.][0-9.]*::', pair)]
                if of_it and target:
                    pairs[of_it[-1] + 1:of_it[-1] + 1] = more(library, directory, name, *target[0])
            glx = [pair.split('::') for pair in pairs if pair.endswith('/libglxserver_nvidia.so')]
            for target, at in glx:
                file = os.path.dirname(at) + '/' + target
                places = ['%s/xorg/modules/extensions/libglxserver_nvidia.so' % above for above in ('/usr/lib', '/usr/lib64')]
                n = pairs.index('%s::%s' % (target, at)) + 1
                pairs[n:n] = ['%s::%s' % (file, place) for place in places if place != at]
            hook['args'] = words[:start] + [word for pair in pairs for word in ('--link', pair)]
            if not pairs:
                edits['hooks'].remove(hook)


def without_node_creation(spec):
    """A specification whose last hook tells programs not to create nodes, as that of another machine has it."""
    hooks = spec['containerEdits']['hooks']
    hooks.append(dict(hooks[-1], args=['nvidia-cdi-hook', 'disable-device-node-modification']))


def each_link_once(spec):
    """A specification without links that an earlier hook makes: a list names one that its library has anyway."""
    seen = set()
    for hook in spec['containerEdits']['hooks']:
        words = hook['args']
        if 'create-symlinks' in words:
            start = words.index('create-symlinks') + 1
            pairs = [pair for pair in words[start + 1::2] if pair not in seen]
            seen.update(pairs)
            hook['args'] = words[:start] + [word for pair in pairs for word in ('--link', pair)]


def with_types(text):
    """The text of specifications whose device nodes, a line each, have a type: the last of the sorted members."""
    return re.sub(r'(\{[^{}]*"path": "/dev/[^{}]*)\}', r'\1, "type": "c"}', text)


def without_sockets(text):
    """The text of specifications without the sockets of daemons, which our hook adds when a container starts."""
    return re.sub(r' *\{\n *"containerPath": "[^"]*/nvidia-(?:persistenced|fabricmanager)/socket",\n[^}]*\},\n', '', text)


def change(path, function):
    """Changes the JSON values of a recorded file: the line before each is its format."""
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), '../../../../shared/conformance-ctk'))
    from formats import canonical
    with open(path, encoding='utf-8') as file:
        parts = re.split(r'^(== .*\n)', file.read(), flags=re.MULTILINE)
    for number, part in enumerate(parts):
        first, _, rest = part.partition('\n')
        if first in ('json', 'yaml'):
            spec = json.loads(rest)
            function(spec)
            parts[number] = first + '\n' + canonical(spec).rstrip('\n') + '\n'
    with open(path, 'w', encoding='utf-8') as file:
        file.write(''.join(parts))


def docker_s_path(folder):
    """Gives docker the runtime's path in the results of a call of `runtime configure`."""
    with open(folder + '/cmd', encoding='utf-8') as file:
        words = shlex.split(file.read())
    for name in ('contents', 'stdout'):
        path = folder + '/' + name
        if '--runtime=docker' in words and os.path.exists(path):
            with open(path, encoding='utf-8') as file:
                text = file.read()
            with open(path, 'w', encoding='utf-8') as file:
                file.write(text.replace('"path": "nvidia-container-runtime"', '"path": "%s"' % RUNTIME))


def main():
    """Changes the results of the cases above."""
    for case in WITHOUT_GROUPS:
        change('%s/%s/stdout' % (sys.argv[1], case), without_groups)
    for case in JETSONS:
        change('%s/%s/stdout' % (sys.argv[1], case), without_node_creation)
        change('%s/%s/stdout' % (sys.argv[1], case), each_link_once)
    for case in STANDARD_PLACES:
        change('%s/%s/stdout' % (sys.argv[1], case), standard_places)
    for path in sum((glob.glob(sys.argv[1] + place) for place in ('/gen-*/stdout', '/gen-*/contents', '/mode-*/stdout')), []):
        with open(path, encoding='utf-8') as file:
            has_links = 'create-symlinks' in file.read()
        if has_links and os.path.basename(os.path.dirname(path)) not in JETSONS:
            change(path, opened_by_path)
    for path in glob.glob(sys.argv[1] + '/gen-*/*') + glob.glob(sys.argv[1] + '/mode-*/*'):
        if os.path.basename(path) in ('stdout', 'contents'):
            with open(path, encoding='utf-8') as file:
                text = file.read()
            with open(path, 'w', encoding='utf-8') as file:
                file.write(without_sockets(with_types(text)))
    for engine in ENGINES:
        for folder in glob.glob('%s/%s-*' % (sys.argv[1], engine)):
            docker_s_path(folder)
    for case in COPIES:
        shutil.copytree('%s/%s' % (sys.argv[1], case), '%s/%s-with-drivers' % (sys.argv[1], case))


main()
