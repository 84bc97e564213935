"""Item 1: the faults that operators have seen, by name. Each is a function of a site that returns its figures."""

from harness import NotHere

FAULTS = {}


def fault(name):
    def register(function):
        FAULTS[name] = function
        return function

    return register


def run(new_site):
    """Returns (figures, those that cannot be made here)."""
    figures, missing = [], []
    for name, function in FAULTS.items():
        try:
            with new_site() as site:
                figures.append(f"{name}: {function(site)}")
        except NotHere as reason:
            missing.append(f"{name}: {reason}")
    return figures, missing
