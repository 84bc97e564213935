"""What a scenario or an item found: figures with their limits. A time over its limit is slow; everything else is wrong."""

from harness import skip_soak


class Report:
    def __init__(self):
        self.figures, self.over = [], []

    def say(self, text):
        self.figures.append(text)

    def time(self, what, seconds, limit):
        self.figures.append(f"{what} {seconds:.2f} s")
        if seconds > limit:
            self.over.append(f"{what} {seconds:.2f} s, not {limit:g}")

    def text(self):
        return ", ".join(self.figures)

    def verdict(self):
        """As items return it: within tools/test, which runs beside anything, what is late does not fail."""
        if not self.over:
            return "pass", self.text()
        return "slow", f"{self.text()} (target: {'; '.join(self.over)})"


def whole(short, full):
    """The shortened form within tools/test, the whole one else."""
    return short if skip_soak() else full
