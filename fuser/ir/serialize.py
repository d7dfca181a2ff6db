"""µGraphs and schedules to and from JSON. The form is versioned; reading checks what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuser.errors import ProgramError
from fuser.ir.access import Window
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import Axis
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Rescale
from fuser.ir.mugraph import Stmt
from fuser.ir.program import Tensor
from fuser.ir.scalar import Scalar

VERSION = 1


def _attrs_to_json(attrs: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    return {k: {"scalar": v.to_json()} if isinstance(v, Scalar) else list(v) if isinstance(v, tuple) else v for k, v in attrs}


def _attrs_from_json(data: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    def value(v: Any) -> Any:
        return Scalar.from_json(v["scalar"]) if isinstance(v, dict) else tuple(v) if isinstance(v, list) else v

    return tuple(sorted((k, value(v)) for k, v in data.items()))


def _stmt_to_json(s: Stmt) -> dict[str, Any]:
    out: dict[str, Any] = {"kind": s.kind, "value": s.value, "axes": list(s.axes), "dtype": s.dtype}
    if s.access:
        out["access"] = {"tensor": s.access.tensor, "dims": [list(d) for d in s.access.dims]}
        if w := s.access.window:
            out["access"]["window"] = {"tensor": w.tensor, "shape": list(w.shape), "starts": list(w.starts)}
            if w.view:
                out["access"]["window"]["view"] = list(w.view)
    if s.kind == "compute":
        out |= {"op": s.op, "args": list(s.args), "reduce": list(s.reduce), "attrs": _attrs_to_json(s.attrs)}
    if s.running:
        out["running"] = list(s.running)
    if s.rescale:
        out["rescale"] = [[r.maximum, r.degree] for r in s.rescale]
    return out


def _access_from_json(d: Mapping[str, Any]) -> Access:
    w = d.get("window")
    window = Window(w["tensor"], *(tuple(map(int, w.get(k, ()))) for k in ("shape", "starts", "view"))) if w else None
    return Access(d["tensor"], tuple(tuple(x) for x in d["dims"]), window)


def _stmt_from_json(d: Mapping[str, Any]) -> Stmt:
    access = _access_from_json(d["access"]) if "access" in d else None
    return Stmt(
        d["kind"],
        d["value"],
        tuple(d["axes"]),
        d["dtype"],
        d.get("op", ""),
        tuple(d.get("args", ())),
        tuple(d.get("reduce", ())),
        _attrs_from_json(d.get("attrs", {})),
        access,
        tuple(d.get("running", ())),
        tuple(Rescale(m, int(n)) for m, n in d.get("rescale", ())),
    )


def _kernel_to_json(k: Kernel) -> dict[str, Any]:
    if isinstance(k, LibraryKernel):
        return {"library": k.op, "name": k.name, "args": list(k.args), "output": k.output, "attrs": _attrs_to_json(k.attrs)}
    return {
        "name": k.name,
        "axes": [[a.name, a.extent] for a in k.axes],
        "splits": [list(s) for s in k.splits],
        "stmts": [_stmt_to_json(s) for s in k.stmts],
    }


def _kernel_from_json(d: Mapping[str, Any]) -> Kernel:
    if "library" in d:
        return LibraryKernel(d["name"], d["library"], tuple(d["args"]), d["output"], _attrs_from_json(d["attrs"]))
    return BlockGraph(
        d["name"],
        tuple(Axis(n, int(e)) for n, e in d["axes"]),
        tuple(map(_stmt_from_json, d["stmts"])),
        tuple((a, g) for a, g in d["splits"]),
    )


def graph_to_json(graph: KernelGraph) -> dict[str, Any]:
    return {
        "mugraph": VERSION,
        "name": graph.name,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "tensors": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in graph.tensors],
        "kernels": [_kernel_to_json(k) for k in graph.kernels],
    }


def graph_from_json(data: Mapping[str, Any]) -> KernelGraph:
    """Read what :func:`graph_to_json` wrote. Raises :class:`ProgramError` that names what is missing or wrong."""
    if data.get("mugraph") != VERSION:
        raise ProgramError(
            f"not a µGraph of version {VERSION}: the field 'mugraph' is {data.get('mugraph')!r}",
            "write it again with this version",
        )
    try:
        return KernelGraph(
            data["name"],
            tuple(data["inputs"]),
            tuple(map(_kernel_from_json, data["kernels"])),
            tuple(data["outputs"]),
            tuple(Tensor(t["name"], tuple(t["shape"]), t["dtype"]) for t in data["tensors"]),
        ).validate()
    except (KeyError, TypeError, ValueError) as error:
        raise ProgramError(f"the µGraph is damaged: {error!r}", "write it again, or regenerate it") from error
