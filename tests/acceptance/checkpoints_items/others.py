"""Files that torch and PhysicsNeMo write, read by `meshrun checkpoint`, and pickles that would execute."""

import json
import subprocess

import built
from environments import ROOT
from harness import binary, check, passed, skip_soak

PHYSICSNEMO = ROOT / "tests/acceptance/checkpoints_items/physicsnemo-requirements.txt"
SAFETENSORS = ROOT / "tests/acceptance/checkpoints_items/safetensors-requirements.txt"

# Writes plain.pt, dcp/ and expected.safetensors, whose names are those of the nested dict.
WRITES = """
import sys
import torch
import torch.distributed.checkpoint as dcp
import safetensors.torch
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 300))
model(torch.randn(4, 7)).sum().backward()
state = {"model": model.state_dict(), "more": {"half": torch.randn(3).half(), "view": torch.arange(12).view(3, 4).t()}}
torch.save(state, sys.argv[1] + "/plain.pt")
dcp.save(state, checkpoint_id=sys.argv[1] + "/dcp", no_dist=True)
flat = {f"{outer}.{name}": tensor.contiguous() for outer, inner in state.items() for name, tensor in inner.items()}
safetensors.torch.save_file(flat, sys.argv[1] + "/expected.safetensors")
class Evil:
    def __reduce__(self):
        import os
        return os.system, ("touch " + sys.argv[1] + "/executed",)
torch.save({"weight": torch.zeros(2), "evil": Evil()}, sys.argv[1] + "/evil.pt")
"""
# An .mdlus of a model of PhysicsNeMo's class, and its tensors. Its own models import timm, torchvision and more.
WRITES_MDLUS = """
import sys
import physicsnemo
import torch
class Model(physicsnemo.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 2))
    def forward(self, x):
        return self.layers(x)
model = Model(width=5)
model(torch.randn(4, 3))
model.save(sys.argv[1] + "/model.mdlus")
torch.save(model.state_dict(), sys.argv[1] + "/expected.pt")
"""


def _meshrun(*words):
    return subprocess.run([str(word) for word in (binary("//client:meshrun"), "checkpoint", *words)], capture_output=True, text=True)


def _equal(one, other):
    done = _meshrun("diff", one, other, "-o", "json")
    check(done.returncode == 0, f"{one} is not {other}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def run(site):
    directory = site.directory
    wrote = subprocess.run([built.python(), "-c", WRITES, directory], capture_output=True, text=True,
                           env=built.environ(requirements=[SAFETENSORS]))
    check(wrote.returncode == 0, f"torch does not write: {wrote.stderr[-300:]}")
    for name in ("plain.pt", "dcp"):
        _equal(directory / name, directory / "expected.safetensors")
        done = _meshrun("convert", directory / name, directory / f"{name}.safetensors")
        check(done.returncode == 0, f"{name} is not converted: {done.stderr}")
        _equal(directory / f"{name}.safetensors", directory / "expected.safetensors")
    refused = _meshrun("ls", directory / "evil.pt")
    words = refused.stdout + refused.stderr
    check(refused.returncode != 0 and "system" in words and not (directory / "executed").exists(), f"a pickle that executes: {words}")
    check(any(opcode in words for opcode in ("GLOBAL", "REDUCE")), f"the opcode is not named: {words}")
    said = f"torch.save and torch.distributed.checkpoint bit for bit; '{words.strip()[-160:]}'"
    if skip_soak():
        return passed(said, left_out="an .mdlus that PhysicsNeMo writes")
    wrote = subprocess.run([built.python(), "-c", WRITES_MDLUS, directory], capture_output=True, text=True,
                           env=built.environ(requirements=[PHYSICSNEMO]))
    check(wrote.returncode == 0, f"PhysicsNeMo does not write: {wrote.stderr[-400:]}")
    _equal(directory / "model.mdlus", directory / "expected.pt")
    return passed(said + "; an .mdlus of PhysicsNeMo bit for bit")
