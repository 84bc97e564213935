"""Pictures of a rank: files in the directory that the worker daemon names, which the page of the coordinator shows."""

from __future__ import annotations

import os
import re
from typing import Union

_NAME = re.compile(r"(?=.{1,64}\Z)[A-Za-z0-9_-][A-Za-z0-9._-]*\.(png|jpg|jpeg|webp|gif)\Z")
_MOST_BYTES = 4 << 20


def show_picture(name: str, picture: Union[bytes, bytearray, memoryview, str, "os.PathLike[str]"]) -> None:
    """Shows a picture of this rank on the coordinator's page: `meshrun.show_picture("map.png", "out/map.png")`.

    picture is the content of an image file, as bytes, or the path of one. name has up to 64 of A-Z, a-z, 0-9, ".", "_" and
    "-", and ends with .png, .jpg, .jpeg, .webp or .gif. The picture takes the place of this rank's picture of that name;
    nobody sees half of one. It has at most 4 MiB, and the newest 16 of a rank are shown.

    Outside meshrun it does nothing, and does not read the path. Raises ValueError for a wrong name or size, TypeError for
    what is neither bytes nor a path, and OSError where a file cannot be read or written.
    """
    if not _NAME.match(name):
        raise ValueError(f"{name!r} is not the name of a picture: use up to 64 of A-Z, a-z, 0-9, '.', '_', '-', and end with "
                         ".png, .jpg, .jpeg, .webp or .gif")
    if not isinstance(picture, (bytes, bytearray, memoryview, str, os.PathLike)):
        raise TypeError(f"a picture is {type(picture).__name__}, and must be bytes or a path")
    directory = os.environ.get("MESHRUN_PICTURES")
    if not directory:
        return
    if isinstance(picture, (str, os.PathLike)):
        with open(picture, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    else:
        content = bytes(picture)
    if not content:
        raise ValueError(f"picture {name} is empty")
    if len(content) > _MOST_BYTES:
        raise ValueError(f"picture {name} has more than {_MOST_BYTES} bytes: make it smaller")
    temporary = os.path.join(directory, "." + name)  # a dot: nobody sees it before it is whole
    try:
        with open(temporary, "wb") as file:
            file.write(content)
        os.replace(temporary, os.path.join(directory, name))
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise
