"""Damage to good files, with their structure in mind: values of the wrong type or size, references that point elsewhere, entries
that are missing, doubled or swapped, and damage to the bytes. Everything is drawn from a generator: a case has a number.
"""

from __future__ import annotations

import copy
import gzip
import json
import re
from typing import Any

import numpy as np

Rng = np.random.Generator

RAW = {
    "@inf@": "Infinity",
    "@nan@": "NaN",
    "@1e400@": "1e400",
    "@digits@": "9" * 5000,
    "@deep@": "[" * 500 + "]" * 500,
    "@deeper@": "[" * 100_000 + "]" * 100_000,
    "@-0@": "-0",
    "@-0.0@": "-0.0",
    "@twice@": '{"name": 1, "name": 2}',
}
"""Marks that become text that no writer of JSON would write."""

ODD: tuple[Any, ...] = (
    *RAW, None, True, False, 0, -1, 1, 2, 7, 3.5, 2**31, 2**63, 2**64, -(2**63), 10**300, 1e308, "", " ", "0", "-1", "²", "٣",
    "1e400", "nan", "inf", "x", "X" * 5000, "\x1b[31mred\x1b[0m", "\x07\x9b2J", "a\nb", "../../etc/passwd", "\ud800", "\u202e",
    "import os", "float99", "int4", "float16", "float32", "bool", "relay.Call", "relay.Tuple", "Array", "matmul", "exp", "opaque",
    "attention", [], {}, [[]], [0], [1, 2, 3], ["m"], [-1], [0] * 60, [2**40] * 4, {"scalar": 1}, {"name": None}, [[[1]]],
    {"scalar": {"coeff": [1, 0], "powers": []}}, {"scalar": {"coeff": [1, 2], "powers": [[0, [-1, 2]]]}},
    {"scalar": {"coeff": [1, 2], "powers": [[2, [10**9, 1]]]}},
)  # fmt: skip


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in entries:
        found += _places(item, (*at, key))
    return found


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def damaged_value(rng: Rng, good: Any, most: int = 3) -> Any:
    """A copy of a JSON value with up to ``most`` changes."""
    value = copy.deepcopy(good)
    for _ in range(int(rng.integers(1, most + 1))):
        places = _places(value)
        if not places:
            return value
        path = places[int(rng.integers(len(places)))]
        parent, key = _at(value, path[:-1]), path[-1]
        _change(rng, parent, key, places, value)
    return value


def _change(rng: Rng, parent: Any, key: Any, places: list[tuple[Any, ...]], whole: Any) -> None:
    kind = int(rng.integers(8))
    if kind <= 2:
        parent[key] = copy.deepcopy(ODD[int(rng.integers(len(ODD)))])
    elif kind == 3:
        parent.pop(key)
    elif kind == 4:  # what stands elsewhere in the file
        other = _at(whole, places[int(rng.integers(len(places)))])
        parent[key] = copy.deepcopy(other) if len(str(other)) < 10_000 else 0
    elif kind == 5:  # a number or a reference moves a little
        old = parent[key]
        step = int(rng.integers(-3, 4))
        if isinstance(old, int | float):
            parent[key] = old + step
        elif isinstance(old, str) and re.fullmatch(r"-?\d{1,9}", old):
            parent[key] = str(int(old) + step)
        else:
            parent[key] = old * 2 if isinstance(old, str | list) and len(old) < 1000 else None
    elif kind == 6 and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[int(rng.integers(len(parent)))]))
    elif kind == 6:
        parent[f"{key}x"] = parent.pop(key)
    elif isinstance(parent, list):
        other = int(rng.integers(len(parent)))
        parent[key], parent[other] = parent[other], parent[key]
    else:
        parent["unknown"] = parent[key]


def json_text(value: Any) -> str:
    """The text of a JSON value with its marks (:data:`RAW`) put in."""
    text = json.dumps(value)
    for mark, raw in RAW.items():
        text = text.replace(json.dumps(mark), raw)
    return text


def damaged_bytes(rng: Rng, good: bytes) -> bytes:
    """Bytes cut, flipped, moved, compressed, or in another encoding."""
    kind, n = int(rng.integers(10)), len(good)
    at = int(rng.integers(max(n, 1)))
    if kind == 0:
        return good[:at]
    if kind in (1, 2, 3):
        data = bytearray(good)
        for _ in range(int(rng.integers(1, 8))):
            if data:
                data[int(rng.integers(n))] ^= 1 << int(rng.integers(8))
        return bytes(data)
    if kind == 4:
        return good[:at] + bytes(rng.integers(0, 256, int(rng.integers(1, 40)), dtype=np.uint8)) + good[at:]
    if kind == 5:
        return good[:at] + good[min(n, at + int(rng.integers(1, 200))) :]
    if kind == 6:
        to = int(rng.integers(max(n, 1)))
        return good[: min(at, to)] + good[at:] + good[: max(at, to)]
    return [gzip.compress(good), good.decode("latin-1").encode("utf-16"), b"\xef\xbb\xbf" + good, b"", bytes(4096)][
        int(rng.integers(5))
    ]


TOML_VALUES = (
    "true", "nan", "inf", "-inf", "-1", "0", "1", "1e400", "9" * 5000, "0x" + "f" * 5000, "''", "'\\u001b[2J'", "[]", "{}",
    "[1, 2]", "1979-05-27", "25:61:00", "1e18", "1e300", "2.5", "[" * 300 + "]" * 300, '"\\ud800"', "'²'",
    "{ value = 1 }", "[[1], 'a']",
    "1_000", "'h200'",
)  # fmt: skip


def damaged_toml(rng: Rng, good: str) -> str:
    """Values, keys and lines of a TOML file changed."""
    lines = good.splitlines()
    for _ in range(int(rng.integers(1, 4))):
        i = int(rng.integers(len(lines)))
        odd = TOML_VALUES[int(rng.integers(len(TOML_VALUES)))]
        kind = int(rng.integers(6))
        if kind == 0 and "=" in lines[i]:
            lines[i] = f"{lines[i].split('=')[0]}= {odd}"
        elif kind in (1, 2) and "value =" in lines[i]:
            lines[i] = re.sub(r"value = [^,]*", lambda _, odd=odd: f"value = {odd}", lines[i], count=1)
        elif kind == 3:
            lines[i] = re.sub(r"'[^']*'|\"[^\"]*\"", lambda _, odd=odd: odd, lines[i], count=1)
        elif kind == 4:
            lines.insert(int(rng.integers(len(lines))), lines.pop(i))
        else:
            lines[i : i + 1] = [] if rng.integers(2) else [lines[i], lines[i]]
        if not lines:
            break
    return "\n".join(lines)
