"""A child that forks and exits, a fork during allocation, a thread that comes late to a second group, a small /dev/shm."""

import os

from harness import Short, check, passed
from programs import tested

# What is tested, and by which program.
RULES = (
    ("a child that exits, returns, execs or cleans up", "//tests/parallel:ranks_test",
     "ManagerTest.AForkedChildDoesNotLeaveTheJobOfItsParent"),
    ("a child of a rank under a daemon", "//tests/agent:agent_test", "AgentTest.AForkedChildLeavesTheConnectionAlone"),
    ("a child of rank 0, and of another", "//tests/parallel/comm/ucx:engine_test", "HubWatchTest.AForkedChildLeavesNothing"),
    ("a thread that has called before and comes late", "//tests/parallel/comm/ucx:engine_test",
     "WatchedRanksTest.AThreadThatComesLateToASecondGroupIsNoDeadlock"),
    ("a fork while another thread allocates", "//tests/parallel/base:base_test",
     "SharedHeapTest.AThreadForksWhileAnotherAllocates"),
    ("a fork while results are allocated", "//tests/parallel/collectives:loopback_test", "OutputMemoryTest.*"),
    ("a /dev/shm of 8 MiB is named", "//tests/parallel/comm/ucx:engine_test", "EngineOverUcxTest.ASmallSharedMemoryIsNamed"),
    ("doctor warns of a small /dev/shm", "//tests/client:command_test", "CommandTest.TheDoctorWarnsOfASmallSharedMemory"),
    ("the verdicts", "//tests/core:core_test", "WaitBoardTest.*"),
)


def run(site):
    figures = []
    for rule, label, chosen in RULES:
        try:
            ok, _ = tested(label, chosen)
        except Short as reason:
            # A user who may not mount cannot make a small one.
            if "SKIPPED" not in str(reason) or os.geteuid() == 0:
                raise
            figures.append(f"{rule}: not permitted to this user")
            continue
        check(ok, f"{rule}: no test ran")
        figures.append(f"{rule}: {len(ok)} test{'s' if len(ok) > 1 else ''}")
    return passed("; ".join(figures))
