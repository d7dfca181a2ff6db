"""The same program at other sizes: every axis gets a new extent, and shapes, views and masks follow.

A verifier needs it to test a structure at sizes that are small and pairwise different, and a cost estimate to cut a program to a
few output blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.ir.axes import AxisMap
from fuser.ir.axes import Dims
from fuser.ir.axes import axes_of
from fuser.ir.composites import expand
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram


def resize(
    program: TensorProgram, sizes: Mapping[str, int], axes: AxisMap | None = None, offsets: Mapping[str, int] | None = None
) -> TensorProgram:
    """The expanded program with the extents ``sizes`` for axes of ``axes_of(expand(program))``; the others keep theirs.

    A dimension of extent 1 stays one. Constants tied to extents follow by themselves; a causal mask has the offset that
    ``offsets`` gives its result, else it keeps its anchor (see :func:`shifted_offset`). Raises :class:`UnsupportedError` where an
    operator has no axis rule, :class:`UsageError` for unknown axes.
    """
    program = expand(program)
    axes = axes or axes_of(program)
    if unknown := set(sizes) - set(axes.extents):
        raise UsageError(f"program {program.name!r} has no axes {sorted(unknown)}", f"its axes are {', '.join(axes.extents)}")
    extents = axes.extents | dict(sizes)
    shapes = {n: _shape(d, extents) for n, d in axes.values.items()}
    for (i, j), dims in axes.uses.items():
        name, shape = program.nodes[i].inputs[j], _shape(dims, extents)
        if shapes.setdefault(name, shape) != shape:
            raise UnsupportedError(
                f"{name!r} is read along different axes, which would get the shapes {shapes[name]} and {shape}",
                "give axes that one dimension has in several uses the same extent",
            )
    return replace(
        program,
        nodes=tuple(_node(i, program, axes, extents, offsets or {}) for i in range(len(program.nodes))),
        tensors=tuple(replace(t, shape=shapes.get(t.name, t.shape)) for t in program.tensors),
    ).validate()


def _shape(dims: Dims, extents: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(math.prod(extents[a] for a in d) for d in dims)


def _node(i: int, program: TensorProgram, axes: AxisMap, extents: Mapping[str, int], offsets: Mapping[str, int]) -> Node:
    node = program.nodes[i]
    attrs: dict[str, Any] = dict(node.attrs)
    dims = axes.values[node.output]
    if "shape" in attrs:
        attrs["shape"] = _shape(dims, extents)
    if "times" in attrs:  # the operand's axes are the outer factor of the repeated dimension
        at = attrs["axis"] % len(dims)
        attrs["times"] = _shape(dims, extents)[at] // _shape(axes.uses[i, 0], extents)[at]
    if node.indexed:
        rows, columns = program[node.output].shape[-2:]
        new_rows, new_columns = _shape(dims, extents)[-2:]
        anchor = mask_anchor(attrs.get("offset", 0), rows, columns)
        moved = shifted_offset(attrs.get("offset", 0), anchor, rows, columns, new_rows, new_columns)
        attrs["offset"] = offsets.get(node.output, moved)
    return replace(node, attrs=tuple(sorted(attrs.items())))


def mask_anchor(offset: int, rows: int, columns: int) -> str:
    """Which corner a causal mask is tied to: ``end`` where the last row sees every column, else ``start``."""
    return "end" if offset == columns - rows and offset else "start"


def shifted_offset(offset: int, anchor: str, rows: int, columns: int, new_rows: int, new_columns: int) -> int:
    """The offset of a causal mask at other sizes: the distance from its anchor stays."""
    if anchor == "end":
        return new_columns - new_rows + offset - (columns - rows)
    return offset
