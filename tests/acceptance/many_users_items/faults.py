"""Item 1: the faults that operators have seen, by name. Each is a function of a site that returns its figures."""

import concurrent.futures
import typing

from harness import NotHere, Short, meshrun

FAULTS = []
# Each of them waits most of its time.
AT_ONCE = 3


class Fault(typing.NamedTuple):
    name: str
    run: typing.Callable
    alone: bool


def fault(name, alone=False):
    """alone: it measures what a coordinator does under attack, or changes what all have; so nothing else runs beside it."""
    def register(function):
        FAULTS.append(Fault(name, function, alone))
        return function

    return register


class Outcomes(typing.NamedTuple):
    figures: list
    missing: list
    fell_short: list

    def add(self, each, new_site):
        try:
            with new_site() as site:
                self.figures.append(f"{each.name}: {each.run(site)}")
        except NotHere as reason:
            self.missing.append(f"{each.name}: {reason}")
        except Short as error:
            self.fell_short.append(f"{each.name}: {error}")
        except Exception as error:  # an output that nobody foresaw must not end the others
            self.fell_short.append(f"{each.name}: {type(error).__name__}: {error}")


def run(new_site):
    """Returns (figures, those that cannot be made here). Both are in the order of the faults, though several run at once."""
    # No two of them build it.
    meshrun()
    outcomes = [Outcomes([], [], []) for _ in FAULTS]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        beside = [pool.submit(outcome.add, each, new_site) for each, outcome in zip(FAULTS, outcomes) if not each.alone]
    for done in beside:
        done.result()
    for each, outcome in zip(FAULTS, outcomes):
        if each.alone:
            outcome.add(each, new_site)
    figures, missing, fell_short = (sum(parts, []) for parts in zip(*outcomes))
    if fell_short:
        raise Short("; ".join(fell_short))
    return figures, missing
