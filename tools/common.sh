# For the scripts in tools/: `root`, `run_bazel` and `sources`.
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
