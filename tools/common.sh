# For the scripts in tools/: `root`, `run_bazel`, `visible_bazel`, `progress`, `heartbeat`, `announce` and `sources`.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# MESHRUN_BAZEL names the command, with startup options such as --output_base.
read -ra bazel_command <<<"${MESHRUN_BAZEL:-bazel}"

# run_bazel <suffix> <command> ...: another compiler or sanitizer gets an output base of its own through the suffix, so
# that the usual one keeps its analysis.
run_bazel() {
  local suffix=$1 word base
  shift
  local command=("${bazel_command[@]}")
  if [[ -n $suffix ]]; then
    base=${XDG_CACHE_HOME:-$HOME/.cache}/meshrun/output/$(cksum <<<"$root" | cut -d' ' -f1)
    for word in "${bazel_command[@]}"; do
      if [[ $word == --output_base=* ]]; then base=${word#*=}; fi
    done
    command+=("--output_base=$base$suffix")
  fi
  (cd "$root" && "${command[@]}" "$@")
}

# The sources of this repository that match the patterns: tracked, or new and not ignored.
sources() { git -C "$root" ls-files --cached --others --exclude-standard --deduplicate -- "$@"; }

# visible_bazel: run_bazel with Bazel's own progress (`progress` goes after the command). On a terminal Bazel redraws it;
# else it prints nothing while an action runs, and heartbeat does.
visible_bazel() {
  if [[ -t 2 ]]; then run_bazel "$@"; else run_bazel "$@" 2>&1 | heartbeat Bazel; fi
}
# shellcheck disable=SC2034  # the scripts use it
if [[ -t 2 ]]; then
  progress=(--show_progress)
else
  progress=(--show_progress --curses=no --color=no --show_progress_rate_limit=20)
fi

# heartbeat <what>: copies its input, line by line. When nothing comes for 20 s (5 s on a terminal) it says how long <what>
# has been running, and what Bazel's last line of progress was.
heartbeat() {
  local what=$1 line partial="" step="" pause=20 start="" end=$'\n' status
  if [[ -t 1 ]]; then pause=5 start=$'\r\e[K' end=""; fi
  local started=$SECONDS beating=""
  while true; do
    status=0
    IFS= read -r -t "$pause" line || status=$?
    if ((status == 0)); then
      printf '%s%s\n' "$beating" "$partial$line"
      step=""
      if [[ $line =~ ^\[[0-9,]+\ /\ [0-9,]+\] ]]; then step=", $line"; fi
      partial="" beating=""
    elif ((status > 128)); then
      # What was read of an unfinished line is kept.
      partial+=$line
      printf '%s... %s: %d min %02d s%s%s' \
        "$start" "$what" $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)) "$step" "$end"
      beating=$start
    else
      printf '%s%s' "$beating" "$partial$line"
      return 0
    fi
  done
}

# announce <what> <CPU seconds>: how long it takes here at most, and at least.
announce() {
  local cores minutes
  cores=$(nproc)
  minutes=$((($2 / cores + 59) / 60))
  echo "$1: about $minutes min on $cores cores when the caches are empty ($2 CPU seconds), seconds when they are full"
}
