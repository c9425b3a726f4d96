#!/bin/bash
# Builds the Debian and the RPM packages into target/packages: the same bytes for the same commit and compiler,
# independent of the sources' directory.
#
#   scripts/packages/build.sh [deb] [rpm]     default: both
#
# NVC_MACHINE=aarch64 builds those of another machine, into target/packages-aarch64 (see scripts/build/cross.sh).
#
# Needs the programs that `scripts/setup.sh packages` installs.
set -euo pipefail
umask 022
cd "$(dirname "$(readlink -f "$0")")/../.."
# shellcheck source=scripts/build/release.sh
. scripts/build/release.sh
# shellcheck source=scripts/build/cross.sh
. scripts/build/cross.sh
machine=${NVC_MACHINE:-$(uname -m)}

target=$(readlink -m "${CARGO_TARGET_DIR:-target}")
packages=$target/packages${triple:+-$machine}
# Separate from the results of `make build`, which are for another place; what cargo compiled for those is used.
export CARGO_TARGET_DIR=$target NVC_OUT=$target/package/${triple:+$triple/}release
built=$NVC_OUT
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# stage DIRECTORY VARIABLE=VALUE...: installs, strips binaries and compresses man pages
stage() {
  local stage=$1 file
  shift
  env DESTDIR="$stage" BUILD="$built" PREFIX=/usr "$@" scripts/build/install.sh > /dev/null
  while read -r file; do
    "${STRIP:-strip}" --strip-unneeded --remove-section=.comment "$file"
  done < <(find "$stage" -type f \( -name '*.so.*' -o -name nvc-query -o -path '*/bin/*' \))
  find "$stage" -name '*.a' -exec "${STRIP:-strip}" --strip-debug --remove-section=.comment --enable-deterministic-archives {} +
  find "$stage/usr/share/man" -type f -exec gzip -9n {} +
}

# ---- Debian ------------------------------------------------------------------------------------------------------------

# The files of each package, as patterns below the staged root.
deb_files() {
  case $1 in
    libnvidia-container1) echo "$2/libnvidia-container.so.* $2/libnvidia-container-go.so.* usr/libexec/*/*" ;;
    nvidia-docker)
      echo "usr/bin/nvidia-docker* usr/share/man/man[18]/nvidia-docker* usr/lib/systemd/system/nvidia-docker*" \
        "usr/lib/sysusers.d/* usr/share/bash-completion/completions/nvidia-docker usr/share/zsh/*/_nvidia-docker" \
        "usr/share/fish/vendor_completions.d/nvidia-docker.fish" ;;
    nvidia-docker2) ;;
    nvidia-dra-driver-gpu)
      echo "usr/bin/gpu-kubelet-plugin usr/share/man/man8/gpu-kubelet-plugin.8.gz usr/share/zsh/*/_gpu-kubelet-plugin" \
        "usr/share/bash-completion/completions/gpu-kubelet-plugin usr/share/fish/vendor_completions.d/gpu-kubelet-plugin.fish" ;;
    nvidia-container-toolkit)
      echo "usr/bin/nvidia-container-runtime-hook usr/bin/nvidia-container-toolkit" \
        "usr/share/man/man8/nvidia-container-runtime-hook.8.gz usr/share/nvidia-container-toolkit/hooks.d/*" ;;
    nvidia-container-toolkit-base)
      echo "usr/bin/nvidia-container-runtime usr/bin/nvidia-cdi-hook usr/bin/nvidia-ctk" \
        "usr/share/nvidia-container-toolkit/build-ids" \
        "usr/share/man/man5/*" \
        "usr/share/man/man8/nvidia-container-runtime.8.gz usr/share/man/man1/nvidia-ctk.1.gz usr/share/man/man8/nvidia-cdi-hook.8.gz" \
        "usr/share/bash-completion/completions/nvidia-ctk usr/share/zsh/*/_nvidia-ctk" \
        "usr/share/fish/vendor_completions.d/nvidia-ctk.fish usr/lib/systemd/system/nvidia-cdi-*" \
        "usr/lib/systemd/system-preset/* usr/lib/udev/rules.d/*" ;;
    nvidia-container-toolkit-operator-extensions) echo "usr/bin/nvidia-container-runtime.*" ;;
    libnvidia-container-tools)
      echo "usr/bin/* usr/share/man/man1/* usr/share/bash-completion/completions/* usr/share/zsh/*/*" \
        "usr/share/fish/vendor_completions.d/*" ;;
    libnvidia-container-dev)
      echo "usr/include/* $2/libnvidia-container.so $2/libnvidia-container.a $2/pkgconfig/* usr/share/man/man3/*" ;;
  esac
}

