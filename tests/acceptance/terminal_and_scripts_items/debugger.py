"""Item 3: breakpoint() on rank 0 of 2, driven through a pseudo-terminal."""

import sys

from terminal_and_scripts_items.terminal import Terminal
from harness import check, meshrun, passed

SCRIPT = """
import os, time
loss = 0.25
if os.environ["RANK"] == "0":
    while not os.path.exists("go"):
        time.sleep(0.02)
    breakpoint()
print("loss", loss)
"""


def run(site):
    site.script("debugged.py", SCRIPT)
    terminal = Terminal(site, [meshrun(), "run", "--nproc", "2", sys.executable, "debugged.py"])
    # Rank 1 goes on by itself. Its line, were it later, might come between a prompt and its answer.
    terminal.wait_for("1: loss 0.25\n")
    (site.directory / "go").touch()
    terminal.wait_for("0: (Pdb)")
    terminal.type("p loss * 2\n")
    terminal.wait_for("0: (Pdb) p loss * 2\n0: 0.5\n0: (Pdb)")
    # Backspace is the terminal's.
    terminal.type("loss = 0.9\x7f75\n")
    terminal.wait_for("0: (Pdb) loss = 0.75\n0: (Pdb)")
    terminal.type("p dir()\n")
    terminal.wait_for("'loss'")
    terminal.wait_for("]\n0: (Pdb)")
    terminal.type("c\n")
    code = terminal.finish()
    text = terminal.text()
    check(code == 0, f"exit code {code}: {text[-500:]}")
    check("0: loss 0.75\n" in text and "1: loss 0.25\n" in text, text[-500:])
    return passed("print, assign, where and continue at the prompt of rank 0; rank 1 went on")
