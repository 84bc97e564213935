#!/usr/bin/env python3
"""Item 2: no message of a large operation can be taken for another one.

run(site) checks schedules of 2^31 and 2^33 elements on 2 to 8 ranks, an operation that is too large for its tags, and, over
UCX, a small all_reduce of more chunks than tags number. Where there is memory for it, a real all_reduce of 2^31 float32 follows.
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import check, passed
from programs import tested

ENGINE = "//tests/parallel/comm/ucx:engine_test"
PLANNING = "//tests/parallel/comm/ucx:planning_test"
SOAK = "//tests/parallel/comm/ucx:large_sums_test"
SOAK_GIB = 19
PLANS = "*LargeSchedules*"
OUTSTANDING = "EngineOverUcxTest.TwentyThousandAllReducesAreOutstanding"
CHECKS = (
    "ExecutorTest.MoreMessagesThanTagsNumberAreRefusedOnAllRanks",
    "ExecutorTest.AsManyMessagesAsTagsNumberArrive",
    "MemberGroupTest.AnOperationWaitsForAnOlderOneWithTheSameTags",
    "ConnectionsTest.ARankThatHasMadeTooManyGroupsIsNamedByTheOthers",
    "EngineTest.AGroupOfMoreRanksThanTagsNumberIsRefused",
    "EngineTest.MoreGroupsThanTagsNumberAreRefusedOnAllRanks",
    "EngineOverUcxTest.AnAllReduceOfMoreChunksThanTagsNumberIsRight",
)


def tests(label, chosen, at_least, timeout):
    """Runs GoogleTests; returns what they print. at_least: so many, or a name is wrong."""
    ok, said = tested(label, chosen, timeout=timeout)
    check(len(ok) >= at_least, f"{label} has {len(ok)} tests {chosen}, at least {at_least} were expected")
    return said


def available_gib():
    text = pathlib.Path("/proc/meminfo").read_text()
    return int(re.search(r"^MemAvailable:\s+(\d+) kB", text, re.M).group(1)) >> 20


def run(site):
    plans = tests(PLANNING, PLANS, at_least=11, timeout=600)
    steps = max(int(n) for n in re.findall(r"at most (\d+) steps a rank", plans))
    messages = max(int(n) for n in re.findall(r"(\d+) messages between two ranks of", plans))
    tests(ENGINE, ":".join(CHECKS), at_least=len(CHECKS), timeout=600)
    figures = (f"schedules of 2^31 and 2^33 elements: at most {steps} steps, {messages} messages between two ranks, no tag "
               f"twice; an oversized operation, 2^18 groups and 2^14 + 1 ranks are refused on all ranks")
    outstanding = tests(ENGINE, OUTSTANDING, at_least=1, timeout=600)
    figures += "; " + " ".join(re.findall(r"^rank 0: (\d+ outstanding all_reduces took \S+ MiB)$", outstanding, re.M))
    if available_gib() < SOAK_GIB:
        return passed(figures, left_out=f"an all_reduce of 2^31 float32 on 2 ranks, for which {available_gib()} of "
                                        f"{SOAK_GIB} GiB are free here")
    said = tests(SOAK, "*", at_least=1, timeout=1200)
    lines = re.findall(r"^(?:all_reduce|broadcast) of .*$", said, re.M)
    check(len(lines) == 2 and all(" 0 wrong elements" in line for line in lines), f"the soak test said {lines}")
    return passed("; ".join([figures, *lines]))


if __name__ == "__main__":
    print(*run(None))