deb_documents() {
  local doc=$1
  install -d "$doc"
  sed "s/@MAINTAINER@/$maintainer/" pkg/debian/copyright > "$doc/copyright"
  cp "$work/debian/changelog" "$doc/changelog.Debian"
  cp CHANGELOG.md "$doc/changelog"
  cp "$built/share/doc/THIRD-PARTY" "$doc/"
  gzip -9n "$doc/changelog.Debian" "$doc/changelog" "$doc/THIRD-PARTY"
  [ "${doc##*/}" != nvidia-dra-driver-gpu ] || install -D -m 644 -t "$doc/examples" examples/kubernetes/*.yaml
}

# deb_package NAME: moves the staged files to $work/NAME and builds the package from there
deb_package() {
  local package=$1 root=$work/$1 file pattern programs script
  for pattern in $(deb_files "$package" "${libdir#/}"); do
    # shellcheck disable=SC2086 # a pattern
    for file in "$work/stage/"$pattern; do
      file=${file#"$work/stage/"}
      install -d "$root/${file%/*}"
      mv "$work/stage/$file" "$root/$file"
    done
  done
  deb_documents "$root/usr/share/doc/$package"
  install -d "$root/DEBIAN"
  for script in preinst postinst prerm postrm; do
    [ ! -e "pkg/debian/$package.$script" ] || install -m 755 "pkg/debian/$package.$script" "$root/DEBIAN/$script"
  done

  rm -f "$work/debian/substvars"
  if [ "$package" = libnvidia-container1 ]; then
    # A missing or additional symbol is an error. The empty library has none.
    (cd "$work" && dpkg-gensymbols -q -c4 "-e$root$libdir/libnvidia-container.so.$version" "-p$package" "-P$root" \
      "-I$repository/pkg/debian/$package.symbols" "-O$root/DEBIAN/symbols")
    printf '%s\n' "libnvidia-container ${version%%.*} $package (>= 1.17.0)" \
      "libnvidia-container-go ${version%%.*} $package (>= 1.17.0)" > "$root/DEBIAN/shlibs"
    # Debian's libraries are not executable; RPM's are.
    find "$root$libdir" -name '*.so.*' -type f -exec chmod 644 {} +
    echo "activate-noawait ldconfig" > "$root/DEBIAN/triggers"
  fi
  mapfile -t programs < <(find "$root" -type f \( -name '*.so.*' -o -name nvc-query -o -path '*/bin/*' \))
  (
    cd "$work"
    shift
    [ ${#programs[@]} = 0 ] || dpkg-shlibdeps -Tdebian/substvars "-S$work/libnvidia-container1" \
      ${triple:+"-l/usr/$machine-linux-gnu/lib"} "${programs[@]}"
    # NVIDIA's last nvidia-docker2 is 2.14.0-1; ours must be above it.
    [ "$package" != nvidia-docker2 ] || set -- "-v2.14.0+$version-$revision"
    dpkg-gencontrol "$@" "-p$package" "-P$root" -ldebian/changelog -Tdebian/substvars -fdebian/files "-O$root/DEBIAN/control"
  )
  (cd "$root" && find usr -type f | sort | xargs md5sum > DEBIAN/md5sums)
  find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --root-owner-group -Zxz --build "$root" "$packages" | sed "s|$packages/||"
}

# Debian's libraries for cross compilers demand their own version, however old the functions that a program needs.
local_shlibs() {
  local libc
  libc=$(find "$1" -type f \( -name '*.so.*' -o -name nvc-query -o -path '*/bin/*' \) -exec readelf -WV {} + 2>/dev/null |
    grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
  printf '%s libc6 (>= '"${libc#GLIBC_}"')\n' 'libc 6' 'libm 6' "ld-linux-$machine 1"
  echo 'libgcc_s 1 libgcc-s1 (>= 4.2)'
}

build_deb() {
  case $machine in
    aarch64) eval "$(dpkg-architecture -s -a arm64 2>/dev/null)" ;;
  esac
  libdir=/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
  mkdir -p "$work/debian"
  sed "s/@MAINTAINER@/$maintainer/" pkg/debian/control > "$work/debian/control"
  cat > "$work/debian/changelog" <<END
libnvidia-container ($version-$revision) unstable; urgency=medium

  * Release $version; what changed is in changelog.gz.

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
  stage "$work/stage" LIBDIR="$libdir" ZSHDIR=/usr/share/zsh/vendor-completions DOCDIR=/usr/share/doc/libnvidia-container
  rm -r "$work/stage/usr/share/doc"
  [ ! "$triple" ] || local_shlibs "$work/stage" > "$work/debian/shlibs.local"
  rm -f "$packages"/*.deb
  local package
  # The first takes its files before the other packages' patterns match.
  for package in libnvidia-container1 nvidia-docker nvidia-dra-driver-gpu nvidia-container-toolkit-operator-extensions \
    nvidia-container-toolkit-base nvidia-container-toolkit libnvidia-container-tools libnvidia-container-dev nvidia-docker2; do
    deb_package $package
  done
  nothing_left_over
}

# A file that is in no package was forgotten in deb_files.
nothing_left_over() {
  local left
  left=$(find "$work/stage" ! -type d)
  [ -z "$left" ] || { echo "build-packages: in no package: $left" >&2; exit 1; }
  rm -r "$work/stage"
}

# ---- RPM ---------------------------------------------------------------------------------------------------------------

build_rpm() {
  stage "$work/stage" LIBDIR=/usr/lib64 DOCDIR=/usr/share/doc/libnvidia-container
  mkdir -p "$work/rpm"
  rm -f "$packages"/*.rpm
  # Explicit settings, so that the packages do not depend on the build machine's rpm configuration.
  rpmbuild -bb --quiet --dbpath "$work/rpmdb" --target "$machine" \
    --define "_topdir $work/rpm" --define "_rpmdir $packages" \
    --define "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
    --define "nvc_version $version" --define "nvc_release $revision" --define "nvc_stage $work/stage" \
    --define "nvc_packager $maintainer" --define "nvc_date $(date -u -d "@$SOURCE_DATE_EPOCH" '+%a %b %d %Y')" \
    pkg/rpm/libnvidia-container.spec
  rm -r "$work/stage"
  (cd "$packages" && ls -- *.rpm)
}

[ $# -gt 0 ] || set -- deb rpm
mkdir -p "$packages"
PREFIX=/usr LIBDIR='' LIBEXECDIR='' scripts/build/all.sh
for kind; do
  case $kind in
    deb | rpm) "build_$kind" ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
(cd "$packages" && sha256sum -- *.deb *.rpm 2>/dev/null > SHA256SUMS) || true
