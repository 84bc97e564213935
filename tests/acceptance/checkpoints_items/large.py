"""Tensors around 4 GiB, tens of thousands of small ones, and readers that get damaged files."""

import json
import os
import shutil
import subprocess

import built
from checkpoints_items.speed import PEAK, Side
from checkpoints_items.worlds import ITEMS
from harness import binary, check, passed, skip_soak
from programs import fuzzed, tested

# Elements of a row, as ranks/large_rank.cc has them. A size that is no number of rows is a tensor of one dimension.
ROW_BYTES = 4 * 65536
# More than a page, and not a multiple of it.
BEYOND = 4100
# Parsers of tests/fuzz that read checkpoints and tensor files.
READERS = ["manifest", "safetensors", "safetensors_index", "torch_save", "torch_distributed", "mdlus"]
FUZZED_SECONDS = 300
ROUNDS = 300_000

# Reads the last row, or the last 3000 elements, of each tensor, and compares them with bits_at() of ranks/large_rank.cc.
READS_A_RANGE = """
import sys
import safetensors, torch
with safetensors.safe_open(sys.argv[1], framework="pt") as file:
    for number in range(int(sys.argv[2])):
        tensor = file.get_slice(f"large{number}")
        shape = tensor.get_shape()
        count = shape[-1] if len(shape) == 2 else 3000
        end = shape[0] * shape[-1] if len(shape) == 2 else shape[0]
        part = (tensor[shape[0] - 1:] if len(shape) == 2 else tensor[end - count:]).flatten()
        index = torch.arange(end - count, end)
        expected = ((index * 2654435761 + number * 40503) & 0xffffffff) >> 2
        wrong = (part.view(torch.int32) != expected).nonzero().flatten().tolist()
        assert len(part) == count and not wrong, f"large{number}: {len(part)} elements, wrong: {wrong[:3]}"
"""


def _ranks(site, directory, ranks, *model):
    return Side(site, [binary("//tests/acceptance/ranks:large_rank"), directory / "run", *model], ranks=ranks)


def _do(side, command):
    """The slowest rank's figures."""
    said = side.do(command)
    raised = {each["raised"] for each in said} - {""}
    check(not raised, f"{command} raises {raised}")
    return {key: max(each[key] for each in said) for key in ("call", "whole", "peak")}


def _sums(side, is_cut):
    """By tensor. Ranks with pieces have parts of the sum, others all of it."""
    said = side.do("sums")
    if is_cut:
        return {name: sum(each[name] for each in said) % 2**64 for name in said[0]}
    check(all(each == said[0] for each in said), f"ranks have other elements: {said}")
    return said[0]


def _meshrun(*words, code=0):
    done = subprocess.run([str(word) for word in (binary("//client:meshrun"), "checkpoint", *words, "-o", "json")], capture_output=True, text=True)
    check(done.returncode == code, f"meshrun checkpoint {words[0]} exits with {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}")
    return json.loads(done.stdout)


def _looked_at(step, sizes):
    """By `meshrun checkpoint ls` and `verify`, and by Python."""
    listed = {each["name"]: each["bytes"] for each in _meshrun("ls", step)["tensors"]}
    found = sorted((name, size) for name, size in listed.items())
    check(found == [(f"large{i}", size) for i, size in enumerate(sizes)], f"ls: {found}")
    verified = _meshrun("verify", step)
    check(verified["sound"] and verified["bytes"] > sum(sizes), f"verify: {verified}")
    read = subprocess.run([built.python(), "-c", READS_A_RANGE, step / "model.safetensors", str(len(sizes))], capture_output=True, text=True,
                          env=built.environ(requirements=[ITEMS / "safetensors-requirements.txt"]))
    check(read.returncode == 0, f"Python's safetensors: {read.stderr[-300:]}")


