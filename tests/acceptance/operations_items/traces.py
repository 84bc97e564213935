"""Item 6: one trace of two ranks on two hosts, one of them with its clock 3 s ahead. A reader of ours checks the format; each collective
is on both ranks, with the same operation and bytes, and at the same time within 5 ms. `meshrun stack` names the lines of a Python rank
and of a C++ rank within 2 s. In the soak run Perfetto loads the trace, in Chromium."""

import json
import pathlib
import shutil
import statistics
import subprocess
import sys

from doors_items.output_and_hangs import LOCK, NATIVE, line_of, own_package
from harness import check, lenient, meshrun, passed, skip_soak, wait_until

STEPS = 5
AHEAD = 3
# Clocks of hosts meet within this.
ALIGNED_MS = lenient(5)
STACK_SECONDS = lenient(2)
FAKETIME = ("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


def parse(text):
    """A trace in the format of Chrome's trace viewer: {process: {"name", "threads": {number: name}, "slices": [...]}} and instants."""
    trace = json.loads(text)
    check(trace["displayTimeUnit"] == "ms" and isinstance(trace["traceEvents"], list), "not a trace")
    processes, instants = {}, []
    for event in trace["traceEvents"]:
        process = processes.setdefault(event["pid"], {"name": "", "threads": {}, "slices": []})
        phase = event["ph"]
        if phase == "M":
            if event["name"] == "process_name":
                process["name"] = event["args"]["name"]
            elif event["name"] == "thread_name":
                process["threads"][event["tid"]] = event["args"]["name"]
        elif phase == "X":
            check(event["dur"] >= 0 and isinstance(event["ts"], (int, float)), f"a slice without a time: {event}")
            process["slices"].append(event)
        else:
            check(phase == "i" and event["s"] == "g", f"an event of phase {phase}")
            instants.append(event)
    for process in processes.values():
        by_thread = {}
        for slice_ in process["slices"]:
            check(slice_["tid"] in process["threads"], f"a slice on a thread without a name: {slice_}")
            by_thread.setdefault(slice_["tid"], []).append(slice_)
        for slices in by_thread.values():
            nested = []
            for slice_ in sorted(slices, key=lambda s: (s["ts"], -s["dur"])):
                while nested and nested[-1]["ts"] + nested[-1]["dur"] <= slice_["ts"] + 1e-3:
                    nested.pop()
                check(not nested or slice_["ts"] + slice_["dur"] <= nested[-1]["ts"] + nested[-1]["dur"] + 1e-3,
                      f"slices cross: {nested[-1] if nested else None} and {slice_}")
                nested.append(slice_)
    return processes, instants, trace["otherData"]


def collectives(process):
    """{(group, number): slice}, and when all ranks had come to each."""
    found, met = {}, {}
    waits = {(s["tid"], s["ts"]): s for s in process["slices"] if s["cat"] == "wait"}
    for slice_ in process["slices"]:
        if slice_["cat"] != "collective":
            continue
        key = slice_["args"]["group"], slice_["args"]["sequence"]
        check(key not in found, f"{key} is twice on {process['name']}")
        found[key] = slice_
        wait = waits.get((slice_["tid"], slice_["ts"]))
        met[key] = wait["ts"] + wait["dur"] if wait else slice_["ts"]
    return found, met


def traced(site):
    faketime = next((path for path in FAKETIME if pathlib.Path(path).exists()), None)
    check(faketime, "libfaketime is not installed: tools/setup")
    site.coordinator()
    site.worker("n1")
    with_clock = dict(site.env)
    site.env.update(LD_PRELOAD=faketime, FAKETIME=f"+{AHEAD}s")
    site.worker("n2")
    site.env = with_clock
    code, out, err, _ = site.run([meshrun(), "submit", "--nodes", 2, "--job", "geoid", "--", "--steps", 100000])
    check(code == 0, f"submit: {err[-300:]}")
    job, file = out.split()[0], site.directory / "trace.json"
    # It reports each tenth step. The clocks have met often by then.
    code, out, err, _ = site.run([meshrun(), "trace", job, "--steps", STEPS, "--wait", "120s", "--to", file], timeout=180)
    check(code == 0, f"trace: {err[-300:]}")
    processes, instants, about = parse(file.read_text())
    ranks = [process for process in processes.values() if process["name"].startswith("rank ")]
    check(len(ranks) == 2 and {r["name"].split()[-1] for r in ranks} == {"n1", "n2"}, f"processes: {[p['name'] for p in processes.values()]}")
    for rank in ranks:
        check([s for s in rank["slices"] if s["cat"] == "step"], f"{rank['name']} has no step")
    (first, first_met), (second, second_met) = map(collectives, ranks)
    # At the ends of the window one rank may have one more.
    both = sorted(first.keys() & second.keys(), key=lambda key: first[key]["ts"])
    check(len(both) >= STEPS and len(first.keys() ^ second.keys()) <= 4,
          f"{len(first)} and {len(second)} collectives, {len(both)} of them on both")
    for key in both:
        a, b = first[key], second[key]
        check(a["name"] == b["name"] and a["args"]["bytes"] == b["args"]["bytes"], f"{key} differs: {a} and {b}")
    apart = [abs(first_met[key] - second_met[key]) / 1e3 for key in both]
    check(statistics.median(apart) <= ALIGNED_MS, f"the ranks meet {statistics.median(apart):.2f} ms apart (target {ALIGNED_MS})")
    for key in both:
        began = max(first[key]["ts"], second[key]["ts"])
        ended = min(first[key]["ts"] + first[key]["dur"], second[key]["ts"] + second[key]["dur"])
        check(ended >= began - ALIGNED_MS * 1e3, f"{key} ends on one rank {(began - ended) / 1e3:.2f} ms before the other one begins it")
    code, _, err, _ = site.run([meshrun(), "cancel", "--now", job])
    return file, (f"{len(both)} collectives on both ranks with equal bytes, met {statistics.median(apart):.2f} ms apart (host n2 is {AHEAD} s ahead); "
                  f"compared to within {about['clock_error_seconds'] * 1e3:.2f} ms")


def stacks(site):
    # Runs of this machine, not the cluster of the trace.
    site.env.pop("MESHRUN_COORDINATOR", None)
    site.env["PYTHONPATH"] = str(own_package(site))
    python = site.script("lock.py", LOCK)
    source, native = site.script("native.cc", NATIVE), site.directory / "native"
    built = subprocess.run(["g++", "-g1", "-O1", "-fno-inline", "-o", native, source], capture_output=True, text=True)
    check(built.returncode == 0, built.stderr[-300:])
    took = []
    for what, command, function, line in (("Python", [sys.executable, python], "stand_still", f"lock.py:{line_of(LOCK)}"),
                                          ("C++", [native], "solver::stand_still", f"native.cc:{line_of(NATIVE)}")):
        process = site.start([meshrun(), "run", "--nproc", 2, "--hang-timeout", "0s", "--name", what.lower().replace("+", "p"), "--", *command],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        name = what.lower().replace("+", "p")

        def named():
            code, out, _, seconds = site.run([meshrun(), "stack", name], timeout=30)
            took[len(took):] = [(what, seconds)] if code == 0 and function in out and line in out else []
            return took and took[-1][0] == what

        wait_until(named, 30, f"meshrun stack names {function} and {line} of a {what} rank")
        check(took[-1][1] <= STACK_SECONDS, f"stack of a {what} rank took {took[-1][1]:.1f} s (target {STACK_SECONDS})")
        process.terminate()
        process.wait(20)
    return ", ".join(f"{what} {seconds:.1f} s" for what, seconds in took)


def loaded_in_chromium(site, file):
    """Perfetto's page shows all slices and instants of the trace, and finds no fault in it."""
    from operations_items import perfetto  # noqa: PLC0415  # the soak run alone needs its packages
    processes, instants, _ = parse(file.read_text())
    found = perfetto.load(site.directory, file)
    written = {}
    for event in [slice_ for process in processes.values() for slice_ in process["slices"]] + instants:
        written[event["cat"]] = written.get(event["cat"], 0) + 1
    check(found["slices"] == written, f"Perfetto shows {found['slices']}, and the trace has {written}")
    names = {process["name"] for process in processes.values()}
    check(names <= set(found["processes"]), f"Perfetto shows {found['processes']}, and the trace has {sorted(names)}")
    return f"Perfetto in Chromium shows its {sum(written.values())} slices and instants, and finds no fault"


def run(site):
    check(shutil.which("g++"), "g++ is not installed")
    file, said = traced(site)
    said += f"; stack: {stacks(site)}"
    return passed(said, left_out="the trace in Chromium") if skip_soak() else passed(f"{said}; {loaded_in_chromium(site, file)}")
