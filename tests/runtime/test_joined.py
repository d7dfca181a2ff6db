"""Calls of torch that follow one another as one: what the compiler is given, and what a call gives with what it makes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fuser.ir.builder import Builder  # noqa: E402
from fuser.ir.candidate import Candidate  # noqa: E402
from fuser.ir.mugraph import KernelGraph  # noqa: E402
from fuser.ir.mugraph import LibraryKernel  # noqa: E402
from fuser.ir.opdef import JOINED  # noqa: E402
from fuser.ir.program import Tensor  # noqa: E402
from fuser.ir.schedule import Schedule  # noqa: E402
from fuser.runtime.graph_executor import Executable  # noqa: E402
from fuser.runtime.library import WHOLE  # noqa: E402
from fuser.runtime.library import taken_beside  # noqa: E402
from fuser.runtime.plan import plan  # noqa: E402


def graph() -> KernelGraph:
    """A product, and behind it what torch computes: two results, one of them of a view."""
    kernels = (
        LibraryKernel("m", "matmul", ("X", "W"), "M"),
        LibraryKernel("p", "prod", ("M",), "P", (("dim", 1), (JOINED, True), ("keepdim", True))),
        LibraryKernel("t", "transpose", ("M",), "T", (("perm", (1, 0)),)),
        LibraryKernel("f", "flip", ("T",), "F", (("dims", (0,)), (JOINED, True))),
        LibraryKernel("s", "tanh", ("P",), "S", ((JOINED, True),)),
    )
    ends = (Tensor("X", (6, 5), "float32"), Tensor("W", (5, 4), "float32"), Tensor("F", (4, 6), "float32"))
    return KernelGraph("g", ("X", "W"), kernels, ("F", "S"), (*ends, Tensor("S", (6, 1), "float32"))).validate()


def wanted(x: Any, w: Any) -> list[Any]:
    return [(x @ w).T.flip(0), (x @ w).prod(1, keepdim=True).tanh()]


def test_calls_that_follow_one_another_are_one_and_give_the_same() -> None:
    seen: list[list[str]] = []

    def build(traced: Any, _run: Any, given: Any) -> Any:
        seen.append([str(n.target) for n in traced.graph.nodes if n.op == "call_function"])
        lying = [x.stride() for x in given]

        def run(*xs: Any) -> Any:
            assert [x.stride() for x in xs] == lying  # compiled code counts on it
            return traced(*xs)

        return run

    run = Executable(graph(), Schedule(()), device="cpu", build=build)
    assert any("aten.prod.dim_int" in names for names in seen)
    assert not any("mm" in name for names in seen for name in names)
    x, w = torch.randn(6, 5), torch.randn(5, 4)
    for _ in range(3):  # anywhere, then at addresses that come again
        x, w = x.clone(), w.clone()
        for _ in range(3):
            for got, want in zip(run(x, w), wanted(x, w), strict=True):
                torch.testing.assert_close(got, want)
    outs = torch.zeros(4, 6), torch.zeros(6, 1)
    run(x, w, out=outs)
    for got, want in zip(outs, wanted(x, w), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("fails", [True, False])
def test_what_cannot_be_compiled_stays_with_torch(fails: bool) -> None:
    def build(*_: Any) -> Any:
        if fails:
            raise RuntimeError("no compiler")

    run = Executable(graph(), Schedule(()), device="cpu", build=build)
    x, w = torch.randn(6, 5), torch.randn(5, 4)
    for got, want in zip(run(x, w), wanted(x, w), strict=True):
        torch.testing.assert_close(got, want)


def chain(*steps: tuple[Any, ...]) -> KernelGraph:
    """Operators one behind the other on one image, each with further operands and attributes."""
    kernels, x = [], "X"
    for i, (op, more, attrs) in enumerate(steps):
        kernels.append(LibraryKernel(f"k{i}", op, (x, *more), x := f"T{i}", attrs))
    ends = Tensor("X", (2, 4, 6, 6), "float32"), Tensor("W", (4, 4, 1, 1), "float32"), Tensor(x, (2, 4, 6, 6), "float32")
    return KernelGraph("g", ("X", "W"), tuple(kernels), (x,), ends).validate()


def builds(graph: KernelGraph, refused: str = "nothing") -> tuple[Executable, list[list[str]]]:
    """What runs the graph with a compiler that refuses an operator, and the calls of what it compiled."""
    seen: list[list[str]] = []

    def build(traced: Any, _run: Any, _given: Any) -> Any:
        names = [str(n.target) for n in traced.graph.nodes if n.op == "call_function"]
        if any(refused in n for n in names):
            return None
        seen.append(names)
        return traced

    return Executable(graph, Schedule(()), device="cpu", build=build), seen


def test_what_a_library_has_alone_ends_a_piece_and_is_in_none() -> None:
    flip = ("flip", (), (("dims", (3,)), (JOINED, True)))
    run, seen = builds(
        chain(("conv2d", ("W",), ()), flip, ("tanh", (), ((JOINED, True),)), ("flip", (), (("dims", (2,)), (JOINED, True))))
    )
    assert len(seen) == 1 and sum("rev" in n for n in seen[0]) == 2
    x, w = torch.randn(2, 4, 6, 6), torch.randn(4, 4, 1, 1)
    torch.testing.assert_close(run(x, w), torch.conv2d(x, w).flip(3).tanh().flip(2))


@pytest.mark.parametrize(("extent", "together"), [(6, True), (600, False)])
def test_what_is_sorted_along_a_short_axis_goes_with_its_neighbours(extent: int, together: bool) -> None:
    kernels = (
        LibraryKernel("n", "tanh", ("X",), "T", ((JOINED, True),)),
        LibraryKernel("s", "argsort", ("T",), "S", (("descending", False), ("dim", 1), ("dtype", "int64"), (JOINED, True))),
        LibraryKernel("g", "gather", ("X", "S"), "G", (("dim", 1), (JOINED, True))),
    )
    ends = (Tensor("X", (3, extent), "float32"), Tensor("G", (3, extent), "float32"))
    run, seen = builds(KernelGraph("g", ("X",), kernels, ("G",), ends).validate())
    assert any("sort" in n for names in seen for n in names) == together
    x = torch.randn(3, extent)
    torch.testing.assert_close(run(x), x.gather(1, torch.argsort(x.tanh(), dim=1, stable=True)))


@pytest.mark.parametrize("same", [False, True])
def test_elements_in_their_order_are_those_that_the_sort_returns(same: bool) -> None:
    order = (("descending", True), ("dim", 1), ("dtype", "int64"), ("stable", False), (JOINED, True))
    kernels = (
        LibraryKernel("n", "tanh", ("X",), "T", ((JOINED, True),)),
        LibraryKernel("s", "argsort", ("T",), "S", order),
        LibraryKernel("g", "gather", ("T" if same else "X", "S"), "G", (("dim", 1), (JOINED, True))),
        LibraryKernel("c", "cumsum", ("G",), "C", (("dim", 1), (JOINED, True))),
    )
    ends = (Tensor("X", (3, 6), "float32"), Tensor("C", (3, 6), "float32"))
    run, seen = builds(KernelGraph("g", ("X",), kernels, ("C",), ends).validate())
    assert any("gather" in n for names in seen for n in names) is not same
    x = torch.randn(3, 6)
    y = x.tanh() if same else x
    torch.testing.assert_close(run(x), y.gather(1, torch.argsort(x.tanh(), dim=1, descending=True)).cumsum(1))


def test_of_launches_that_are_not_compiled_together_each_half_is() -> None:
    flips = [("flip", (), (("dims", (d,)), (JOINED, True))) for d in (0, 1, 2)]
    run, seen = builds(chain(*flips, ("cumsum", (), (("dim", 3), (JOINED, True)))), "cumsum")
    assert [sum("rev" in n for n in names) for names in seen] == [2, 1]
    x = torch.randn(2, 4, 6, 6)
    torch.testing.assert_close(run(x, torch.randn(4, 4, 1, 1)), x.flip(0, 1, 2).cumsum(3))


def test_what_torch_allocates_is_taken_where_it_lies() -> None:
    run, seen = builds(chain(("flip", (), (("dims", (3,)), (JOINED, True)))))
    assert run.plan.adopted and not any("copy_" in n for names in seen for n in names)
    x, w = torch.randn(2, 4, 6, 6), torch.randn(4, 4, 1, 1)
    found = [run(x, w), run(x, w)]
    assert found[0].data_ptr() != found[1].data_ptr()
    torch.testing.assert_close(found[0], x.flip(3))
    out = torch.zeros_like(x)
    assert run(x, w, out=out) is out
    torch.testing.assert_close(out, x.flip(3))


def test_views_are_taken_inside_and_others_of_the_same_shape_are_others() -> None:
    """Whoever is given what begins anywhere in memory would copy it."""
    whole = Tensor("X", (4, 8), "float32")
    kernels: list[LibraryKernel] = []
    for i, start in enumerate((1, 3)):
        at = (("axis", 1), ("start", start), ("stop", start + 4))
        kernels.append(LibraryKernel(f"v{i}", "slice", ("X",), f"V{i}", at))
        kernels.append(LibraryKernel(f"k{i}", "cumsum", (f"V{i}",), f"Y{i}", (("dim", 1),)))
        kernels.append(LibraryKernel(f"m{i}", "matmul", (f"Y{i}", "W"), f"Z{i}"))
    ends = whole, Tensor("W", (4, 4), "float32"), Tensor("Z0", (4, 4), "float32"), Tensor("Z1", (4, 4), "float32")
    graph = KernelGraph("g", ("X", "W"), tuple(kernels), ("Z0", "Z1"), ends).validate()
    given: list[list[tuple[int, ...]]] = []
    calls: list[str] = []

    def build(traced: Any, _run: Any, examples: Any) -> Any:
        given.append([tuple(x.shape) for x in examples[:1]])
        calls.extend(str(n.target) for n in traced.graph.nodes if n.op == "call_function")
        return traced

    run, x, w = Executable(graph, Schedule(()), device="cpu", build=build), torch.randn(4, 8), torch.randn(4, 4)
    assert given == [[(4, 8)], [(4, 8)]]
    assert not any("slice_copy" in name for name in calls), "the compiler has no kernels for views that are copies"
    torch.testing.assert_close(run(x, w), tuple(x[:, s : s + 4].cumsum(1) @ w for s in (1, 3)))


def test_examples_name_places_that_there_are_and_leave_torchs_random_numbers_alone() -> None:
    kernels = (
        LibraryKernel("i", "index", ("T", "I"), "G", (("dims", (0,)), (JOINED, True))),
        LibraryKernel("s", "add", ("K", "K"), "S", ((JOINED, True),)),
    )
    ends = (Tensor("T", (50, 3), "float32"), Tensor("I", (400,), "int64"), Tensor("K", (8,), "int64"))
    made = (Tensor("G", (400, 3), "float32"), Tensor("S", (8,), "int64"))
    graph = KernelGraph("g", ("T", "I", "K"), kernels, ("G", "S"), (*ends, *made)).validate()
    given: list[Any] = []

    def build(traced: Any, _run: Any, examples: Any) -> Any:
        given.extend(x.clone() for x in examples if not x.is_floating_point())
        return traced

    before = torch.get_rng_state()
    Executable(graph, Schedule(()), device="cpu", build=build)
    assert torch.equal(before, torch.get_rng_state())
    places, computed = given
    assert 0 <= places.min() < places.max() < 50
    assert not computed.any(), "what is computed with may name no place any more"


@pytest.mark.parametrize(("shape", "rows"), [((20,), 1), ((4, 5), 1), ((30, 20), 30)])
def test_examples_name_each_place_once_where_there_are_enough(shape: tuple[int, ...], rows: int) -> None:
    """What is written twice may be left either way, and the compiler's form would be refused."""
    kernel = LibraryKernel("i", "index", ("T", "I"), "G", (("dims", (0,)), (JOINED, True)))
    more = LibraryKernel("s", "exp", ("G",), "S", ((JOINED, True),))
    ends = (Tensor("T", (50, 3), "float32"), Tensor("I", shape, "int64"), Tensor("S", (*shape, 3), "float32"))
    graph = KernelGraph("g", ("T", "I"), (kernel, more), ("S",), (*ends, Tensor("G", (*shape, 3), "float32"))).validate()
    given: list[Any] = []

    def build(traced: Any, _run: Any, examples: Any) -> Any:
        given.extend(x.clone() for x in examples if not x.is_floating_point())
        return traced

    Executable(graph, Schedule(()), device="cpu", build=build)
    (places,) = given
    assert 0 <= places.min() < places.max() < 50
    assert all(len(row.unique()) == row.numel() for row in places.reshape(rows, -1))


