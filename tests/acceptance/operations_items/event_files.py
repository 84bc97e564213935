"""Item 5: the event files of geoid and of a Python job hold each reported point once. A reader of our own follows TFRecord's frame and
its checksums; the soak run also reads them with TensorBoard's. `meshrun metrics --csv` gives the same curve."""

import csv
import io
import json
import math
import pathlib
import struct
import subprocess
import sys

from harness import ROOT, check, meshrun, passed, skip_soak

sys.path.append(str(ROOT / "tests/soak"))
from environments import environment

REQUIREMENTS = pathlib.Path(__file__).with_name("tensorboard-requirements.txt")
STEPS = 40
# Faster than the daemon passes reports on, and with values that a float holds exactly.
PYTHON = f"""
import json, os, socket, time
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
out.connect(os.environ["MESHRUN_REPORT"])
for step in range(1, {STEPS} + 1):
    out.send(json.dumps({{"step": step, "loss": 1 / 2 ** (step % 8), "rank": int(os.environ["RANK"]),
                         "bad": float("nan")}}).encode())
    time.sleep(0.005)
"""
_TABLE = []
for _byte in range(256):
    _crc = _byte
    for _ in range(8):
        _crc = (_crc >> 1) ^ (0x82F63B78 if _crc & 1 else 0)
    _TABLE.append(_crc)


def masked(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def fields(message):
    """Number and value of each field of a protobuf message."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(message, at)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                check(kind == 2, f"a field of kind {kind}")
                size, at = varint(message, at)
            value, at = message[at:at + size], at + size
        yield key >> 3, value


def events(path):
    data = path.read_bytes()
    while data:
        length, = struct.unpack("<Q", data[:8])
        body = data[12:12 + length]
        check(struct.unpack("<I", data[8:12])[0] == masked(data[:8]), f"{path}: checksum of a length")
        check(struct.unpack("<I", data[12 + length:16 + length])[0] == masked(body), f"{path}: checksum of a record")
        data = data[16 + length:]
        yield dict(fields(body))


def points(directory):
    """Those of the one event file there."""
    files = list(directory.glob("events.out.tfevents.*"))
    check(len(files) == 1, f"{directory} has {len(files)} event files")
    return points_of(files[0])


def points_of(file):
    """{tag: [(step, value)]}"""
    records = list(events(file))
    check(records[0].get(3) == b"brain.Event:2", f"{file} begins with {records[0]}")
    found = {}
    for record in records[1:]:
        for _, value in fields(record.get(5, b"")):
            value = dict(fields(value))
            found.setdefault(value[1].decode(), []).append((record.get(2, 0), struct.unpack("<f", value[2])[0]))
    return found


def trained(site, curves, words):
    """Runs a job to its end. Returns its directory of event files."""
    before = set(curves.iterdir()) if curves.exists() else set()
    code, out, err, _ = site.run([meshrun(), "run", "--nproc-per-node", 2, "--tensorboard", curves, *words], timeout=180)
    check(code == 0, f"exit code {code}: {err[-400:]}")
    new = set(curves.iterdir()) - before
    check(len(new) == 1, f"{curves} has {len(new)} new directories")
    return new.pop()


def read_by_tensorboard(directory):
    program = ("import json, sys\nfrom tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
               "a = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})\na.Reload()\n"
               "print(json.dumps({t: [(p.step, p.value) for p in a.Scalars(t)] for t in a.Tags()['scalars']}))")
    done = subprocess.run([environment(REQUIREMENTS) / "python", "-c", program, directory], capture_output=True, text=True)
    check(done.returncode == 0, f"TensorBoard's reader: {done.stderr[-400:]}")
    return {tag: [tuple(p) for p in found] for tag, found in json.loads(done.stdout).items()}


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(
        len(ours[tag]) == len(theirs[tag]) and all(a[0] == b[0] and (a[1] == b[1] or math.isnan(a[1]) and math.isnan(b[1]))
                                                   for a, b in zip(ours[tag], theirs[tag])) for tag in ours)


def run(site):
    curves = site.directory / "curves"
    script = site.script("reports.py", PYTHON, mode=0o644)
    python = trained(site, curves, [script])
    for rank in range(2):
        found = points(python / f"rank{rank}")
        check(found["loss"] == [(step, 1 / 2 ** (step % 8)) for step in range(1, STEPS + 1)], f"rank {rank}'s losses: {found['loss']}")
        check(found["rank"] == [(step, float(rank)) for step in range(1, STEPS + 1)], f"rank {rank}'s metrics: {found['rank']}")
        check(len(found["bad"]) == STEPS and all(math.isnan(value) for _, value in found["bad"]), "NaN is kept")
        check(len(found["meshrun/step_seconds"]) == STEPS - 1, f"step times: {found.get('meshrun/step_seconds')}")

    geoid = trained(site, curves, ["--job", "geoid", "--", "--steps", STEPS])
    reporting = sorted(geoid.iterdir())
    check(reporting, "geoid wrote no event file")
    losses = points(reporting[0])["loss"]
    # It reports each tenth step.
    check([step for step, _ in losses] == list(range(10, STEPS + 1, 10)), f"geoid's steps: {[step for step, _ in losses]}")
    check(losses[-1][1] < losses[0][1], f"geoid's loss goes from {losses[0][1]} to {losses[-1][1]}")

    # The coordinator's own curve, of a job that a cluster keeps.
    site.cluster(1)
    code, out, err, _ = site.run([meshrun(), "submit", "--nproc-per-node", 1, script])
    check(code == 0, f"submit: {err[-300:]}")
    job = out.split()[0]
    code, out, err, _ = site.run([meshrun(), "wait", job])
    check(code == 0, f"wait {job}: {err[-300:]}")
    code, out, err, _ = site.run([meshrun(), "metrics", job, "--csv"])
    check(code == 0, f"metrics: {err}")
    rows = list(csv.DictReader(io.StringIO(out)))
    # NaN is kept here too, and the last step is always there.
    check(rows and list(rows[0]) == ["time", "step", "loss", "bad", "rank"], f"metrics --csv: {out[:200]}")
    check(all(math.isnan(float(row["bad"])) for row in rows), f"metrics --csv: {out[:400]}")
    check(rows[-1]["step"] == str(STEPS), f"metrics --csv ends with {rows[-1]}")
    check(all(float(row["loss"]) == 1 / 2 ** (int(row["step"]) % 8) for row in rows), f"metrics --csv: {out[:400]}")

    said = f"{STEPS} points of each rank of a Python job and {len(losses)} of geoid, once and in order; metrics --csv"
    if skip_soak():
        return passed(said, left_out="TensorBoard's own reader")
    for directory in (python / "rank0", python / "rank1", *reporting):
        check(same(points(directory), read_by_tensorboard(str(directory))), f"TensorBoard reads {directory} differently")
    return passed(f"{said}; TensorBoard 2.21 reads the same")
