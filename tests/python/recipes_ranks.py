"""What each rank of tests/python/recipes does: trained() runs recipes, one after another, in one world."""

import contextlib
import importlib
import io
import math
import os
import pathlib
import re
import sys

import torch

RECIPES = pathlib.Path(__file__).resolve().parents[2] / "examples/python/recipes"


def trained(rank, size, port, names):
    """`names`: the recipes; then "--" and their options. Rank 0 prints "name: loss loss ...", or
    the error. Samples are cut over "domain", and batches over "dp"."""
    sys.path.insert(0, str(RECIPES))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    recipes, options = names[:names.index("--")], names[names.index("--") + 1:]
    for name in recipes:
        module, said = importlib.import_module(name), io.StringIO()
        sys.argv = [name, *options]
        try:
            with contextlib.redirect_stdout(said):
                module.main()
        except BaseException as error:
            if hasattr(error, "add_note"):
                error.add_note(f"recipe {name}, rank {rank} of {size}; {said.getvalue()[-1000:]}")
            raise
        if rank == 0:
            whole, here = (math.prod(map(int, sizes.split(","))) for sizes in re.findall(r"\[(.*?)\]", said.getvalue())[:2])
            assert size * here < whole + whole // 2 and (size > 1) == (here < whole), said.getvalue()
            losses = [line.rpartition(" ")[2] for line in said.getvalue().splitlines() if line.startswith("step ")]
            print(f"  {name}: {' '.join(losses)}", flush=True)
