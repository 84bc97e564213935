"""Item 1: the cases of the issue, each a test; drawn operators, plain and under autocast; their table by rule and by fallback."""

import math
import os
import random
import re
import subprocess

from harness import ROOT, binary, check, passed, skip_soak
from programs import first_failure, last_line, tested

SHARD = "//tests/parallel/shard"
# What the cases of the issue were written into.
CASES = (f"{SHARD}:shard_tensor_test", f"{SHARD}:programs_test", f"{SHARD}:second_derivatives_test", f"{SHARD}:operator_table_test",
         "//tests/parallel/checkpoint:checkpoint_test", "//tests/parallel/elastic:elastic_test")
# A program, its tests by world, and its draws of each family by default.
DRAWS = {"plain": (f"{SHARD}:operators_test", "Worlds/OperatorsTest.*", 40),
         "autocast": (f"{SHARD}:second_derivatives_test", "Worlds/AutocastOperatorsTest.*", 20)}
LEAST, SOAK = 500, 20000


def families():
    texts = [path.read_text() for path in (ROOT / "tests/parallel/shard/cases").glob("*.cc")]
    return sum(len(re.findall(r"= register_operator_cases\(", text)) for text in texts)


def drawn(kind):
    """The figures of one kind of draws; leaf forms and unused outputs are drawn in both."""
    label, tests, each = DRAWS[kind]
    ok, _ = tested(label, tests, by_bazel=True)
    draws = families() * len(ok) * each
    check(draws >= LEAST, f"{kind}: {draws} draws, not {LEAST}")
    check(len(ok) == 4, f"{kind}: {len(ok)} worlds, not 1 to 4")
    if skip_soak():
        return f"{draws} {kind} draws in {len(ok)} worlds, no difference"
    each = math.ceil(SOAK / (families() * len(ok)))
    seed = random.randrange(2**31)
    done = subprocess.run([binary(label), f"--gtest_filter={tests}"], cwd=ROOT, capture_output=True, text=True, timeout=4 * 3600,
                          env=dict(os.environ, MESHRUN_SHARD_CASES=str(each), MESHRUN_TEST_SEED=str(seed)))
    said = done.stdout + done.stderr
    check(done.returncode == 0, f"{kind}, MESHRUN_SHARD_CASES={each} MESHRUN_TEST_SEED={seed}: {first_failure(said)}")
    return f"{families() * len(ok) * each} {kind} draws in {len(ok)} worlds (seed {seed}), no difference"


def table():
    _, said = tested(f"{SHARD}:operator_routes_test", "OperatorRoutesTest.*", by_bazel=True)
    routes = re.findall(r"^route (.*)$", said, re.MULTILINE)
    check(len(routes) == 4, f"the table has {len(routes)} routes: {last_line(said)}")
    if not skip_soak():
        print(said[said.index("draws that are equal"):said.index("route ")], end="", flush=True)
    return "; ".join(routes)


def run(site):
    """(verdict, figures)"""
    cases = sum(len(tested(label, "*", by_bazel=True)[0]) for label in CASES)
    figures = f"{cases} tests of the cases; {drawn('plain')}; {drawn('autocast')}; {table()}"
    return passed(figures, f"{SOAK} draws of each kind, and the table operator by operator" if skip_soak() else "")
