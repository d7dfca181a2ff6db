"""Structure signatures: what a µGraph does, whatever its values are called, its operands' order, and its grid and tile sizes.

A kernel's signature lists what it stores, each as an expression over what it loads; a fold names the axes that it sums over.
Whether a fold is in a loop body or an epilogue follows from a schedule, and so do the paper's maps (:mod:`fuser.ir.maps`).
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Stmt


@dataclass(frozen=True)
class KernelSignature:
    """``stores`` are sorted texts ``tensor[axes] = expression``; ``splits`` the reduced axes divided over the grid."""

    stores: tuple[str, ...]
    splits: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        split = f" split {','.join(self.splits)}" if self.splits else ""
        return f"kernel{split}: " + "; ".join(self.stores)


@dataclass(frozen=True)
class Signature:
    kernels: tuple[KernelSignature, ...]

    @property
    def text(self) -> str:
        return "\n".join(k.text for k in self.kernels)


@lru_cache(1 << 9)
def signature(graph: KernelGraph) -> Signature:
    """Equal for equal structures. Intermediate tensors are named by the order in which they are stored."""
    names: dict[str, str] = {}
    out: list[KernelSignature] = []
    fixed = {*graph.inputs, *graph.outputs}
    for kernel in graph.kernels:
        if isinstance(kernel, LibraryKernel):
            args = ", ".join(names.get(a, a) for a in kernel.args)
            target = _named(kernel.output, names, fixed)
            out.append(KernelSignature((f"{target} = library {kernel.op}({args})",)))
            continue
        texts = expressions(kernel, names)
        rows: list[tuple[str, str, str]] = []
        for s in kernel.stores:
            dims = ",".join("·".join(d) or "1" for d in s.at.dims)
            rows.append((texts[s.value], dims, s.at.tensor))
        stores = []
        for text, dims, tensor in sorted(rows):
            stores.append(f"{_named(tensor, names, fixed)}[{dims}] = {text}")
        out.append(KernelSignature(tuple(stores), tuple(sorted(a for a, _ in kernel.splits))))
    return Signature(tuple(out))


def _named(tensor: str, names: dict[str, str], fixed: Collection[str]) -> str:
    if tensor not in fixed and tensor not in names:
        names[tensor] = f"%{len(names)}"
    return names.get(tensor, tensor)


def expressions(block: BlockGraph, names: Mapping[str, str] | None = None) -> dict[str, str]:
    """The text of every value of a block in terms of its loads, operands that commute in sorted order."""
    names = names or {}
    texts: dict[str, str] = {}
    for s in block.stmts:
        if s.kind == "load" and s.access:
            dims = ",".join("·".join(d) or "1" for d in s.access.dims)
            texts[s.value] = f"{names.get(s.access.tensor, s.access.tensor)}[{dims}]"
        elif s.kind == "compute":
            texts[s.value] = _text(s, texts)
    return texts


def _text(s: Stmt, texts: Mapping[str, str]) -> str:
    args = [texts[a] for a in s.args]
    # once axes are named, the operands of a contraction commute too
    if s.entry.commutative or s.contracts:
        args.sort()
    extra = [f"{k}={v}" for k, v in s.attrs]
    over = f"/{','.join(s.reduce)}" if s.reduce else ""
    rescaled = f"^{','.join(str(r.degree) for r in s.rescale)}" if s.rescale else ""
    return f"{s.op}{over}{rescaled}({', '.join([*args, *extra])})"
