"""Item 10: each row of the tables of docs/operations.md that says what happens by itself names a test that exists."""

import pathlib
import re

from harness import ROOT, check, passed

PAGE = ROOT / "docs/operations.md"
SCENARIOS = pathlib.Path(__file__).parent


def tables(text):
    """(header cells, rows of cells) of each table."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.strip().splitlines()]
        yield rows[0], rows[2:]


def known_tests():
    """Names of GoogleTest tests of the tree."""
    pattern = re.compile(r"^(?:TYPED_)?TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
    return {".".join(found) for path in (ROOT / "tests").rglob("*.cc") for found in pattern.findall(path.read_text())}


def exists(name, tests):
    found = re.fullmatch(r"(tests/[\w/]+):(\w+)", name)
    if found:
        build = ROOT / found[1] / "BUILD.bazel"
        return build.exists() and f'name = "{found[2]}"' in build.read_text()
    found = re.fullmatch(r"(\w+) (\d+)(?:\.(\d+))?", name)
    if found:
        if found[3]:
            return any(f"@scenario({found[3]}," in path.read_text() for path in SCENARIOS.glob("scenarios_*.py"))
        path = ROOT / "tests/acceptance" / found[1]
        return path.is_file() and f"@item({found[2]}," in path.read_text()
    if name.startswith("tests/"):
        return (ROOT / name).exists()
    return name in tests or any(test.startswith(name + ".") for test in tests)


def run(site):
    text, tests = PAGE.read_text(), known_tests()
    promises, names = 0, set()
    for header, rows in tables(text):
        if "held by" not in [cell.lower() for cell in header]:
            continue
        column = [cell.lower() for cell in header].index("held by")
        for row in rows:
            promises += 1
            named = [name for name in re.findall(r"`([^`]+)`", row[column]) if not name.startswith("-")]
            check(named or "the same" in row[column], f"'{row[0]}' names no test")
            names |= set(named)
    # What stands in the prose, too.
    names |= set(re.findall(r"`(tests/[\w/]+:\w+)`", text))
    missing = sorted(name for name in names if not exists(name, tests))
    check(not missing, f"no such test: {', '.join(missing)}")
    check(promises >= 20, f"{promises} promises have a column 'held by'")
    return passed(f"{promises} promises, {len(names)} tests named, all exist")
