from __future__ import annotations

import numpy as np
import pytest

from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.ir.axes import axes_of
from fuser.ir.builder import Builder
from fuser.ir.composites import expand
from fuser.ir.resize import mask_anchor
from fuser.ir.resize import resize
from fuser.ir.resize import shifted_offset
from fuser.workloads import workload


@pytest.mark.parametrize("name", ["mcfuser/S1", "mirage/rmsnorm", "mirage/gated-mlp", "graphene/layernorm"])
def test_a_resized_workload_is_the_workload_at_that_size(name: str) -> None:
    program = workload(name)
    axes = axes_of(expand(program))
    sizes = {a: 3 + i for i, a in enumerate(axes.extents)}
    small = resize(program, sizes)
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal(small[n].shape) for n in small.inputs}
    by_name = {
        "mcfuser/S1": lambda s: workload(name, heads=s["b"], M=s["m"], N=s["n"], K=s["k"], H=s["h"]),
        "mirage/rmsnorm": lambda s: workload(name, rows=s["m"], D=s["k"], N=s["n"]),
        "mirage/gated-mlp": lambda s: workload(name, rows=s["m"], D=s["k"], N=s["n"]),
        "graphene/layernorm": lambda s: workload(name, rows=s["m"], D=s["n"]),
    }
    same = by_name[name](sizes)
    assert [same[n].shape for n in same.inputs] == [small[n].shape for n in small.inputs]
    for a, b in zip(same.evaluate(inputs).values(), small.evaluate(inputs).values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_views_follow() -> None:
    b = Builder("heads")
    x = b.input("X", (2, 10, 12))
    program = b.build(Y=b.sum(b.exp(x.reshape(2, 10, 3, 4).transpose(0, 2, 1, 3)), 3))
    axes = axes_of(program).extents
    small = resize(program, {a: n + 1 for a, n in axes.items()})
    assert small["X"].shape == (3, 11, 20)
    assert small["Y"].shape == (3, 4, 11)
    assert resize(program, {}) == program


@pytest.mark.parametrize(("axis", "times"), [(0, 4), (1, 3), (-1, 2), (-2, 1)])
def test_repeats_follow(axis: int, times: int) -> None:
    b = Builder("repeats")
    x = b.input("X", (2, 4, 6))
    program = b.build(Y=b.relu(b.op("repeat", b.op("repeat", b.exp(x), axis=axis, times=times), axis=0, times=5)))
    axes = axes_of(program)
    small = resize(program, {a: n + 1 + i for i, (a, n) in enumerate(axes.extents.items())})
    assert [n.attr["times"] > 1 for n in small.nodes if n.op == "repeat"] == [times > 1, True]
    values = {n: np.random.default_rng(0).standard_normal(small[n].shape) for n in small.inputs}
    first, second = (n.attr["times"] for n in small.nodes if n.op == "repeat")
    wanted = np.repeat(np.repeat(np.exp(values["X"]), first, axis), second, 0)
    assert small["Y"].shape == wanted.shape != program["Y"].shape
    np.testing.assert_array_equal(small.evaluate(values)["Y"], wanted)
    for a in axes.extents:
        one = resize(program, {a: axes.extents[a] + 1})
        changed = [n.attr["times"] for n in one.nodes if n.op == "repeat"] != [times, 5]
        assert (one["X"].shape == program["X"].shape) == changed, "an axis is one of the input's or a repetition"
    assert resize(program, {}) == program


def test_masks_keep_their_corner() -> None:
    assert mask_anchor(0, 8, 8) == "start"
    assert mask_anchor(4, 8, 12) == "end"
    assert shifted_offset(4, "end", 8, 12, 5, 11) == 6
    assert shifted_offset(5, "end", 8, 12, 5, 11) == 7, "one more than the corner stays one more"
    assert shifted_offset(2, "start", 8, 8, 5, 11) == 2


def test_errors() -> None:
    with pytest.raises(UsageError, match="no axes"):
        resize(workload("mcfuser/G1"), {"zz": 3})
    b = Builder("gram")
    x = b.input("X", (8, 16))
    gram = b.build(Y=x @ x.T)
    names = axes_of(gram).extents
    with pytest.raises(UnsupportedError, match="different axes"):
        resize(gram, {a: 3 + i for i, a in enumerate(names)})