def test_examples_of_one_form_are_different_numbers() -> None:
    """Of equal ones an angle is a rounding error: the compiler's form would be refused."""
    seen: list[Any] = []
    kernels = (
        LibraryKernel("n", "maximum", ("X", "Y"), "N", ((JOINED, True),)),
        LibraryKernel("d", "sub", ("X", "N"), "D", ((JOINED, True),)),
    )
    ends = [Tensor(n, (6, 5), "float32") for n in "XYD"]
    Executable(
        KernelGraph("g", ("X", "Y"), kernels, ("D",), tuple(ends)).validate(),
        Schedule(()),
        device="cpu",
        build=lambda _traced, _run, given: seen.append([x.clone() for x in given]),
    )
    (x, y), *_ = seen
    assert not torch.equal(x, y)


def test_constants_are_their_own_examples() -> None:
    """Of random numbers in their place, roots may have none and quotients no two forms that agree."""
    kernels = (
        LibraryKernel("s", "sub", ("C", "X"), "S", ((JOINED, True),)),
        LibraryKernel("t", "sqrt", ("S",), "T", ((JOINED, True),)),
    )
    ends = tuple(Tensor(n, (8,), "float32") for n in "CXT")
    seen: list[Any] = []

    def build(traced: Any, _run: Any, given: Any) -> Any:
        seen.extend(x for x in given if bool((x == 9).all()))
        return traced

    run = Executable(
        KernelGraph("g", ("C", "X"), kernels, ("T",), ends).validate(),
        Schedule(()),
        device="cpu",
        build=build,
        constants={"C": torch.full((8,), 9.0)},
    )
    x = torch.rand(8)
    torch.testing.assert_close(run(x), (9 - x).sqrt())
    assert len(seen) == 1


