# Prints where the driver's files, links and nodes are, as the statements of a machine file that say so: a simulated
# driver that is built from them has the same. Sourced by run.sh.
# shellcheck shell=sh disable=SC2154

# Shortens a path as machine files write it: LIB is Debian's multiarch directory, VER the driver's version.
short() { printf '%s' "$1" | sed "s|usr/lib/$triplet|LIB|g; s|$version_pattern|VER|g"; }

# Prints the name that a library's own file has in it. ldconfig names links so, and a library without one is as its file.
soname() { # FILE
  awk -v file="$1" '$1 == file { print $3; found = 1 } END { if (!found) { sub(/.*\//, "", file); print file } }' "$work/names"
}

# Prints a link that a driver's file has elsewhere.
link_of_machine() { # LINK
  echo "link path=$(short "$1") to=$(short "$(readlink "$1")")"
}

# Libraries, all but the two that the simulated driver has programs for; then links to libraries and beside them.
libraries_of_machine() {
  main=$(grep '/libcuda\.so\.' "$work/libraries" | grep -v /i386- | head -n 1)
  main=${main%/*}
  [ "$main" = "/usr/lib/$triplet" ] || echo "libraries=$(short "$main")"
  # Lines FILE BITS NAME NEEDS: there is no readelf here.
  sort -u "$work/libraries" "$work/files" | tr '\n' '\0' | xargs -0 "$check" names > "$work/names"
  while read -r file bits name needs; do
    case $file in "$main"/libcuda.so.* | "$main"/libnvidia-ml.so.*) continue ;; esac
    [ "$bits" = 32 ] && bits=' bits=32' || bits=
    echo "library path=$(short "$file") called=$(short "$name")$bits needs=$(short "$needs")"
  done < "$work/names"
  sed 's|/[^/]*$||' "$work/libraries" | sort -u > "$work/directories"
  # Its loader configuration is more than the driver's; these are the directories that matter.
  echo "file path=/etc/ld.so.conf text=$(short "$(sed 's/$/\\n/' "$work/directories" | tr -d '\n')")"
  # ldconfig makes the links that are named as their libraries say, also for the simulated driver.
  while read -r directory; do
    find "$directory" -maxdepth 2 -type l | sort | while read -r link; do
      file=$(readlink -f "$link")
      [ "$link" != "${file%/*}/$(soname "$file")" ] || continue
      case $file in
        *.so."${our_version:-none}") link_of_machine "$link" ;;
      esac
    done
  done < "$work/directories"
  for link in /usr/lib/*.so* "/usr/lib/$triplet"/*.so* /usr/lib64/*.so*; do
    [ -L "$link" ] && ! grep -qxF "${link%/*}" "$work/directories" || continue
    ! readlink -f "$link" | grep -qxF -f "$work/libraries" || link_of_machine "$link"
  done
}

# Programs that PATH finds: /usr/bin/NAME in the driver's package, moved to where the file is, with the links to it.
programs_of_machine() {
  for program in nvidia-smi nvidia-debugdump nvidia-persistenced nv-fabricmanager nvidia-cuda-mps-control \
    nvidia-cuda-mps-server nvidia-modprobe; do
    found=$(PATH=$machine_path; command -v $program) || continue
    path=$(readlink -f "${found%/*}")/${found##*/}
    links=
    while [ -L "$path" ]; do
      target=$(readlink "$path")
      links="${links}link path=$(short "$path") to=$(short "$target")
"
      case $target in /*) path=$target ;; *) path=${path%/*}/$target ;; esac
    done
    echo "/usr/bin/$program" >> "$work/only"
    echo "$path" >> "$work/programs"
    [ "$path" = "/usr/bin/$program" ] || echo "move path=/usr/bin/$program to=$(short "$path")"
    printf '%s' "$links"
  done
}

# A file, of which only its place and its permissions matter.
seen_file() { # FILE
  mode=$(stat -c %a "$1")
  [ "$mode" = 644 ] && mode= || mode=" mode=$mode"
  echo "file path=$(short "$1")$mode text=seen"
}

# Other files that a container gets: firmware, configuration, modules of X.
others_of_machine() {
  for path in /var/run/nvidia-persistenced/socket /var/run/nvidia-fabricmanager/socket; do
    [ ! -S "$path" ] || echo "$path" >> "$work/only"
  done
  [ ! -d /tmp/nvidia-mps ] || echo /tmp/nvidia-mps >> "$work/only"
  # `list` names a directory of firmware, a specification its files.
  cat "$work/host-paths" "$work/list" 2>/dev/null | sort -u | while read -r file; do
    case $file in
      /dev/* | /proc/* | *.so."${our_version:-none}" | "$work"/*) ;;
      *) [ ! -f "$file" ] || grep -qxF -- "$file" "$work/programs" || seen_file "$(readlink -f "$file")" ;;
    esac
  done | sort -u
  for link in /lib/firmware/nvidia/* /usr/share/*/egl_vendor.d/* /usr/share/vulkan/icd.d/* /etc/vulkan/icd.d/*; do
    [ ! -L "$link" ] || link_of_machine "$link"
  done
  [ ! -e /etc/nv_tegra_release ] || echo "file path=/etc/nv_tegra_release text=seen"
}

# Nodes: those that a driver always has and this machine lacks, and those that it has beside them.
nodes_of_machine() {
  list_nodes > "$work/nodes"
  [ -s "$work/nodes" ] || { echo "nodes=no"; return; }
  for path in /dev/nvidiactl /dev/nvidia-modeset /dev/nvidia-uvm /dev/nvidia-uvm-tools /dev/nvidia-caps \
    $(awk -F, '$2 ~ /^[0-9]+$/ { print "/dev/nvidia" $2 }' "$work/gpus"); do
    [ -e "$path" ] || echo "remove path=$path"
  done
  while IFS=: read -r major minor path; do
    case $path in
      /dev/nvidia[0-9]* | /dev/nvidiactl | /dev/nvidia-modeset | /dev/nvidia-uvm | /dev/nvidia-uvm-tools | \
        /dev/nvidia-caps/* | /dev/nvidia-caps-imex-channels/* | /dev/dri/*) continue ;;
    esac
    name=$(awk -v major="$major" '/^Block/ { exit } $1 == major { print $2; exit }' /proc/devices)
    [ ! "$name" ] || echo "module name=$name"
    echo "node type=c major=${name:-$major} minor=$minor path=$path"
  done < "$work/nodes" | awk '!seen[$0]++'
}

layout() {
  version_pattern=$(printf '%s' "${our_version:-none}" | sed 's/\./\\./g')
  printf '%s\n' libcuda libnvidia-ml > "$work/only"
  : > "$work/programs"
  # What belongs to the package comes first; changes are made in their order.
  { libraries_of_machine; programs_of_machine; others_of_machine; nodes_of_machine; } > "$work/layout"
  echo "only=$(tr '\n' ' ' < "$work/only" | sed 's/ $//')"
  [ -e /etc/ld.so.cache ] || echo "cache=no"
  cat "$work/layout"
}
