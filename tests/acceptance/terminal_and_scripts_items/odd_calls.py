"""Item 5: thirty wrong or odd calls, one by one, with text and exit code."""

import json
import os

from harness import check, meshrun, passed

JOB_FILES = {
    "quote.yaml": ('name: a\ncommand: "./train --x\nnodes: 2\n', "quote.yaml:2:10: this quote is never closed"),
    "twice.yaml": ("command: ./train\nenv:\n  A: 1\n  A: 2\n", "twice.yaml:4:3: A: set before, at line 3"),
    "mesh.yaml": ("command: ./train\nmesh: {dp: 2, dp: 3}\n", "mesh.yaml:2:15: dp: set before, at line 2"),
    "second.yaml": ("command: ./train\n---\ncommand: ./b\n", "second.yaml:3:1: a second document begins here"),
    "zero.yaml": ("command: ./train\nname: a\0b\n", "zero.yaml:2:1: a zero byte"),
    "rank.yaml": ("command: ./train\nenv: {RANK: 7}\n", "RANK is set by meshrun for each rank"),
}


def calls(site, job, bad):
    """(words, or a line for the shell, exit code, what stdout or stderr says)."""
    cores = os.cpu_count()
    yield from ((["submit", "-f", name], 2, text) for name, (_, text) in JOB_FILES.items())
    yield ["submit", "--follow", "-f", "below.yaml"], 0, "by python3 in below\n"
    yield ["submit", "-f", "/dev/zero"], 2, "/dev/zero:1:1: a zero byte"
    yield ["submit", "-f", "."], 2, "Is a directory"
    yield ["run", "nosuch.py"], 2, "nosuch.py: no such file"
    yield ["run", "--working-dir", "/nonexist", "true"], 2, "/nonexist: no such directory"
    yield ["run", "--env", "RANK=7", "true"], 2, "RANK is set by meshrun for each rank"
    yield ["run", "--nproc", cores * 8 + 1, "true"], 2, "(8 for each of"
    yield ["run", "--nproc", cores + 1, "true"], 0, f"{cores + 1} ranks share {cores} core"
    yield ["run", "--event-log-handler", "console", "true"], 2, "meshrun events"
    yield ["run", "--signals-to-handle", "SIGKILL", "true"], 2, "SIGKILL cannot be handled by any program"
    yield ["run", "--role", "r", "--", "sh", "-c", "echo $ROLE_NAME"], 0, "r\n"
    yield ["run", "--nnodes", 2, "true"], 2, "call it on each host with --node-rank"
    yield ["run", "--nnodes", 2, "--node_rank", 1, "--master_addr", "h", "true"], 2, "needs the secret that node 0 at h:29500"
    yield ["run", "--nnodes", 2, "--rdzv-backend", "etcd", "--rdzv-endpoint", "h", "true"], 2, "write static or c10d"
    yield ["run", "--batch-size", 3, "true"], 2, "there is no flag --batch-size (flags"
    yield ["submit", "--nproc", 1000, "--", "true"], 0, "the present nodes cannot run it"
    yield ["submit", "--must-fit", "--nproc", 1000, "--", "true"], 2, "could never run here"
    yield ["submit", "--export", "NONE,A=1", "--", "true"], 2, "NONE stands alone"
    yield ["submit", "--export", "NOT_SET_HERE", "--", "true"], 2, "NOT_SET_HERE is not set here"
    yield ["wait", "nobody"], 2, "there is no job 'nobody': 'meshrun ps --all' lists"
    yield ["wait", "--at-most", "100ms", job], 124, f"{job} is RUNNING after 100ms"
    yield ["wait", bad], 1, f"{bad}  FAILED"
    yield ["logs", "-f", bad], 1, "broken"
    yield ["logs", "--tail", "-1", bad], 2, "write a number of lines"
    yield ["logs", "-o", "json", bad], 0, '"rank":0,"stream":"stdout",'
    yield ["run", "-o", "json", "--", "sh", "-c", "exit 143"], 1, '"exitCode": 143'
    yield ["run", "-o", "yaml", "true"], 2, "--output yaml: write table or json"
    yield ["signal", job, "NOTHING"], 2, "'NOTHING' is not a signal"
    yield ["signal", job, "USR1", "--ranks", 5], 2, "has no rank 5"
    yield ["signal", bad, "USR1"], 2, "is FAILED: only ranks that run take a signal"
    yield ["ps", "-a", "--limit", 1], 0, "these are the first 1: --limit N shows more"
    yield ["ps", "--limit", 0], 2, "--limit 0: write a whole number from 1 up"
    yield ["run", "--time-limit", 0, "true"], 2, "--time-limit 0: write a time above 0"
    yield ["run", "--slots", 0, "true"], 2, "--slots 0: write a whole number from 1 to"
    full, closed = "No space left on device", "standard output cannot be written: Bad file descriptor"
    yield "submit --name unseen -- true > /dev/full", 74, "submitted unseen-"
    yield f"wait {bad} > /dev/full", 1, full
    yield "ps -a --limit 1 > /dev/full", 74, full
    yield "ps -a >&-", 74, closed
    yield "run -- echo lost >&-", 74, closed
    yield "run --stdin 0 -- cat 0<&-", 0, "succeeded"
    yield (["run", "--nnodes", 2, "--node-rank", 0, "--master-addr", "127.0.0.1", "--rdzv-conf", "secretfile=x", "true"], 2,
           "there is no secretfile: did you mean 'secret_file'?")
    yield ["run", "."], 2, "is a directory, not a program"
    yield ["submit", "--export", ",", "--", "true"], 2, "--export ,: a name is empty"
    yield ["submit", "--name", "x\ny", "--", "true"], 2, "'x\\x0ay' is not a job name"
    yield ["completion", "tcsh"], 2, "write bash, zsh or fish"
    yield ["dev", "up", "--port", 7481], 2, "there is no flag --port"
    yield ["dev", "up", "--slots", 7], 2, "run 'meshrun dev down' first"
    yield ["lsx"], 2, "there is no command 'lsx'; see"


