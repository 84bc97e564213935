"""A link between two network namespaces on which each packet takes longer: two TAP interfaces, and this process between
them. (Kernels without netem have no other.) Prints "ready"; ends by a signal.

usage: delayed_link.py NAMESPACE INTERFACE OTHER-NAMESPACE OTHER-INTERFACE SECONDS
"""

import collections
import ctypes
import fcntl
import os
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
CLONE_NEWNET = 0x40000000
LONGEST_FRAME = 65600
MOST_PACKETS = 20000  # on their way; what comes then is lost, as in a switch


def open_tap(namespace, interface):
    """Within that namespace."""
    place = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(place, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"the network namespace {namespace}")
    os.close(place)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", interface.encode(), IFF_TAP | IFF_NO_PI))
    return tap


def carry(taps, delay):
    on_their_way = {tap: collections.deque() for tap in taps}
    other = dict(zip(taps, reversed(taps)))
    while True:
        due = min((packets[0][0] for packets in on_their_way.values() if packets), default=None)
        waiting = None if due is None else max(0.0, due - time.monotonic())
        for tap in select.select(taps, [], [], waiting)[0]:
            for _ in range(64):
                try:
                    frame = os.read(tap, LONGEST_FRAME)
                except BlockingIOError:
                    break
                if len(on_their_way[tap]) < MOST_PACKETS:
                    on_their_way[tap].append((time.monotonic() + delay, frame))
        now = time.monotonic()
        for tap, packets in on_their_way.items():
            while packets and packets[0][0] <= now:
                try:
                    os.write(other[tap], packets.popleft()[1])
                except OSError:  # the other end is not up yet, or is full
                    pass


def main():
    ends = [open_tap(sys.argv[1], sys.argv[2]), open_tap(sys.argv[3], sys.argv[4])]
    print("ready", flush=True)
    carry(ends, float(sys.argv[5]))


if __name__ == "__main__":
    main()
