"""Readable Triton from any block graph and schedule: one generator, no templates.

The loop tree (:mod:`fuser.ir.tiling`) gives the control flow; every value is a family of register blocks, one for each
combination of pieces of its axes (:mod:`fuser.lower.pieces`). Arithmetic is fp32; operands of a contraction have the dtype of
the program. Lanes outside of a tensor are loaded as zero and set to the identity of a fold before it, so that a ragged tile
changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.interpret.algebra import guarded
from fuser.ir.added import written
from fuser.ir.candidate import scheduled
from fuser.ir.fuse import identifier
from fuser.ir.hashing import hashed
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import Tensor
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.body_code import body
from fuser.lower.cluster_code import blocks_of
from fuser.lower.cluster_code import leave
from fuser.lower.descriptors import described
from fuser.lower.frame_code import Chain
from fuser.lower.frame_code import check_specialized
from fuser.lower.frame_code import decode_grid
from fuser.lower.frame_code import dependent_body
from fuser.lower.frame_code import persistent
from fuser.lower.frame_code import used
from fuser.lower.frame_code import wait_once
from fuser.lower.given_options import check_options
from fuser.lower.given_options import handed
from fuser.lower.kernel_source import KernelSource
from fuser.lower.layer_code import without_idle
from fuser.lower.options import AHEAD
from fuser.lower.options import BACKEND
from fuser.lower.options import FLATTEN
from fuser.lower.options import PDL
from fuser.lower.options import ROOM
from fuser.lower.program_order import persistent_loop
from fuser.lower.tiles import Tiles
from fuser.lower.writer import TRITON_DTYPE
from fuser.lower.writer import Writer

MAX_BLOCKS = 64
"""Register blocks of one value beyond which the source would be absurd; such schedules are refused."""


def generate_graph(graph: KernelGraph, schedule: Schedule) -> tuple[KernelSource, ...]:
    """Source of every graph-defined kernel of a µGraph, in launch order, with names that are unique to structure and schedule."""
    digest = _digest(graph.stable_hash(), schedule.stable_hash())
    rules, added = guarded(graph), written()
    pairs = scheduled(graph, schedule)
    found = []
    for i, (block, mine) in enumerate(pairs):
        if not isinstance(block, BlockGraph) or mine is None:
            continue
        before, after = pairs[i - 1][1] if i else None, pairs[i + 1][1] if i + 1 < len(pairs) else None
        chain = Chain(
            frozenset(t for k in graph.kernels[:i] for t in k.outputs),
            before is not None and bool(PDL.of(mine)),
            PDL.of(after) if after else "",
            _ahead(graph, i, after) if after else (),
        )
        guards = frozenset(v for k, v in rules if k == block.name)
        made = _generated(block, mine, guards, chain, added)
        found.append(made.named(identifier(f"{block.name}_{digest}")))
    return tuple(found)


@lru_cache(512)
def _digest(graph: str, schedule: str) -> str:
    """The end of the names of a candidate's kernels, of its hashes."""
    return hashed(f"{graph}{schedule}")[:8]


@lru_cache(512)  # schedules of a graph often differ in one kernel of several
def _generated(
    block: BlockGraph, schedule: KernelSchedule, guards: frozenset[str], chain: Chain, added: tuple[str, ...]
) -> KernelSource:
    """Source with any name; ``added`` are operators that the table has not by itself."""
    return generate(block, schedule, "", guards, chain)


def _ahead(graph: KernelGraph, i: int, after: KernelSchedule) -> tuple[Tensor, ...]:
    """What kernel ``i`` brings to L2 for the next one: of the tensors that this one names, those that no kernel writes and that
    it does not read itself."""
    here, following = graph.kernels[i], graph.kernels[i + 1]
    assert isinstance(following, BlockGraph)
    loads = {s.access.source: s for s in following.loads if s.access}
    named = [t for t in AHEAD.named(after) if t in loads and t in graph.inputs and t not in here.inputs]
    return tuple(Tensor(t, s.access.memory_shape(following.extents), s.dtype) for t in named if (s := loads[t]).access)


