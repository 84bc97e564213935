"""Item 4: each flag of torchrun's has its effect, is accepted where nothing depends on it, or is refused with what to use. The list
of flags is that of the release in torchrun_flags.json; the soak run compares it with the torchrun that is installed."""

import json
import os
import pathlib
import re
import subprocess
import sys

from harness import ROOT, binary, check, meshrun, not_applicable, passed, skip_soak

sys.path.append(str(ROOT / "tests/soak"))
from environments import TORCH, Missing, environment

TABLE = json.loads(pathlib.Path(__file__).with_name("torchrun_flags.json").read_text())
SAYS = "import os, sys; print(*(os.environ[name] for name in sys.argv[1:]), flush=True)\n"


def effects(site):
    """Flag, words before the program, the program, exit code, and what the output matches."""
    script = site.script("says.py", SAYS, mode=0o644)
    program = site.script("says.sh", '#!/bin/sh\necho "shell $RANK"\n')
    site.script("package.py", SAYS, mode=0o644)
    says = [script, "RANK", "LOCAL_RANK", "WORLD_SIZE", "ROLE_NAME"]
    two = ["--nproc-per-node", 2]
    logs = site.directory / "logs"
    fails = site.script("fails.sh", '#!/bin/sh\n[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exit 3\necho restarted\n')
    lasts = site.script("lasts.py", "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                        "time.sleep(30 if os.environ['RANK'] == '0' else 1)\nraise SystemExit(4)\n", mode=0o644)
    yield "--nproc-per-node", two, says, 0, r"(?s)(?=.*0 0 2 default)(?=.*1 1 2 default)"
    yield "--standalone", [*two, "--standalone", "--node-rank", 3], says, 0, "0 0 2"
    yield "--nnodes", ["--nnodes", 2], says, 2, "call it on each host"
    yield "--nnodes", ["--nnodes", "1:2"], says, 0, "0 0 1"
    for flag in ("--node-rank", "--master-addr", "--master-port"):
        given = {"--node-rank": 1, "--master-addr": "127.0.0.1", "--master-port": 1, flag: 70000 if flag == "--master-port" else "x" if
                 flag == "--node-rank" else "no.such.host.invalid"}
        words = [word for pair in given.items() for word in pair]
        yield flag, ["--nnodes", 2, *words, "--rdzv-conf", f"join_timeout=1,secret_file={site.directory}/none"], says, None, re.escape(
            str(given[flag])) if flag != "--master-addr" else "did not appear|no.such.host"
    yield "--local-addr", ["--local-addr", "127.0.0.1"], says, 0, "no effect here"
    yield "--rdzv-backend", ["--nnodes", 2, "--rdzv-backend", "etcd", "--rdzv-endpoint", "h"], says, 2, "write static or c10d"
    yield "--rdzv-endpoint", ["--nnodes", 2, "--rdzv-endpoint", "h:0"], says, 2, "--rdzv-endpoint 0: write"
    yield "--rdzv-conf", ["--nnodes", 2, "--rdzv-endpoint", "h:1", "--rdzv-conf", "nonsense=1"], says, 2, "there is no nonsense"
    yield "--max-restarts", ["--max-restarts", 1], [fails], 0, "restarted"
    yield "--event-log-handler", ["--event-log-handler", "console"], says, 2, "meshrun events"
    yield "--role", ["--role", "trainer"], says, 0, "0 0 1 trainer"
    yield "-m", ["-m"], ["package", "RANK"], 0, "0"
    yield "--module", ["--module"], ["package", "RANK"], 0, "0"
    yield "--no-python", ["--no-python"], [program], 0, "shell 0"
    yield "--run-path", ["--run-path"], says, 0, "0 0 1"
    yield "--log-dir", ["--log-dir", logs], says, 0, f"is kept in {re.escape(str(logs))}"
    for flag in ("-r", "--redirects"):
        yield flag, ["--log-dir", logs, flag, 1], says, 0, r"(?s)^(?!.*0 0 1 default)"
    for flag in ("-t", "--tee"):
        yield flag, ["--log-dir", logs, flag, 1], says, 0, "0 0 1 default"
    yield "--local-ranks-filter", [*two, "--local-ranks-filter", 1], says, 0, r"(?s)^(?!.*0 0 2 default).*1 1 2 default"
    yield ("--log-line-prefix-template", [*two, "--log-line-prefix-template", "<${role_name}.${local_rank}> "], says, 0,
           r"(?s)(?=.*<default\.0> 0 0 2)(?=.*<default\.1> 1 1 2)")
    yield "--signals-to-handle", ["--signals-to-handle", "SIGKILL"], says, 2, "cannot be handled"
    yield "--shutdown-timeout", [*two, "--shutdown-timeout", 1], [lasts], 1, "exit code 4"
    yield "--shutdown-timeout", ["--shutdown-timeout", "soon"], says, 2, "write a whole number"
    yield "--numa-binding", ["--numa-binding", "node"], says, 0, "0 0 1"
    yield "--virtual-local-rank", [*two, "--virtual-local-rank"], says, 0, r"(?s)(?=.*0 0 2 default)(?=.*1 0 2 default)"


CORES = "import os\nprint(os.environ['RANK'], *sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'], flush=True)\n"


def cores(site):
    """--numa-binding: each rank's cores, in a job without GPUs, on as many nodes as this host has."""
    script = site.script("cores.py", CORES, mode=0o644)

    def ranks(mode, count):
        code, out, err, _ = site.run([meshrun(), "run", "--nproc-per-node", count, "--slots", 64, "--numa-binding", mode, script])
        found = {}
        for line in out.splitlines() if code == 0 else ():
            rank, *numbers = map(int, line.rpartition(": ")[2].split())
            found[rank] = numbers[:-1]
        return found, err

    mine = sorted(os.sched_getaffinity(0))
    for mode in ("node", "socket", "core-complex"):
        found, err = ranks(mode, 2)
        check(sorted(found) == [0, 1] and all(set(each) <= set(mine) for each in found.values()), f"--numa-binding {mode}: {found} {err}")
    found, err = ranks("exclusive", 2)
    apart = sorted(found) == [0, 1] and found[0] and found[1] and not set(found[0]) & set(found[1])
    check(apart or "share the physical cores of NUMA node" in err, f"--numa-binding exclusive: {found} {err}")
    _, err = ranks("exclusive", 2 * len(mine) + 1)
    check("share the physical cores of NUMA node" in err, f"more ranks than cores: {err}")
    code, _, err, _ = site.run([meshrun(), "run", "--numa-binding", "nearby", script])
    check(code == 2 and "write node, socket, exclusive or core-complex" in err, err)
    return f"exclusive: {found[0]} and {found[1]}" if apart else "one core for all"


def gpus(site):
    """--gpu-ids: those GPUs of the host alone, in this order, on a host that a library says to have six."""
    driver = site.directory / "driver"
    driver.mkdir()
    (driver / "libnvidia-ml.so.1").symlink_to(binary("//tests/acceptance/ranks:libtest_gpus.so"))
    env = {**site.env, "LD_LIBRARY_PATH": str(driver), "MESHRUN_TEST_GPUS": "6"}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    script = site.script("gpus.py", "import os\nprint(*(os.environ[n] for n in ('RANK', 'LOCAL_RANK', 'CUDA_VISIBLE_DEVICES', 'MESHRUN_GPUS')))\n",
                         mode=0o644)

    def run(*words, visible=None):
        done = subprocess.run([meshrun(), "run", *map(str, words), script], cwd=site.directory, text=True, stdin=subprocess.DEVNULL,
                              env={**env, **({"CUDA_VISIBLE_DEVICES": visible} if visible else {})}, capture_output=True, timeout=60)
        return done.returncode, sorted(line.rpartition(": ")[2] for line in done.stdout.splitlines()), done.stderr

    code, lines, err = run("--gpu-ids", "1,3,5", "--nproc-per-node", "gpu")
    check(code == 0 and lines == ["0 0 1,3,5 1", "1 1 1,3,5 3", "2 2 1,3,5 5"], f"--gpu-ids 1,3,5: {code} {lines} {err}")
    code, lines, err = run("--gpu-ids", "4,2", "--nproc-per-node", 2)
    check(code == 0 and lines == ["0 0 4,2 4", "1 1 4,2 2"], f"--gpu-ids 4,2: {code} {lines} {err}")
    for words, visible, says in ((("--gpu-ids", "1,7"), None, "there is no GPU 7 here"), (("--gpu-ids", "1,3"), "0,1", "there is no GPU 3 here"),
                                 (("--gpu-ids", "1,1"), None, "names GPU 1 twice"), (("--gpu-ids", "1,,3"), None, "for example 1,3,5"),
                                 (("--gpu-ids", "1,3", "--nproc-per-node", 3, "--gpus-per-proc", 1), None, "GPU")):
        code, lines, err = run(*words, visible=visible)
        check(code in (1, 2) and says in err, f"{' '.join(map(str, words))}: exit code {code}: {lines} {err}")


def check_effects(site):
    seen = set()
    for flag, words, program, code, pattern in effects(site):
        seen.add(flag)
        done = subprocess.run([str(word) for word in (meshrun(), "run", *words, *program)], cwd=site.directory, env=site.env, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        check(code in (None, done.returncode) and re.search(pattern, done.stdout),
              f"{flag}: meshrun run {' '.join(map(str, words))} exits {done.returncode} and says {done.stdout[-400:]!r}")
    for flag, kind in TABLE["flags"].items():
        if kind == "effect":
            check(flag in seen, f"{flag}: its effect is not shown")
            continue
        code, _, err, _ = site.run([meshrun(), "run", flag, "x", "--", "true"])
        wanted = (2, "is torchrun's alone: ") if kind == "refused" else (0, "has no effect here")
        check(code == wanted[0] and wanted[1] in err, f"{flag}: exit code {code}: {err}")
    return len(TABLE["flags"])


def flags_of_torchrun(torchrun):
    text = subprocess.run([torchrun, "--help"], capture_output=True, text=True, check=True).stdout
    listed = re.findall(r"(?<![\w-])(--?[a-z][a-z-]*)(?![\w-])", text[text.index("options:"):])
    declared = re.findall(r"^  (-[^\n]*)", text, re.MULTILINE)
    return {flag for line in declared for flag in re.findall(r"(?<![\w-])(--?[a-z][a-z-]*)(?![\w_-])", line)} & set(listed)


def run(site):
    count = check_effects(site)
    bound = cores(site)
    gpus(site)
    figures = (f"{count} flags of torchrun {TABLE['torch']}: each has its effect, or a sentence; --numa-binding {bound}; --gpu-ids 1,3,5 of "
               "six")
    if skip_soak():
        return passed(figures, "the comparison with torchrun's own list")
    try:
        torchrun = environment(TORCH) / "torchrun"
    except Missing as missing:
        return not_applicable(str(missing))
    theirs = flags_of_torchrun(torchrun) - {"-h", "--help"}
    unknown = theirs - set(TABLE["flags"])
    gone = {flag for flag in TABLE["flags"] if flag not in theirs and flag != "--print-completion"}
    check(not unknown and not gone, f"torchrun has {sorted(unknown)} beyond the table, and lacks {sorted(gone)}")
    return passed(f"{figures}; its own --help lists the same {len(theirs)}")
