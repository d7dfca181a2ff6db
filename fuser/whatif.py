"""What if a device had other numbers: settings such as ``smem=2x``, ``clock=2.1GHz``, ``sm_count=264``.

A name is that of one number of a device, of one constant of the cost model, or a short one for numbers that go together
(:data:`TOGETHER`). A value is a factor (``1.5x``) or a number, with a unit or without. Settings act from the left to the right.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

from fuser.errors import UsageError
from fuser.files import shown

_TENSOR = ("tensor_fp16", "tensor_bf16", "tensor_tf32", "matmul_rate")
TOGETHER: dict[str, tuple[str, ...]] = {
    "smem": ("smem_per_block", "smem_per_sm"),
    "dram_rate": ("memory_bandwidth", "copy_bandwidth"),
    "dram": ("memory_bytes",),
    "l2": ("l2_bytes",),
    "sms": ("sm_count", *_TENSOR, "fp32_flops"),
    "sm_clock": ("clock", *_TENSOR, "fp32_flops"),
    "tensor": _TENSOR,
}
"""Short names: the first number takes the value, the others follow by the same factor (twice the SMs have twice the rates)."""
WHOLE = ("SM", "B", "register", "thread", "warp", "block")
"""Units of numbers that are whole."""
SHARES = ("merged", "l2_rate", "memory_rate")
"""Constants that are parts of something: at most 1."""
FAR = 1e6
"""By which factor a number may differ from that of the device: beyond it times are no numbers any more."""
PREFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
PREFIXES |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_SETTING = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>\S*)")
_VALUE = re.compile(r"(?P<number>[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?P<unit>\D.*)?")


@dataclass(frozen=True)
class Setting:
    """``value`` is a factor, or in the unit of the number that ``name`` is of."""

    name: str
    value: float
    factor: bool
    text: str

    def of(self, before: float) -> float:
        return before * self.value if self.factor else self.value


def is_setting(word: str) -> bool:
    return _SETTING.fullmatch(word) is not None


def read_settings(texts: Iterable[str], units: Mapping[str, str]) -> tuple[Setting, ...]:
    """Settings of what has these units. Raises :class:`UsageError` that says what is wrong with one."""
    found: dict[str, Setting] = {}
    for text in texts:
        match = _SETTING.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"{shown(text)} is no setting", "NAME=VALUE: smem=2x, sms=264, clock=2.1GHz")
        name = match["name"]
        if name not in units and name not in TOGETHER:
            known = (*TOGETHER, *units)
            near = difflib.get_close_matches(name, known, n=1) or [k for k in known if name in k][:1]
            raise UsageError(
                f"a device has no {name!r} to set" + (f"; did you mean {near[0]}?" if near else ""), f"known: {', '.join(known)}"
            )
        if name in found:
            raise UsageError(f"{name} is set twice: {found[name].text} and {text.strip()}", "set it once")
        found[name] = _read(name, match["value"], units[TOGETHER.get(name, (name,))[0]], text.strip())
    return tuple(found.values())


def _read(name: str, value: str, unit: str, text: str) -> Setting:
    match = _VALUE.fullmatch(value)
    what = f" {unit}" if unit not in ("x", "1") else ""
    hint = f"a factor ({name}=2x), or a number" + (f" of{what}" if what else "")
    if match is None:
        raise UsageError(f"{shown(text)}: {shown(value)} is no value", hint)
    number, given = float(match["number"]), match["unit"] or ""
    factor = given in ("x", "X", "×")
    if not factor and given:
        counted = unit in WHOLE and unit != "B"
        scale = PREFIXES.get(given.removesuffix(unit)) if given.endswith(unit) and not (counted and given != unit) else None
        if scale is None:
            raise UsageError(f"{shown(text)}: {shown(given)} is no unit of {name}", hint)
        number *= scale
    if not math.isfinite(number) or number < 0 or (factor and number == 0):
        raise UsageError(f"{shown(text)}: {shown(value)} is impossible", "give a positive number")
    return Setting(name, number, factor, text)


def changed(
    numbers: Mapping[str, float | None], settings: Sequence[Setting], units: Mapping[str, str]
) -> dict[str, float | None]:
    """The numbers of a device as settings have them; those of constants of the model are left alone."""
    found = dict(numbers)
    for s in settings:
        first, *rest = TOGETHER.get(s.name, (s.name,))
        if first not in found:
            continue
        before = found[first]
        if before is None and s.factor:
            raise UsageError(f"{s.text}: the device has no {first}", "give it a number")
        after = s.of(before or 0.0)
        _near(s, first, before, after)
        found[first] = _in_unit(after, units[first], s)
        for name in rest:
            if (old := found[name]) is not None and before:
                found[name] = _in_unit(old * after / before, units[name])
    return found


def _near(setting: Setting, name: str, before: float | None, after: float) -> None:
    """Raises :class:`UsageError` for what no device can be."""
    if before and after and not before / FAR <= after <= before * FAR:
        what = f"{setting.text}: {name} would be {after:g}, and it is {before:g}"
        raise UsageError(what, f"no device is so far away: between {before / FAR:g} and {before * FAR:g}")


def _in_unit(value: float, unit: str, setting: Setting | None = None) -> float:
    """Whole where the unit is: what a factor gives is rounded down, what somebody gives has to be so."""
    if unit not in WHOLE:
        return value
    if setting and not setting.factor and value != int(value):
        raise UsageError(f"{setting.text}: a number of {unit} is whole", f"{setting.name}={math.ceil(value)}")
    return int(value + 1e-6)


def constants_changed(constants: Mapping[str, float], settings: Sequence[Setting]) -> tuple[tuple[str, float], ...]:
    """The constants of the model that settings change, with their new values."""
    found: dict[str, float] = {}
    for s in settings:
        if s.name not in constants or s.name in TOGETHER:
            continue
        found[s.name] = s.of(constants[s.name])
        _near(s, s.name, constants[s.name], found[s.name])
        most = 1.0 if s.name in SHARES else math.inf
        if not 0 < found[s.name] <= most:
            bounds = "above 0" + (f" and at most 1: it is a part (now {constants[s.name]:g})" if s.name in SHARES else "")
            raise UsageError(f"{s.text}: {s.name} would be {found[s.name]:g}", f"give a value {bounds}")
    return tuple(found.items())
