"""µGraphs from JSON. The form is versioned; reading checks what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from typing import Literal
from typing import cast

from fuser.errors import ProgramError
from fuser.files import shown
from fuser.ir import reading as read
from fuser.ir.access import Window
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import VERSION
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import Axis
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Rescale
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import read_tensors


def _access_from_json(data: Any, where: str) -> Access:
    d = read.table(data, f"the access of {where}")
    dims = read.items(read.get(d, "dims", where), f"the dimensions of {where}")
    return Access(
        read.text(read.get(d, "tensor", where), f"the tensor of {where}"),
        tuple(read.names(x, f"a dimension of {where}") for x in dims),
        _window_from_json(d["window"], f"the window of {where}") if d.get("window") is not None else None,
        read.integer(d.get("pitch", 0), f"the pitch of {where}", 0),
    )


def _window_from_json(data: Any, where: str) -> Window:
    w = read.table(data, where)
    tensor = read.text(read.get(w, "tensor", where), where)
    shape, view = (read.integers(w.get(k, []), f"{k} of {where}", 1) for k in ("shape", "view"))
    return Window(tensor, shape, read.integers(w.get("starts", []), f"starts of {where}", 0), view)


_IN_BLOCKS = ("axis", "scale", "shape", "perm", "times", "start", "stop")
"""Attributes that the axes of a block say."""
_KINDS = ("load", "compute", "store")


def _stmt_from_json(data: Any) -> Stmt:
    d = read.table(data, "a statement")
    value = read.text(read.get(d, "value", "a statement"), "the value of a statement")
    where = f"the statement of {shown(value)}"
    kind = read.text(read.get(d, "kind", where), where)
    if kind not in _KINDS or (kind == "compute") == ("access" in d):
        raise read.wrong(f"the kind of {where}", kind, f"one of {', '.join(_KINDS)} that has what it needs")
    op = read.operator(read.get(d, "op", where), where) if kind == "compute" else ""
    dtype = read.text(read.get(d, "dtype", where), f"the dtype of {where}")
    if dtype not in DTYPE_BYTES:
        raise ProgramError(f"{where} has the unknown dtype {shown(dtype)}", f"known are {', '.join(DTYPE_BYTES)}")
    return Stmt(
        cast("Literal['load', 'compute', 'store']", kind),
        value,
        read.names(read.get(d, "axes", where), f"the axes of {where}"),
        dtype,
        op,
        read.names(d.get("args", []), f"the operands of {where}"),
        read.names(d.get("reduce", []), f"the summed axes of {where}"),
        read.attributes(d.get("attrs", {}), where, op, _IN_BLOCKS) if op else (),
        _access_from_json(d["access"], where) if "access" in d else None,
        read.names(d.get("running", []), f"the running operands of {where}"),
        tuple(_rescale_from_json(r, where) for r in read.items(d.get("rescale", []), f"the rescaling of {where}")),
    )


def _rescale_from_json(data: Any, where: str) -> Rescale:
    maximum, degree = read.items(data, f"the rescaling of {where}")
    return Rescale(read.text(maximum, f"the maximum of {where}"), read.integer(degree, f"a degree of {where}", -1000, 1000))


def _kernel_from_json(data: Any) -> Kernel:
    d = read.table(data, "a kernel")
    name = read.text(read.get(d, "name", "a kernel"), "the name of a kernel")
    where = f"kernel {shown(name)}"
    if "library" in d:
        op = read.operator(d["library"], where)
        args = read.names(read.get(d, "args", where), f"the operands of {where}")
        output = read.text(read.get(d, "output", where), f"the output of {where}")
        return LibraryKernel(name, op, args, output, read.attributes(read.get(d, "attrs", where), where, op))
    axes = tuple(_axis_from_json(a, where) for a in read.items(read.get(d, "axes", where), f"the axes of {where}"))
    if len({a.name for a in axes}) < len(axes):
        raise ProgramError(f"{where} has an axis twice", "write it again, or regenerate it")
    stmts = tuple(map(_stmt_from_json, read.items(read.get(d, "stmts", where), f"the statements of {where}")))
    block = BlockGraph(name, axes, stmts, tuple(_split_from_json(x, where) for x in read.items(d.get("splits", []), where)))
    if unknown := {a for pair in block.splits for a in pair} - set(block.extents):
        raise ProgramError(f"{where} splits the unknown axes {sorted(unknown)}", "write it again, or regenerate it")
    return block


def _axis_from_json(data: Any, where: str) -> Axis:
    name, extent = read.items(data, f"an axis of {where}")
    return Axis(read.text(name, f"an axis of {where}"), read.integer(extent, f"the extent of {shown(name)} of {where}", FREE))


def _split_from_json(data: Any, where: str) -> tuple[str, str]:
    axis, grid = read.names(data, f"a split of {where}")
    return axis, grid


def graph_from_json(data: Mapping[str, Any]) -> KernelGraph:
    """Read what :meth:`KernelGraph.to_json` wrote. Raises :class:`ProgramError` that names what is missing or wrong."""
    what = "the µGraph"
    data = read.table(data, what)
    version = data.get("mugraph")
    if version is True or version != VERSION:
        raise ProgramError(
            f"not a µGraph of version {VERSION}: the field 'mugraph' is {shown(version)}", "write it again with this version"
        )
    with read.reading(what):
        return KernelGraph(
            read.text(read.get(data, "name", what), f"the name of {what}"),
            read.names(read.get(data, "inputs", what), f"the inputs of {what}"),
            tuple(map(_kernel_from_json, read.items(read.get(data, "kernels", what), f"the kernels of {what}"))),
            read.names(read.get(data, "outputs", what), f"the outputs of {what}"),
            read_tensors(read.get(data, "tensors", what), what),
        ).validate()
