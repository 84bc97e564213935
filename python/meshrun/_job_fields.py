"""The keywords of Client.submit: the keys of job.yaml (client/job_fields.cc), with the same forms of values and the same defaults.

What needs no knowledge of the place where the job is submitted, such as the largest number of nodes, the coordinator checks.
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, Callable, TypedDict, Union

from ._suggest import did_you_mean
from .errors import InvalidArgumentError

Word = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Time = Union[str, int, float, datetime.timedelta]


class JobFields(TypedDict, total=False):
    """Keywords of Client.submit; all may be left out, but there must be a command or a shipped job."""

    name: str
    command: Union[str, Sequence[Word]]
    args: Union[str, Sequence[Word]]
    job: str
    shipped_job: str
    nodes: Union[int, str]
    min_nodes: int
    max_nodes: int
    procs_per_node: Union[int, str]
    mesh: Union[str, Mapping[str, int]]
    gpus_per_proc: int
    cpus_per_proc: int
    numa_binding: str
    memory: Union[int, str]
    memory_bytes: int
    env: Mapping[str, Union[str, bytes, int, float, None]]
    working_dir: Word
    tensorboard: Word
    priority: int
    constraints: Sequence[str]
    exclude_nodes: Sequence[str]
    hold: bool
    after: Sequence[str]
    account: str
    partition: str
    array: str
    private: bool
    virtual_local_rank: bool
    log_limit: Union[int, str]
    log_bytes: Union[int, str]
    max_restarts: int
    recovery: str
    replace: str
    grow: str
    kill_grace: Time
    hang_timeout: Time
    queue_timeout: Time
    time_limit: Time


_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "": 1}
_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_LONGEST_SECONDS = 3650 * 86400
# Keywords that say the same thing in two ways, or contradict each other.
_EXCLUSIVE = [("nodes", "min_nodes"), ("nodes", "max_nodes"), ("job", "command"), ("shipped_job", "command"),
              ("job", "shipped_job"), ("memory", "memory_bytes"), ("log_limit", "log_bytes"), ("args", "command")]


def _wrong(key: str, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{key}: {what}")


def _text(key: str, value: object, write: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(key, f"{value!r} is not a text: {write}" if not isinstance(value, str) else write)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _wrong(key, f"{value!r} is not UTF-8 text") from None
    return value


def _whole(key: str, value: object, least: int, example: str, most: int = 2**32 - 1) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong(key, f"{value!r} is not a whole number: write for example {key}={example}")
    number = value.__index__()
    if not least <= number <= most:
        raise _wrong(key, f"{number} is not a whole number from {least} up{'' if number < least else f' to {most}'}: write for "
                          f"example {key}={example}")
    return number


def _bytes(key: str, value: object, write: str) -> bytes:
    try:
        return os.fsencode(value)  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        raise _wrong(key, f"{value!r} is not a text: {write}") from None


def _words(key: str, value: object) -> list[bytes]:
    """A command as text without a shell's own signs, or as a list of words."""
    write = "write the program and its arguments, as text or as a list: ['./train', '--steps', '100']"
    if isinstance(value, str):
        words = split_command_line(key, value)
    elif isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        words = [_bytes(key, str(word) if isinstance(word, (int, float)) and not isinstance(word, bool) else word, write)
                 for word in value]
    else:
        raise _wrong(key, f"{value!r} is not a command: {write}")
    if not words:
        raise _wrong(key, write)
    return words


def split_command_line(key: str, line: str) -> list[bytes]:
    """The words of a line as a shell splits it: blanks, quotes and backslashes; no variables."""
    words: list[str] = []
    word, in_word, quote, i = "", False, "", 0
    while i < len(line):
        c = line[i]
        if quote:
            if c == quote:
                quote = ""
            elif c == "\\" and quote == '"' and line[i + 1:i + 2] in tuple('"\\$'):
                i += 1
                word += line[i]
            else:
                word += c
        elif c in "'\"":
            quote, in_word = c, True
        elif c == "\\" and i + 1 < len(line):
            i += 1
            word, in_word = word + line[i], True
        elif c in " \t\n":
            if in_word:
                words.append(word)
            word, in_word = "", False
        elif c in "|&;<>`$":
            raise _wrong(key, f"'{c}' would need a shell: quote it, or write the command as a list: ['sh', '-c', '...']")
        else:
            word, in_word = word + c, True
        i += 1
    if quote:
        raise _wrong(key, f"a {quote} is never closed")
    return [os.fsencode(part) for part in ([*words, word] if in_word else words)]


def _set_nodes(key: str, value: object, spec: Any) -> None:
    write = f"{value!r} is not a number of nodes: write for example 2, or '1:4' for at least 1 and at most 4"
    found = re.fullmatch(r"(\d+)(?::(\d+))?", str(value), re.ASCII) if isinstance(value, (int, str)) else None
    if isinstance(value, bool) or not found:
        raise _wrong(key, write)
    least, most = int(found[1]), int(found[2] or found[1])
    if not 1 <= least < 2**32 or not 1 <= most < 2**32:
        raise _wrong(key, write)
    if most < least:
        raise _wrong(key, f"'{value}' asks for at least {least} and at most {most} nodes: write the smaller number first")
    spec.min_nodes, spec.max_nodes = least, most


def _set_procs(key: str, value: object, spec: Any) -> None:
    if value in ("gpu", "auto"):
        spec.procs_per_node.gpu = True
    elif value == "cpu":
        spec.procs_per_node.cpu = True
    elif isinstance(value, (int, str)) and not isinstance(value, bool) and re.fullmatch(r"\d{1,9}", str(value), re.ASCII) and int(
            value) >= 1:
        spec.procs_per_node.count = int(value)
    else:
        raise _wrong(key, f"{value!r} is not a number of processes: write a number, 'gpu' (one per GPU) or 'cpu' (one per core)")


def _set_mesh(key: str, value: object, spec: Any) -> None:
    write = "write for example mesh={'dp': -1, 'spatial': 2}, or mesh='dp=-1,spatial=2'"
    if isinstance(value, str):
        axes = [tuple(part.partition("=")[::2]) for part in value.split(",")]
    elif isinstance(value, Mapping):
        axes = list(value.items())
    else:
        axes = []
    if not axes:
        raise _wrong(key, write)
    for name, size in axes:
        if not isinstance(name, str) or isinstance(size, bool) or not re.fullmatch(r"-?\d{1,18}", str(size), re.ASCII):
            raise _wrong(key, f"size {str(size)!r} of mesh axis {name!r} is not an integer: {write}")
        # Names and sizes are the coordinator's to check.
        spec.mesh.add(name=_text(key, name, write), size=int(size))


def _set_env(key: str, value: object, spec: Any) -> None:
    if not isinstance(value, Mapping):
        raise _wrong(key, f"{value!r} is not a map: write for example env={{'OMP_NUM_THREADS': '2'}}")
    for name, text in value.items():
        if text is None:
            text = ""
        elif isinstance(text, (int, float)) and not isinstance(text, bool):
            text = str(text)
        write = "each variable has one text as its value"
        spec.env.add(name=_bytes(key, name, write), value=_bytes(f"{key}: {name}", text, write))


def _amount_field(field: str) -> Callable[[str, object, Any], None]:
    def set_amount(key: str, value: object, spec: Any) -> None:
        write = f"{value!r} is not an amount of memory: write for example '512M', '4G' or 1048576"
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise _wrong(key, write)
        found = re.fullmatch(r"(\d+)(?:([KMGT])(?:i?B|i)?|B)?", str(value), re.ASCII)
        if not found or int(found[1]) << _SHIFTS[found[2] or ""] >= 2**64:
            raise _wrong(key, write)
        setattr(spec, field, int(found[1]) << _SHIFTS[found[2] or ""])
    return set_amount


def seconds_of(key: str, value: object) -> float:
    """Seconds of "1h30m", of a number of seconds, or of a timedelta."""
    wrong = _wrong(key, f"{value!r} is not a duration: write for example '5s', '250ms', '2m' or '1h30m', or seconds as a number")
    if isinstance(value, datetime.timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and re.fullmatch(r"(\d+(?:ms|[smhd]))*\d+(?:ms|[smhd])?", value, re.ASCII):
        seconds = sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhd]|)", value))
    else:
        raise wrong
    if not 0 <= seconds <= _LONGEST_SECONDS:  # NaN too
        raise _wrong(key, f"{value!r} is not between 0 and ten years")
    return seconds


