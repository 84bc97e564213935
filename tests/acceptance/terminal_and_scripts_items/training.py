"""A training written with the library's parts is the same on any number of ranks, and when it is stopped and resumed."""

import array
import json
import pathlib
import re

from harness import binary, check, meshrun, passed
from programs import last_line

TOLERANCE = 1e-12
STEPS = 12
STOP_AFTER = 5


def doubles(path):
    """Name -> numbers of a safetensors file; float64 and int64 alone."""
    data = pathlib.Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            kind = {"F64": "d", "I64": "q"}[entry["dtype"]]
            found[name] = array.array(kind, data[8 + size + begin:8 + size + end])
    return found


def state(site, name):
    """Model and optimizer as a finished training left them."""
    directory = site.directory / name / f"step-{STEPS}"
    return {f"{kind}: {key}": values for kind in ("model", "optimizer")
            for key, values in doubles(directory / f"{kind}.safetensors").items()}


def difference(first, second):
    """The largest one, relative to a tensor's largest number, and where it is."""
    check(first.keys() == second.keys(), f"they hold different tensors: {sorted(first.keys() ^ second.keys())}")
    return max((max((abs(x - y) for x, y in zip(values, second[name])), default=0) / max([1e-3, *map(abs, values)]), name)
               for name, values in first.items())


def train(site, ranks, name, *more, expected=0):
    program = binary("//tests/acceptance/ranks:field_training")
    command = [program, STEPS, site.directory, name, *more]
    if ranks > 1:
        command = [meshrun(), "run", "--procs-per-node", ranks, "--max-restarts", 0, "--", *command]
    code, out, err, _ = site.run(command, timeout=300, env={"OMP_NUM_THREADS": "1"})
    check(code == expected, f"{name}: exit code {code}: {last_line(err or out)}")
    return out + err


def run(site):
    for ranks in (1, 2, 3):
        train(site, ranks, f"on_{ranks}")
    # Only the last rank is asked to stop; all of them end as ranks that got the signal.
    said = train(site, 2, "resumed", STOP_AFTER, expected=1)
    check(len(re.findall(r"rank [01](?: on \S+)? ended with exit code 143", said)) >= 2, f"the stopped ranks ended otherwise: {said}")
    stopped = sorted(set(re.findall(rf"rank (\d) stopped after {STOP_AFTER} steps", said)))  # the report repeats last lines
    check(stopped == ["0", "1"], f"the stopped ranks said: {last_line(said)}")
    said = train(site, 3, "resumed")
    check(f"trained steps {STOP_AFTER} to {STEPS}" in said, f"resumed: {last_line(said)}")
    whole = state(site, "on_1")
    worst = {}
    for name in ("on_2", "on_3", "resumed"):
        worst[name] = difference(whole, state(site, name))
        check(worst[name][0] <= TOLERANCE, f"{name} differs from one rank by {worst[name][0]:.2e} in {worst[name][1]}")
    figures = ", ".join(f"{name} {figure:.1e}" for name, (figure, _) in worst.items())
    return passed(f"a CNN of {STEPS} steps against one rank: {figures} (at most {TOLERANCE:g})")
