"""Which of several coordinators to speak to: one of them leads, and the others are standbys. As core/rpc/leader_choice.h."""

from __future__ import annotations

import time
from collections.abc import Callable

# Between the end of an attempt at an address and the next one there; it doubles with each attempt that reaches nobody.
LEAST_SECONDS = 0.25
LONGEST_SECONDS = 4.0


class LeaderChoice:
    """Not thread-safe."""

    def __init__(self, addresses: list[str], now: Callable[[], float] = time.monotonic) -> None:
        self.given = list(addresses)
        self._now = now
        # Those given, then the leader that a standby has named beside them.
        self._free_at = dict.fromkeys(addresses, 0.0)
        self._unreached = dict.fromkeys(addresses, 0)
        self._named = ""
        self.address = addresses[0]

    def has_others(self) -> bool:
        return len(self._free_at) > 1

    def wait(self) -> float:
        """Seconds until an attempt at the address is due."""
        return max(self._free_at[self.address] - self._now(), 0.0)

    def on_answer(self, address: str) -> None:
        if address in self._unreached:
            self._unreached[address] = 0

    def on_standby(self, address: str, leader: str) -> None:
        """A standby has answered; leader: the one that it names, or nothing."""
        self.on_answer(address)
        if address not in self._free_at:
            return
        self._free_at[address] = self._now() + LEAST_SECONDS
        if leader and leader != address:
            self._named = leader
            for known in list(self._free_at):
                if known not in (*self.given, self.address, address, leader):
                    del self._free_at[known], self._unreached[known]
            self._free_at.setdefault(leader, 0.0)
            self._unreached.setdefault(leader, 0)
        self._leave(address)

    def on_unreached(self, address: str) -> None:
        """An attempt has reached nobody, or its connection stands still."""
        if address not in self._free_at or (address != self.address and self._now() < self._free_at[address]):
            return  # calls that end together are one attempt
        self._free_at[address] = self._now() + min(LEAST_SECONDS * 2 ** min(self._unreached[address], 10), LONGEST_SECONDS)
        self._unreached[address] += 1
        self._leave(address)

    def _leave(self, address: str) -> None:
        if address != self.address:
            return
        all_of_them = list(self._free_at)
        at = all_of_them.index(address) + 1
        candidates = [*([self._named] if self._named in self._free_at else []), *all_of_them[at:], *all_of_them[:at]]
        now = self._now()
        self.address = min(candidates, key=lambda one: max(self._free_at[one], now))