def _duration_field(field: str) -> Callable[[str, object, Any], None]:
    def set_duration(key: str, value: object, spec: Any) -> None:
        millis = round(seconds_of(key, value) * 1000)
        duration = getattr(spec, field)
        duration.seconds, duration.nanos = millis // 1000, millis % 1000 * 1_000_000
        duration.SetInParent()

    return set_duration


def _number_field(field: str, least: int, example: str, most: int = 2**32 - 1) -> Callable[[str, object, Any], None]:
    return lambda key, value, spec: setattr(spec, field, _whole(key, value, least, example, most))


def _text_field(field: str, write: str) -> Callable[[str, object, Any], None]:
    return lambda key, value, spec: setattr(spec, field, _text(key, value, write))


def _list_field(field: str, write: str) -> Callable[[str, object, Any], None]:
    def set_list(key: str, value: object, spec: Any) -> None:
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise _wrong(key, f"{value!r} is not a list: {write}")
        getattr(spec, field).extend(_text(key, item, write) for item in value)

    return set_list


def _choice_field(field: str, choices: dict[str, object]) -> Callable[[str, object, Any], None]:
    def set_choice(key: str, value: object, spec: Any) -> None:
        if not isinstance(value, str) or value not in choices:
            raise _wrong(key, f"{value!r}: write {' or '.join(map(repr, choices))}")
        setattr(spec, field, choices[value])

    return set_choice


def _switch_field(field: str) -> Callable[[str, object, Any], None]:
    def set_switch(key: str, value: object, spec: Any) -> None:
        if not isinstance(value, bool):
            raise _wrong(key, f"{value!r}: write {key}=True or {key}=False")
        setattr(spec, field, value)

    return set_switch


def _set_array(key: str, value: object, spec: Any) -> None:
    """"0-99", "1,5,9", "0-99:10", each with "%10": so many at a time."""
    wrong = _wrong(key, f"{value!r} is not an array: write for example '0-99', '1,5,9' or '0-99:10', and with %4 how many run at "
                        "a time: '0-99%4'")
    found = re.fullmatch(r"([\d,:-]+)(?:%([1-9]\d{0,8}))?", value, re.ASCII) if isinstance(value, str) else None
    if not found:
        raise wrong
    indices: set[int] = set()
    for part in found[1].split(","):
        run = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?(?::([1-9]\d{0,6}))?", part, re.ASCII)
        last = int(run[2] or run[1]) if run else 0
        if not run or last < int(run[1]) or last > 1_000_000:
            raise wrong
        indices.update(range(int(run[1]), last + 1, int(run[3] or 1)))
    spec.array.indices.extend(sorted(indices))
    spec.array.at_once = int(found[2] or 0)


def _set_command(key: str, value: object, spec: Any) -> None:
    spec.command.extend(_words(key, value))


def _set_working_dir(key: str, value: object, spec: Any) -> None:
    spec.working_dir = _bytes(key, value, "write a directory")


def _set_tensorboard(key: str, value: object, spec: Any) -> None:
    spec.tensorboard = _bytes(key, value, "write a directory")


