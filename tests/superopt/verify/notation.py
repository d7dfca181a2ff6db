"""µGraphs as text, for tests that write them by hand; close to how they are printed.

    kernel scores [m=128, n=256, k=64]
      q = load Q[m, k]
      t = load K[n, k]
      s = matmul(q, t) over k
      u = causal_mask(s, rows=m, cols=n, offset=128)
      store S[m, n] = u

A dimension of several axes is ``h·d``, of none ``1``. Windows: ``X[64+k, 3]`` starts at elements 64 and 3; ``X(2,64)[1+, 0+k]``
lies in X reshaped to (2, 64). A type stands behind a colon (``t = add(x, y) :float32``); loads and stores have that of their
tensor, others that of an operand. ``over k`` sums; ``~t`` reads a running maximum, and ``rescaled by t^1`` is online softmax.
``kernel sums [k=64, p=?] split k over p`` has parts; constants are products such as ``1/8`` and ``3*|k|^-1/2`` (the extent of k).
``library y: Y = matmul(A, B)`` calls a library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from fuser.ir.access import Access
from fuser.ir.access import Window
from fuser.ir.mugraph import AXIS
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import Axis
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Rescale
from fuser.ir.mugraph import Stmt
from fuser.ir.mugraph import ordered
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Base
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar

_TENSOR = r"(?P<tensor>[\w']+)(?:\((?P<view>[\d,]+)\))?\[(?P<dims>[^]]*)\]"
_LOAD = re.compile(rf"(?P<value>\w+) = load {_TENSOR}(?: :(?P<dtype>\w+))?$")
_STORE = re.compile(rf"store {_TENSOR} = (?P<value>\w+)(?: :(?P<dtype>\w+))?$")
_COMPUTE = re.compile(
    r"(?P<value>\w+) = (?P<op>\w+)\((?P<args>[^)]*)\)(?: over (?P<over>[\w,]+))?(?: rescaled by (?P<by>\w+)\^(?P<degree>-?\d+))?"
    r"(?: :(?P<dtype>\w+))?$"
)
_KERNEL = re.compile(r"kernel (?P<name>\w+) \[(?P<axes>[^]]*)\](?: split (?P<axis>\w+) over (?P<part>\w+))?$")
_LIBRARY = re.compile(r"library (?P<name>\w+): (?P<output>\w+) = (?P<op>\w+)\((?P<args>.*)\)$")
_FACTOR = re.compile(r"(?P<one>1/)?(?:\|(?P<axis>\w+)\||(?P<number>[\d.]+(?:e-?\d+)?))(?:\^(?P<power>-?\d+(?:/\d+)?))?$")


def scalar(text: str) -> Scalar:
    """``-3/8``, ``1e-5``, ``|k|^-1/2``, ``1/3*|p|``."""
    sign, text = (-1, text[1:]) if text.startswith("-") else (1, text)
    found = Scalar(Fraction(sign))
    for factor in text.split("*"):
        if re.fullmatch(r"\d+/\d+", factor):
            found = found * Scalar(Fraction(factor))
            continue
        m = _FACTOR.match(factor)
        assert m, f"no constant: {factor!r}"
        power = Fraction(m["power"] or 1)
        base: Base | None = Extent(m["axis"], AXIS) if m["axis"] else int(m["number"]) if m["number"].isdigit() else None
        part = Scalar.of(float(m["number"])) if base is None else Scalar.power(base, power) if base else Scalar(Fraction(0))
        found = found * (part.inverse() if m["one"] else part)
    return found


def parse(text: str, program: TensorProgram, dtype: str = "float16") -> KernelGraph:
    """The µGraph of a text, for a program whose inputs and outputs it names."""
    kernels: list[Kernel] = []
    tensors = {t.name: t for n in (*program.inputs, *program.outputs) if (t := program[n])}
    groups: list[list[str]] = []
    for line in (x.split("#")[0].strip() for x in text.strip().splitlines()):
        if line.startswith(("kernel", "library")):
            groups.append([line])
        elif line:
            groups[-1].append(line)
    for head, *body in groups:
        if m := _LIBRARY.match(head):
            args = [a.strip() for a in re.split(r", (?![^(]*\))", m["args"])]
            attrs = tuple(sorted(_attr(*a.split("=")) for a in args if "=" in a))
            kernels.append(LibraryKernel(m["name"], m["op"], tuple(a for a in args if "=" not in a), m["output"], attrs))
            continue
        block = _block(head, body, tensors, dtype)
        tensors |= {
            s.access.tensor: Tensor(s.access.tensor, tuple(max(n, 1) for n in s.access.shape(block.extents)), s.dtype)
            for s in block.stores
            if s.access and s.access.tensor not in tensors
        }
        kernels.append(block)
    used = tuple(program[n] for n in dict.fromkeys((*program.inputs, *program.outputs)))
    return KernelGraph(program.name, program.inputs, tuple(kernels), program.outputs, used)


def _attr(key: str, text: str) -> tuple[str, Any]:
    if key == "scalar":
        return key, scalar(text)
    if re.fullmatch(r"\([\d,]+\)", text):
        return key, tuple(map(int, text.strip("()").rstrip(",").split(",")))
    return key, int(text) if re.fullmatch(r"-?\d+", text) else text


def _block(head: str, body: list[str], tensors: Mapping[str, Tensor], dtype: str) -> BlockGraph:
    m = _KERNEL.match(head)
    assert m, f"no kernel: {head!r}"
    pairs = [a.strip().split("=") for a in m["axes"].split(",") if a.strip()]
    axes = tuple(Axis(a, FREE if n == "?" else int(n)) for a, n in pairs)
    splits = ((m["axis"], m["part"]),) if m["axis"] else ()
    made: dict[str, Stmt] = {}
    stmts: list[Stmt] = []
    for line in body:
        s = _stmt(line, made, axes, dict(splits), tensors, dtype)
        stmts.append(s)
        if s.kind != "store":
            made[s.value] = s
    return BlockGraph(m["name"], axes, tuple(stmts), splits)


def _stmt(
    line: str,
    made: Mapping[str, Stmt],
    axes: tuple[Axis, ...],
    splits: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    dtype: str,
) -> Stmt:
    if m := _LOAD.match(line):
        access = _access(m, tensors)
        kind = tensors[m["tensor"]].dtype if m["tensor"] in tensors else dtype
        return Stmt("load", m["value"], ordered(access.axes, axes), m["dtype"] or kind, access=access)
    if m := _STORE.match(line):
        access = _access(m, tensors)
        kind = tensors[m["tensor"]].dtype if m["tensor"] in tensors else dtype
        return Stmt("store", m["value"], access.axes, m["dtype"] or kind, access=access)
    m = _COMPUTE.match(line)
    assert m, f"no statement: {line!r}"
    words = [a.strip() for a in m["args"].split(",")]
    args = tuple(a for a in words if "=" not in a)
    plain = tuple(a.lstrip("~") for a in args)
    attrs = tuple(sorted(_attr(*a.split("=")) for a in words if "=" in a))
    over = tuple(m["over"].split(",")) if m["over"] else ()
    have = {a for v in plain for a in made[v].axes}
    gained = {splits[a] for a in over if a in splits}
    kind = dict(attrs).get("dtype", made[plain[-1 if m["op"] == "where" else 0]].dtype)
    return Stmt(
        "compute",
        m["value"],
        ordered((have - set(over)) | gained, axes),
        m["dtype"] or kind,
        m["op"],
        plain,
        over,
        attrs,
        running=tuple(a[1:] for a in args if a.startswith("~")),
        rescale=(Rescale(m["by"], int(m["degree"])),) if m["by"] else (),
    )


def _access(m: re.Match[str], tensors: Mapping[str, Tensor]) -> Access:
    starts: list[int] = []
    dims: list[tuple[str, ...]] = []
    windowed = bool(m["view"])
    for text in (d.strip() for d in m["dims"].split(",") if d.strip()):
        start, plus, rest = text.partition("+")
        if plus or (text.isdigit() and text != "1"):
            windowed = True
        starts.append(int(start) if start.isdigit() and (plus or text != "1" or m["view"]) else 0)
        names = rest if plus else "" if text.isdigit() else text
        dims.append(tuple(names.split("·")) if names else ())
    access = Access(m["tensor"], tuple(dims))
    if not windowed:
        return access
    view = tuple(map(int, m["view"].rstrip(",").split(","))) if m["view"] else ()
    window = Window(m["tensor"], tensors[m["tensor"]].shape, tuple(starts), view)
    return replace(access, tensor=f"{m['tensor']}{list(starts)}{list(view) or ''}", window=window)
