"""Values from files and from Hydra, turned into checked ones; every mistake is one sentence that names its place."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from reprlib import Repr
from typing import Any, TypeVar

import msgspec

from lightning_boa.errors import OptionError

T = TypeVar("T")

_WORDS = {
    "float": "a number",
    "int": "a whole number",
    "str": "a text",
    "bool": "true or false",
    "object": "fields with values",
    "array": "a list",
    "null": "nothing",
}
_KEYS = {"throttle": "step"}
KEYS_SHOWN = 4
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def checked(kind: type[T], values: object, place: str, fields: Collection[str] = ()) -> T:
    """``values`` as a ``kind``; texts that are numbers count as numbers.

    Args:
        place: where they come from, the beginning of every message.
        fields: all names that a field may have, to suggest the one that was meant.

    Raises:
        OptionError: a value of the wrong kind or range, a field that is missing or unknown.
    """
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise OptionError(_sentence(str(error), values, place, fields)) from error


def shown(value: object) -> str:
    """The value as messages show it, cut where it is long."""
    return _SHORT.repr(value)


def with_its_stop(sentence: str) -> str:
    """The sentence with a full stop, unless it ends in a mark already."""
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def nearest(name: str, names: Collection[str]) -> str:
    """The end of a sentence: "; did you mean …?" where one of ``names`` is like ``name``, else a full stop."""
    by_lower = {each.lower(): each for each in names}
    found = get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[found[0]]}?" if found else "."


def _sentence(message: str, values: object, place: str, fields: Collection[str]) -> str:
    told, _, path = message.partition(" - at ")
    is_key = path.startswith("`key` in ")
    path = path.removeprefix("`key` in ").strip("`").removeprefix("$").removesuffix("[...]")
    where = f"{place}{path}" if path.startswith("[") else f"{place}: {path[1:]}"
    where = where if path else place
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", told)
    missing = re.fullmatch(r"Object missing required field `(.*)`", told)
    if unknown is not None:
        name = unknown.group(1)
        return f"{where}: unknown field {name}{nearest(name, fields)}"
    if missing is not None:
        return f"{where}: expected the field {missing.group(1)}, which is missing."
    told = re.sub(r"`([^`]+)`", _in_words, told)
    if not told.startswith("Expected "):
        return f"{where}: {told}"
    expected, _, kind = told.removeprefix("Expected ").partition(", got ")
    value = _value_at(values, path)
    if is_key and isinstance(value, Mapping):
        field = path.rpartition(".")[2]
        came = ", ".join(map(shown, list(value)[:KEYS_SHOWN]))
        return f"{where}: expected each {_KEYS.get(field, 'key')} to be {expected}, got {came}."
    came = kind if kind and isinstance(value, Mapping | list | None) else shown(value)
    return f"{where}: expected {expected}, got {came}."


def _in_words(kinds: re.Match[str]) -> str:
    """ "a number" for "float | null": who gives a value wants one."""
    names = kinds.group(1).removesuffix(" | null").split(" | ")
    return " or ".join(_WORDS.get(name, name) for name in names)


def _value_at(values: object, path: str) -> Any:
    found: Any = values
    for name, number in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        if name and isinstance(found, dict):
            found = found[name]
        elif number and isinstance(found, Sequence):
            found = found[int(number)]
    return found
