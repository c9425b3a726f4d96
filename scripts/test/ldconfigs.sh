#!/bin/sh
# Runs the ldconfig of other distributions in the sandbox, and compares their system calls with the list.
#
#   scripts/test/ldconfigs.sh [DIRECTORY]
#
# As root, with network: apt fetches the packages of Debian and Ubuntu into DIRECTORY (kept, /tmp/nvc-ldconfigs by
# default), with a separate apt state. Not part of `make test`.
set -eu
cd "$(dirname "$0")/../.."
work=${1:-/tmp/nvc-ldconfigs}
mkdir -p "$work"
work=$(cd "$work" && pwd)

# suite, mirror, keyring
SUITES="
bullseye http://deb.debian.org/debian       /usr/share/keyrings/debian-archive-keyring.gpg
bookworm http://deb.debian.org/debian       /usr/share/keyrings/debian-archive-keyring.gpg
trixie   http://deb.debian.org/debian       /usr/share/keyrings/debian-archive-keyring.gpg
sid      http://deb.debian.org/debian       /usr/share/keyrings/debian-archive-keyring.gpg
focal    http://archive.ubuntu.com/ubuntu   UBUNTU
jammy    http://archive.ubuntu.com/ubuntu   UBUNTU
noble    http://archive.ubuntu.com/ubuntu   UBUNTU
"

apt=$work/apt
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/trusted"
: > "$apt/status"
cat > "$apt/apt.conf" <<CONF
APT::Architecture "amd64";
APT::Architectures { "amd64"; "i386"; };
APT::Sandbox::User "root";
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State "$apt";
Dir::State::Lists "$apt/lists";
Dir::State::Status "$apt/status";
Dir::Cache "$apt/cache";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
CONF

fetch() { # SUITE MIRROR KEYRING PACKAGE:ARCHITECTURE: the unpacked package's directory
    to=$work/packages/$1/${4#*:}/${4%%:*}
    if [ ! -d "$to" ]; then
        echo "deb [signed-by=$3] $2 $1 main" > "$apt/sources.list"
        # One suite at a time, since apt would choose the latest version.
        if [ "$(cat "$apt/current" 2>/dev/null)" != "$1" ]; then
            rm -rf "$apt/lists"/* && mkdir -p "$apt/lists/partial"
            APT_CONFIG=$apt/apt.conf apt-get -qq update
            echo "$1" > "$apt/current"
        fi
        rm -rf "$work/download" && mkdir -p "$work/download"
        (cd "$work/download" && APT_CONFIG=$apt/apt.conf apt-get -qq download "$4")
        mkdir -p "$to.new" && dpkg-deb -x "$work/download"/*.deb "$to.new"
        mv "$to.new" "$to"
    fi
    echo "$to"
}

keyring() { # directory of Ubuntu's keys in Debian
    echo "$(fetch trixie http://deb.debian.org/debian /usr/share/keyrings/debian-archive-keyring.gpg \
        ubuntu-keyring)/usr/share/keyrings/ubuntu-archive-keyring.gpg"
}

ubuntu=$(keyring)
list=$work/programs
: > "$list"
echo "$SUITES" | while read -r suite mirror key; do
    [ -n "$suite" ] || continue
    [ "$key" != UBUNTU ] || key=$ubuntu
    for architecture in amd64 i386; do
        # Ubuntu only has libraries for i386.
        directory=$(fetch "$suite" "$mirror" "$key" "libc-bin:$architecture") || continue
        # Ubuntu's ldconfig is a script, next to the program.
        for program in sbin/ldconfig.real usr/sbin/ldconfig.real sbin/ldconfig usr/sbin/ldconfig; do
            if [ -e "$directory/$program" ]; then
                echo "$suite $architecture $directory/$program" >> "$list"
                break
            fi
        done
    done
done

cat "$list"
NVC_LDCONFIGS=$list cargo test -q -p libnvc --test ldconfig -- --exact others_ldconfigs
