#!/usr/bin/env bash
# A real NCCL unique id goes from rank 0 through its daemon and the coordinator to every rank, once.
set -euo pipefail
meshrun=$1 rank=$2 ranks=3

XDG_STATE_HOME=$(mktemp -d) && export XDG_STATE_HOME
trap 'rm -rf "$XDG_STATE_HOME"' EXIT
unset MESHRUN_COORDINATOR
output=$("$meshrun" run --nproc-per-node "$ranks" -- "$rank" 2>&1) || { echo "$output"; exit 1; }

fail() { printf '%s\n\n%s\n' "$1" "$output"; exit 1; }
# NCCL_UNIQUE_ID_BYTES is 128.
mapfile -t ids < <(grep -oE 'rank [0-9]+ of [0-9]+: id [0-9a-f]{256}' <<<"$output" | sed 's/.*: id //')
((${#ids[@]} == ranks)) || fail "${#ids[@]} of $ranks ranks printed an id"
(($(printf '%s\n' "${ids[@]}" | sort -u | wc -l) == 1)) || fail "the ranks have different ids"
[[ ${ids[0]} =~ [1-9a-f] ]] || fail "the id is all zeros"
grep -q "a second id was refused" <<<"$output" || fail "a second id was not refused"
