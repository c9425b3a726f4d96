# Sourced in the repository's root: settings common to all release builds.
# shellcheck shell=sh disable=SC2034 # used by the sourcing script

# Services and jobs may lack it.
HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
export HOME
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:${CARGO_HOME:-$HOME/.cargo}/bin
[ -z "${SUDO_USER:-}" ] || PATH=$PATH:$(getent passwd "$SUDO_USER" | cut -d: -f6)/.cargo/bin
export PATH LC_ALL=C TZ=UTC

repository=$(pwd -P)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# Greater than revision 1 of the packages that ours replace, and smaller than their revision 2.
revision=1nvc1
maintainer='libnvc maintainers <maintainers@users.noreply.a-seed-c633d25d.example>'

# The timestamp of all built files: the commit's, or without git that of CHANGELOG.md.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
NVC_BUILD_REVISION=${NVC_BUILD_REVISION:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
export SOURCE_DATE_EPOCH NVC_BUILD_REVISION