def generate(
    block: BlockGraph,
    schedule: KernelSchedule,
    name: str = "",
    guards: frozenset[str] | None = None,
    chain: Chain | None = None,
) -> KernelSource:
    """Triton source of a block under a schedule. ``guards`` are the values with a defined result where everything is masked
    (:func:`fuser.interpret.algebra.guarded`); without them, those that the block alone shows.

    Raises :class:`UnsupportedError` for operators or dtypes that have no Triton form, :class:`NoValidKernelError` for schedules
    that would need an absurd number of register blocks, :class:`UsageError` for options that the lowering does not have.
    """
    tiles = Tiles.of(block, schedule, guards)
    if BACKEND.of(schedule) == "gluon":
        from fuser.lower.gluon.source import generate_gluon

        return generate_gluon(tiles, name or f"{block.name}_kernel", chain)
    if BACKEND.of(schedule) == "gluon_mma":
        from fuser.lower.gluon.by_warps import generate_by_warps

        return generate_by_warps(tiles, name or f"{block.name}_kernel")
    _check_dtypes(tiles)
    _check_size(tiles)
    tensors = list(dict.fromkeys((*tiles.block.inputs, *tiles.block.outputs)))
    capability = check_options(schedule.knob, tensors, block.name)
    w = Writer(tiles, described(tiles))
    specialize, cluster = check_specialized(w), blocks_of(w)
    chain = chain or Chain()
    arguments = [w.argument(t) for t in (*tensors, *(t.name for t in chain.ahead))]
    for a in tiles.plans:
        w.index(a)
    name = identifier(name or f"{block.name}_kernel")
    programs = persistent(tiles)
    if programs:
        loop = persistent_loop(tiles.places, programs, FLATTEN.of(schedule), specialize)
        once = wait_once(w, chain)
        with w.out.indented(loop):
            _write(w, once)
    else:
        _write(w, chain)
        leave(w)
    access = {s.access.source: s for s in tiles.block.stmts if s.access}
    shapes = [access[t].access.memory_shape(tiles.block.extents) for t in tensors]  # type: ignore[union-attr]
    return KernelSource(
        name,
        _text(w, name, arguments),
        (*tensors, *(t.name for t in chain.ahead)),
        (*(access[t].dtype for t in tensors), *(t.dtype for t in chain.ahead)),
        (*shapes, *(t.shape for t in chain.ahead)),
        tiles.block.outputs,
        programs or tiles.places,
        schedule.num_warps,
        schedule.num_stages,
        chain.waits,
        capability,
        tuple(w.described[t] for t in tensors if t in w.described),
        specialize,
        handed(schedule),
        ROOM.of(schedule),
        cluster=cluster if w.exchanges else 1,
        exchanges=w.exchanges,
    )


def _check_dtypes(tiles: Tiles) -> None:
    for s in tiles.block.stmts:
        if s.dtype not in TRITON_DTYPE:
            what = f"tensor {s.access.source!r}" if s.access else f"{s.value!r}"
            raise UnsupportedError(f"{what} has dtype {s.dtype!r}, which generated kernels cannot hold", "use float32")


def _check_size(tiles: Tiles) -> None:
    """Raises :class:`NoValidKernelError` where the source would be absurd."""
    name = tiles.block.name
    for stmt in tiles.block.stmts:
        blocks = math.prod(len(tiles.pieces[a]) for a in stmt.axes)
        if blocks > MAX_BLOCKS:
            raise NoValidKernelError(
                f"{stmt.value!r} of {name!r} would need {blocks} register blocks",
                "use larger tiles, or an order that keeps fewer partial results",
            )
    if single := [a for a in sorted(tiles.tree.arrays) if tiles.plans[a].tile == 1 and tiles.plans[a].trips > 1]:
        raise NoValidKernelError(
            f"{name!r} would keep an accumulator for each single element of {single[0]!r}",
            f"make the tile of {single[0]!r} 2 or more, or let no other loop end inside its loop",
        )


def _write(w: Writer, chain: Chain) -> None:
    """One place of the grid."""
    decode_grid(w)
    for axis in w.tiles.plans:
        if axis not in w.tiles.looped and used(w, axis):
            w.emit_indices(axis)
    dependent_body(w, chain, lambda nodes: body(w, nodes))


def _text(w: Writer, name: str, arguments: Sequence[str]) -> str:
    """The file of a kernel: what it is, imports, helpers, and the function."""
    tiles = w.tiles
    lines = [
        *(f"# {line}" for line in f"{tiles.block}\nschedule {tiles.schedule}\nloops {tiles.tree}".splitlines()),
        "import triton",
        "import triton.language as tl",
        *([f"from triton.language.extra.cuda import {', '.join(sorted(w.imports))}"] if w.imports else []),
        *(line for helper in sorted(w.helpers, reverse=True) for line in ("", "", helper.rstrip())),
        "",
        "",
        "@triton.jit",
        f"def {name}({', '.join(arguments)}):",
        *without_idle(w),
    ]
    return "\n".join(lines) + "\n"
