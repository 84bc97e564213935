# For tools/test: runs the lines of a file of suites and counts their cases, in `passed`, `failed` and `skipped`. `work` is a
# directory of scratch, `suite_flags` what each suite is called with.
# shellcheck shell=bash

passed=0 failed=0 skipped=0
beside=
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

# For bash -c, with $work and suites: runs these one by one, each with its output and its exit status in files.
# shellcheck disable=SC2016  # another shell expands it
one_by_one='
work=$1
for ((i = 1; $# > 1; ++i)); do
  status=0
  bash -c "$2" >"$work/suite$i" 2>&1 || status=$?
  echo "$status" >"$work/status$i"
  shift
done'

# run_group <suite>...: the first one, and beside it the others, one by one. The first one's output is seen as it comes, that of each
# other one whole after it.
run_group() {
  local suites=("$@") status=0 i
  rm -f "$work"/status*
  if ((${#suites[@]} > 1)); then
    # With a session of their own, which end_suites ends.
    MESHRUN_TOOLS_TEST=1 setsid bash -c "$one_by_one" bash "$work" "${suites[@]:1}" &
    beside=$!
  fi
  echo "== ${suites[0]}"
  MESHRUN_TOOLS_TEST=1 bash -c "${suites[0]}" 2>&1 | tee "$work/suite0" | heartbeat "${suites[0]}" || status=$?
  count_suite "${suites[0]}" "$work/suite0" "$status"
  for ((i = 1; i < ${#suites[@]}; ++i)); do
    echo "== ${suites[i]}"
    while [[ ! -s $work/status$i ]] && kill -0 "$beside" 2>/dev/null; do sleep 0.2; done | heartbeat "${suites[i]}"
    # Neither is there if that shell was killed.
    touch "$work/suite$i"
    cat "$work/suite$i"
    count_suite "${suites[i]}" "$work/suite$i" "$(cat "$work/status$i" 2>/dev/null || echo 1)"
  done
  if [[ -n $beside ]]; then wait "$beside" || true; fi
  beside=
}

# run_suites <file>: a command a line. Those that begin with "& " run one by one beside the line above them; where the suites run
# whole they measure more, and each runs alone.
run_suites() {
  local line group=()
  while read -r line; do
    [[ -n $line && $line != \#* ]] || continue
    if [[ $line != "& "* || -z $suite_flags ]]; then
      ((${#group[@]} == 0)) || run_group "${group[@]}" </dev/null
      group=()
    fi
    group+=("${line#& }${suite_flags:+ $suite_flags}")
  done <"$1"
  ((${#group[@]} == 0)) || run_group "${group[@]}" </dev/null
}

# What still runs beside another suite when tools/test is ended.
end_suites() { if [[ -n $beside ]]; then kill -- "-$beside" 2>/dev/null || true; fi; }
