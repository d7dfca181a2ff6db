"""Softmaxes of large exponents: a comparison in float32, where an exponential overflows beyond 88.

Over finite fields, and with numbers about 1, a softmax without its maximum is one; a kernel of it overflows in half precision as
in single. So the µGraph is computed in float32 with inputs that make exponents large, and held against the program as it is
written, whose composites subtract their maximum.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fuser.interpret.algebra import FloatAlgebra
from fuser.interpret.flat import evaluate_flat
from fuser.ir.domain import input_domains
from fuser.ir.interval import ANY
from fuser.ir.interval import place
from fuser.ir.ops import Array
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.superopt.rewrite.maxima import exponents
from fuser.superopt.verify.reduced import Reduction

EXPONENTS = (200.0, 5000.0)
"""Least size of the largest exponent of a draw: of float32 88 overflow, and what is about 10⁴ is still exact to a thousandth."""
FACTORS = tuple(4.0**n for n in range(8))
"""Of the inputs; the least that makes exponents as large is taken."""
EXACT, NEAR = 1e-2, 0.1
"""Error in float32 of elements that are well conditioned, and that of the largest of them with which the µGraph may get them."""
OFF = 1e-6
"""By how much inputs are off for that: several roundings."""


def overflow(tied: Reduction, rng: np.random.Generator, turn: int) -> str:
    """Where the µGraph has no numbers, or others, in float32, and the program has, whose softmaxes subtract their maxima; nothing
    where they agree, or where no exponent grows with the inputs."""
    case = tied.draw(rng, turn)
    program, inputs = case.program, _drawn(case.program, rng)
    with np.errstate(all="ignore"):
        sizes = [(f, _largest(program, _scaled(program, inputs, f))) for f in FACTORS]
        for least in EXPONENTS:
            factor = next((f for f, size in sizes if size >= least), None)
            if factor is None:
                break
            values = _scaled(program, inputs, factor)
            own = {n: np.asarray(values[n], np.float32) for n in case.graph.inputs}
            got = evaluate_flat(FloatAlgebra(np.float32), case.graph, own).tensors
            exact, held = program.evaluate(values), _held(program, values, rng)
            for name, x in exact.items():
                fits = held[name] & np.isfinite(x) & (got[name].shape == x.shape)
                most = np.abs(x).max(initial=0.0, where=fits)
                if (fits & ~(np.abs(got[name] - x) <= NEAR * most)).any():
                    return f"output {name!r} differs in float32 where exponents are {least:.0f} and more"
    return ""


def _held(program: TensorProgram, values: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Which elements of the outputs are well conditioned: those that float32 gets, with inputs that are a little off, too."""
    exact = program.evaluate(values)
    off = {n: x * (1 + OFF * rng.standard_normal(x.shape)) for n, x in values.items()}
    others = [program.evaluate(v, dtype=np.float32) for v in (values, off)]
    return {n: np.all([np.abs(y[n] - x) <= EXACT * np.abs(x) for y in others], axis=0) for n, x in exact.items()}


def _drawn(program: TensorProgram, rng: np.random.Generator) -> dict[str, Array]:
    domains = input_domains(program)
    found = {n: rng.standard_normal(program[n].shape) for n in program.inputs}
    bits = {n: (x > 0).astype(np.float64) for n, x in found.items() if program[n].dtype not in FLOAT_DTYPES}
    return {n: bits[n] if n in bits else place(domains.get(n, ANY), x) for n, x in found.items()}


def _scaled(program: TensorProgram, inputs: Mapping[str, Array], factor: float) -> dict[str, Array]:
    return {n: x * factor if program[n].dtype in FLOAT_DTYPES else x for n, x in inputs.items()}


def _largest(program: TensorProgram, inputs: Mapping[str, Array]) -> float:
    """The largest exponent."""
    largest, names = 0.0, set(exponents(program).values())
    values = {n: np.asarray(inputs[n], np.float64) for n in program.inputs}

    def seen(name: str, x: Array) -> Array:
        nonlocal largest
        if name in names:
            largest = max(largest, float(np.abs(x).max(initial=0.0, where=np.isfinite(x))))
        return x

    def apply(node: Node, xs: list[Array]) -> Array:
        return seen(node.output, np.asarray(node.entry.numpy(*xs, **program.bound(node))))

    program.run({n: seen(n, x) for n, x in values.items()}, apply)
    return largest