def run(site):
    program = meshrun()
    site.cleanup.callback(lambda: site.run([program, "dev", "down", "--purge"]))
    code, _, err, _ = site.run([program, "dev", "up", "--slots", 4])
    check(code == 0, f"dev up: {err}")
    for name, (text, _) in JOB_FILES.items():
        (site.directory / name).write_text(text)
    (site.directory / "below").mkdir()
    (site.directory / "below/train.py").write_text("import os\nprint('by python3 in', os.path.basename(os.getcwd()))\n")
    (site.directory / "below.yaml").write_text("command: train.py\nworking_dir: below\n")
    job = site.run([program, "submit", "--", "sleep", 600])[1].strip()
    bad = site.run([program, "submit", "--", "sh", "-c", "echo broken; kill -9 $$"])[1].strip()
    check(job and bad and " " not in job + bad, f"submit printed {job!r} and {bad!r}")
    site.run([program, "wait", bad])
    count = 0
    for words, expected, text in calls(site, job, bad):
        line = isinstance(words, str)
        code, out, err, _ = site.run(["sh", "-c", f"{program} {words}"] if line else [program, *words])
        shown = f"meshrun {words if line else ' '.join(map(str, words))}: exit code {code}: {out}{err}"
        check(code == expected, f"{shown} (expected {expected})")
        check(text in out + err, f"{shown} (expected: {text})")
        check("meshrun: meshrun:" not in err and "NODE_STATE_" not in err, shown)
        count += 1
    code, out, err, _ = site.run([program, "logs", "--tail", 0, bad])
    check((code, out) == (0, ""), f"logs --tail 0: {code}: {out}{err}")
    exit_ = json.loads(site.run([program, "describe", "-o", "json", bad])[1])["job"]["failure"]["exit"]
    check(exit_["signal"] == 9 and "exitCode" not in exit_ and exit_["at"].endswith("Z"), f"JSON of a rank killed: {exit_}")
    count += 2
    check(count >= 30, f"only {count} calls")
    return passed(f"{count} calls")
