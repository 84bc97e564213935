"""Checkpoints of any world in any other, by Bazel's tests; Python's safetensors and torch; checkpoints of version 1."""

import json
import pathlib
import subprocess

import built
from checkpoints_items.speed import Side
from harness import ROOT, binary, check, passed, skip_soak
from programs import tested

TESTS = "//tests/parallel/checkpoint:checkpoint_test"
ITEMS = pathlib.Path(__file__).resolve().parent
VERSION_1 = ROOT / "tests/parallel/checkpoint/samples/version_1"


def _tests():
    """Bazel has run them within tools/test."""
    names = ["AnyNumberOfRanksContinuesWhatAnyOtherHasSaved", "ShardTensorsAreWholeInTheFilesAndCutAnewOnAnyMesh",
             "HoldsTheStateOfAdamWithAmsgradAndOfMomentum", "WhatEarlierVersionsWroteIsRead",
             "FilesOfVersion1AreReadAsTheCodeOfThatTimeWroteThem"]
    done, _ = tested(TESTS, ":".join(["TensorFileTest.*", *(f"CheckpointTest.{name}" for name in names)]))
    zero, _ = tested("//tests/parallel/nn:training_test", "ZeroRedundancyOptimizerTest.ACheckpointGoesFromAnyWorldToAnyOther")
    afno, _ = tested("//tests/parallel/nn:distributed_afno_test", "*Checkpoint*")
    return len(done) + len(zero) + len(afno)


def run(site):
    tests = 0 if skip_soak() else _tests()
    side = Side(site, [binary("//tests/acceptance/ranks:checkpoint_rank"), site.directory / "run", 8])
    side.do("save")
    side.end()
    read = subprocess.run([built.python(), "-c", f"""
import json, safetensors.torch
found = safetensors.torch.load_file({str(site.directory / "run/step-1/model.safetensors")!r})
print(json.dumps({{name: [list(tensor.shape), str(tensor.dtype), tensor.min().item(), tensor.max().item()] for name, tensor in found.items()}}))
"""], capture_output=True, text=True, env=built.environ(requirements=[ITEMS / "safetensors-requirements.txt"]), check=False)
    check(read.returncode == 0, f"Python's safetensors: {read.stderr[-300:]}")
    found = json.loads(read.stdout)
    check(set(found) == {"layer0"} and found["layer0"][:2] == [[2048, 2048], "torch.float32"], f"Python reads {found}")
    verified = subprocess.run([binary("//client:meshrun"), "checkpoint", "verify", VERSION_1], capture_output=True, text=True)
    check(verified.returncode == 0, f"what 4fda8076 wrote: {verified.stdout}{verified.stderr}")
    said = f"Python's safetensors reads {len(found)} tensor of {found['layer0'][0]}; what 4fda8076 wrote is sound"
    if skip_soak():
        return passed(said, left_out="Bazel's tests of worlds of 1 to 4")
    return passed(f"{tests} tests over worlds of 1 to 4, plain, ZeRO, AFNO, ShardTensors on meshes, and with SHA-256; {said}")
