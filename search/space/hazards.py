"""Schedules that Triton 3.6 compiles to wrong code on Hopper, found by running about 6,000 schedules on an H200 against float64
(experiments/raw). The first two classes hold all but one of the 97 wrong ones.

All of them are right in Triton's interpreter, and wrong through Triton's own launcher too. Where kernels are measured, the checks
before timing catch them; fast tuning has no GPU to check on, so it leaves out every schedule of these classes:

* *shared load*: a load in a pipelined loop that feeds a contraction and something else as well. The buffer is overwritten while
  the asynchronous
  contraction still reads it: errors of 1 to 40 % that change from run to run. With one stage all of them are right. So is one
  taken that feeds contractions by warp groups and by fragments, whose rows are cut into pieces on both sides of 64 (160 into 128
  and 32): one of the 8 that were ever run had an error of 1 %, in the rows that are left over of the last tile.
* *narrow product*: a contraction with a computed left operand, 64 rows or more for each warp group, at most 32 columns and 64 or
  more terms at once, outside of a pipelined loop: 43 of 57 are garbage, with ptxas 12.8 (ptxas 13.0 assembles the same PTX
  rightly). In pipelined loops none of 350 is.
* *byte load*: a mask, say, of one byte an element that becomes part of a computed operand in a loop of three stages or more: 8 of
  14 such schedules of one kernel were garbage, none of 14 with fewer stages.
* *flattened chain*: a persistent loop that goes on from place to place (option ``flatten``) and loads by pointers, with a
  contraction by warp groups whose left operand is computed: 7 of 11 have errors of 14 to 50 %, or differ from run to run. With
  descriptors none of 31 is wrong, nor with fragments.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_model.cuts import pieces
from cost_model.dots import vector
from cost_model.execution import described
from cost_model.execution import flattened
from cost_model.execution import persistent
from cost_model.features import Features
from cost_model.groups import by_groups
from fuser.device import Device
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.lower.gluon.split import ROWS
from fuser.lower.pieces import MMA

BYTES = ("bool", "int8", "uint8")
CRAMMED = 1024 + 64
"""Bytes of operands of a thread: about all its registers. So many still came as fast as fewer, twice as many ten times slower."""
BROAD = 64
"""Columns of a product without tensor cores that are fast."""
TWO = 2
"""Pieces of a product of float32 that are as fast as one."""


@dataclass(frozen=True)
class Fault:
    """A class of schedules that a compiler makes wrong code of: ``kind`` as above, on devices of compute capability
    ``first`` up to (not with) ``before``, as measured with the ``compilers``."""

    kind: str
    first: int
    before: int
    compilers: str

    def on(self, device: Device) -> bool:
        return self.first <= device.arch < self.before


FAULTS = (
    Fault("shared load", 90, 100, "Triton 3.6, any ptxas: products by warp groups (wgmma), which sm_100 does not have"),
    Fault("byte load", 90, 100, "Triton 3.6 with ptxas 13.0, on an H200; two stages, or one, are right"),
    Fault("narrow product", 90, 100, "Triton 3.6 with ptxas 12.8; 13.0 assembles the same PTX rightly"),
    Fault("flattened chain", 90, 100, "Triton 3.6, any ptxas, on an H200"),
)


def hazardous(f: Features, device: Device) -> NDArray[np.bool_]:
    """Which candidates of a group belong to a class that is compiled wrongly for the device; none that is written in Gluon."""
    found = np.zeros(len(f), dtype=bool)
    for mask in faults(f, device).values():
        found |= mask
    return found & ~by_groups(f)


def faults(f: Features, device: Device) -> dict[str, NDArray[np.bool_]]:
    """Which candidates of a group belong to each class of :data:`FAULTS` that the device has."""
    here = {fault.kind: np.zeros(len(f), dtype=bool) for fault in FAULTS if fault.on(device)}
    pointed = flattened(f) & np.logical_or.reduce([~described(f, s) for s in f.block.loads])
    for s in f.stmts if here else ():
        if "shared load" in here and s.stmt.kind == "load" and s.loops and _shared(f.block, s.stmt):
            here["shared load"] |= f.stages > 1
        if "byte load" in here and s.stmt.kind == "load" and s.loops and s.stmt.dtype in BYTES and _multiplied(f.block, s.stmt):
            here["byte load"] |= f.stages > 2
        if here and s.stmt.contracts:
            left, right = _sides(f.block, s.stmt)
            terms = set(s.stmt.reduce)
            along = set(left.axes) - set(right.axes) - terms
            if "shared load" in here and terms & set(s.loops) and "load" in (left.kind, right.kind):
                here["shared load"] |= (f.stages > 1) & _both_ways(f, along)
            if left.kind != "compute":
                continue
            rows = f.product(f.tile, along)
            here["flattened chain"] |= pointed & (rows % 64 == 0) & (f.warps % 4 == 0)
            cols = f.product(f.tile, set(right.axes) - set(left.axes) - terms)
            pipelined = (f.stages > 1) & bool(terms & set(s.loops))
            narrow = (cols >= 2) & (_least_piece(cols) <= 32)
            here["narrow product"] |= (4 * rows >= 64 * f.warps) & narrow & (f.product(f.tile, terms) >= 64) & ~pipelined
    return here


def unwieldy(f: Features) -> NDArray[np.bool_]:
    """Candidates in which a computed operand of a contraction has more than two dimensions in registers: Triton has to permute
    it through shared memory, compiles for minutes and spills thousands of bytes. One element of the extra axes at a time is
    fine. A loaded operand that is summed over several axes at once (heads and what is in them, say) goes the same way in every
    trip: such kernels took three to five times their estimate on an H200. Those that cut both the sum and a side of a product
    into powers of two (160 into 128 and 32, 96 into 64 and 32) have four small products in each trip, and took twice theirs.
    So did those that cut the sum where groups of warps stand side by side along the columns: more warps than the rows have.
    Products of float32 in three pieces (208 as 128, 64 and 16) took an H100 1.5 to 4.5 times theirs, in two what was
    predicted. Those whose threads load more than their registers hold for products without tensor cores took ten times
    theirs. And those that add a product to a tile of a weight in every trip, to multiply by the sum, 1.4 to 2 times."""
    return np.logical_or.reduce([mask for _, mask in slow(f)]) & ~by_groups(f)


def slow(f: Features) -> list[tuple[str, NDArray[np.bool_]]]:
    """What makes candidates unwieldy, and which ones."""
    found = [
        ("threads load more operands than their registers hold", _crammed(f)),
        (f"a product without tensor cores has more than {BROAD} columns that lie side by side", _broad(f)),
        (f"a product of up to {MMA} rows or columns reads in a loop without fetching ahead", _halting(f)),
        ("a product is added to what is loaded, and multiplied by, in every trip", _woven(f)),
        ("a loop over places loads what is computed on before it is multiplied", _detouring(f)),
    ]
    for s in f.stmts:
        if s.stmt.contracts:
            several = _several(f, s.stmt.reduce, 1)
            sides = [a for a in {x for v in s.stmt.args for x in f.block.by_value[v].axes} if a not in s.stmt.reduce]
            cut = _cut(f, s.stmt.reduce) & (_cut(f, sides) | _side_by_side(f, s.stmt))
            found += [("a product sums over several axes at once", several), ("a product is cut into four small ones", cut)]
            if "float32" in {f.block.by_value[v].dtype for v in s.stmt.args}:
                found.append(("a product of float32 is cut into three small ones or more", f.product(pieces(f), sides) > TWO))
            for value in s.stmt.args:
                operand = f.block.by_value[value]
                if operand.kind == "compute":
                    deep = _several(f, operand.axes, 2)
                    found.append((f"{value}, computed and multiplied, has more than two dimensions", deep))
    return found


def _several(f: Features, axes: Sequence[str], most: int) -> NDArray[np.bool_]:
    """Whether tiles have more than one element along more than so many axes."""
    count = np.zeros(len(f), np.int64)
    for a in axes:
        count += f.tile[a] > 1
    return count > most


def _side_by_side(f: Features, stmt: Stmt) -> NDArray[np.bool_]:
    """Whether warp groups share the rows of a product: each of their warps takes 16 of them."""
    left, right = _sides(f.block, stmt)
    rows = f.product(f.tile, set(left.axes) - set(right.axes) - set(stmt.reduce))
    return (rows % 64 == 0) & (f.warps > 4) & (16 * f.warps > rows)


def _crammed(f: Features) -> NDArray[np.bool_]:
    """Whether a thread holds more than :data:`CRAMMED` bytes of operands of products without rows or columns."""
    products = [s.stmt for s in f.stmts if s.stmt.contracts]
    values = {v for s in products if vector(f.block, s) for v in s.args}
    held = sum((s.bytes for s in f.stmts if s.stmt.kind == "load" and s.stmt.value in values), np.zeros(len(f)))
    return held > CRAMMED * 32 * f.warps


def _broad(f: Features) -> NDArray[np.bool_]:
    """Whether a product without tensor cores has more than :data:`BROAD` columns that lie side by side in memory: on an H200 128
    of them took twice, 256 three times as long as 32 in as many blocks."""
    found = np.zeros(len(f), dtype=bool)
    for s in f.stmts:
        if not s.stmt.contracts or not vector(f.block, s.stmt):
            continue
        for access in (f.block.by_value[v].access for v in s.stmt.args):
            last = access.dims[-1][-1:] if access and len(access.axes) > 1 and access.dims else ()
            if last and last[0] not in s.stmt.reduce:
                found |= f.tile[last[0]] > BROAD
    return found


def _halting(f: Features) -> NDArray[np.bool_]:
    """Whether a product of up to 16 rows or columns reads what it multiplies in a loop without fetching ahead: 1.2 to 8 times as
    long as its pipelined siblings on an H200."""
    found = np.zeros(len(f), dtype=bool)
    for s in f.stmts:
        if not s.stmt.contracts or vector(f.block, s.stmt):
            continue
        a, b = (set(f.block.by_value[v].axes) for v in s.stmt.args)
        least = np.minimum(f.product(f.tile, a - b), f.product(f.tile, b - a))
        found |= (f.stages == 1) & (least <= MMA) & (f.product(f.trips, set(s.loops) & set(s.stmt.reduce)) > 1)
    return found


def _woven(f: Features) -> NDArray[np.bool_]:
    """Whether the right operand of a product in a loop is made of another product and of what is loaded, in each trip: its tile
    goes from the layout of one product to that of the other in between."""
    found = np.zeros(len(f), dtype=bool)
    for s in f.stmts:
        if s.stmt.contracts and set(s.loops) & set(s.stmt.reduce) and not vector(f.block, s.stmt):
            _, right = _sides(f.block, s.stmt)
            parts = _made_of(f.block, right)
            woven = {"load", "product"} <= {kind for kind, _ in parts}
            within = all(set(value.axes) & set(s.stmt.reduce) for _, value in parts)
            if woven and within:
                found |= f.product(f.trips, set(s.loops) & set(s.stmt.reduce)) > 1
    return found


def _detouring(f: Features) -> NDArray[np.bool_]:
    """Whether the loop over places is a kernel's only loop, and what it loads ahead is computed on before it is multiplied: it
    goes to shared memory, to registers, and there again. Where it is multiplied as it is, the loop gains 5 to 25 % on an H200; of
    attention with normalized keys it took 1.2 to 1.7 times as long, and it never gained."""
    loads = [s.stmt for s in f.stmts if s.stmt.kind == "load"]
    computed = (s for s in loads if not any(u.contracts for u in f.block.users(s.value)) and _multiplied(f.block, s))
    if any(s.loops for s in f.stmts) or not any(computed):
        return np.zeros(len(f), dtype=bool)
    return np.broadcast_to(persistent(f), len(f))


def _made_of(block: BlockGraph, value: Stmt) -> list[tuple[str, Stmt]]:
    """The loads and products that element-wise operators make a value of."""
    if value.kind == "load":
        return [("load", value)]
    if value.contracts:
        return [("product", value)]
    return [x for a in value.args for x in _made_of(block, block.by_value[a])]


def _cut(f: Features, axes: Sequence[str]) -> NDArray[np.bool_]:
    """Whether the tile of some axis is cut into several powers of two."""
    cut = np.zeros(len(f), dtype=bool)
    for a in axes:
        n = f.tile[a].astype(np.int64)
        cut |= (n % MMA == 0) & ((n & (n - 1)) > 0)
    return cut


def _both_ways(f: Features, rows: Collection[str]) -> NDArray[np.bool_]:
    """Whether some rows of a product are multiplied by warp groups, others by fragments."""
    most, least = np.ones(len(f), np.int64), np.ones(len(f), np.int64)
    for a in rows:
        n = f.tile[a].astype(np.int64)
        most *= 1 << (np.frexp(n)[1] - 1)
        least *= np.where(n % MMA == 0, n & -n, n)
    return (most >= ROWS) & (least < ROWS) & (f.warps % 4 == 0)


def _least_piece(columns: NDArray[Any]) -> NDArray[np.int64]:
    """The narrowest product that lowering makes of a tile: 80 columns are 64 and 16."""
    n = columns.astype(np.int64)
    return np.where(n % MMA, np.maximum(n, MMA), n & -n)


def _sides(block: BlockGraph, stmt: Stmt) -> tuple[Stmt, Stmt]:
    """Left and right operand: rows are the axes that come first in the block, as lowering has it."""
    order = {a.name: i for i, a in enumerate(block.axes)}
    a, b = (block.by_value[v] for v in stmt.args)
    own = [min((order[x] for x in p.axes if x not in q.axes), default=len(order)) for p, q in ((a, b), (b, a))]
    return (a, b) if own[0] <= own[1] else (b, a)


def _multiplied(block: BlockGraph, load: Stmt) -> bool:
    """What is computed of the load is an operand of a contraction."""
    todo, seen = [load.value], {load.value}
    while todo:
        for u in block.users(todo.pop()):
            if u.contracts:
                return True
            if u.kind == "compute" and u.value not in seen:
                seen.add(u.value)
                todo.append(u.value)
    return False


def _shared(block: BlockGraph, load: Stmt) -> bool:
    """The loaded value is an operand of a contraction and of something else. (Two contractions may share it: none of 400 such
    kernels was wrong.)"""
    users = [u for u in block.users(load.value) if u.kind == "compute"]
    dots = [u for u in users if u.contracts]
    return bool(dots) and len(users) > len(dots)