def _damage_is_found(step, name):
    """In the last byte of the tensor that is written last."""
    with open(step / "model.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    damages = _meshrun("verify", step, code=1)["damages"]
    check(len(damages) == 1 and name in damages[0]["message"], f"a damaged byte of {name}: {damages}")


def _large(site, kind, sizes, save):
    """Saved by 2 ranks, loaded on 1 and on 3, changed by 3 in one element and saved again."""
    directory = site.directory / kind
    directory.mkdir()
    is_cut = kind == "cut"
    last = f"large{len(sizes) - 1}"
    side = _ranks(site, directory, 2, kind, *sizes)
    side.do("fill")
    expected = _sums(side, is_cut)
    figures = {save: _do(side, save)}
    check(_sums(side, is_cut) == expected, f"{kind}: {save} changes elements")
    side.end()
    one, two = directory / "run/step-1", directory / "run/step-2"
    _looked_at(one, sizes)
    for ranks in (1, 3):
        side = _ranks(site, directory, ranks, kind, *sizes)
        check(_sums(side, is_cut) != expected, "the sums do not tell zeros from values")
        figures[f"load on {ranks}"] = _do(side, "load")
        found = _sums(side, is_cut)
        check(found == expected, f"{kind}, {ranks} ranks: {sorted(name for name in expected if found[name] != expected[name])} differ")
        if ranks == 3:
            side.do("change")
            _do(side, "save")
        side.end()
    different = _meshrun("diff", one, two, code=1)["different"]
    check([(each["name"], each["differing"]) for each in different] == [(last, 1)], f"diff after one element has changed: {different}")
    _damage_is_found(two, last)
    shutil.rmtree(directory)
    for what, each in figures.items():
        # save_async copies a share of what all ranks have.
        most = PEAK + (sum(sizes) // 2 if what == "async" else 0)
        check(each["peak"] <= most, f"{kind}: a rank grows by {each['peak'] >> 20} MiB in {what}")
    return (f"{kind}, {sum(sizes) >> 20} MiB in {len(sizes)}: " +
            ", ".join(f"{what} {each['whole']:.1f} s" for what, each in figures.items()) +
            f", a rank grows by {max(each['peak'] for each in figures.values()) >> 20} MiB at most")


def _header_bytes(file):
    with open(file, "rb") as opened:
        return int.from_bytes(opened.read(8), "little")


def _many(site, count):
    """So many small parameters, and Adam."""
    directory = site.directory / "many"
    directory.mkdir()
    side = _ranks(site, directory, 2, "small", count)
    side.do("fill")
    expected = _sums(side, False)
    check(set(expected) == {"layers", "exp_avg", "exp_avg_sq", "step"} and expected["step"] == 7 * count, f"state: {expected}")
    save, save_async = _do(side, "save"), _do(side, "async")
    side.end()
    one, two = directory / "run/step-1", directory / "run/step-2"
    check(_meshrun("diff", one, two)["bitEqual"] == 4 * count, "save and save_async write other bytes")
    check(_meshrun("verify", directory / "run")["sound"], "small tensors are not what was written")
    side = _ranks(site, directory, 2, "small", count)
    load = _do(side, "load")
    found = _sums(side, False)
    check(found == expected, f"{count} small tensors: {found}, saved {expected}")
    side.end()
    headers = [_header_bytes(two / f"{name}.safetensors") for name in ("model", "optimizer")]
    manifest = (two / "manifest.json").stat().st_size
    shutil.rmtree(directory)
    return (f"{count} small tensors with Adam: save {save['call']:.2f} s, save_async {save_async['call']:.2f} s and whole after "
            f"{save_async['whole']:.2f}, load {load['call']:.2f} s, manifest {manifest / 1e3:.0f} KB, headers {headers[0] / 1e6:.1f} and "
            f"{headers[1] / 1e6:.1f} MB")


def _damaged_files(site):
    """What tests of damaged files and libFuzzer say."""
    tests, _ = tested("//tests/core/checkpoint:checkpoint_test", "*Damage*:*Truncat*")
    torch, _ = tested("//tests/core/checkpoint:torch_files_test", "*Damage*:TorchPickleTest.*", timeout=7200,
                      env={"MESHRUN_TORCH_FUZZ_ROUNDS": str(ROUNDS), "MESHRUN_TORCH_FUZZ_SEED": "7"})
    return f"{len(tests) + len(torch)} tests of damaged files, {ROUNDS} damaged samples of torch; {fuzzed(site, READERS, FUZZED_SECONDS)}"


def run(site):
    if skip_soak():
        rows = 32 * ROW_BYTES
        said = [_large(site, "cut", [rows, 2 * rows, 2 * rows + BEYOND], "save"), _large(site, "whole", [rows + BEYOND], "async"),
                _many(site, 2000)]
        return passed("; ".join(said), left_out="2 and 4 GiB, 50,000 small ones, fuzzing for minutes")
    gib = 1 << 30
    free = shutil.disk_usage(site.directory).free
    check(free > 24 * gib, f"two checkpoints of 10 GiB need more than the {free / gib:.0f} GiB that are free in {site.directory}")
    return passed("; ".join([_large(site, "cut", [2 * gib, 4 * gib, 4 * gib + BEYOND], "save"),
                             # In the memory of each rank: 3 of them have 12 GiB.
                             _large(site, "whole", [4 * gib + BEYOND], "async"),
                             _many(site, 50_000), _damaged_files(site)]))
