"""Whether a program that may be one region is better done by parts."""

from __future__ import annotations

from fuser.device import Device
from fuser.ir.element_program import moves_elements
from fuser.ir.program import TensorProgram
from search.cover.joint_price import joint_seconds
from search.cover.prices import LESS
from search.cover.shown import root
from search.ranked import Tuned

MASKED = 1.6
"""How many times its estimate a kernel takes that masks an operand of its product, 1.8 and 4.1 on an H200."""
CUT = 1.1
"""The same of several kernels with products, each of which does more than its parts would: classes by cosines behind a product
and a batch norm took an H100 26 µs, priced at 11 and, once compiled, 13."""


def worth_parts(tuned: Tuned, spec: Device) -> bool:
    """Whether a program may be faster by parts than as one region with kernels of ours."""
    program, joint = tuned.program, joint_seconds(tuned.program, spec, doubted=True)
    if not tuned.winner.candidate.graph.blocks:
        return False
    return (
        _exact(program)
        or _cut(tuned)
        or moves_elements(program)
        or _masked(program)
        or (joint is not None and joint <= LESS * tuned.winner.seconds)
    )


def doubt(tuned: Tuned) -> float:
    """How many times its estimate a region is expected to take beside its parts."""
    return MASKED if _masked(tuned.program) else CUT if _cut(tuned) else 1.0


def _masked(program: TensorProgram) -> bool:
    """Whether an operand of a product is masked: a kernel that does both waits for the mask in each step of its loop."""
    operands = (program.producers.get(root(program, i)) for n in program.nodes if n.products for i in n.inputs)
    return any(n is not None and n.op == "where" for n in operands)


def _cut(tuned: Tuned) -> bool:
    """Whether several products are in several kernels anyway: parts may be cut, and parameters prepared, in more ways."""
    return len(tuned.winner.candidate.graph.blocks) > 1 and sum(n.products > 0 for n in tuned.program.nodes) > 1


def _exact(program: TensorProgram) -> bool:
    """Whether it has products of float32: of those a library may do one alone faster than a kernel that does more."""
    return any(n.products and program[n.output].dtype == "float32" for n in program.nodes)
