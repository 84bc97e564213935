"""Makes programs and shared libraries that were linked with a new C library run with an old one.

A linker names, for each function of another library, the version of that library which it saw. Most functions whose version
is later than the limit are older ones that moved (pthread_create into libc.so.6), or have an older version of the same name:
without a version, the loader takes what the system has. What an old system lacks is in two small libraries of ours,
deploy/floor. docs/decisions/0019-the-oldest-c-library.md gives the reasons and the rules.
"""

import functools
import pathlib
import re
import struct
import subprocess

# The newest versions that a file of ours may ask for: those of Debian 11, and so of glibc 2.31 and g++ 10.
NEWEST = {"GLIBC": (2, 31), "GLIBCXX": (3, 4, 28), "CXXABI": (1, 3, 12), "GCC": (7, 0, 0)}
# The versions that functions had when their library had no others: a reference without version means these, if they exist.
OLDEST = {"GLIBC": (2, 2, 5), "GLIBCXX": (3, 4), "CXXABI": (1, 3), "GCC": (3, 0)}
# Libraries of the system whose older versions count, and the library of ours with what it lacks.
OURS = {"libc.so.6": "libmeshrun-glibc.so", "libm.so.6": None, "libgcc_s.so.1": None, "libstdc++.so.6": "libmeshrun-libstdcxx.so"}

VERSION = re.compile(r"(GLIBC|GLIBCXX|CXXABI|GCC)_(\d+(?:\.\d+)*)$")
GLOBAL = 1  # the index of "no version"


class TooNew(Exception):
    """A function that no older system has; says which, and who asks for it."""


def number(version):
    """("GLIBC", (2, 34)) of "GLIBC_2.34"; None of another name."""
    found = VERSION.match(version)
    return (found[1], tuple(map(int, found[2].split(".")))) if found else None


def is_late(version):
    found = number(version)
    return found is not None and found[1] > NEWEST[found[0]]


def _read(layout, data, place):
    return struct.unpack_from("<" + layout, data, place)


class Elf:
    """The parts of a 64-bit ELF file that tell which versions of which libraries it asks for. Changes are made in place."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.data = bytearray(self.path.read_bytes())
        if self.data[:6] != b"\x7fELF\2\1":
            raise TooNew(f"{self.path.name} is not a 64-bit ELF file")
        headers, = _read("Q", self.data, 0x28)
        size, count, names = _read("HHH", self.data, 0x3A)
        rows = [_read("IIQQQQIIQQ", self.data, headers + i * size) for i in range(count)]
        text = rows[names][4]
        self.sections = {self._text(text + row[0]): row for row in rows}

    def _text(self, place):
        return self.data[place:self.data.index(0, place)].decode()

    def _section(self, name):
        return self.sections[name][4], self.sections[name][5]

    def symbols(self):
        """(index, name, whether it is defined here) of each dynamic symbol."""
        table, size = self._section(".dynsym")
        text, _ = self._section(".dynstr")
        for i in range(1, size // 24):
            name, _, _, section = _read("IBBH", self.data, table + 24 * i)
            yield i, self._text(text + name), section != 0

    def version_index(self, symbol):
        if ".gnu.version" not in self.sections:
            return GLOBAL
        return _read("H", self.data, self._section(".gnu.version")[0] + 2 * symbol)[0]

    def forget_version(self, symbol):
        struct.pack_into("<H", self.data, self._section(".gnu.version")[0] + 2 * symbol, GLOBAL)

    def needs(self):
        """[(place, [(place, version's index, version)])] for each library that versions are asked of."""
        if ".gnu.version_r" not in self.sections:
            return []
        place, _ = self._section(".gnu.version_r")
        text, _ = self._section(".dynstr")
        found = []
        while True:
            _, _, _, first, following = _read("HHIII", self.data, place)
            versions, at = [], place + first
            while True:
                _, _, index, name, after = _read("IHHII", self.data, at)
                versions.append((at, index, self._text(text + name)))
                if not after:
                    break
                at += after
            found.append((place, versions))
            if not following:
                return found
            place += following

    def drop(self, dropped):
        """Takes the versions with these indices out of what is asked for. Each library keeps at least one."""
        for place, versions in self.needs():
            kept = [at for at, index, _ in versions if index not in dropped]
            if len(kept) == len(versions):
                continue
            if not kept:
                raise TooNew(f"{self.path.name} asks a library for late versions alone: {', '.join(name for *_, name in versions)}")
            struct.pack_into("<H", self.data, place + 2, len(kept))
            struct.pack_into("<I", self.data, place + 8, kept[0] - place)
            for at, after in zip(kept, [*kept[1:], None]):
                struct.pack_into("<I", self.data, at + 12, after - at if after else 0)

    def write(self):
        self.path.write_bytes(self.data)


def exported(path):
    """Function -> the versions that a library has of it."""
    found = {}
    for line in subprocess.run(["objdump", "-T", str(path)], capture_output=True, text=True, check=True).stdout.splitlines():
        symbol = re.search(r"\s\(?((?:GLIBC|GLIBCXX|CXXABI|GCC|MESHRUN)_[\w.]+)\)?\s+(?:0x\w+ )?(\S+)$", line)
        if symbol and "*UND*" not in line:
            found.setdefault(symbol[2], set()).add(symbol[1])
    return found


@functools.lru_cache(maxsize=None)
def _of_the_system(library):
    place = subprocess.run(["g++", f"-print-file-name={library}"], capture_output=True, text=True, check=True).stdout.strip()
    return exported(place)


def lower(path, ours):
    """Rewrites a file so that it asks for no late version; returns the names of our libraries that it needs from now on.

    ours: name -> path of the libraries of deploy/floor. The caller makes each returned one the first that the file loads.
    Raises TooNew.
    """
    elf = Elf(path)
    late = {index: version for _, versions in elf.needs() for _, index, version in versions if is_late(version)}
    added = set()
    for symbol, name, is_defined in elf.symbols():
        index = elf.version_index(symbol) & 0x7FFF
        if index in late:
            added.update(_found_elsewhere(elf.path.name, name, late[index], ours))
            elf.forget_version(symbol)
        elif index == GLOBAL and not is_defined:
            # Linked with a library, such as torch's, that brings a copy of it; another build of that library may not.
            added.update(library for library, path in ours.items() if name in _exported_by_ours(path))
    if late:
        elf.drop(set(late))
        elf.write()
    return sorted(added)


def _found_elsewhere(asking, name, version, ours):
    """The libraries of ours that must be loaded so that this function is found on an old system."""
    in_ours = [library for library, path in ours.items() if name in _exported_by_ours(path)]
    if in_ours:
        return in_ours
    kind, _ = number(version)
    for library, lacks in OURS.items():
        older = {number(one) for one in _of_the_system(library).get(name, ()) if number(one) and not is_late(one)}
        older = {found for a_kind, found in older if a_kind == kind}
        if not older:
            continue
        if OLDEST[kind] in older and len(older) > 1:
            raise TooNew(f"{asking} needs {name}@{version}, of which there are several older versions: deploy/floor has to choose "
                         "one")
        # Before glibc 2.34 libpthread, libdl and librt had it, which our library loads.
        return [lacks] if library == "libc.so.6" else []
    raise TooNew(f"{asking} needs {name}@{version}, which systems with {kind}_{'.'.join(map(str, NEWEST[kind]))} lack: add it to "
                 "deploy/floor")


@functools.lru_cache(maxsize=None)
def _exported_by_ours(path):
    return exported(path)
