"""Check a kernel that no block of a µGraph holds (:mod:`fuser.lower.written`): some of its blocks of threads run in Triton's
interpreter at the real size, and what they write is held against the operators that it was made of, one by one in float64.

Elements of which these make something else once each is rounded to its dtype (at the edge of a comparison, a floor, a place) have
no say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuser.agreement import SINGLE
from fuser.agreement import Agreement
from fuser.agreement import agreement
from fuser.agreement import tolerance
from fuser.errors import UnsupportedError
from fuser.ir.domain import input_domains
from fuser.ir.dtypes import rounded
from fuser.ir.element_program import RUNS
from fuser.ir.elements import Recipe
from fuser.ir.elements import tape_of
from fuser.ir.interval import ANY
from fuser.ir.interval import place
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.ops import Array
from fuser.ir.ops import op as op_def
from fuser.ir.places import atoms_of
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import Node
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import numbers
from fuser.lower.checker import Check
from fuser.lower.element_tiles import Tiling
from fuser.lower.element_tiles import recipe_of
from fuser.lower.element_tiles import tiled
from fuser.lower.kernel_source import KernelSource
from fuser.lower.written import written

BLOCKS = 6
"""Blocks of a kernel that are run."""
LARGEST = 1 << 26
"""Elements of all tensors beyond which a kernel is not checked: their float64 would take gigabytes."""
WHOLE = (9, 1)
"""Magnitudes that whole numbers are drawn from: the next where an operator has no result of those (there is no such place)."""
UNWRITTEN, MOST = 0x5A, 0.9
"""What each byte of a result is before, and how many of the elements are something else afterwards: some may be just that."""


@dataclass(frozen=True)
class _Called:
    """A kernel with its attributes as numbers, its source, and its operators as a program of its own names."""

    kernel: LibraryKernel
    source: KernelSource
    recipe: Recipe
    program: TensorProgram

    @staticmethod
    def of(graph: KernelGraph) -> _Called | None:
        (kernel,) = graph.kernels
        assert isinstance(kernel, LibraryKernel)
        attrs = numbers(kernel.attrs, lambda e: graph.table[e.tensor].shape[e.dim])
        source = written(kernel, attrs, graph.table, {})
        if source is None:
            return None
        recipe = recipe_of(kernel.op, kernel.args, kernel.output, attrs, graph.table)
        nodes = tuple(Node(op, xs, n, tuple(sorted(a.items()))) for n, (op, xs, a) in recipe.nodes.items())
        tensors = tuple(Tensor(n, *recipe.tensors[n]) for n in (*recipe.inputs, *recipe.nodes))
        return _Called(kernel, source, recipe, TensorProgram(kernel.name, recipe.inputs, nodes, (recipe.result,), tensors))

    @property
    def operands(self) -> list[tuple[str, str]]:
        """Inputs of the program, with the tensors that they are."""
        used = self.kernel.args if self.kernel.op == "elements" else tuple(dict.fromkeys(self.kernel.args))
        return list(zip(self.program.inputs, used, strict=True))

    def inputs(self, rng: np.random.Generator, magnitude: int) -> dict[str, Array]:
        """Normal numbers in their domains; whole ones up to a magnitude, none below 0 or beyond the end where they are places, in
        order where groups of rows end there."""
        domains, places = input_domains(self.program), self._places()
        drawn: dict[str, Array] = {}
        for name, tensor in self.operands:
            t = self.program[name]
            if tensor in drawn:
                continue
            if t.dtype in FLOAT_DTYPES:
                drawn[tensor] = rounded(place(domains.get(name, ANY), rng.standard_normal(t.shape)), t.dtype)
            elif t.dtype == "bool":
                drawn[tensor] = rng.integers(0, 2, t.shape).astype(bool)
            else:
                low = 0 if places or t.dtype.startswith("u") else -magnitude
                x = rng.integers(low, min([magnitude, *places]) + 1, t.shape)
                if self.kernel.op == "grouped_matmul":
                    x = np.sort(rng.integers(0, self.program[self.program.inputs[0]].shape[0] + 1, t.shape))
                drawn[tensor] = np.where((x == 0) & domains.get(name, ANY).nonzero, 1, x).astype(t.dtype)
        return {name: drawn[tensor] for name, tensor in self.operands}

    def _places(self) -> list[int]:
        """The last places that whole numbers name."""
        recipe = self.recipe.without_last if self.recipe.nodes[self.recipe.result][0] in RUNS else self.recipe
        if not recipe.nodes:
            return []
        try:
            steps = tape_of(recipe.elements, recipe.result).steps
        except UnsupportedError:
            return []
        found = [a for s in steps for p in (s.at, s.under) if not isinstance(p, bool) for a in atoms_of(p)]
        return [a.high for a in found if a.kind == "value"]

    def evaluated(self, inputs: Mapping[str, Array], narrow: bool) -> Array:
        """The result operator by operator in float64; each is rounded to its dtype where that is to be ``narrow``, and whole
        numbers always are."""

        def apply(node: Node, xs: list[Array]) -> Array:
            dtype = self.program[node.output].dtype
            y = np.asarray(node.entry.numpy(*xs, **self.program.bound(node)), np.float64)
            if dtype in FLOAT_DTYPES:
                return rounded(y, dtype).astype(np.float64) if narrow else y
            return y if dtype == "bool" else _modulo(y, dtype)

        with np.errstate(all="ignore"):
            return self.program.run({n: np.asarray(x, np.float64) for n, x in inputs.items()}, apply)[self.recipe.result]

    @property
    def tiling(self) -> Tiling | None:
        """How the elements are divided over blocks; None where that is not known."""
        last = self.recipe.nodes[self.recipe.result][0]
        if last in RUNS or (self.kernel.op != "elements" and op_def(self.kernel.op).element is None):
            return None
        return tiled(self.recipe)[0]

    def expected(self, tiling: Tiling, blocks: Sequence[int]) -> Array:
        """Which elements these blocks are to write, in order."""
        found = []
        for block in blocks:
            at, there = tiling.coordinates(block)
            i = np.ravel_multi_index(np.broadcast_arrays(*at), tiling.tape.shape, "clip") if at else np.zeros((1, 1), np.int64)
            found.append(i[np.broadcast_to(there, i.shape)])
        return np.unique(np.concatenate(found))


def _modulo(y: Array, dtype: str) -> Array:
    """Whole numbers as a dtype holds them."""
    bits = 8 * DTYPE_BYTES[dtype]
    if bits == 64:  # beyond what float64 tells apart
        return y
    half = 0.0 if dtype.startswith("u") else 2.0 ** (bits - 1)
    return np.mod(y + half, 2.0**bits) - half


def check_written(graph: KernelGraph, seed: int) -> Check:
    """Check the one kernel of a graph, in this process, in which the interpreter is on. One that torch computes has passed."""
    called = _Called.of(graph)
    sizes = tuple((t.name, math.prod(t.shape)) for t in graph.tensors)
    unchecked = Check(0.0, 0.0, sizes, "none")
    if called is None or sum(math.prod(t.shape) for t in called.program.tensors) > LARGEST:
        return unchecked
    rng = np.random.default_rng(seed)
    for magnitude in WHOLE:
        inputs = called.inputs(rng, magnitude)
        try:
            wanted, narrow = (np.ravel(called.evaluated(inputs, n)) for n in (False, True))
        except (IndexError, ValueError):  # a place that there is not
            continue
        blocks = sorted({0, called.source.grid - 1, *rng.integers(0, called.source.grid, BLOCKS - 2).tolist()})
        ours = _run(called.source, {a: inputs[n] for n, a in called.operands}, blocks)
        result = _compared(called, blocks, ours, (wanted, narrow))
        return Check(result.max_error, result.error, sizes, "triton", result.message)
    return unchecked


def _run(source: KernelSource, inputs: Mapping[str, Array], blocks: Sequence[int]) -> tuple[Array, Array]:
    """The elements of the result after these blocks, and which of them were written."""
    import torch

    from fuser.lower.compile import load_source
    from fuser.lower.forms import form
    from fuser.lower.interpreter import blocks_of

    tensors = []
    for name, dtype, shape in zip(source.args, source.dtypes, source.shapes, strict=True):
        if name in source.outputs:
            tensors.append(torch.empty(shape, dtype=getattr(torch, dtype)))
            tensors[-1].view(-1).view(torch.uint8).fill_(UNWRITTEN)
        else:
            tensors.append(torch.tensor(inputs[name]).to(getattr(torch, dtype)).contiguous())
    with form(interpreted=True), blocks_of(blocks):
        getattr(load_source(source), source.name)[(len(blocks),)](*tensors)
    out = tensors[-1].view(-1)
    given = (out.view(torch.uint8).view(out.numel(), -1) != UNWRITTEN).any(1).numpy()
    held = out.double() if out.is_floating_point() else out.view(torch.uint8) if out.dtype is torch.bool else out
    return held.numpy(), given


def _compared(called: _Called, blocks: Sequence[int], ours: tuple[Array, Array], references: tuple[Array, Array]) -> Agreement:
    (found, given), (wanted, narrow) = ours, references
    dtype = called.program[called.recipe.result].dtype
    tiling, grid = called.tiling, called.source.grid
    if tiling is not None and tiling.blocks > grid:
        return _wrong(f"elements are not written: {grid} blocks, not {tiling.blocks}")
    expected = np.arange(len(found)) if len(blocks) == grid else tiling and called.expected(tiling, blocks)
    if expected is not None:
        inside = given[expected]
        if np.count_nonzero(inside) < MOST * inside.size:
            return _wrong("elements are not written")
        if given.sum() > np.count_nonzero(inside):
            return _wrong("elements of other blocks are written")
    limit = tolerance(t.dtype for t in called.program.tensors)
    with np.errstate(all="ignore"):
        if dtype not in FLOAT_DTYPES:
            judged = given & np.isfinite(wanted) & (wanted == narrow)
            off = np.count_nonzero(judged & (_modulo(wanted, dtype) != found))
            return _wrong(f"{off} of {judged.sum()} elements are wrong") if off else Agreement("ok", 0.0, 0.0)
        largest = abs(wanted[given & np.isfinite(wanted)]).max(initial=0.0)
        same = ~(abs(wanted - narrow) > SINGLE * limit * largest) & (np.isnan(wanted) == np.isnan(narrow))
    return agreement(found[given & same], wanted[given & same], dtype, limit)


def _wrong(message: str) -> Agreement:
    return Agreement("wrong", math.inf, math.inf, message)
