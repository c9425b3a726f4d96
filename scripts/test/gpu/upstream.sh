# Compares our programs with upstream's, where those are installed: what they say, and how long they take. Sourced by
# run.sh.
# shellcheck shell=sh disable=SC2154

# Differences that are meant: a pattern of `ours: LINE` or `theirs: LINE`, and the reason after the last ` # `.
accepted() {
  cat <<'END_OF_LIST'
^theirs: .*/dev/nvidia-modeset$ # it is listed although it does not exist
^ours: .*/dev/nvidia-modeset is missing # likewise: we say so
^theirs: .*void # no mount stands for "no device"
^(ours|theirs): .*\.json$ # configuration files by their real paths, where containers look for them
^ours: (filter-driver-proc|update-application-profile)$ # the container sees its own GPUs alone
^ours: (mount-sockets|--daemon|persistenced|fabricmanager)$ # sockets are found when a container starts
^theirs: .*/(nvidia-persistenced|nvidia-fabricmanager)/socket$ # likewise
^theirs: .*memory-limit # there is no hook for it
^ours: .*::.*/(gbm/nvidia-drm_gbm\.so|vdpau/libvdpau_nvidia\.so\.1)$ # in the directories of both families of distributions
^theirs: .*::.*/gbm/nvidia-drm_gbm\.so$ # likewise
^ours: /usr/bin/nv[a-z-]*$ # programs are where every image's PATH finds them
^theirs: /usr/local/.*/bin/nv[a-z-]*$ # likewise
^(ours|theirs): cdiVersion: # the least version that the specification needs
END_OF_LIST
}

# Tests that two files have the same lines, but for what is accepted.
equal() { # WHAT OURS THEIRS
  {
    grep -vxF -f "$3" "$2" | sed 's/^/ours: /'
    grep -vxF -f "$2" "$3" | sed 's/^/theirs: /'
  } | sort -u > "$work/differ"
  accepted | sed 's/ # [^#]*$//' > "$work/accepted"
  grep -vE -f "$work/accepted" "$work/differ" > "$work/unlisted"
  if [ -s "$work/unlisted" ]; then
    fail "$1: $(wc -l < "$work/unlisted") differences to upstream's that are not accepted"
    details "$work/unlisted" 20
  else
    pass "$1: as upstream's, with $(wc -l < "$work/differ") accepted differences"
  fi
}

# Runs upstream's program as its user does; our configuration is not for it.
theirs() { # PROGRAM ARGUMENT...
  limit 60 env -u NVIDIA_CTK_CONFIG_FILE_PATH "PATH=$machine_path" "$@"
}

# Prints the words of a specification, without keys and quotes.
words_of() { # FILE
  sed 's/^[ -]*//; s/["'\'']//g; s/^\(hostPath\|containerPath\|path\|hookName\|name\): //' "$1" | sort -u
}

compare_upstream() {
  title "Upstream's programs"
  their_cli=$(PATH=$machine_path; command -v nvidia-container-cli)
  their_ctk=$(PATH=$machine_path; command -v nvidia-ctk)
  their_runtime=$(PATH=$machine_path; command -v nvidia-container-runtime)
  [ "$their_cli$their_ctk" ] || { skip "comparison with upstream's programs: none is installed"; return; }
  if [ "$their_cli" ]; then
    for command in "info --csv" list "list --device=0 --compat32"; do
      # shellcheck disable=SC2086 # words
      {
        limit 60 "$cli" $command
        cat "$work/out" "$work/err" > "$work/ours"
        theirs "$their_cli" $command
        cat "$work/out" "$work/err" > "$work/theirs"
      }
      equal "nvidia-container-cli $command" "$work/ours" "$work/theirs"
    done
  fi
  if [ "$their_ctk" ]; then
    set -- --quiet cdi generate --format=yaml --nvidia-cdi-hook-path=/hook
    limit 60 "$ctk" "$@" $(ldconfig_option)
    words_of "$work/out" > "$work/ours"
    theirs "$their_ctk" "$@"
    words_of "$work/out" > "$work/theirs"
    equal "nvidia-ctk cdi generate" "$work/ours" "$work/theirs"
  fi
  title "Times in turn: ours, upstream's (best of five, ms)"
  in_turn info "$cli" "$their_cli" info
  in_turn list "$cli" "$their_cli" list
  in_turn "cdi generate" "$ctk" "$their_ctk" --quiet cdi generate --output=/dev/null
  [ "$containers_work" ] && [ "$first" ] && [ ! "$own_ldconfig" ] || return
  bundle ", \"NVIDIA_VISIBLE_DEVICES=$first\", \"NVIDIA_DRIVER_CAPABILITIES=compute,utility\"" '' true
  configure_runtime auto
  cd "$work/c" || return
  in_turn "a container, of which runc alone is the first" "$work/bin/runc" "$work/bin/nvidia-container-runtime" \
    --root "$work/state" run nvc-test-gpu-$$-turn
  in_turn "a container" "$work/bin/nvidia-container-runtime" "$their_runtime" --root "$work/state" run nvc-test-gpu-$$-turn
  cd "$work" || return
}

# Runs two programs with the same arguments, alternately.
in_turn() { # NAME OURS THEIRS ARGUMENT...
  name=$1 ours=$2 theirs=$3
  shift 3
  [ "$theirs" ] || return
  time_left 60 || { skip "time of $name: no time left"; return; }
  for n in 1 2 3 4 5; do
    for program in "$ours" "$theirs"; do
      variable='env'
      case $program in "$work"/*) ;; *) variable='env -u NVIDIA_CTK_CONFIG_FILE_PATH' ;; esac
      # shellcheck disable=SC2086 # words
      limit 60 $variable "PATH=$machine_path:$work/tools" "$check" time 1 "$program" "$@"
      sed 's/first=\([^ ]*\) .*exit=\(.*\)/\1 \2/' "$work/out" >> "$work/turn.${program##*/}.$([ "$program" = "$ours" ] && echo 1 || echo 2)"
    done
  done
  best() { cat "$work"/turn.*."$1" | sort -n | head -n 1 | sed 's/ 0$//; s/ \([0-9]*\)$/ (exit code \1)/'; }
  say "  $name: $(best 1), $(best 2)"
  rm -f "$work"/turn.*
}
