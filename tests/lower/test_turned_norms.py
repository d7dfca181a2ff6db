"""Norms of groups of channels: folds of several axes, and images that are read and written channels first or last."""

from __future__ import annotations

import pytest

from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import one_kernel
from tests.conftest import Golden
from tests.interpreted import checked


def norm(turned: str, channels: int = 16, groups: int = 4) -> TensorProgram:
    """Of images that lie, and are written, channels first (``n``) or channels last (``t``)."""
    b = Builder(f"norm_{turned}")
    x = b.input("X", (2, 6, 6, channels)).transpose(0, 3, 1, 2) if turned[0] == "t" else b.input("X", (2, channels, 6, 6))
    y = b.op("group_norm", x, b.input("G", (channels,)), b.input("B", (channels,)), groups=groups)
    return b.build(Y=y.transpose(0, 2, 3, 1) if turned[1] == "t" else y)


def way(program: TensorProgram, **tiles: int) -> tuple[Schedule, str]:
    graph = one_kernel(program)
    block = graph.blocks[0]
    sizes = {a.name: tiles.get(a.name, a.extent if a.name in block.reduced else 1) for a in block.axes}
    schedule = Schedule((KernelSchedule(tuple(sorted(sizes.items()))),))
    return schedule, generate_graph(graph, schedule)[0].text


def test_the_source_of_a_norm_that_turns_an_image(golden: Golden) -> None:
    golden.check("group_norm_turned.txt", way(norm("nt"), n=4)[1])


@pytest.mark.parametrize("turned", ["nn", "nt", "tt", "tn"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_norms_of_several_groups_in_a_block(turned: str, groups: int) -> None:
    program = norm(turned)
    schedule, _ = way(program, n=groups) if turned[1] == "t" else way(program, i=groups)
    found = checked(program, one_kernel(program), schedule)
    assert found.passed, found.message


def test_all_axes_of_a_value_are_folded_at_once_and_of_some_the_longest_first() -> None:
    assert "sum_1 = tl.sum(X_f32, None)" in way(norm("nt"))[1]
    assert "sum_1 = tl.sum(tl.sum(tl.sum(tl.permute(X_f32, (2, 0, 1, 3)), 2), 1), 1)" in way(norm("nt"), n=4)[1]
