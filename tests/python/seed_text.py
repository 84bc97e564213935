"""The Python samples in the text of other libraries' documents, and the patches that make them programs of meshrun.

A patch is a file of seed_samples/: comment lines that begin with "#", fields, then hunks of `diff -U0`, each below its
reason, "# KIND: why". The sample is what the fields name; the patch has nothing of it except the lines that change.

    document: 002_    beginning of the document's file name
    first: import x   its first line; "until:" is the first line that no longer belongs to it
    session: >>> f()  instead of first and until: a session of an interpreter that begins so, written in one line
    also: 000_        another document with the same sample, whose indentation is lost
    level: 1          the sample has lost its indentation; its first line stands at this level
"""

import ast
import dataclasses
import itertools
import pathlib
import re
import textwrap

PATCHES = pathlib.Path(__file__).resolve().parent / "seed_samples"
# import: another package's name. device: a machine without GPUs. error: the document's own mistake. lost: indentation that
# cannot be recovered. fragment: what the document leaves to its reader. absent: what it names and does not describe.
KINDS = ("import", "device", "error", "lost", "fragment", "absent")
# A line of a document that can only be Python.
PYTHON = re.compile(r"\s*(\[docs\])?\s*(>>> |import \w|from \S+ import|def \w+\(|class \w+\b.*:$)|.*>>> ")


class TextError(Exception):
    """Says what a document or a patch lacks."""


@dataclasses.dataclass
class Hunk:
    kind: str
    reason: str
    line: int  # of the sample, from 0
    old: list
    new: list


@dataclasses.dataclass
class Sample:
    name: str
    fields: dict
    hunks: list
    lines: list  # the document's own, with their indentation
    said: list  # what a session says that it prints, by statement
    covered: dict  # lines of documents that belong to it, by file name

    @property
    def is_session(self):
        return "session" in self.fields

    def program(self, without=None):
        """The patched text; `without`: one hunk is left out."""
        lines = list(self.lines)
        for hunk in reversed(self.hunks):
            end = hunk.line + len(hunk.old)
            if lines[hunk.line:end] != hunk.old:
                raise TextError(f"{self.name}.patch: line {hunk.line + 1} of the sample is {lines[hunk.line:end]}, "
                                f"not {hunk.old}")
            if hunk is not without:
                lines[hunk.line:end] = hunk.new
        return "\n".join(lines) + "\n"


def read_patch(path):
    """(fields, hunks)"""
    fields, hunks, reason, hunk = {}, [], None, None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        header = re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@", line)
        if header:
            if reason is None:
                raise TextError(f"{path.name}:{number}: a hunk without a reason")
            # After line N where nothing is removed, else from line N on.
            hunk = Hunk(*reason, int(header[1]) - (header[2] != "0"), [], [])
            hunks.append(hunk)
            reason = None
        elif hunk and line[:1] in ("-", "+"):
            (hunk.old if line[0] == "-" else hunk.new).append(line[1:])
        elif re.match(rf"# ({'|'.join(KINDS)}): ", line):
            reason = re.match(r"# (\w+): (.*)", line).groups()
        elif line and not line.startswith("#"):
            name, _, value = line.partition(": ")
            if hunk or not value:
                raise TextError(f"{path.name}:{number}: '{line}' is neither a field nor part of a hunk")
            fields[name] = value
    return fields, hunks


def ends_open(code):
    """Whether brackets of this beginning of a statement are still open."""
    bare = re.sub(r"""("[^"]*"|'[^']*'|#.*)""", "", code)
    return sum(bare.count(c) for c in "([{") > sum(bare.count(c) for c in ")]}")


