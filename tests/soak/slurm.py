"""A real Slurm for tests: a controller and one slurmd for each node, in a scratch directory, gone with it."""

import collections
import os
import subprocess
import time

from environments import Missing, end_group, last_line

CONFIGURATION = """
ClusterName=meshrun
SlurmctldHost={controller.name}({controller.address})
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=15
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=5
SchedulerParameters=bf_interval=1,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

# on: a command and its words, as they run on that node.
Node = collections.namedtuple("Node", "name address on", defaults=[list])


def start_slurm(directory, undo, nodes, ports, cpus):
    """The variables with which Slurm's commands find it; the first node has the controller. ports: of the controller and of
    each slurmd, on their own hosts. cpus: of each node. Raises Missing."""
    (directory / "state").mkdir()
    configuration = directory / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(
        controller=nodes[0], directory=directory, controller_port=ports[0], node_port=ports[1],
        nodes="\n".join(f"NodeName={node.name} NodeHostname={node.name} NodeAddr={node.address} CPUs={cpus} State=UNKNOWN"
                        for node in nodes)))
    # Nothing here uses cgroups, and a node in a namespace has none mounted to choose by.
    (directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    key = directory / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    variables = {"SLURM_CONF": str(configuration)}
    environment = {**{name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}, **variables}
    daemons = []

    def start(name, command):
        with open(directory / f"{name}.out", "wb") as log:
            process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       start_new_session=True, env=environment)
        undo.callback(end_group, process)
        daemons.append(process)

    def end_jobs():
        """Processes of jobs do not end with the daemons."""
        for words in (["scancel", "--full", "--signal=KILL", "--state=RUNNING"], ["scancel", "--user=root"]):
            subprocess.run(nodes[0].on(words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        end = time.monotonic() + 30
        while time.monotonic() < end and subprocess.run(nodes[0].on(["squeue", "-h"]), capture_output=True, text=True,
                                                        env=environment).stdout.strip():
            time.sleep(0.2)

    def wait(condition, what):
        end = time.monotonic() + 60
        while not condition():
            gone = [daemon.args[0] for daemon in daemons if daemon.poll() is not None]
            if gone or time.monotonic() > end:
                logs = " | ".join(f"{path.name}: {last_line(path.read_text(errors='replace'))}"
                                  for path in [*directory.glob("*.out"), *directory.glob("*.log")])
                raise Missing(f"{what} did not come{': ended: ' + ', '.join(gone) if gone else ''}: {logs}")
            time.sleep(0.1)

    def are_idle():
        said = subprocess.run(nodes[0].on(["sinfo", "-h", "-N", "-o", "%T"]), capture_output=True, text=True, env=environment)
        return said.stdout.split() == ["idle"] * len(nodes)

    # --force: a scratch directory is not where munged would keep its files.
    start("munged", ["munged", "--foreground", "--force", "--key-file", key, "--socket", directory / "munge.socket",
                     "--pid-file", directory / "munged.pid", "--log-file", directory / "munged.log", "--seed-file",
                     directory / "munged.seed"])
    wait(lambda: (directory / "munge.socket").exists(), "munged's socket")
    start("slurmctld", nodes[0].on(["slurmctld", "-D", "-f", str(configuration)]))
    for node in nodes:
        start(f"slurmd-{node.name}", node.on(["slurmd", "-D", "-f", str(configuration), "-N", node.name]))
    undo.callback(end_jobs)
    wait(are_idle, "an idle node" if len(nodes) == 1 else f"{len(nodes)} idle nodes")
    return variables
