"""Which word was meant: as client/suggest.h."""

from __future__ import annotations

from collections.abc import Iterable


def _distance(a: str, b: str) -> int:
    """Edits to get from a to b: insert, remove, replace, swap neighbours."""
    before, last = [0] * (len(b) + 1), list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (x != y)))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]


def did_you_mean(typed: str, words: Iterable[str]) -> str:
    """ " did you mean 'X'?", or an empty text where no word is near."""
    most = 0 if len(typed) < 3 else 1 if len(typed) < 6 else 2
    near = sorted((_distance(typed, word), word) for word in words)
    if near and near[0][0] <= most:
        return f" did you mean '{near[0][1]}'?"
    return next((f" did you mean '{word}'?" for _, word in near if len(typed) >= 3 and word.startswith(typed)), "")
