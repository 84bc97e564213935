"""Item 1: the cases of the issue, each a test; drawn operators, plain and under autocast; their table by rule and by fallback."""

import math
import random
import re

from harness import ROOT, check, passed
from programs import last_line, tested

SHARD = "//tests/parallel/shard"
# What the cases of the issue were written into.
CASES = (f"{SHARD}:shard_tensor_test", f"{SHARD}:programs_test", f"{SHARD}:second_derivatives_test", f"{SHARD}:operator_table_test",
         "//tests/parallel/checkpoint:checkpoint_test", "//tests/parallel/elastic:elastic_test")
# A program and its tests by world.
DRAWS = {"plain": (f"{SHARD}:operators_test", "Worlds/OperatorsTest.*"),
         "autocast": (f"{SHARD}:second_derivatives_test", "Worlds/AutocastOperatorsTest.*")}
DRAWN = 20000
WORLDS = 4


def families():
    texts = [path.read_text() for path in (ROOT / "tests/parallel/shard/cases").glob("*.cc")]
    return sum(len(re.findall(r"= register_operator_cases\(", text)) for text in texts)


def drawn(kind):
    """The figures of one kind of draws; leaf forms and unused outputs are drawn in both."""
    label, tests = DRAWS[kind]
    each = math.ceil(DRAWN / (families() * WORLDS))
    seed = random.randrange(2**31)
    print(f"{kind}: MESHRUN_SHARD_CASES={each} MESHRUN_TEST_SEED={seed}", flush=True)
    ok, _ = tested(label, tests, timeout=4 * 3600, env={"MESHRUN_SHARD_CASES": str(each), "MESHRUN_TEST_SEED": str(seed)})
    check(len(ok) == WORLDS, f"{kind}: {len(ok)} worlds, not 1 to {WORLDS}")
    return f"{families() * WORLDS * each} {kind} draws in {WORLDS} worlds (seed {seed}), no difference"


def table():
    _, said = tested(f"{SHARD}:operator_routes_test", "OperatorRoutesTest.*")
    routes = re.findall(r"^route (.*)$", said, re.MULTILINE)
    check(len(routes) == 4, f"the table has {len(routes)} routes: {last_line(said)}")
    print(said[said.index("draws that are equal"):said.index("route ")], end="", flush=True)
    return "; ".join(routes)


def run(site):
    """(verdict, figures)"""
    cases = sum(len(tested(label, "*")[0]) for label in CASES)
    return passed(f"{cases} tests of the cases; {drawn('plain')}; {drawn('autocast')}; {table()}")
