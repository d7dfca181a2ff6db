"""A program of float32 in a narrower type, and what that costs in accuracy.

Every tensor in memory has the narrower type, inputs, parameters and outputs too; inside a kernel sums, norms and exponentials are
float32 as ever. Angles that follow from whole numbers, as those of rotary embeddings from positions, stay float32: rounded to
eight bits the angle of position 3000 is another one.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from math import inf
from math import isfinite
from typing import Any

import numpy as np

from fuser.errors import UsageError
from fuser.frontends.imported import Called
from fuser.frontends.imported import Imported
from fuser.ir.ops import Array
from fuser.ir.program import Node
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram

NARROW: dict[str, float] = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
"""The types that a program can be converted to, and the largest number of each."""


PERIODIC, PLAIN = ("sin", "cos"), ("map", "view", "data", "contract")
"""Operators of angles, and kinds of those that angles are computed by."""


@dataclass(frozen=True)
class Conversion:
    """A program converted to ``dtype``: the largest error of an output against the original's, relative to its norm, on the
    example inputs. ``by`` says what computed it. ``bounded`` are parameters and constants with numbers that it has not: the
    largest that it has stand for them."""

    dtype: str
    error: float
    by: str
    bounded: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"converted to {self.dtype}: relative error {self.error:.1e} against float32 on the example inputs ({self.by})"
        most = f"; numbers beyond ±{NARROW[self.dtype]:g} in {', '.join(self.bounded)} became that"
        return text + most * bool(self.bounded)


def converted(known: Imported, dtype: str) -> Imported:
    """The program with ``dtype`` where it has float32. Raises :class:`UsageError` where it has none, or for another dtype."""
    if dtype not in NARROW:
        raise UsageError(f"nothing can be converted to {dtype!r}", f"use dtype={' or '.join(map(repr, NARROW))}")
    program = known.program
    if not any(t.dtype == "float32" for t in program.tensors):
        raise UsageError(f"{program.name!r} has no float32 that could be converted to {dtype}", "leave out dtype=")
    if known.called is not None and _reads_bits(program, known.called):
        what = f"{program.name!r} reads the bits of its numbers (a view of another dtype), which a conversion changes"
        raise UsageError(what, "leave out dtype=")
    if known.called is not None and (known.called.complex or any(r.complex for r in known.called.results)):
        what = f"{program.name!r} takes or returns complex numbers, of which torch has none in {dtype}"
        raise UsageError(what, "leave out dtype=, or convert the parts of the module around them")
    if callee := next((n.attr["callee"] for n in program.nodes if n.op == "opaque" and _of_complex(n)), None):
        what = f"{program.name!r} has {callee} of complex numbers, which torch has not in {dtype}"
        raise UsageError(what, "leave out dtype=, or convert the parts of the module around it")
    kept = _angles(program, known.params)
    wide = {t.name for t in program.tensors if t.dtype == "float32"} - kept
    tensors = [replace(t, dtype=dtype) if t.name in wide else t for t in program.tensors]
    nodes: list[Node] = []
    for node in (n if n.output in kept else _node(n, dtype) for n in program.nodes):
        nodes += _beside(program, node, kept, dtype, tensors) if node.output not in kept else [node]
    params = {n: _bounded(x, NARROW[dtype]) if n in wide else x for n, x in known.params.items()}
    return replace(
        known, program=replace(program, tensors=tuple(tensors), nodes=tuple(nodes)).validate(), params=params, traced=None
    )


def _angles(program: TensorProgram, params: Collection[str]) -> set[str]:
    """What sines and cosines are taken of, and what that is computed from, where these are whole numbers and parameters."""
    found = set[str]()
    for node in program.nodes:
        if node.op in PERIODIC:
            found |= _from_whole_numbers(program, node.inputs[0], params)
    return found


def _from_whole_numbers(program: TensorProgram, name: str, params: Collection[str]) -> set[str]:
    """A tensor of float32 with all such that it is computed from; none where a number of the caller's is among these."""
    found, todo, whole = set[str](), [name], False
    while todo:
        n = todo.pop()
        if n in found:
            continue
        if program[n].dtype != "float32":
            whole = True
            continue
        made = program.producers.get(n)
        if n in program.outputs or (n not in params if made is None else made.entry.kind not in PLAIN):
            return set()
        found.add(n)
        todo += made.inputs if made is not None else ()
    return found if whole else set()


