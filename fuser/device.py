"""Devices as data: limits and rates of each GPU, every number with its unit and its source.

A device is one TOML file under ``fuser/devices``. A number there is ``{ value, unit, source }``; the loader checks that none
is missing, that units are right and that sources are given. Where they were fitted, the constants of the cost model are in it
too. The model never asks a GPU.

A device may be hypothetical: one that exists with some numbers changed (``h200 smem=2x``, :mod:`fuser.whatif`), or what a user's
file says of itself, or of a known device but with other numbers. Nothing is measured on those, and no record is about them.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from importlib import resources
from typing import Any

from fuser.checks import require_type
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.files import DEVICE_BYTES
from fuser.files import DIGITS
from fuser.files import parse_json
from fuser.files import read_text
from fuser.files import shown
from fuser.whatif import WHOLE
from fuser.whatif import changed
from fuser.whatif import constants_changed
from fuser.whatif import is_setting
from fuser.whatif import read_settings

SCHEMA = 1
"""Version of the layout of the TOML files."""

REQUIRED: dict[str, str] = {
    "sm_count": "SM",
    "clock": "Hz",
    "memory_bytes": "B",
    "memory_bandwidth": "B/s",
    "copy_bandwidth": "B/s",
    "l2_bytes": "B",
    "l2_bandwidth": "B/s",
    "smem_per_sm": "B",
    "smem_per_block": "B",
    "smem_reserved_per_block": "B",
    "smem_bandwidth_per_sm": "B/clk",
    "registers_per_sm": "register",
    "registers_per_thread": "register",
    "max_threads_per_sm": "thread",
    "max_threads_per_block": "thread",
    "max_warps_per_sm": "warp",
    "max_blocks_per_sm": "block",
    "tensor_fp16": "FLOP/s",
    "fp32_flops": "FLOP/s",
    "sfu_per_clock": "op/clk/SM",
    "launch_latency": "s",
}
OPTIONAL: dict[str, str] = {"tensor_bf16": "FLOP/s", "tensor_tf32": "FLOP/s", "matmul_rate": "FLOP/s"}

LARGEST = 1e20
"""No number of a device is beyond this."""
ARCHITECTURES = range(50, 200)
MEASURED = ("clock", "copy_bandwidth", "l2_bandwidth", "matmul_rate", "launch_latency", "sfu_per_clock")
"""Numbers that two files about one GPU may have otherwise."""
BASE = """in JSON a device has the numbers of a TOML file, or a base and what is set: {"base": "h200", "set": {"smem": "2x"}}"""
_REGISTERS_PER_WARP_UNIT = 256  # allocation granularity of the register file on every supported architecture


@dataclass(frozen=True)
class Device:
    """Limits and rates of one GPU. Bytes, Hz, seconds, FLOP/s (one multiply-add is 2) and operations per clock and SM.

    ``memory_bandwidth`` and the ``tensor_*`` rates are the vendor's peaks (dense, fp32 accumulation); ``copy_bandwidth`` and
    ``matmul_rate`` are what a large copy and a large library matmul reach. ``smem_per_block`` is the opt-in maximum of one
    block. ``launch_latency`` is the time that one more trivial kernel adds inside a CUDA graph. ``sources`` gives the origin
    of each number. ``constants`` are the cost model's where they were fitted to this GPU; ``fit`` says to what, and how well.

    ``hypothetical`` says what makes it one that nobody has (nothing: it exists); it has all constants.
    """

    name: str
    title: str
    arch: int
    sm_count: int
    clock: float
    memory_bytes: int
    memory_bandwidth: float
    copy_bandwidth: float
    l2_bytes: int
    l2_bandwidth: float
    smem_per_sm: int
    smem_per_block: int
    smem_reserved_per_block: int
    smem_bandwidth_per_sm: float
    registers_per_sm: int
    registers_per_thread: int
    max_threads_per_sm: int
    max_threads_per_block: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    tensor_fp16: float
    fp32_flops: float
    sfu_per_clock: float
    launch_latency: float
    tensor_bf16: float | None = None
    tensor_tf32: float | None = None
    matmul_rate: float | None = None
    no_triton: str = ""
    aliases: tuple[str, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    constants: tuple[tuple[str, float], ...] = ()
    fit: tuple[tuple[str, str], ...] = ()
    hypothetical: tuple[str, ...] = ()

    @property
    def sm(self) -> str:
        """The architecture as compilers spell it, ``sm_80``."""
        return f"sm_{self.arch}"

    @property
    def sfu_rate(self) -> float:
        """Special-function operations (exp2, rcp, rsqrt, …) per second of the whole device."""
        return self.sfu_per_clock * self.clock * self.sm_count

    def _tensor(self, dtype: str) -> float | None:
        return {"float16": self.tensor_fp16, "bfloat16": self.tensor_bf16, "float32": self.tensor_tf32}.get(dtype)

    def matmul_flops(self, dtype: str, precision: str = "tf32") -> float:
        """Peak FLOP/s of a matmul of ``dtype`` operands. ``precision`` matters for float32 alone: ieee, tf32 or tf32x3."""
        if precision not in ("ieee", "tf32", "tf32x3"):
            raise UsageError(f"unknown matmul precision {precision!r}", "use ieee, tf32 or tf32x3")
        if dtype not in ("float16", "bfloat16", "float32"):
            raise UnsupportedError(
                f"no matmul rate is known for dtype {dtype!r} on {self.name}", "use float16, bfloat16 or float32"
            )
        rate = self._tensor(dtype)
        if rate is None or (dtype == "float32" and precision == "ieee"):
            return self.fp32_flops
        return rate / 3 if dtype == "float32" and precision == "tf32x3" else rate

    def balance(self, dtype: str = "float16") -> float:
        """FLOP per byte at which a kernel of ``dtype`` turns from memory- to compute-bound (P/W of MCFuser)."""
        return self.matmul_flops(dtype) / self.memory_bandwidth

    def blocks_per_sm(self, threads: int, registers_per_thread: int, smem_bytes: int) -> int:
        """Resident blocks of one SM for a block of ``threads`` threads, or 0 where one block does not fit."""
        warps = math.ceil(threads / 32)
        if (
            threads < 1
            or threads > self.max_threads_per_block
            or registers_per_thread > self.registers_per_thread
            or smem_bytes > self.smem_per_block
        ):
            return 0
        per_warp = math.ceil(max(registers_per_thread, 1) * 32 / _REGISTERS_PER_WARP_UNIT) * _REGISTERS_PER_WARP_UNIT
        shared = smem_bytes + self.smem_reserved_per_block
        return min(
            self.max_blocks_per_sm,
            self.max_warps_per_sm // warps,
            self.max_threads_per_sm // (32 * warps),
            self.registers_per_sm // (per_warp * warps),
            self.smem_per_sm // shared if shared else self.max_blocks_per_sm,
        )


def _quantity(where: str, key: str, entry: Any, unit: str) -> tuple[float, str]:
    if not isinstance(entry, Mapping) or not {"value", "unit", "source"} <= set(entry):
        raise UsageError(
            f"{where}: {key} must be a table of value, unit and source", f"{key} = {{ value = …, unit = '{unit}', source = '…' }}"
        )
    value, given, source = entry["value"], entry["unit"], entry["source"]
    if given != unit:
        raise UsageError(f"{where}: {key} is in {shown(given)}, expected {unit!r}", f"convert the value to {unit}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        raise UsageError(f"{where}: {key} has the value {shown(value)}", "give a finite number that is not negative")
    if not isinstance(source, str) or not source.strip():
        raise UsageError(
            f"{where}: {key} has no source", "say where the number comes from: a data sheet, a white paper, a measurement"
        )
    if unit in WHOLE and value != int(value):
        raise UsageError(f"{where}: {key} has the value {value!r}", f"a number of {unit} is whole")
    return (int(value) if unit in WHOLE else float(value)), source


_EXAMPLE = "see fuser/devices/a100.toml"


def _toml(text: str, where: str) -> dict[str, Any]:
    hint = "compare with the files in fuser/devices"
    if re.search(rf"[0-9_]{{{DIGITS}}}", text):
        raise UsageError(f"{where}: has a number of {DIGITS} digits or more", hint)
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError) as e:  # a date or a number that Python cannot hold is a plain ValueError
        raise UsageError(f"{where} is not TOML: {e}", hint) from None
    except RecursionError:
        raise UsageError(f"{where} is not TOML for a device: it is nested too deeply", hint) from None


def _plausible(where: str, n: Mapping[str, float]) -> None:
    """Limits that are nothing, or contradict each other, would make estimates of nothing."""
    if odd := [k for k, v in n.items() if v == 0 and k not in ("smem_reserved_per_block", "launch_latency")]:
        raise UsageError(f"{where}: {', '.join(odd)} must be positive")
    if odd := [k for k, v in n.items() if v > LARGEST]:
        raise UsageError(f"{where}: {odd[0]} is {n[odd[0]]:g}", f"no number of a device is above {LARGEST:g}")
    if odd := [k for k, v in n.items() if 0 < v < 1 / LARGEST]:
        raise UsageError(f"{where}: {odd[0]} is {n[odd[0]]:g}", f"no number of a device is below {1 / LARGEST:g}")
    for small, large in (
        ("smem_per_block", "smem_per_sm"),
        ("max_threads_per_block", "max_threads_per_sm"),
        ("registers_per_thread", "registers_per_sm"),
        ("copy_bandwidth", "memory_bandwidth"),
    ):
        if n[small] > n[large]:
            raise UsageError(f"{where}: {small} ({n[small]:g}) is above {large} ({n[large]:g})", "look the two up again")


def parse_device(text: str, where: str = "device file") -> Device:
    """A device from the text of its TOML file; :class:`UsageError` names the file, the key and what is wrong with it."""
    return _device(_toml(text, where), where)


def _device(data: Mapping[str, Any], where: str) -> Device:
    if data.get("schema") is True or data.get("schema") != SCHEMA:
        raise UsageError(f"{where}: schema is {shown(data.get('schema'))}, expected {SCHEMA}", _EXAMPLE)
    for key, kind in (("name", str), ("title", str), ("arch", int)):
        if not isinstance(data.get(key), kind) or data[key] is True or data[key] is False or data[key] == "":
            raise UsageError(f"{where}: {key} is missing or is not of type {kind.__name__}", _EXAMPLE)
    if data["arch"] not in ARCHITECTURES:
        raise UsageError(f"{where}: arch is {shown(data['arch'])}", "give the compute capability without its point: 80 for sm_80")
    aliases = data.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(a, str) for a in aliases):
        raise UsageError(f"{where}: aliases is not a list of names", _EXAMPLE)
    if not isinstance(data.get("no_triton", ""), str):
        raise UsageError(f"{where}: no_triton is not a text", "say why kernels cannot be compiled, or leave it out")
    if not isinstance(data.get("hypothetical", False), bool):
        raise UsageError(f"{where}: hypothetical is not true or false", "true: there is no such device")
    numbers = data.get("numbers", {})
    if not isinstance(numbers, dict):
        raise UsageError(f"{where}: numbers is not a table", _EXAMPLE)
    if missing := [k for k in REQUIRED if k not in numbers]:
        raise UsageError(f"{where}: missing {', '.join(missing)}", "add them to [numbers], each with value, unit and source")
    if unknown := [k for k in numbers if k not in REQUIRED and k not in OPTIONAL]:
        names = ", ".join(map(shown, unknown[:6])) if any(not k.isidentifier() for k in unknown) else ", ".join(unknown)
        raise UsageError(f"{where}: unknown {names}", f"known are {', '.join([*REQUIRED, *OPTIONAL])}")
    found = {k: _quantity(where, k, v, (REQUIRED | OPTIONAL)[k]) for k, v in numbers.items()}
    values: dict[str, Any] = {k: v for k, (v, _) in found.items()}
    _plausible(where, values)
    fit = data.get("calibration", {})
    if not isinstance(fit, dict) or not all(isinstance(v, str) for v in fit.values()):
        raise UsageError(f"{where}: calibration is not a table of texts", "it says what constants were fitted to; leave it out")
    return Device(
        name=data["name"],
        title=data["title"],
        arch=data["arch"],
        no_triton=data.get("no_triton", ""),
        aliases=tuple(aliases),
        sources=tuple((k, s) for k, (_, s) in found.items()),
        hypothetical=(f"{where} says so",) if data.get("hypothetical") else (),
        constants=_constants(where, data.get("constants")),
        fit=tuple(fit.items()),
        **values,
    )


def _constants(where: str, table: Any) -> tuple[tuple[str, float], ...]:
    """Those of the cost model, none where there is no table of them."""
    return () if table is None else import_module("cost_model.constants").checked(where, table)


# -- devices that nobody has


def hypothetical(device: Device, settings: Sequence[str]) -> Device:
    """A device with other numbers. Raises :class:`UsageError` naming a setting that is unknown, or impossible."""
    if not settings:
        return device
    model = import_module("cost_model.constants")
    known = REQUIRED | OPTIONAL | {k: unit for k, (unit, _) in model.UNITS.items()}
    made = read_settings(settings, known)
    said = ", ".join(s.text for s in made)
    before = {k: getattr(device, k) for k in REQUIRED | OPTIONAL}
    after = changed(before, made, REQUIRED | OPTIONAL)
    _plausible(f"{device.name} with {said}", {k: v for k, v in after.items() if v is not None})
    sources = {k: f"what if; {dict(device.sources).get(k, '')}" for k in after if after[k] != before[k]}
    values: dict[str, Any] = after
    found = replace(
        device,
        name=f"{device.name} {' '.join(s.text for s in made)}",
        title=f"{device.title}{'' if device.hypothetical else ', hypothetical:'} {said}",
        aliases=(),
        sources=tuple({**dict(device.sources), **sources}.items()),
        fit=(),
        hypothetical=(*device.hypothetical, *(s.text for s in made)),
        **values,
    )
    constants = asdict(model.clocked(model.constants_of(device), device.clock / found.clock))
    return replace(found, constants=tuple({**constants, **dict(constants_changed(constants, made))}.items()))


def _own(device: Device, where: str) -> Device:
    """The device of a user's file; hypothetical, if it is a known one but for its numbers."""
    names = {_plain(x) for x in (device.name, device.title, *device.aliases)}
    for known in list_devices():
        if names & {_plain(x) for x in (known.name, known.title, *known.aliases)}:
            other = [k for k in ("arch", *REQUIRED) if k not in MEASURED and getattr(device, k) != getattr(known, k)]
            if other:
                says = f"{where} has another {', '.join(other[:3])} than {known.name}"
                device = replace(device, hypothetical=(*device.hypothetical, says))
    if not device.hypothetical:
        return device
    return replace(device, title=f"{device.title}, hypothetical", aliases=())


