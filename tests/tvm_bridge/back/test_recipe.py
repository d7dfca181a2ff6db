"""The steps of a compiled program, without any TVM."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fuser
from fuser.errors import ProgramError
from fuser.errors import UsageError
from search.compiled import CompiledProgram
from tests.builders import chain as two_gemms
from tvm_bridge.back.recipe import Launch
from tvm_bridge.back.recipe import alike
from tvm_bridge.back.recipe import recipe_of
from tvm_bridge.back.relax_launch import DEPENDENT
from tvm_bridge.back.relax_launch import SHARED
from tvm_bridge.back.relax_launch import numbers
from tvm_bridge.back.relax_launch import parameters
from tvm_bridge.back.relax_launch import tags


def test_steps_are_the_kernels_with_their_tensors(chain: CompiledProgram) -> None:
    recipe = recipe_of(chain)
    assert (recipe.inputs, recipe.weights, recipe.outputs) == (("X",), ("W0", "W1", "W2"), ("Y",))
    assert [s.args for s in recipe.launches] == [("X", "W0", "matmul_0"), ("matmul_0", "W1", "matmul_1"), ("matmul_1", "W2", "Y")]
    assert [s.outputs for s in recipe.launches] == [("matmul_0",), ("matmul_1",), ("Y",)]
    assert not recipe.calls


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_parameter_of_the_entry_has_a_value(number: int, chain: CompiledProgram) -> None:
    launch = recipe_of(chain).launches[number]
    head = launch.artifact.ptx.partition(f".entry {launch.entry}(")[2].partition(")")[0]
    kinds = ["map" if "[128]" in line else line.split()[1] for line in head.strip().splitlines()]
    sizes = {"handle": ".u64", "int32": ".u32", "int64": ".u64"}
    assert kinds == ["map" if tag else sizes[kind] for kind, tag in parameters(launch)]


def test_tags_and_their_numbers(chain: CompiledProgram) -> None:
    for launch in recipe_of(chain).launches:
        with_number = [t for t in tags(launch) if t != DEPENDENT]
        assert len(with_number) == len(numbers(launch))
        assert (SHARED in with_number) == bool(launch.artifact.shared_bytes)
        assert SHARED not in with_number[:-1], "TVM wants it last"


def test_an_entry_is_dependent_everywhere_or_nowhere(chain: CompiledProgram) -> None:
    _, second, last = recipe_of(chain).launches
    assert second.dependent
    again = replace(second, dependent=False)
    assert [s.dependent for s in alike([second, last, again]) if isinstance(s, Launch)] == [False, True, False]


def test_one_name_for_two_kernels_is_refused(chain: CompiledProgram) -> None:
    first, second, _ = recipe_of(chain).launches
    with pytest.raises(ProgramError, match="two different kernels"):
        alike([first, replace(second, artifact=replace(second.artifact, name=first.entry))])


def test_what_is_interpreted_has_no_kernels() -> None:
    made = fuser.compile(two_gemms(), device="cpu")
    with pytest.raises(UsageError, match="interpreted"):
        recipe_of(made)


def test_a_weight_without_value_is_named(chain: CompiledProgram) -> None:
    with pytest.raises(ProgramError, match="W1"):
        recipe_of(replace(chain, params={n: x for n, x in chain.params.items() if n != "W1"}))
