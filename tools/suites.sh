# For tools/test: runs the lines of a file of suites and counts their cases, in `passed`, `failed` and `skipped`. `work` is a
# directory of scratch, `suite_flags` what each suite is called with.
# shellcheck shell=bash

passed=0 failed=0 skipped=0
beside=()
# keep_failures <output> <whose>: for the end, which may be all that one sees of a long output.
keep_failures() {
  grep -E '^(failed[: ]|[0-9]+ short )' "$1" | cut -c1-300 | sed "s|^|  $2: |" >>"$work/failures" || true
}
count() { passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3)); }

# count_suite <suite> <output> <exit status>: its own last line of that form counts; else it is one case: exit status 0 passed,
# 77 skipped.
count_suite() {
  local suite=$1 output=$2 status=$3 line
  keep_failures "$output" "${suite%% *}"
  line=$(tail -n 1 "$output")
  if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
    count "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "${BASH_REMATCH[3]}"
    ((status == 0 || BASH_REMATCH[2] > 0)) || count 0 1 0
  elif ((status == 0)); then
    count 1 0 0
  elif ((status == 77)); then
    count 0 0 1
  else
    echo "failed: $suite (exit status $status)" | tee "$output"
    keep_failures "$output" "${suite%% *}"
    count 0 1 0
  fi
}

# run_at_once <suite>...: the first one's output is seen as it comes, that of the others after it.
run_at_once() {
  local suites=("$@") status i
  beside=()
  for ((i = 1; i < ${#suites[@]}; ++i)); do
    MESHRUN_TOOLS_TEST=1 setsid bash -c "${suites[i]}" >"$work/suite$i" 2>&1 &
    beside+=($!)
  done
  for ((i = 0; i < ${#suites[@]}; ++i)); do
    status=0
    echo "== ${suites[i]}"
    if ((i == 0)); then
      MESHRUN_TOOLS_TEST=1 bash -c "${suites[0]}" 2>&1 | tee "$work/suite0" | heartbeat "${suites[0]}" || status=$?
    else
      tail -n +1 -s 0.2 -f --pid="${beside[i - 1]}" "$work/suite$i" | heartbeat "${suites[i]}" || true
      wait "${beside[i - 1]}" || status=$?
    fi
    count_suite "${suites[i]}" "$work/suite$i" "$status"
  done
  beside=()
}

# run_suites <file>: a command a line. One that begins with "& " runs beside the line above it; where the suites run whole they
# measure more, and each runs alone.
run_suites() {
  local line group=()
  while read -r line; do
    [[ -n $line && $line != \#* ]] || continue
    if [[ $line != "& "* || -z $suite_flags ]]; then
      ((${#group[@]} == 0)) || run_at_once "${group[@]}" </dev/null
      group=()
    fi
    group+=("${line#& }${suite_flags:+ $suite_flags}")
  done <"$1"
  ((${#group[@]} == 0)) || run_at_once "${group[@]}" </dev/null
}

# What still runs beside another one when tools/test is ended.
end_suites() {
  local process
  for process in ${beside[@]+"${beside[@]}"}; do kill -- "-$process" 2>/dev/null || true; done
}
