"""The commands of this layer."""

from __future__ import annotations

from typing import Annotated

import typer

from fuser.arguments import Json
from fuser.arguments import Set
from fuser.arguments import device_of
from fuser.console import print_json
from fuser.console import print_table
from fuser.errors import UsageError
from fuser.files import counted
from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.program import TensorProgram
from fuser.workloads import gemm_chain as gemm_chain_program
from fuser.workloads import match
from fuser.workloads import workload
from search.space.prune import Funnel
from search.space.prune import TileSet
from search.space.prune import funnel

LARGEST = 1 << 24
"""Sizes of a chain whose tiles are listed."""


def space(
    names: Annotated[list[str] | None, typer.Argument(metavar="[WORKLOAD]...", help="Named workloads, or globs of them.")] = None,
    gemm_chain: Annotated[
        tuple[int, int, int, int] | None, typer.Option("--gemm-chain", metavar="M N K H", help="The chain (A B) D of two GEMMs.")
    ] = None,
    target: Annotated[str, typer.Option("--target", help="The device whose shared memory rule 4 asks about.")] = "a100",
    settings: Set = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Element type of the tensors.")] = "float16",
    json: Json = False,
) -> None:
    """Show the pruning funnel: tiling expressions and candidates before and after each rule."""
    device = device_of(target, settings)
    programs: list[TensorProgram] = []
    if gemm_chain is not None:
        if min(gemm_chain) < 1:
            raise UsageError(f"the sizes {' '.join(map(str, gemm_chain))} are not all positive", "--gemm-chain 1024 1024 512 512")
        if max(gemm_chain) > LARGEST:
            what = f"the size {max(gemm_chain)} has a tile for each multiple of 16, too many to count"
            raise UsageError(what, f"give sizes of at most {LARGEST}")
        m, n, k, h = gemm_chain
        programs.append(gemm_chain_program(Builder("gemm-chain", dtype), batch=1, M=m, N=n, K=k, H=h))
    programs += [workload(n, dtype=dtype) for n in match(names or ())]
    if not programs:
        raise UsageError("nothing to show", "name a workload (mcfuser/G1) or give --gemm-chain M N K H")
    found = {p.name: funnel(block, device) for p in programs for block in fuse(p).blocks}
    if json:
        print_json({"target": device.name, "spaces": [document(name, f) for name, f in found.items()]})
        return
    for name, f in found.items():
        _show(name, f)


def document(name: str, f: Funnel) -> dict[str, object]:
    """The funnel as a document: expressions and candidates at each stage, tile sizes that are left, what is left of the
    expressions."""
    return {
        "name": name,
        "axes": {t.axis: t.extent for t in f.tiles},
        "start": {"expressions": f.stages[0].expressions, "candidates": f.stages[0].candidates},
        "rules": [
            {
                "rule": stage.rule,
                "title": stage.title,
                "expressions": {"before": before.expressions, "after": stage.expressions},
                "candidates": {"before": before.candidates, "after": stage.candidates},
            }
            for before, stage in zip(f.stages, f.stages[1:], strict=False)
        ],
        "end": {"expressions": list(f.left), "programs": f.programs, "candidates": f.stages[-1].candidates},
        "tiles": {t.axis: list(t.values) for t in f.tiles},
        "notes": list(f.notes),
    }


def _show(name: str, f: Funnel) -> None:
    axes = ", ".join(f"{t.axis}={t.extent}" for t in f.tiles)
    rows = [
        (stage.rule, stage.title, stage.expressions, f"{stage.candidates:,}", _kept(before.candidates, stage.candidates))
        for before, stage in zip((f.stages[0], *f.stages), f.stages, strict=False)
    ]
    left = f"expressions in a block: {', '.join(e or '-' for e in f.left)} ({counted(f.programs, 'different program')})"
    tiles = [f"tiles of {t.axis}: {_values(t)}" for t in f.tiles if t.total > 1]
    notes = [f"note: {n}" for n in f.notes]
    print_table(
        f"{name} [{axes}] on {f.device}", ("after", "what", "expr. >", "candidates >", "kept >"), rows, [left, *tiles, *notes]
    )


def _kept(before: int, after: int) -> str:
    return "" if before == after or not before else f"{after / before:.3g}"


def _values(t: TileSet, most: int = 12) -> str:
    shown = [str(v) for v in t.values]
    return " ".join(shown if len(shown) <= most else [*shown[: most - 2], "…", shown[-1]]) + f"  ({len(t.values)} of {t.total})"
