"""Item 3: 2 + 1 + 3 ranks on three hosts by three calls of `meshrun run`: ddp_recipe, and a script of DDP over Gloo, give what one
host gives."""

import re
import sys

from harness import ROOT, binary, check, meshrun, not_applicable, passed, skip_soak
from namespaces import Namespaces, NotPermitted
from terminal_and_scripts_items.several_runs import Pair, secret_of

sys.path.append(str(ROOT / "tests/soak"))
from environments import DDP, TORCH, Missing, environment, packages

PORT = 29533
RANKS = {"a": 2, "b": 1, "c": 3}
# A mean over the ranks of one gradient each: in closed form 2 * mean(rank + 1) for every element.
SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
model(torch.full((1, 4), float(rank + 1))).sum().mul(2).backward()
expected = 2 * sum(range(1, size + 1)) / size
assert torch.allclose(model.module.weight.grad, torch.full((1, 4), expected)), model.module.weight.grad
local, here = os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]
print(f"rank {rank} of {size} on node {os.environ['GROUP_RANK']}: {local} of {here}, gradient {expected}", flush=True)
dist.destroy_process_group()
"""


def start_all(hosts, pair, program):
    started, secret = [], None
    for number, (host, ranks) in enumerate(RANKS.items()):
        command = [meshrun(), "run", "--nnodes", len(RANKS), "--node-rank", number, "--nproc-per-node", ranks, "--master-addr",
                   hosts.addresses["a"], "--master-port", PORT, *program]
        started.append(pair.start(host, command, {"MESHRUN_RDZV_SECRET": secret} if secret else None))
        secret = secret or secret_of(started[0][1])
    return pair.end(started, "meshrun run")


def run(site):
    try:
        hosts = Namespaces(site, "abc")
    except NotPermitted as reason:
        return not_applicable(f"namespaces: {reason}")
    pair = Pair(site, hosts)
    site.script("where.sh", '#!/bin/sh\necho "$RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $WORLD_SIZE"\n')
    texts = start_all(hosts, pair, ["./where.sh"])
    found = sorted(re.findall(r"^(?:\d: )?(\d \d \d \d \d)$", "".join(texts), re.MULTILINE))
    check(found == ["0 0 2 0 6", "1 1 2 0 6", "2 0 1 1 6", "3 0 3 2 6", "4 1 3 2 6", "5 2 3 2 6"], f"2 + 1 + 3 ranks are {found}: {texts}")

    recipe = binary("//jobs/ddp_recipe:ddp_recipe")
    pattern = r"ddp_recipe: \d+ steps on \d rank.s., (.*\S)"
    _, alone, err, _ = site.run([recipe], timeout=120)
    expected = re.search(pattern, alone)
    check(expected, f"ddp_recipe alone: {alone} {err}")
    results = re.findall(pattern, "".join(start_all(hosts, pair, [recipe])))
    check(results == [expected[1]], f"one process gives {expected[1]!r}, 2 + 1 + 3 ranks {results}")
    figures = f"ddp_recipe on 2 + 1 + 3 ranks as in one process: {expected[1]}"
    if skip_soak():
        return passed(figures, "the script of DDP over Gloo")
    try:
        python = environment(TORCH) / "python"
        site.env["PYTHONPATH"] = str(packages(DDP))
    except Missing as missing:
        return not_applicable(str(missing))
    site.script("gloo.py", SCRIPT)
    text = "".join(start_all(hosts, pair, [python, "gloo.py"]))
    ranks = re.findall(r"rank \d of 6 on node (\d): \d of (\d), gradient 7.0", text)
    check(sorted(ranks) == [("0", "2")] * 2 + [("1", "1")] + [("2", "3")] * 3, f"DDP over Gloo: {text[-800:]}")
    return passed(f"{figures}; DDP over Gloo gives the closed form on all six ranks")
