"""Writes a wheel (the binary distribution format of PyPI, PEP 427) with the standard library alone.

The same files give the same bytes: entries are sorted, and their time is SOURCE_DATE_EPOCH or 1980.
"""

import base64
import csv
import hashlib
import io
import os
import pathlib
import time
import zipfile

# The first and the last time that a zip archive can hold.
EARLIEST, LATEST = 315532800, 4354819198


def _record(contents):
    """RECORD: path, hash and size of every file."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for name, (data, _) in sorted(contents.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow((name, f"sha256={digest}", len(data)))
    return text


def _metadata(name, version, summary, description, requires_python, extras, requires):
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Summary: {summary}", "License: Apache-2.0",
             "Classifier: License :: OSI Approved :: Apache Software License", "Classifier: Operating System :: POSIX :: Linux",
             f"Requires-Python: {requires_python}", *(f"Requires-Dist: {requirement}" for requirement in requires)]
    for extra, requirements in extras.items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {requirement}; extra == "{extra}"' for requirement in requirements]
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "", description])


def _entry_points(groups):
    return "\n".join(f"[{group}]\n" + "".join(f"{name} = {where}\n" for name, where in sorted(entries.items()))
                     for group, entries in sorted(groups.items()))


def write(out, tree, *, name, version, tag, summary, description, requires_python, entry_points, requires=(), extras=None,
          licences=None):
    """Packs all files below the directory `tree` into out/NAME-VERSION-TAG.whl, and returns its path.

    tag: for example "py3-none-manylinux_2_31_x86_64". entry_points: group, such as "console_scripts", -> name ->
    "module:function". licences: a directory whose files become licences of the wheel. Files that are executable in the tree
    are so once installed.
    """
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    contents = {}
    for root, place in ((tree, ""), (licences, f"{info}/licenses/")):
        for path in sorted(pathlib.Path(root).rglob("*")) if root else ():
            if path.is_file():
                contents[place + path.relative_to(root).as_posix()] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    texts = {
        "METADATA": _metadata(name, version, summary, description, requires_python, extras or {}, requires),
        # Purelib is for what holds no programs.
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: tools/wheel\nRoot-Is-Purelib: false\nTag: {tag}\n",
        "entry_points.txt": _entry_points(entry_points),
    }
    contents.update({f"{info}/{file}": (text.encode(), False) for file, text in texts.items()})
    record = _record(contents)
    record.write(f"{info}/RECORD,,\n")
    # RECORD is the last entry, where installers look first.
    entries = [*sorted(contents.items()), (f"{info}/RECORD", (record.getvalue().encode(), False))]

    epoch = min(max(int(os.environ.get("SOURCE_DATE_EPOCH") or EARLIEST), EARLIEST), LATEST)
    wheel = pathlib.Path(out) / f"{name.replace('-', '_')}-{version}-{tag}.whl"
    wheel.parent.mkdir(parents=True, exist_ok=True)
    unfinished = wheel.with_name(f".{wheel.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for entry, (data, executable) in entries:
                item = zipfile.ZipInfo(entry, time.gmtime(epoch)[:6])
                item.compress_type = zipfile.ZIP_DEFLATED
                item.create_system = 3  # Unix: the upper half of external_attr is the mode
                item.external_attr = (0o100755 if executable else 0o100644) << 16
                archive.writestr(item, data)
        os.replace(unfinished, wheel)
    finally:
        unfinished.unlink(missing_ok=True)
    return wheel
