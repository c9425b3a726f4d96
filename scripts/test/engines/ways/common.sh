# The events and what a container must show after them. To be sourced by systemd.sh.
# shellcheck shell=bash disable=SC2154 # engine, suite

table=/srv/engines/ways/table
declare -A outcome=([+]="has its GPU" [lost]="loses its GPU, as docs/engines.md says" [stopped]="is not started again, as docs/engines.md says")
# Exit status of an event after which the container does not run.
stopped=10
file_of() { # ENGINE
  case $1 in
    podman-rootless-*) echo podman-rootless ;;
    podman-*) echo podman ;;
    *) echo "$1" ;;
  esac
}

# ---- the table -------------------------------------------------------------------------------------------------------

columns() { sed -n 's/^# engine *way *suites *\([^|]*\).*/\1/p' $table; }
# The number of cells that this suite tries; an awk of its own, which no command of an engine can disturb.
cells_of() { # ENGINE
  awk -v engine="$1" -v suite="$suite" '
    $1 == engine && index("," $3 ",", ",all,") + index("," $3 ",", "," suite ",") {
      for (i = 4; i <= NF && $i != "|"; i++) tried += $i != "."
    }
    END { print tried + 0 }' $table
}
try_engine() {
  title "$engine"
  # shellcheck source=/dev/null
  . "/srv/engines/ways/$(file_of "$engine").sh"
  if ! up > /tmp/log 2>&1; then
    line FAILED "the engine does not start" /tmp/log
    return
  fi
  local name way suites cells
  # Not by standard input, which a container's program could read.
  while read -r -u 4 name way suites cells; do
    [ "$name" = "$engine" ] || continue
    cells=${cells%%|*}
    case ,$suites, in *,all,* | *",$suite,"*) ;; *) continue ;; esac
    # shellcheck disable=SC2086 # words
    try_way "$way" $cells
  done 4< $table
  down > /dev/null 2>&1
}
try_way() { # WAY CELL...: one for each column
  local way=$1 event alive=
  shift
  for event in $(columns); do
    # What does not start at all has nothing to lose.
    try_cell "$way" "$event" "$1" || [ "$event" != start ] || return
    shift
  done
  [ -z "$alive" ] || remove > /dev/null 2>&1
}
try_cell() { # WAY EVENT EXPECTED
  [ "$3" != . ] || return 0
  local gpu=1
  [ "$1" != cdi ] && [ "$1" != cdi-by-runtime ] && [ "$1" != annotation ] || gpu=0
  if [ "$2" = mig ]; then
    [ -z "$alive" ] || remove > /dev/null 2>&1
    gpu=1:0 alive=
  fi
  if [ -z "$alive" ] && ! start "$1" $gpu > /tmp/log 2>&1; then
    line FAILED "$1, $2: the container does not start" /tmp/log
    remove > /dev/null 2>&1
    return 1
  fi
  alive=1
  local status=0 found=lost
  case $2 in start | mig) ;; *) cause "$2" ;; esac > /tmp/log 2>&1 || status=$?
  if [ $status = $stopped ]; then
    found=stopped
    cp /tmp/log /tmp/difference
  elif [ $status != 0 ]; then
    line FAILED "$1, $2: the event fails" /tmp/log
    remove > /dev/null 2>&1
    alive=
    return
  elif sees $gpu $has_mknod -- in_it > /tmp/difference 2>&1; then
    found=+
  elif ! grep -q "^/dev/nvidia${gpu%:*}: Operation not permitted" /tmp/seen; then
    # Only a closed device is a lost one.
    found=wrong
  fi
  if [ $found = "$3" ]; then
    line ok "$1, $2: ${outcome[$found]}"
  else
    line FAILED "$1, $2: expected $3, found $found" /tmp/difference
  fi
  # The next event must find a GPU to take, and the usual one.
  if [ $found != + ] || [ "$2" = mig ]; then
    remove > /dev/null 2>&1
    alive=
  fi
}
line() { # RESULT TEXT [FILE]: prints and counts a result
  printf '%-7s %s: %s\n' "$1" "$engine" "$2"
  echo "$engine $1" >> /run/counts
  [ $# -lt 3 ] || sed 's/^/         /' "$3" | tail -25
}
expect() { # TEXT COMMAND...
  local text=$1
  shift
  if "$@" > /tmp/log 2>&1; then line ok "$text"; else line FAILED "$text" /tmp/log; fi
}
results() { # RESULT [ENGINE]
  grep -cE "^${2:-[^ ]+} $1\$" /run/counts
}
# Says how many results there are, and fails if they are not as many as expected: what was not tried is no success.
count() { # ENGINE EXPECTED
  local engine=$1 tried
  tried=$(results '(ok|FAILED|SKIPPED)' "$1")
  [ "$tried" = "$2" ] || line FAILED "$tried of $2 results; the others were not tried"
  echo "-- $engine: $(results ok "$1") of $2 passed"
}

# ---- events ----------------------------------------------------------------------------------------------------------

cause() { # EVENT
  case $1 in
    daemon-reload) systemctl daemon-reload && sleep 0.3 ;;
    # Any property that systemd puts into effect makes it write the unit's list of devices again.
    set-property)
      local unit
      unit=$(unit)
      [ -n "$unit" ] || { echo "no unit"; return 1; }
      systemctl is-active "$unit" && systemctl set-property --runtime "$unit" "TasksMax=$((1000 + RANDOM % 1000))"
      ;;
    *) "event_$1" ;;
  esac
}
# A machine whose cgroups of version 2 lack a controller refuses the limit, after the list of devices was written again.
may_lack_controllers() {
  "$@" > /tmp/update 2>&1 || grep -E 'cpu\.weight|cpu.shares|controller .* is not available' /tmp/update || { cat /tmp/update; return 1; }
}
update_by_runtime() { # RUNTIME DIRECTORY CONTAINER
  # shellcheck disable=SC2086 # words
  may_lack_controllers $1 --root "$2" update --cpu-share $((500 + RANDOM % 500)) "$3"
}
runtime_root() { # DIRECTORY...: the state directory of runc for that container
  local state
  state=$(find "$@" -name state.json -path "*/$(identity)/*" 2> /dev/null | grep -v rootlesskit | head -1)
  [ -n "$state" ] && dirname "$(dirname "$state")"
}
