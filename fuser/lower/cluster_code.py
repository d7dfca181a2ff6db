"""Folds that the blocks of a cluster share out: each folds its own tile, then all exchange what they have through their shared
memory (distributed shared memory, PTX ISA: ``mapa``, ``ld.shared::cluster``), and combine it in the order of their ranks.

So a row that is too long for one block is read once, and no second kernel is needed. A thread leaves its number in a place of
its own and reads those of its twins in the other blocks: whatever layout the compiler gave the number, it is the same there.
"""

from __future__ import annotations

import re

from fuser.errors import NoValidKernelError
from fuser.ir.mugraph import Stmt
from fuser.lower.assembler import assemble
from fuser.lower.kernel_source import KernelSource
from fuser.lower.options import CLUSTER
from fuser.lower.writer import Writer

MOST = 8
"""Blocks of a cluster that every GPU with clusters can have."""
EXCHANGE = "exchange_in_cluster"
LEAVE = "leave_cluster"

HELPER = """@triton.jit
def {name}(x, NUMBER: tl.constexpr):
    return tl.inline_asm_elementwise(
        "{{ .shared .align 4 .b32 places[{threads}]; .reg .b32 here, there; "
        "mov.u32 there, %tid.x; mov.u32 here, places; mad.lo.u32 here, there, 4, here; "
        "st.shared.b32 [here], ${blocks}; "
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; "
{loads}
        "}}",
        "{outputs},r", [x], dtype=({dtypes}), is_pure=False, pack=1
    )
"""
LOAD = '        "mapa.shared::cluster.u32 there, here, {rank}; ld.shared::cluster.b32 ${rank}, [there]; "'
THREADS = re.compile(r"^\.(?:reqntid|maxntid) .*$", re.MULTILINE)
"""What PTX says of an entry's threads."""
LAST = """@triton.jit
def leave_cluster():
    tl.inline_asm_elementwise(
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; mov.u32 $0, 0;",
        "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )
"""


def blocks_of(w: Writer) -> int:
    """Blocks of a cluster; 1 where they stand alone. Raises :class:`NoValidKernelError` where there would be too many."""
    axis = CLUSTER.of(w.tiles.schedule)
    if not axis:
        return 1
    name = w.tiles.block.name
    if axis not in w.tiles.plans:
        raise NoValidKernelError(f"the option 'cluster' of {name!r} names no axis: {axis!r}", f"axes: {', '.join(w.tiles.plans)}")
    blocks = w.tiles.plans[axis].grid
    if blocks > MOST:
        raise NoValidKernelError(
            f"{blocks} blocks would share out {axis!r} of {name!r}, where a cluster has {MOST} at most",
            f"make the tile of {axis!r} {-(-w.tiles.plans[axis].extent // MOST)} or more",
        )
    return blocks


def exchanged(w: Writer, stmt: Stmt, text: str) -> list[str]:
    """What every block of the cluster has folded, in the order of ranks: names; the text alone where a block folds all."""
    axis = CLUSTER.of(w.tiles.schedule)
    if not axis or axis not in stmt.reduce or w.tiles.plans[axis].grid == 1:
        return [text]
    if w.around or w.loops or w.tiles.dims(stmt.axes) or w.tiles.is_dot(stmt):
        raise NoValidKernelError(
            f"{stmt.value!r} of {w.tiles.block.name!r} is more than one number a block, so that a cluster cannot exchange it",
            "choose tiles of 1 for all axes that it has",
        )
    blocks = blocks_of(w)
    w.helpers.add(_helper(blocks, 32 * w.tiles.schedule.num_warps))
    names = [w.out.beside(f"{stmt.value}", f"of {rank}") for rank in range(blocks)]
    w.emit(f"{', '.join(names)} = {EXCHANGE}({text}, {w.exchanges})")
    w.exchanges += 1
    return names


def leave(w: Writer) -> None:
    """A block ends when no other reads its shared memory any more."""
    if w.exchanges:
        w.helpers.add(LAST)
        w.emit(f"{LEAVE}()")


def _helper(blocks: int, threads: int) -> str:
    loads = "\n".join(LOAD.format(rank=rank) for rank in range(blocks))
    outputs, dtypes = ",".join(["=r"] * blocks), ", ".join(["tl.float32"] * blocks)
    return HELPER.format(name=EXCHANGE, threads=threads, blocks=blocks, loads=loads, outputs=outputs, dtypes=dtypes)


def in_clusters(source: KernelSource, ptx: str, arch: int) -> tuple[str, bytes]:
    """PTX and machine code of a kernel with the size of its clusters, so that every launcher starts it in such: Triton says it
    of its own clusters alone, all blocks of which share one tile."""
    text, found = THREADS.subn(rf"\g<0>\n.explicitcluster\n.reqnctapercluster {source.cluster}, 1, 1", ptx)
    cubin, remarks = assemble(text, arch) if found == 1 else (b"", ["the PTX does not say how many threads a block has"])
    if not cubin:
        raise NoValidKernelError(
            f"{source.name} cannot be assembled for clusters: {'; '.join(remarks)[:300]}", "leave out cluster"
        )
    return text, cubin
