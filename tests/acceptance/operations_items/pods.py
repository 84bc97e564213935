"""Item 8: the manifests of Kubernetes, those of the overlay with three coordinators too, are strictly valid and keep their promises. In
the soak run the overlay's pods run under podman: a coordinator is killed, and a worker's pod stopped and started."""

import subprocess
import sys

from harness import ROOT, Short, not_applicable, passed, skip_soak

sys.path.append(str(ROOT / "tests/soak"))
from environments import KUBERNETES, Missing, environment, last_line


def said(*command, timeout):
    """The last line of a test that is a program of its own."""
    done = subprocess.run([ROOT / command[0], *command[1:]], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Short(f"{command[0]} exited {done.returncode}: {last_line(done.stderr or done.stdout)}")
    return last_line(done.stdout)


def run(_):
    try:
        environment(KUBERNETES)
    except Missing as missing:
        return not_applicable(str(missing))
    figures = said("tests/deploy/manifests", timeout=300)
    if skip_soak():
        return passed(figures, left_out="the overlay's pods under podman")
    return passed(f"{figures}; {said('tests/soak/podman', 'kubernetes-ha', timeout=2400)}")