def _json_device(data: Any, where: str) -> Device:
    """A device of a JSON file: numbers as those of TOML have them, or those of a base with some set."""
    if not isinstance(data, dict):
        raise UsageError(f"{where} is not an object", BASE)
    if "base" not in data:
        return _own(_device(data, where), where)
    if unknown := sorted(data.keys() - {"base", "set", "name", "title"}):
        raise UsageError(f"{where}: unknown {', '.join(map(shown, unknown[:6]))}", BASE)
    base, chosen = data["base"], data.get("set", {})
    texts = [data.get("name", "base"), data.get("title", "base"), base]
    if not isinstance(chosen, dict) or not all(isinstance(t, str) and t for t in texts):
        raise UsageError(f"{where}: base, name and title are texts, set is an object", BASE)
    if base.endswith((".json", ".toml")):
        raise UsageError(f"{where}: base is a file, {shown(base)}", "a base is a name of `mufuser devices`")
    for key, value in chosen.items():
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise UsageError(f"{where}: {shown(key)} is set to {shown(value)}", "a number, or a text as in --set")
    if not chosen:
        raise UsageError(f"{where}: nothing is set: it is {base}", BASE)
    made = hypothetical(load_device(base), [f"{k}={v}" for k, v in chosen.items()])
    title = f"{data['title']}, hypothetical" if "title" in data else made.title
    return replace(made, name=data.get("name", made.name), title=title)


