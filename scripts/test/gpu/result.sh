# Prints results, counts them, limits their time, and hides what identifies a machine. Sourced by run.sh.
# shellcheck shell=sh disable=SC2154

passed=0 failed=0 untested=0
missing_tests='' failed_tests=''
begun=$(cut -d. -f1 /proc/uptime)
# The whole run may take less than 8 minutes, and the last steps are short.
most_seconds=400

# Prints standard input without what identifies the machine, on the terminal and to the report.
show() {
  hide | while IFS= read -r line; do
    printf '%s\n' "$line"
    printf '%s\n' "$line" >&3
  done
}
say() { printf '%s\n' "$*" | show; }
title() { printf '\n== %s\n' "$*" | show; }
# Prints a file's lines, indented; a long one's first lines.
details() { head -n "${2:-12}" "$1" | sed 's/^/    | /' | show; }

pass() { passed=$((passed + 1)); say "  pass: $*"; }
fail() { failed=$((failed + 1)); failed_tests="$failed_tests
  $*"; say "  FAIL: $*"; }
skip() { untested=$((untested + 1)); missing_tests="$missing_tests
  $*"; say "  NOT TESTED: $*"; }
note() { say "  note: $*"; }

# Tests that two texts are equal.
same() { # WHAT OURS OTHERS
  if [ "$2" = "$3" ]; then
    pass "$1: $(echo "$2" | tr '\n' ' ')"
  else
    fail "$1: \"$(echo "$2" | tr '\n' ' ')\", not \"$(echo "$3" | tr '\n' ' ')\""
  fi
}

# Returns the machine's time in hundredths of a second.
ticks() { sed 's/^\([0-9]*\)\.\([0-9]*\) .*/\1\2/' /proc/uptime; }
seconds() { echo $(($(cut -d. -f1 /proc/uptime) - begun)); }
# Returns true if there is time for another step of some seconds.
time_left() { [ $(($(seconds) + $1)) -lt $most_seconds ]; }

# Runs a command with a time limit; its output is in $work/out and $work/err, its status in $status.
limit() { # SECONDS COMMAND [ARGUMENT...]
  timeout -k 5 "$@" > "$work/out" 2> "$work/err" < /dev/null 3>&-
  status=$?
  case $status in 124 | 137 | 143) echo "(ended after $1 s)" >> "$work/err" ;; esac
  return $status
}

# Collects the words to hide: each UUID gets an invented one, equal ones the same. Called again, it adds new ones.
learn_to_hide() {
  {
    cat /proc/driver/nvidia/gpus/*/information 2>/dev/null
    cat "$work"/seen.* 2>/dev/null
  } | grep -oiE '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}' | awk '!seen[tolower($0)]++ {
      printf "uuid %s 00000000-0000-4000-8000-%012d\n", tolower($0), ++n }' > "$work/hidden"
  sed -n 's/^.*[Ss]erial Number *: *\([^ ]\{5,\}\) *$/word \1 0000000000000/p' "$work"/seen.* 2>/dev/null |
    sort -u >> "$work/hidden"
  for word in "$(uname -n)" "$(uname -n | cut -d. -f1)"; do
    case $word in '' | localhost) ;; *) echo "word $word machine" >> "$work/hidden" ;; esac
  done
  for word in "$here" "${HOME:-}"; do
    case $word in '' | / | /root) ;; *) echo "word $word FOLDER" >> "$work/hidden" ;; esac
  done
}

# Replaces these words. A new UUID becomes a row of f.
hide() {
  [ -e "$work/hidden" ] || : > "$work/hidden"
  awk -v hidden="$work/hidden" '
    function is_word(c) { return c ~ /[A-Za-z0-9_-]/ }
    function replace(line, word, by,    out, at, before, after) {
      out = ""
      while ((at = index(line, word))) {
        before = at > 1 ? substr(line, at - 1, 1) : substr(out, length(out), 1)
        after = substr(line, at + length(word), 1)
        out = out substr(line, 1, at - 1) (is_word(before) || is_word(after) ? word : by)
        line = substr(line, at + length(word))
      }
      return out line
    }
    BEGIN {
      while ((getline entry < hidden) > 0) {
        split(entry, part, " ")
        if (part[1] == "uuid") invented[part[2]] = part[3]
        else { n++; words[n] = part[2]; by[n] = part[3] }
      }
      hex = "[0-9a-fA-F]"; h4 = hex hex hex hex
      form = h4 h4 "-" h4 "-" h4 "-" h4 "-" h4 h4 h4
    }
    {
      line = $0; out = ""
      while (match(line, form)) {
        uuid = tolower(substr(line, RSTART, RLENGTH))
        known = uuid in invented ? invented[uuid] : "ffffffff-ffff-4fff-8fff-ffffffffffff"
        if (uuid ~ /^00000000-0000-4000-8000-/) known = uuid
        out = out substr(line, 1, RSTART - 1) known
        line = substr(line, RSTART + RLENGTH)
      }
      line = out line
      for (i = 1; i <= n; i++) line = replace(line, words[i], by[i])
      print line
    }'
}

# Prints the counts and what is missing, and exits with the code that run.sh promises.
summary() {
  title "Summary after $(seconds) s: $passed passed, $failed failed, $untested not tested"
  [ ! "$missing_tests" ] || say "Not tested:$missing_tests"
  [ ! "$failed_tests" ] || say "Failed:$failed_tests"
  if [ $failed -gt 0 ]; then
    say "FAIL"
    exit 1
  elif [ $passed -eq 0 ] || [ ! "$gpus" ]; then
    say "NOTHING COULD BE TESTED"
    exit 3
  fi
  say "PASS: all that could be tested here"
  exit 0
}
