"""The chosen µGraph with its chosen schedule at its real size, by output blocks, so that memory stays bounded.

Axes that nothing sums over only index output elements: they are cut to two tiles (a block and its neighbour), and everything
else keeps its real extent, its tile sizes, its loops and its splits. So each tested block does all of the work that it does at
the real size; other blocks differ from it only by which slices of the inputs they read, and inputs are random. A causal mask is
that of the elements that are tested. Where that is still too large, summed axes are cut as well, to a few tiles, and named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.interpret.field_algebra import FieldAlgebra
from fuser.interpret.fields import Field
from fuser.interpret.fields import ZeroDenominatorError
from fuser.interpret.fields import evaluate_program
from fuser.interpret.fields import random_inputs
from fuser.interpret.reference import interpret_in
from fuser.interpret.statements import InterpretError
from fuser.ir.candidate import scheduled_blocks
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.superopt.verify.amounts import MOST
from fuser.superopt.verify.amounts import largest
from fuser.superopt.verify.amounts import work
from fuser.superopt.verify.checking import real_schedules
from fuser.superopt.verify.conditions import conditions
from fuser.superopt.verify.masks import block_offsets
from fuser.superopt.verify.reduced import Reduction
from fuser.superopt.verify.shifts import stabilized

ELEMENTS = 1 << 22
"""Most elements of any tensor of the test (32 MiB of residues)."""
_DRAWS = 4
_ZERO = "a denominator is zero at every draw"
_TRIPS = 5
"""Tiles that a summed axis keeps where its real extent is too large."""


@dataclass(frozen=True)
class BlockTest:
    """``passed``, or ``why`` not, and whether that is because outputs differ. ``real``: program axes at their real extents;
    ``cut``: those that are not, with the extents tested.
    """

    passed: bool
    why: str
    real: tuple[tuple[str, int], ...]
    cut: tuple[tuple[str, int], ...]
    law: bool
    differs: bool = False


def block_test(tied: Reduction, schedule: Schedule | None, rng: np.random.Generator, most: int = ELEMENTS) -> BlockTest:
    """One exact test over a finite field of a sample of output blocks, with the schedule as it is, or else with the first of
    :func:`fuser.superopt.verify.checking.real_schedules` that the µGraph takes. Raises :class:`UnsupportedError`."""
    found = BlockTest(False, "no schedule fits", (), (), False)
    for chosen in (schedule,) if schedule is not None else real_schedules(tied.structure.graph):
        found = _scheduled(tied, chosen, rng, most)
        if found.passed or found.differs:
            return found
    return found


def _scheduled(tied: Reduction, schedule: Schedule, rng: np.random.Generator, most: int) -> BlockTest:
    sizes = _sizes(tied, schedule, most)
    if work(tied, sizes) > MOST:
        raise UnsupportedError("output blocks of the real size are too large, with what windows lie in left whole")
    case = tied.at(sizes, block_offsets(tied.masks, tied.structure.real, sizes))
    full = tied.axes.extents
    real = tuple((a, n) for a, n in case.sizes if n == full[a])
    cut = tuple((a, n) for a, n in case.sizes if n != full[a])
    modes = (True,) if stabilized(tied.structure.graph) else (False, True)
    why, differs = "", False
    for law in modes:
        try:
            wrong = _test(case.program, case.graph, schedule, rng, law)
        except UnsupportedError as error:
            why = why or error.message
            continue
        except (InterpretError, UsageError) as error:
            return BlockTest(False, error.message, real, cut, law)
        if not wrong:
            return BlockTest(True, "", real, cut, law)
        why, differs = wrong, differs or wrong != _ZERO
    return BlockTest(False, why, real, cut, modes[-1], differs)


def _test(program: TensorProgram, graph: KernelGraph, schedule: Schedule, rng: np.random.Generator, law: bool) -> str:
    deciding = conditions(program, graph)
    for draw in range(_DRAWS):
        zeros = deciding if draw < _DRAWS // 2 else None
        field = Field(rng, law, exact=zeros is not None)
        inputs = random_inputs(program, rng, field, zeros or ())
        try:
            wanted = evaluate_program(program, inputs, field)
            got = interpret_in(FieldAlgebra(field), graph, schedule, {n: inputs[n] for n in graph.inputs})
        except ZeroDenominatorError:
            continue
        wrong = [n for n, x in wanted.items() if not field.equal(got[n], x)]
        return f"output {wrong[0]!r} differs" if wrong else ""
    return _ZERO


def _sizes(tied: Reduction, schedule: Schedule, most: int) -> list[int]:
    """Extent of each atom: two tiles where nothing sums over it, its real extent elsewhere, less where that is too much."""
    structure = tied.structure
    tile = [1] * len(structure.real)
    parts = [1] * len(structure.real)
    for block, ks in scheduled_blocks(structure.graph, schedule):
        counts, split = dict(ks.splits), dict(block.splits)
        indexed = {a for s in block.stmts for a in s.related}  # of others only constants are made
        for axis, extent in block.extents.items():
            if axis not in indexed:
                continue
            atoms = structure.atoms[block.name, axis]
            if len(atoms) == 1 and extent != FREE:
                step = ks.tile.get(axis, extent) * counts.get(split.get(axis, ""), 1)
                tile[atoms[0]] = math.lcm(tile[atoms[0]], step)
            elif len(atoms) == 1:
                parts[atoms[0]] = counts[axis]
    sizes = []
    for i, real in enumerate(structure.real):
        if real == FREE:
            sizes.append(parts[i])
        elif structure.roles[i] == "grid" and i not in structure.cut:
            sizes.append(_whole_tiles(real, tile[i], 2))
        else:
            sizes.append(real)
    order = sorted(range(len(sizes)), key=lambda i: -structure.real[i])
    order = [i for i in order if structure.real[i] != FREE and i not in structure.cut]
    kept = [i for i in order if structure.roles[i] == "grid"]
    summed = [i for i in order if structure.roles[i] != "grid"]
    steps = [(i, min(sizes[i], tile[i])) for i in kept]
    steps += [(i, _whole_tiles(structure.real[i], tile[i], _TRIPS)) for i in summed]
    for i, smaller in (*steps, *((i, min(sizes[i], 2)) for i in kept)):
        if largest(tied, sizes) > most:
            sizes[i] = smaller
    return sizes


def _whole_tiles(real: int, tile: int, count: int) -> int:
    """``count`` tiles, the last one as ragged as the real last one."""
    return min(real, count * tile + real % tile)
