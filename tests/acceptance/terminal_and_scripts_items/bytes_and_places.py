"""Item 2, second half: bytes that are not UTF-8 in environment, arguments and directory, and a directory that is gone."""

import os
import subprocess

from harness import check, meshrun

BAD = b"caf\xe9"


def call(site, words, cwd=None, env=None):
    """As bytes: (exit code, stdout, stderr)."""
    given = {os.fsencode(name): os.fsencode(value) for name, value in site.env.items()}
    given.update(env or {})
    done = subprocess.run([os.fsencode(word) for word in words], cwd=cwd or site.directory, env=given, capture_output=True,
                          stdin=subprocess.DEVNULL, timeout=60)
    return done.returncode, done.stdout, done.stderr


def run(site):
    program = meshrun()
    place = os.fsencode(site.directory) + b"/d\xe9"
    os.mkdir(place)
    script = "printf '%s|%s|%s|%s\\n' \"$BAD\" \"$OWN\" \"$1\" \"$PWD\""
    code, out, err = call(site, [program, "run", "--env", b"OWN=\xff", "--", "sh", "-c", script, "sh", b"arg\xfe"], cwd=place,
                          env={b"BAD": BAD})
    check(code == 0, f"bytes in environment, argument and directory: exit code {code}: {err!r}")
    check(out == b"caf\xe9|\xff|arg\xfe|" + place + b"\n", f"the rank saw {out!r}")
    check(b"libprotobuf" not in err, f"said: {err!r}")
    code, _, err = call(site, [program, "run", b"/no\xe9"])
    check(code == 2 and err == b"meshrun: /no\\xe9: no such file\n", f"a program of such a name: {code}, {err!r}")
    gone = site.directory / "gone"
    gone.mkdir()
    code, out, err = call(site, ["sh", "-c", "rmdir ../gone; exec $0 run -- pwd", program], cwd=gone)
    check(code == 2 and b"has been deleted" in err and out == b"", f"a deleted directory: {code}, {out!r}, {err!r}")
    return "bytes that are not UTF-8 reach ranks as they are, sentences write \\xNN; a deleted directory is an error"
