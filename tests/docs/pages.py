"""Reads the fenced blocks of a Markdown page. As a program: pages.py PAGE LANGUAGE prints the one block of that language."""

import collections
import pathlib
import sys

Block = collections.namedtuple("Block", "language text line")


def blocks(page):
    """All fenced blocks, in order."""
    found, opened = [], None
    for number, line in enumerate(pathlib.Path(page).read_text().splitlines(), 1):
        if not line.startswith("```"):
            if opened:
                opened[2].append(line)
        elif opened:
            found.append(Block(opened[0], "".join(text + "\n" for text in opened[2]), opened[1]))
            opened = None
        else:
            opened = (line[3:].strip(), number, [])
    if opened:
        raise ValueError(f"{page}:{opened[1]}: this block does not end")
    return found


def only(page, language, containing=""):
    """The text of the one block in that language that has these words."""
    found = [block.text for block in blocks(page) if block.language == language and containing in block.text]
    if len(found) != 1:
        raise ValueError(f"{page} has {len(found)} blocks in {language}{f' with {containing!r}' if containing else ''}")
    return found[0]


if __name__ == "__main__":
    sys.stdout.write(only(sys.argv[1], sys.argv[2]))