def test_operators_are_taken_apart_as_the_compiler_does_it() -> None:
    """Not as torch's functionalization would: a bias stays in its product, a loss is the compiler's own formula."""
    from fuser.runtime.joined import _traced

    def names(run: Any, *shapes: tuple[int, ...]) -> list[str]:
        found = _traced(lambda *xs: (run(*xs),), [torch.randn(s) for s in shapes], whole=True)
        return [str(n.target) for n in found.graph.nodes if n.op == "call_function"]

    assert "aten.addmm.default" in names(torch.nn.functional.linear, (2, 3, 4), (5, 4), (5,))
    loss = names(torch.nn.functional.binary_cross_entropy_with_logits, (4, 8), (4, 8))
    assert "aten.log1p.default" in loss and loss.count("aten.exp.default") == 1
    written = names(lambda x: x.clone().add_(1).mul_(2), (3,))
    assert written and not any(n.endswith("_.Tensor") for n in written)


def test_images_are_resized_by_what_the_compiler_has_kernels_for() -> None:
    def larger(x: Any) -> Any:
        return (torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear") + 1,)

    from fuser.runtime.joined import _traced

    graph = _traced(larger, [torch.randn(1, 2, 4, 4)])
    assert not any("upsample" in str(n.target) for n in graph.graph.nodes)


def test_strides_count_from_a_tensor_s_own_first_element() -> None:
    """It may lie in the midst of a workspace."""
    from fuser.aten import call

    x = torch.arange(40.0)[10:30].view(4, 5)
    for offset, first in (("null", 0.0), ("1", 1.0)):
        found = call("aten.as_strided.default", f'[[{{"tensor": 0}}, [3, 2], [1, 2], {offset}], {{}}]', [x])
        torch.testing.assert_close(found, torch.as_strided(x.clone(), (3, 2), (1, 2), int(first)))
    put = call("aten.as_strided_scatter.default", '[[{"tensor": 0}, {"tensor": 1}, [2], [5], 1], {}]', [x, torch.zeros(2)])
    torch.testing.assert_close(put, torch.as_strided_scatter(x.clone(), torch.zeros(2), (2,), (5,), 1))


def test_what_the_compiler_makes_is_tried_on_examples() -> None:
    """Of numbers that it computes places from zeros were none, and a GPU stops for all of a process."""
    b = Builder("picked", "float32")
    x, k = b.input("X", (4, 8)), b.input("K", (4, 1), "int64")
    program = b.build(Y=b.op("mul", x, b.op("cast", k, dtype="float32")))
    kernels = tuple(
        LibraryKernel(n.output, n.op, n.inputs, n.output, tuple(sorted({**program.bound(n), JOINED: True}.items())))
        for n in program.nodes
    )
    graph = KernelGraph("picked", program.inputs, kernels, program.outputs, tuple(program[n] for n in ("X", "K", "Y")))
    seen: list[Any] = []

    def build(_: Any, run: Any, given: Any) -> Any:
        seen.append([x.clone() for x in given])
        return run

    places = torch.tensor([[3], [1], [7], [2]])
    Executable(plan(Candidate(graph.validate(), Schedule(())), []), device="cpu", build=build, examples={"K": places})
    assert any(torch.equal(x, places) for given in seen for x in given)


@pytest.mark.parametrize("handed_on", [True, False])
def test_rows_that_the_compiler_makes_longer_are_copied_where_somebody_counts_on_them(handed_on: bool) -> None:
    """Products of odd sizes have rows of a multiple of 16 bytes, which torch.compile returns so as well."""
    kernels = (LibraryKernel("m", "matmul", ("X", "W"), "M", ((JOINED, WHOLE),)),)
    ends = (Tensor("X", (6, 5), "float32"), Tensor("W", (5, 7), "float32"), Tensor("M", (6, 7), "float32"))
    product = KernelGraph("g", ("X", "W"), kernels, ("M",), ends).validate()
    seen: list[Any] = []

    class Original:
        trained = frozenset[str]()
        padded = frozenset("M") if handed_on else frozenset[str]()

        def function(self, reads: Any, makes: Any, device: Any) -> Any:
            return lambda x, w: (x @ w,) if tuple(reads) == ("X", "W") else (w @ x,)

    def build(_traced: Any, run: Any, _given: Any) -> Any:
        def longer(*xs: Any) -> Any:
            (found,) = run(*xs)
            seen.append(torch.full((6, 8), torch.nan)[:, :7].copy_(found))
            return (seen[-1],)

        return longer

    run = Executable(product, Schedule(()), device="cpu", build=build, original=Original())
    x, w = torch.randn(6, 5), torch.randn(5, 7)
    for _ in range(3):
        y = run(x, w)
        torch.testing.assert_close(y, x @ w)
        assert (y.data_ptr() == seen[-1].data_ptr()) is handed_on
        assert y.stride() == ((8, 1) if handed_on else (7, 1))
        torch.testing.assert_close(run(x, w, out=torch.empty(6, 7)), x @ w)
    for mine in (torch.arange(24.0).view(4, 6).T, torch.zeros(4, 1).expand(4, 6), torch.zeros(48)[::2].view(4, 6)):
        got = taken_beside(mine, torch.empty(mine.shape, device="meta"), (), (), 4, padded=True)
        assert got.is_contiguous()
        torch.testing.assert_close(got, mine)