@lru_cache
def _builtin(name: str) -> Device:
    file = resources.files("fuser") / "devices" / f"{name}.toml"
    return parse_device(file.read_text(encoding="utf-8"), file.name)


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    """Of the devices that come with the package: those of their files."""
    files = (resources.files("fuser") / "devices").iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")))


def list_devices() -> tuple[Device, ...]:
    """The devices that come with the package, by architecture and name."""
    return tuple(sorted(map(_builtin, _names()), key=lambda d: (d.arch, d.name)))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _unreadable(message: str, hint: str) -> UsageError:
    return UsageError(f"cannot read the device file {message}", "give a path to a device file, or a name of `mufuser devices`")


def load_device(name: str, settings: Sequence[str] = ()) -> Device:
    """The device of that name, alias or architecture, or of the file at that path, with some ``settings`` (``smem=2x``).

    Accepted: ``h200``; a product name such as ``NVIDIA H200`` or TVM's tag ``nvidia/nvidia-a100``; an architecture, ``sm_80``
    or ``cuda -arch=sm_80``, if only one known device has it; a path ending in ``.toml`` or ``.json``. Settings may also follow
    the name: ``h200 smem=2x``. Raises :class:`UsageError` naming the device and what there is.
    """
    require_type("the name of a device", name, str)
    words = name.split(" ")
    while len(words) > 1 and is_setting(words[-1]):
        settings = (words.pop(), *settings)
    return hypothetical(_named(" ".join(words)), settings)


def _named(name: str) -> Device:
    if name.endswith(".toml"):
        return _own(parse_device(read_text(name, DEVICE_BYTES, _unreadable), name), name)
    if name.endswith(".json"):
        text = read_text(name, DEVICE_BYTES, _unreadable)
        return _json_device(parse_json(text, name, BASE, UsageError), name)
    wanted = _plain(name.rsplit("/", 1)[-1])
    for device in map(_builtin, sorted(_names(), key=lambda n: n not in wanted)):  # of most names one file alone is read
        if wanted in {_plain(device.name), _plain(device.title), *map(_plain, device.aliases)}:
            return device
    devices = list_devices()
    known = ", ".join(d.name for d in devices)
    if arch := re.search(r"\bsm_?(\d+)[af]?\b", name):
        same = [d for d in devices if d.arch == int(arch[1])]
        if len(same) == 1:
            return same[0]
        if same:
            raise UsageError(f"target {name!r} fits {' and '.join(d.name for d in same)}", "their rates differ: name the device")
    raise UsageError(
        f"there is no device specification for target {shown(name)}",
        f"known: {known}; or pass the path of a device file (.toml, .json)",
    )
