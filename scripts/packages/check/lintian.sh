#!/bin/bash
# Runs lintian on packages; prints what it finds beyond pkg/debian/lintian-tags, which has reasons, and fails if there is
# anything.
#
#   lintian.sh FILE...
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
found=$(lintian --fail-on none --display-info --tag-display-limit 0 "$@" 2> /dev/null)
! grep '^[EWI]:' <<< "$found" | grep -vEf <(grep -v '^#\|^$' "$here/../../../pkg/debian/lintian-tags")
