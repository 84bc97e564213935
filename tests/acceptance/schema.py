"""Validates JSON against the part of JSON Schema that docs/verify.schema.json and docs/api/openapi.json use; another keyword there is an
error here."""

import re

_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int, "number": (int, float)}
# They say nothing of a value.
_WORDS = {"$schema", "$defs", "title", "description"}
# Formats of numbers say their size alone.
_FORMATS = {"date-time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "double": "", "int32": "", "int64": "", "uint32": "", "uint64": ""}


def problems(value, schema, root=None, where="the report"):
    """Sentences; none where the value is as the schema says."""
    root = schema if root is None else root
    found = []
    for keyword, wanted in schema.items():
        if keyword in _WORDS or keyword in ("properties", "propertyNames"):
            continue
        found += _KEYWORDS[keyword](value, wanted, root, where, schema)
    return found


def _one_of_types(value, wanted, root, where, schema):
    names = wanted if isinstance(wanted, list) else [wanted]
    # To Python a bool is an int.
    fits = any(isinstance(value, _TYPES[name]) and (not isinstance(value, bool) or name == "boolean") for name in names)
    return [] if fits else [f"{where} is {value!r}, and not of {wanted}"]


def _reference(value, wanted, root, where, schema):
    place = root
    for name in wanted.removeprefix("#/").split("/"):
        place = place[name]
    return problems(value, place, root, where)


def _required(value, wanted, root, where, schema):
    return [f"{where} lacks '{name}'" for name in wanted if isinstance(value, dict) and name not in value]


def _members(value, additional, root, where, schema):
    """Of an object: its known properties, and what `additional` says of all others."""
    found = []
    for name, member in value.items() if isinstance(value, dict) else ():
        inside = f"{where}.{name}"
        pattern = schema.get("propertyNames", {}).get("pattern", "")
        if not re.search(pattern, name):
            found.append(f"{inside} has a name that is not like {pattern}")
        if name in schema.get("properties", {}):
            found += problems(member, schema["properties"][name], root, inside)
        elif additional is False:
            found.append(f"{where} has '{name}', which the schema does not know")
        else:
            found += problems(member, additional, root, inside)
    return found


def _items(value, wanted, root, where, schema):
    members = value if isinstance(value, list) else []
    return [problem for number, member in enumerate(members) for problem in problems(member, wanted, root, f"{where}[{number}]")]


def _any(value, wanted, root, where, schema):
    return [] if any(not problems(value, one, root, where) for one in wanted) else [f"{where} is {value!r}, and fits none of {wanted}"]


def _all(value, wanted, root, where, schema):
    return [problem for one in wanted for problem in problems(value, one, root, where)]


def _matches(value, wanted):
    return not isinstance(value, str) or re.search(wanted, value)


def _limit(holds, words):
    return lambda value, wanted, root, where, schema: [] if holds(value, wanted) else [f"{where} is {value!r}, {words} {wanted!r}"]


_KEYWORDS = {
    "type": _one_of_types,
    "$ref": _reference,
    "required": _required,
    "additionalProperties": _members,
    "items": _items,
    "const": _limit(lambda value, wanted: value == wanted, "and not"),
    "anyOf": _any,
    "allOf": _all,
    "format": _limit(lambda value, wanted: _matches(value, f"^{_FORMATS[wanted]}"), "and not of the format"),
    "pattern": _limit(_matches, "and not like"),
    "enum": _limit(lambda value, wanted: value in wanted, "and not one of"),
    "minimum": _limit(lambda value, wanted: not isinstance(value, (int, float)) or value >= wanted, "less than"),
    "minLength": _limit(lambda value, wanted: not isinstance(value, str) or len(value) >= wanted, "shorter than"),
    "minItems": _limit(lambda value, wanted: not isinstance(value, list) or len(value) >= wanted, "shorter than"),
}
