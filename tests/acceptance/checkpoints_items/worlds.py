"""Checkpoints of any world in any other, of hosts without a shared file system too; Python's safetensors; checkpoints of version 1."""

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
    sites, _ = tested("//tests/parallel/checkpoint:sites_test", "*")
    return len(done) + len(zero) + len(afno) + len(sites)


def _saved(site, wrap=lambda rank: [], directory="run"):
    side = Side(site, [binary("//tests/acceptance/ranks:checkpoint_rank"), directory, 8], wrap=wrap)
    side.do("save")
    side.end()


def _read_by_python(path):
    """The tensors of a file, as Python's safetensors reads them."""
    read = subprocess.run([built.python(), "-c", f"""
import json, safetensors.torch
found = safetensors.torch.load_file({str(path)!r})
print(json.dumps({{name: [list(tensor.shape), str(tensor.dtype), tensor.min().item(), tensor.max().item()] for name, tensor in found.items()}}))
"""], capture_output=True, text=True, env=built.environ(requirements=[ITEMS / "safetensors-requirements.txt"]), check=False)
    check(read.returncode == 0, f"Python's safetensors: {read.stderr[-300:]}")
    found = json.loads(read.stdout)
    check(set(found) == {"layer0"} and found["layer0"][:2] == [[2048, 2048], "torch.float32"], f"Python reads {found}")
    return found


def _hosts(site):
    """Two ranks, each with a directory that the other one does not see. Returns the number of files that Python has read."""
    hosts = [site.directory / "host-a", site.directory / "host-b"]
    for host in hosts:
        host.mkdir()
    _saved(site, wrap=lambda rank: ["sh", "-c", 'cd "$0" && exec env MESHRUN_JOB_ID=hosts "$@"', hosts[rank]])
    whole = [(host / "run/step-1/manifest.json").read_bytes() for host in hosts]
    check(whole[0] == whole[1], "the hosts have two manifests")
    names = set()
    for host in hosts:
        step = host / "run/step-1"
        index = json.loads((step / "model.safetensors.index.json").read_text())
        check(set(index["weight_map"]) == {"layer0"}, f"the index has {index['weight_map']}")
        names.add(index["weight_map"]["layer0"])
        _read_by_python(step / index["weight_map"]["layer0"])
    return len(names)


def run(site):
    tests = 0 if skip_soak() else _tests()
    _saved(site, directory=site.directory / "run")
    found = _read_by_python(site.directory / "run/step-1/model.safetensors")
    verified = subprocess.run([binary("//client:meshrun"), "checkpoint", "verify", VERSION_1], capture_output=True, text=True)
    check(verified.returncode == 0, f"what 4fda8076 wrote: {verified.stdout}{verified.stderr}")
    said = (f"Python's safetensors reads {len(found)} tensor of {found['layer0'][0]}, and by their index the files of {_hosts(site)} hosts; "
            "what 4fda8076 wrote is sound")
    if skip_soak():
        return passed(said, left_out="Bazel's tests of worlds of 1 to 4")
    return passed(f"{tests} tests over worlds of 1 to 4, plain, ZeRO, AFNO, ShardTensors on meshes, and with SHA-256; {said}")