_SHIPPED = _text_field("shipped_job", "write the name of a shipped job, for example 'geoid'")
SETTERS: dict[str, Callable[[str, object, Any], None]] = {
    "name": _text_field("name", "write for example name='geoid'"),
    "command": _set_command,
    "args": _set_command,
    "job": _SHIPPED,
    "shipped_job": _SHIPPED,
    "nodes": _set_nodes,
    "min_nodes": _number_field("min_nodes", 1, "1"),
    "max_nodes": _number_field("max_nodes", 1, "4"),
    "procs_per_node": _set_procs,
    "mesh": _set_mesh,
    "gpus_per_proc": _number_field("gpus_per_proc", 0, "1"),
    "cpus_per_proc": _number_field("cpus_per_proc", 1, "1"),
    "numa_binding": _choice_field("numa_binding", {"node": 1, "socket": 2, "exclusive": 3, "core-complex": 4}),
    "memory": _amount_field("memory_bytes"),
    "memory_bytes": _amount_field("memory_bytes"),
    "env": _set_env,
    "working_dir": _set_working_dir,
    "tensorboard": _set_tensorboard,
    "priority": _number_field("priority", -(2**31), "5", 2**31 - 1),
    "constraints": _list_field("constraints", "write for example constraints=['zone=a', 'nvlink']"),
    "exclude_nodes": _list_field("exclude_nodes", "write for example exclude_nodes=['node-a', 'node-b']"),
    "hold": _switch_field("hold"),
    "after": _list_field("after", "write for example after=['ok:prepare-x1y2z3']"),
    "account": _text_field("account", "write the name of an account"),
    "partition": _text_field("partition", "write the name of a partition"),
    "array": _set_array,
    "private": _switch_field("private"),
    "virtual_local_rank": _switch_field("virtual_local_rank"),
    "log_limit": _amount_field("log_bytes"),
    "log_bytes": _amount_field("log_bytes"),
    "max_restarts": _number_field("max_restarts", 0, "3"),
    "recovery": _choice_field("recovery", {"auto": 0, "respawn": 1}),
    "replace": _choice_field("replace_at_once", {"at-once": True}),
    "grow": _choice_field("growth", {"checkpoint": 1, "at-once": 2, "never": 3}),
    "kill_grace": _duration_field("kill_grace"),
    "hang_timeout": _duration_field("hang_timeout"),
    "queue_timeout": _duration_field("queue_timeout"),
    "time_limit": _duration_field("time_limit"),
}


def check_known(call: str, given: Mapping[str, object], known: Sequence[str]) -> None:
    """Raises TypeError for a keyword that `call` does not have; it names those that there are."""
    for key in given:
        if key not in known:
            raise TypeError(f"{call} has no keyword '{key}':{did_you_mean(key, known)} there are {', '.join(sorted(known))}")


def _name_from_command(command: str) -> str:
    base = command.rpartition("/")[2]
    if base.rfind(".") > 0:
        base = base[:base.rindex(".")]
    name = re.sub(r"[^a-z0-9]+", "-", re.sub(r"[A-Z]", lambda c: c[0].lower(), base)).lstrip("-")[:40].rstrip("-")
    return name or "job"


def fill(spec: Any, given: Mapping[str, object]) -> None:
    """Sets the fields of a meshrun.v1.JobSpec from keywords, with the defaults of `meshrun submit -f job.yaml`.

    Raises InvalidArgumentError: which keyword is wrong and what to write. A keyword that is None counts as left out.
    """
    given = {key: value for key, value in given.items() if value is not None}
    for one, other in _EXCLUSIVE:
        if one in given and other in given:
            raise _wrong(other, f"{one} is given too: write only one of them")
    for key, value in given.items():
        SETTERS[key](key, value, spec)
    if "args" in given and not spec.shipped_job:
        raise _wrong("args", "these are the arguments of a shipped job, and there is no 'job': write the whole call in 'command'")
    if not spec.shipped_job and not spec.command:
        raise _wrong("command", "there is nothing to run: write for example command=['./train'], or a shipped job with job='geoid'")
    if spec.max_nodes and spec.max_nodes < spec.min_nodes:
        raise _wrong("max_nodes", f"{spec.max_nodes} is less than min_nodes, {spec.min_nodes}")

    program = os.fsdecode(spec.command[0]) if spec.command else ""
    here = _here(spec)
    if not os.path.isabs(os.fsdecode(spec.working_dir)):
        wanted = os.fsdecode(spec.working_dir)
        spec.working_dir = os.fsencode(os.path.normpath(os.path.join(here, wanted)) if wanted else here)
    if not spec.name:
        spec.name = _name_from_command(spec.shipped_job or program)
    # As torchrun does: a script that cannot be executed is run by python3.
    if not spec.shipped_job and program.endswith(".py") and not _is_executable(program, here):
        words = [os.fsencode(os.environ.get("PYTHON_EXEC") or "python3"), b"-u", *spec.command]
        del spec.command[:]
        spec.command.extend(words)


def _here(spec: Any) -> str:
    try:
        return os.getcwd()
    except OSError:
        if os.path.isabs(os.fsdecode(spec.working_dir)):
            return "/"
        raise _wrong("working_dir", "the directory that this process runs in has been deleted: name another one") from None


def _is_executable(program: str, here: str) -> bool:
    if "/" in program:
        return shutil.which(os.path.join(here, program)) is not None
    return shutil.which(program) is not None