def indented(lines, level):
    """Lines of Python whose indentation is lost, with one again.

    A block begins after a colon. It ends at the marker "[docs]" of a class, function or method, after `raise`, and
    before `return`, which is taken for one at the end of its function.
    """
    result, body, docstring, statement = [], level, False, ""
    for line in lines:
        marker = re.match(r"\[docs\]( ?)", line)
        text = line[marker.end():].strip() if marker else line.strip()
        if not statement and not docstring:
            if marker:
                level = 1 if marker[1] else 0
            elif re.match(r"return\b", text):
                level = body
        result.append("    " * level + text if text else "")
        if docstring or text.startswith('"""'):
            docstring ^= text.count('"""') % 2 == 1
            continue
        statement += text + "\n"
        if ends_open(statement):
            continue
        if re.sub(r"#.*", "", statement).rstrip().endswith(":"):
            level += 1
            body = level if statement.startswith("def ") else body
        elif re.match(r"raise\b", statement):
            level -= 1
        statement = ""
    return result


def session(text):
    """(statements, what each prints) of an interpreter's session whose line breaks are lost."""
    statements, said = [], []
    for piece in re.split(r">>>(?: |$)", text)[1:]:
        words = piece.strip().replace(" ... ", "\n").split(" ")
        for count in range(len(words), -1, -1):  # the longest beginning that Python reads; the rest is what it prints
            code = " ".join(words[:count])
            try:
                # A block's first line; the next prompt has the rest.
                ast.parse(code + " pass" if code.endswith(":") else code)
            except SyntaxError:
                continue
            break
        statements.append(code.split("\n"))
        said.append(" ".join(words[count:]))
    return statements, said


def load(directory):
    """All samples. Raises TextError where a document does not fit, or has Python that no sample has."""
    documents = {path.name: path.read_text().splitlines() for path in sorted(pathlib.Path(directory).glob("*.txt"))}

    def document(beginning):
        found = [name for name in documents if name.startswith(beginning)]
        if len(found) != 1:
            raise TextError(f"{directory} has {len(found)} documents whose names begin with {beginning}")
        return found[0], documents[found[0]]

    def between(beginning, fields):
        name, lines = document(beginning)
        stripped = [line.strip() for line in lines]
        try:
            begin = stripped.index(fields["first"])
            end = next(i for i in range(begin, len(stripped)) if stripped[i].startswith(fields["until"]))
        except (ValueError, StopIteration):
            raise TextError(f"{name} has no lines from '{fields['first']}' to '{fields['until']}'") from None
        return name, begin, end, [line.rstrip() for line in lines[begin:end]]

    samples = []
    for path in sorted(PATCHES.glob("*.patch")):
        fields, hunks = read_patch(path)
        said = []
        if "session" in fields:
            name, whole = document(fields["document"])
            found = [i for i, line in enumerate(whole) if fields["session"] in line]
            if len(found) != 1:
                raise TextError(f"{name} has {len(found)} lines with '{fields['session']}'")
            begin, end = found[0], found[0] + 1
            statements, said = session(whole[begin][whole[begin].index(fields["session"]):])
            lines = indented([line for statement in statements for line in statement], 0)
        else:
            name, begin, end, lines = between(fields["document"], fields)
            lines = indented(lines, int(fields["level"])) if "level" in fields else \
                textwrap.dedent("\n".join(lines)).rstrip().split("\n")
        covered = {name: range(begin, end)}
        if "also" in fields:
            other, first, last, same = between(fields["also"], fields)
            words = [[line.split() for line in text if line] for text in (lines, same)]
            differ = [pair for pair in itertools.zip_longest(*words) if pair[0] != pair[1]]
            if differ:
                raise TextError(f"{name} and {other} have different samples: {differ[0]}")
            covered[other] = range(first, last)
        samples.append(Sample(path.stem, fields, hunks, lines, said, covered))
    for name, lines in documents.items():
        for number, line in enumerate(lines):
            if PYTHON.match(line) and not any(number in sample.covered.get(name, ()) for sample in samples):
                raise TextError(f"{name}:{number + 1}: no sample has this line: {line[:100]}")
    return samples
