# Prints the table of ways and events in docs/engines.md from ways/table: rows of the same words become one.
BEGIN {
  FS = "|"
  print "| engine; way | start, exec, MIG | `daemon-reload` | `set-property` | limits | restart, stop and start | of the engine |"
  print "| --- | --- | --- | --- | --- | --- | --- |"
}
/^#/ || NF < 2 { next }
{
  words = $2
  sub(/^ */, "", words)
  split($1, cell, " +")
  if (!(words in seen)) order[++rows] = words
  seen[words] = 1
  # The cells of an event in the document, and theirs in the table.
  split("4,5 6 7 8,9 10,11 12,13", group, " ")
  for (i = 1; i <= 6; i++) {
    split(group[i], column, ",")
    for (c in column) {
      mark = cell[column[c]]
      if (mark != "." && result[words, i] != "lost" && (mark != "+" || result[words, i] == "")) result[words, i] = mark
    }
  }
}
END {
  for (row = 1; row <= rows; row++) {
    line = "| " order[row]
    for (i = 1; i <= 6; i++) {
      mark = result[order[row], i]
      line = line " | " (mark == "" ? "." : mark)
    }
    print line " |"
  }
}
