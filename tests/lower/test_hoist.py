"""Options and operators that shorten a kernel's epilogue."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fuser.ir.builder import Builder
from fuser.ir.ops import NARROW_GELU
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.options import HOIST
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import structures
from tests.interpreted import checked


def test_what_an_epilogue_reads_is_loaded_in_front_of_the_loop() -> None:
    b = Builder("residual")
    x, w, r = b.input("X", (64, 96)), b.input("W", (96, 64)), b.input("R", (64, 64))
    program = b.build(Y=b.op("gelu", x @ w) + r)
    graph = structures(program)[0]
    (block,) = graph.blocks
    (k,) = block.reduced
    tiles = tuple(sorted((a.name, 32) for a in block.axes))
    plain = KernelSchedule(tiles, TilingExpr((k,)))
    (source,) = generate_graph(graph, Schedule((plain,)))
    (hoisted,) = generate_graph(graph, Schedule((HOIST.set(plain, True),)))

    def place(text: str) -> bool:
        """Whether the residual is loaded in front of the loop."""
        body = text.partition("@triton.jit")[2]
        return body.index("tl.load(R_ptr") < body.index("for t_i_")

    assert not place(source.text)
    assert place(hoisted.text)
    assert checked(program, graph, Schedule((HOIST.set(plain, True),))).passed


class _Triton:
    """What the text of an operator calls, on numpy arrays."""

    where, exp2, abs = np.where, np.exp2, np.abs


def test_gelu_of_sixteen_bits_is_exact_enough() -> None:
    x = np.linspace(-30, 30, 60001).astype(np.float32)
    got = eval(NARROW_GELU.format("x"), {"tl": _Triton, "x": x})
    want = np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.tolist()])
    half = np.maximum(np.abs(want) * 2.0**-12, 2.0**-25)  # half a unit in the last place of float16
    assert (np.abs(got - want) / half).max() < 0.4


@pytest.mark.filterwarnings("ignore:invalid value")
def test_gelu_of_sixteen_bits_at_the_ends() -> None:
    x = np.array([np.inf, np.nan, 0.0, 6e4, -6e4], np.float32)
    with np.errstate(all="ignore"):
        got = eval(NARROW_GELU.format("x"), {"tl": _Triton, "x": x})
    assert got[0] == np.inf
    assert np.isnan(got[1])
    np.testing.assert_array_equal(got[2:], np.array([0, 6e4, 0], np.float32))
