"""Item 2: output that cannot be written (/dev/full), and a TMPDIR without room: what is said, that the job goes on, the exit code."""

import os
import subprocess
import sys

from harness import check, meshrun, passed

OUTPUT_LOST = 74
# Writes more than the file system holds, and says at the end that it got there.
FLOOD = """
import os, pathlib, sys
for i in range(80_000):
    print(i, "x" * 100)
print("the last line", flush=True)
pathlib.Path(f"ended.{os.environ['RANK']}").touch()
sys.exit(int(sys.argv[1]))
"""


def dev_full(site, program):
    for stream, code, expected in ((">", 0, OUTPUT_LOST), ("2>", 0, OUTPUT_LOST), (">", 3, 1)):
        end = site.directory / "end"
        end.unlink(missing_ok=True)
        rank = f"for i in 1 2 3; do echo line; echo aside >&2; sleep 0.2; done; touch {end}; exit {code}"
        got, out, err, _ = site.run(["sh", "-c", f"'{program}' run -- sh -c '{rank}' {stream} /dev/full"])
        check(end.exists(), f"{stream} /dev/full: the rank was ended early")
        check(got == expected, f"{stream} /dev/full, rank's exit code {code}: {got}, not {expected}: {err}")
        if stream == ">":
            check(err.count("standard output cannot be written: No space left on device") == 1, f"said: {err}")
            check(("succeeded" in err) == (code == 0), err)
        else:
            check(out == "line\nline\nline\n", f"stdout is {out!r}")


def in_small_tmpfs(site, size, command, fill=0):
    """Runs in a mount namespace of its own, where TMPDIR is a tmpfs of this size, of which `fill` bytes are taken."""
    # Socket paths are short.
    small = site.directory / "t"
    small.mkdir(exist_ok=True)
    taken = f"head -c {fill} /dev/zero > {small}/taken 2>/dev/null; " if fill else ""
    script = f'mount -t tmpfs -o size={size} none {small} && {taken} TMPDIR={small} exec "$@"'
    return site.run(["unshare", "-m" if os.getuid() == 0 else "-rm", "sh", "-c", script, "sh", *command], timeout=120)


def full_tmpdir(site, program):
    site.script("flood.py", FLOOD)
    for code in (0, 3):
        for old in site.directory.glob("ended.*"):
            old.unlink()
        got, out, err, _ = in_small_tmpfs(site, "6m", [program, "run", "--nproc", "2", sys.executable, "flood.py", code])
        ended = sorted(path.name for path in site.directory.glob("ended.*"))
        check(ended == ["ended.0", "ended.1"] or (code and ended), f"ranks were ended early: {ended}: {err[-800:]}")
        check("No space left" not in err and "Errno" not in err, f"a rank heard of the full disk: {err[-800:]}")
        if code:
            check(got == 1 and "exit code 3" in err, f"exit code {got}: {err[-800:]}")
            continue
        lost = err.count("are no longer kept")
        check("succeeded" in err, err[-800:])
        for rank in range(2):
            check(f"{rank}: the last line" in out, f"rank {rank}'s last line did not come: {err[-800:]}")
            check(err.count(f"rank {rank}'s stdout are no longer kept") <= 1, f"said again and again: {err[-800:]}")
        check(got == (OUTPUT_LOST if lost else 0), f"{lost} losses were said, and the exit code is {got}: {err[-800:]}")
    return got


def log_dir_keeps_all(site, program):
    got, out, err, _ = in_small_tmpfs(site, "6m", [program, "run", "--log-dir", site.directory / "kept", sys.executable, "flood.py", "0"])
    check(got == 0 and out.endswith("the last line\n"), f"--log-dir, exit code {got}: {err[-800:]}")
    [file] = (site.directory / "kept").glob("*/attempt_0/0/stdout.log")
    check(file.read_text() == out, "--log-dir does not hold what was shown")
    return len(out)


def no_tmpdir_at_all(site, program):
    got, _, err, seconds = in_small_tmpfs(site, "1m", [program, "run", "--", "true"], fill=2 << 20)
    check(got != 0 and "No space left on device" in err and seconds < 20, f"a TMPDIR that is full before: {got}: {err[-800:]}")
    return got


def run(site):
    program = meshrun()
    dev_full(site, program)
    can_mount = subprocess.run(["unshare", "-m" if os.getuid() == 0 else "-rm", "true"], capture_output=True).returncode == 0
    if not can_mount:
        return passed("/dev/full is said once, the job goes on, exit code 74; a full TMPDIR: this user may not mount")
    full_tmpdir(site, program)
    kept = log_dir_keeps_all(site, program)
    code = no_tmpdir_at_all(site, program)
    return passed(f"/dev/full and a TMPDIR of 6 MiB are said once, ranks end as they would, exit code {OUTPUT_LOST} or the job's; --log-dir "
                  f"keeps all {kept} bytes; a TMPDIR that is full before exits {code} with the reason")