def _beside(program: TensorProgram, node: Node, kept: Collection[str], dtype: str, tensors: list[Tensor]) -> list[Node]:
    """An operator in the narrower type whose operands may be ``kept`` in float32, with the casts that it needs; ``tensors`` get
    theirs."""
    mine = [i for i in dict.fromkeys(node.inputs) if i in kept]
    if not mine:
        return [node]
    name = node.output
    if node.op in PERIODIC:
        wide = replace(program[name], name=f"{name}.float32")
        tensors.append(wide)
        return [replace(node, output=wide.name), Node("cast", (wide.name,), name, (("dtype", dtype),))]
    casts: list[Node] = []
    for i in mine:
        narrow = replace(program[i], name=f"{i}.{name}", dtype=dtype)
        tensors.append(narrow)
        casts.append(Node("cast", (i,), narrow.name, (("dtype", dtype),)))
    return [*casts, replace(node, inputs=tuple(f"{i}.{name}" if i in kept else i for i in node.inputs))]


def _reads_bits(program: TensorProgram, called: Called) -> bool:
    calls = [str(call) for r in called.results for call, *_ in r.views]
    return "aten.view.dtype" in (*calls, *(dict(n.attrs).get("callee") for n in program.nodes))


def _of_complex(node: Node) -> bool:
    """Whether torch computes with complex numbers there, or makes them."""
    return (
        node.attr["callee"].startswith(
            ("aten._fft_", "aten.fft_", "aten.stft", "aten.istft", "aten.linalg_eig.", "aten.linalg_eigvals.")
        )
        or '"complex":' in node.attr["detail"]
    )


def _node(node: Node, dtype: str) -> Node:
    def attr(name: str, value: Any) -> Any:
        if name == "dtype" and value == "float32":
            return dtype
        if name == "detail":
            return json.dumps(_renamed(json.loads(value), dtype))
        return value

    return replace(node, attrs=tuple((k, attr(k, v)) for k, v in node.attrs))


def _renamed(value: Any, dtype: str) -> Any:
    """The arguments of a call of torch's, which asks for float32 by name."""
    if isinstance(value, dict):
        return {k: dtype if k == "torch" and v == "float32" else _renamed(v, dtype) for k, v in value.items()}
    return [_renamed(v, dtype) for v in value] if isinstance(value, list) else value


def _bounded(x: Array, most: float) -> Array:
    """Finite values stay finite: what masks by a large negative number still does."""
    beyond = np.isfinite(x) & (abs(x) > most)
    return np.where(beyond, np.clip(x, -most, most), x).astype(x.dtype) if beyond.any() else x


def relative_error(got: Mapping[str, Any], want: Mapping[str, Any]) -> float:
    """The largest error of a tensor of floats, relative to the norm of what it should be; infinities have to stand in place."""
    worst = 0.0
    for name, y in want.items():
        if not y.is_floating_point():
            continue
        x, y = got[name].detach().double().cpu(), y.detach().double().cpu()
        same = x == y  # infinities among them
        wrong, norm = float((x - y).masked_fill(same, 0.0).norm()), float(y.masked_fill(same & ~y.isfinite(), 0.0).norm())
        error = wrong / norm if norm else float(wrong > 0)
        worst = max(worst, error if isfinite(error) else inf)
    return worst


def conversion(known: Imported, small: Imported, dtype: str, given: Sequence[Any], run: Any) -> Conversion:
    """The error of a conversion to ``dtype``. ``given``: example values of ``known.inputs``, in order. ``run`` has the kernels:
    outputs by name for inputs by name; where it is None, torch computes with the program's operators."""
    import torch

    from fuser.runtime.torch_program import run_program

    def values(of: Imported) -> dict[str, Any]:
        params = {n: torch.from_numpy(np.require(x, requirements="W")) for n, x in of.params.items()}
        named = params | {n: x.detach().cpu() for n, x in zip(of.inputs, given, strict=True)}
        return {n: x.to(getattr(torch, of.program[n].dtype)) for n, x in named.items()}

    with torch.no_grad():
        want = run_program(known.program, values(known))
        if run is None:
            got, by = run_program(small.program, values(small)), "torch, operator by operator"
        else:
            dtypes = (getattr(torch, small.program[n].dtype) for n in small.inputs)
            got = run({n: x.to(d) for n, x, d in zip(small.inputs, given, dtypes, strict=True)})
            by = "the kernels"
    bounded = tuple(n for n, x in known.params.items() if n in small.params and small.params[n] is not x)
    return Conversion(dtype, relative_error(got, want), by, bounded)
