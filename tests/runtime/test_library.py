"""Library kernels: every operator into a tensor of the plan, matmuls of any batch by views alone, views that cost nothing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.opdef import JOINED
from fuser.ir.ops import OPS
from fuser.ir.program import Tensor
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from fuser.ir.schedule import Schedule
from fuser.runtime.graph_executor import Executable
from fuser.runtime.library import WHOLE
from fuser.runtime.library import allocates
from fuser.runtime.library import bind_library
from fuser.runtime.library import matmul_parts
from fuser.runtime.library import multiply
from fuser.runtime.plan import plan
from fuser.runtime.torch_program import apply
from tests.operators import ATTRS
from tests.operators import INDICES
from tests.operators import operands
from tests.runtime.test_host_path import operators


@pytest.mark.parametrize("name", sorted(set(OPS) - {"opaque"}))
def test_every_operator_writes_into_the_tensor_it_is_given(name: str) -> None:
    torch.manual_seed(0)
    xs = [torch.rand(s) + 0.5 for s in operands(name)]
    for i, below in INDICES.get(name, {}).items():
        xs[i] = torch.randint(below, xs[i].shape)
    want = apply(name, xs, ATTRS.get(name, {}))
    out = torch.empty_like(want, memory_format=torch.contiguous_format)
    out.fill_(math.nan if out.is_floating_point() else 7)
    call = bind_library(name, ATTRS.get(name, {}), xs, out)
    with operators() as called:
        call()
    torch.testing.assert_close(out, want, equal_nan=True)
    assert allocates(name, ATTRS.get(name, {})) == any(
        not n.endswith(("out", "out_mode")) and "copy_" not in n for n in called
    ), called


DIMS = st.integers(1, 4)


@st.composite
def products(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands of a batched matmul: batches broadcast, with any strides."""
    batch = draw(st.lists(DIMS, max_size=3))
    m, k, n = draw(DIMS), draw(DIMS), draw(DIMS)
    return tuple(draw(operand(batch, s)) for s in ((m, k), (k, n)))  # type: ignore[return-value]


@st.composite
def operand(draw: st.DrawFn, batch: list[int], matrix: tuple[int, int]) -> torch.Tensor:
    own = [draw(st.sampled_from([n, 1])) for n in batch[draw(st.integers(0, len(batch))) :]]
    shape = (*own, *matrix)
    order = draw(st.permutations(range(len(shape))))
    stored = torch.arange(1.0, 1 + math.prod(shape)).reshape([shape[i] for i in order])
    return stored.permute([order.index(i) for i in range(len(shape))])


@settings(deadline=None)
@given(products())
def test_matmuls_of_any_batch_are_products_of_views(made: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = made
    want = torch.matmul(a, b)
    out = torch.full(want.shape, math.nan)
    with operators() as called:
        bind_library("matmul", {}, [a, b], out)()
    torch.testing.assert_close(out, want)
    views = {"aten.as_strided.default", "aten.expand.default", "aten.view.default", "aten.select.int", "aten.alias.default"}
    views |= {"aten.permute.default", "aten.movedim.int"}
    assert set(called) - views <= {"aten.mm.out", "aten.bmm.out"}


@pytest.mark.parametrize(
    ("left", "right", "calls"),
    [((8, 16, 32), (32, 4), 1), ((8, 2, 16, 32), (8, 2, 32, 4), 1), ((16, 32), (8, 32, 4), 1), ((2, 4, 1, 8), (2, 1, 8, 6), 2)],
)
def test_common_matmuls_are_few_calls(left: tuple[int, ...], right: tuple[int, ...], calls: int) -> None:
    a, b = torch.zeros(left), torch.zeros(right)
    parts = matmul_parts(a, b, torch.zeros(torch.matmul(a, b).shape))
    assert len(parts) == calls
    assert (parts[0][2].dim() == 2) == (len(right) == 2)


def test_rows_that_are_turned_are_as_long_as_they_can_be() -> None:
    a, b = torch.randn(8, 77, 16).transpose(0, 1), torch.randn(16, 4)
    out = torch.zeros(77, 8, 4)
    ((x, y, z),) = matmul_parts(a, b, out)
    assert (x.shape, y.shape, z.shape) == ((8, 77, 16), (8, 16, 4), (8, 77, 4))
    multiply(x, y, z)
    torch.testing.assert_close(out, a @ b)


def test_rows_of_a_product_lie_as_a_library_reads_them() -> None:
    """The longest dimension would leave matrices whose elements all lie apart, of which a library makes copies."""
    a, b, out = torch.randn(64, 6, 8).mT, torch.randn(6, 4), torch.zeros(64, 8, 4)
    ((x, y, z),) = matmul_parts(a, b, out)
    assert (x.shape, y.shape, z.shape) == ((64, 8, 6), (64, 6, 4), (64, 8, 4))
    assert all(1 in t.stride()[1:] for t in (x, y, z))
    multiply(x, y, z)
    torch.testing.assert_close(out, a @ b)


def graph_of(*kernels: LibraryKernel, outputs: tuple[str, ...], **shapes: tuple[int, ...]) -> KernelGraph:
    tensors = tuple(Tensor(n, s, "float32") for n, s in shapes.items())
    return KernelGraph("g", tuple(n for n in shapes if n not in outputs), kernels, outputs, tensors).validate()


def test_views_are_no_kernels() -> None:
    """(X Wᵀ) with heads split and swapped, times its transpose: views of an input and of a result."""
    graph = graph_of(
        LibraryKernel("wt", "transpose", ("W",), "Wt", (("perm", (1, 0)),)),
        LibraryKernel("p", "matmul", ("X", "Wt"), "P"),
        LibraryKernel("h", "reshape", ("P",), "H", (("shape", (6, 2, 4)),)),
        LibraryKernel("t", "transpose", ("H",), "T", (("perm", (1, 0, 2)),)),
        LibraryKernel("u", "transpose", ("H",), "U", (("perm", (1, 2, 0)),)),
        LibraryKernel("s", "matmul", ("T", "U"), "S"),
        outputs=("S",),
        X=(6, 5),
        W=(8, 5),
        S=(2, 6, 6),
    )
    found = plan(Candidate(graph, Schedule(())))
    assert [graph.kernels[i].name for i in found.launched] == ["p", "s"]
    assert [s.tensor.name for s in found.slots] == ["P"]
    x, w = torch.rand(6, 5), torch.rand(8, 5)
    heads = (x @ w.T).reshape(6, 2, 4).permute(1, 0, 2)
    exe = Executable(found, device="cpu")
    out = torch.empty(2, 6, 6)
    torch.testing.assert_close(exe(x, w, out=out), heads @ heads.transpose(1, 2))
    with operators() as called:
        exe(x, w, out=out)
    assert {n for n in called if n.endswith(".out")} == {"aten.mm.out", "aten.bmm.out"}
    assert not [n for n in called if "empty" in n or "clone" in n or "copy" in n]


def test_a_view_that_a_convolution_would_copy_is_made_by_what_makes_the_tensor() -> None:
    """Where torch's compiler makes it: a kernel of its own writes what it turns as it is read."""
    for how, launched in ((True, ["r", "t", "c"]), (WHOLE, ["r", "c"])):
        graph = graph_of(
            LibraryKernel("r", "relu", ("X",), "R", ((JOINED, how),)),
            LibraryKernel("t", "transpose", ("R",), "T", ((JOINED, how), ("perm", (0, 2, 1)))),
            LibraryKernel("c", "conv1d_last", ("T", "W"), "C"),
            outputs=("C",),
            X=(2, 3, 9),
            W=(4, 2, 3),
            C=(2, 8, 4),
        )
        found = plan(Candidate(graph, Schedule(())))
        assert [graph.kernels[i].name for i in found.launched] == launched


def test_results_of_one_call_are_one_call() -> None:
    detail = '[[{"tensor": 0}, 1], {}]'
    callee = "aten.median.dim"
    kernels = [
        LibraryKernel(
            n, "opaque", ("X",), n, (("callee", callee), ("detail", detail), ("dtype", dtype), ("field", i), ("shape", (4,)))
        )
        for i, (n, dtype) in enumerate((("V", "float32"), ("I", "int64")))
    ]
    tensors = (Tensor("X", (4, 5), "float32"), Tensor("V", (4,), "float32"), Tensor("I", (4,), "int64"))
    exe = Executable(KernelGraph("g", ("X",), tuple(kernels), ("V", "I"), tensors).validate(), Schedule(()), device="cpu")
    for seed in range(2):
        x = torch.rand(4, 5, generator=torch.Generator().manual_seed(seed))
        with operators() as called:
            found = exe(x)
        assert called.count(callee) == 1
        for got, want in zip(found, x.median(1), strict=True):
            assert torch.equal(got, want)


@st.composite
def library_graphs(draw: st.DrawFn) -> KernelGraph:
    """Operators and views on squares of 4 × 4 and what becomes of them; the last result and some others are outputs."""
    shapes: dict[str, tuple[int, ...]] = {"X": (4, 4), "Y": (4, 4)}
    kernels = []
    for i in range(draw(st.integers(1, 10))):
        name, op = (
            f"t{i}",
            draw(st.sampled_from(["neg", "sigmoid", "add", "matmul", "transpose", "transpose", "slice", "reshape"])),
        )
        x = draw(st.sampled_from(sorted(shapes)))
        alike = [n for n in sorted(shapes) if shapes[n] == shapes[x]]
        rows, columns = shapes[x]
        args, attrs, shape = (x,), {}, shapes[x]
        if op == "add":
            args = (x, draw(st.sampled_from(alike)))
        elif op == "matmul":
            y = draw(st.sampled_from([n for n in sorted(shapes) if shapes[n][0] == columns] or [""]))
            op, args, shape = ("matmul", (x, y), (rows, shapes[y][1])) if y else ("neg", (x,), (rows, columns))
        elif op == "transpose":
            attrs, shape = {"perm": (1, 0)}, (columns, rows)
        elif op == "slice" and rows > 1:
            attrs, shape = {"axis": 0, "start": 1, "stop": rows}, (rows - 1, columns)
        elif op == "slice":
            op = "neg"
        elif op == "reshape":
            attrs, shape = {"shape": (1, rows * columns)}, (1, rows * columns)
        kernels.append(LibraryKernel(f"k{i}", op, args, name, tuple(sorted(attrs.items()))))
        shapes[name] = shape
    made = [k.output for k in kernels]
    outputs = {made[-1], *draw(st.lists(st.sampled_from(made), max_size=2))}
    return graph_of(*kernels, outputs=tuple(sorted(outputs)), **{n: shapes[n] for n in ("X", "Y", *sorted(outputs))})


@settings(deadline=None, max_examples=40)
@given(library_graphs())
def test_graphs_of_operators_and_views_agree_with_eager_torch(graph: KernelGraph) -> None:
    torch.manual_seed(0)
    values = {n: torch.rand(4, 4) for n in graph.inputs}
    exe = Executable(graph, Schedule(()), device="cpu")
    exe.workspace.fill_(255)
    found = exe.run(values)
    for kernel in graph.kernels:
        assert isinstance(kernel, LibraryKernel)
        values[kernel.output] = apply(kernel.op, [values[a] for a in kernel.args], dict(kernel.attrs))
    for n, x in found.items():
        torch.testing.assert_close(x, values[n])


def test_a_reshape_of_a_strided_view_is_a_copy_into_a_slot() -> None:
    graph = graph_of(
        LibraryKernel("t", "transpose", ("X",), "T", (("perm", (1, 0)),)),
        LibraryKernel("r", "reshape", ("T",), "R", (("shape", (2, 12)),)),
        LibraryKernel("n", "neg", ("R",), "Y"),
        outputs=("Y",),
        X=(6, 4),
        Y=(2, 12),
    )
    found = plan(Candidate(graph, Schedule(())))
    assert [graph.kernels[i].name for i in found.launched] == ["r", "n"]
    x = torch.rand(6, 4)
    torch.testing.assert_close(Executable(found, device="cpu")(x), -x.T.reshape(2, 12))


def test_a_slot_lives_as_long_as_the_views_of_it() -> None:
    graph = graph_of(
        LibraryKernel("a", "neg", ("X",), "A"),
        LibraryKernel("v", "transpose", ("A",), "V", (("perm", (1, 0)),)),
        LibraryKernel("b", "exp", ("X",), "B"),
        LibraryKernel("c", "square", ("B",), "C"),
        LibraryKernel("m", "matmul", ("C", "V"), "Y"),
        outputs=("Y",),
        X=(4, 6),
        Y=(4, 4),
    )
    x = torch.rand(4, 6)
    exe = Executable(plan(Candidate(graph, Schedule(()))), device="cpu")
    torch.testing.assert_close(exe(x), torch.exp(x) ** 2 @ -x.T)


def test_constants_follow_the_sizes_of_the_graph() -> None:
    root = Scalar.power(Extent("X", 1), -1)
    graph = graph_of(LibraryKernel("s", "scale", ("X",), "Y", (("scalar", root),)), outputs=("Y",), X=(2, 8), Y=(2, 8))
    x = torch.rand(2, 8)
    torch.testing.assert_close(Executable(graph, Schedule(()), device="cpu")(x), x / 8)


def test_several_outputs_by_name_and_in_order() -> None:
    graph = graph_of(
        LibraryKernel("n", "neg", ("X",), "N"), LibraryKernel("e", "exp", ("N",), "E"), outputs=("E", "N"), X=(3,), E=(3,), N=(3,)
    )
    exe = Executable(graph, Schedule(()), device="cpu")
    x = torch.rand(3)
    e, n = exe(x)
    torch.testing.assert_close(n, -x)
    torch.testing.assert_close(e, torch.exp(-x))
    mine = (torch.empty(3), torch.empty(3))
    assert exe(x, out=mine)[0] is mine[0]
    assert set(exe.run({"X": x})) == {"E", "N"}


def test_a_reshape_of_a_strided_tensor_reads_it_when_it_is_called() -> None:
    x, out = torch.zeros(3, 4), torch.empty(2, 6)
    call = bind_library("reshape", {"shape": (2, 6)}, [x.t()], out)
    x.copy_(torch.arange(12.0).reshape(3, 4))
    call()
    torch.testing.assert_close(out, x.t().reshape(2, 6))


@pytest.mark.parametrize("name", ["prod", "cumsum", "argmax", "argmin", "any", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool])
def test_folds_of_the_library_write_in_place_where_the_result_has_their_dtype(name: str, dtype: torch.dtype) -> None:
    if dtype == torch.bool and name.startswith("arg"):
        pytest.skip("torch has none")
    x = (torch.randn(3, 4, 5) * 2).to(dtype)
    dims = [{"dim": 1}] if name == "cumsum" else [{"dim": -1, "keepdim": True}, {"dim": 0}, {"dim": 1, "keepdim": False}, {}]
    for attrs in dims:
        want = apply(name, [x.mT], attrs)
        own = not (name == "prod" and not attrs)
        for to in {want.dtype, dtype, torch.int64}:
            out = torch.full(want.shape, 7, dtype=to)
            with operators() as called:
                bind_library(name, attrs, [x.mT], out)()
            torch.testing.assert_close(out, want.to(to))
            assert any(n.endswith("out") for n in called) == (own and to == want.dtype), (called, attrs, to)
        assert allocates(name, attrs) != own


@pytest.mark.parametrize("value", [-3.4028234663852886e38, 2.0**63, -(2.0**63), 2.0**62, 3.0])
def test_whole_constants_of_any_size(value: float) -> None:
    x = torch.ones(2)
    assert apply("scale", [x.double()], {"scalar": value}).tolist() == [value, value]
    assert apply("scale", [x], {"scalar": value}).dtype == torch.float32
    if abs(value) < 2.0**63:
        assert apply("scale", [x.long()], {"scalar": value}).dtype == torch.int64


@pytest.mark.parametrize(("shape", "alike"), [((2, 8, 4, 4), True), ((8, 4, 8), False), ((2, 8, 3, 5), False)])
def test_a_convolution_of_one_pixel_is_a_product_of_matrices_for_each_image(shape: tuple[int, ...], alike: bool) -> None:
    """Of one image without a batch, or rows at odd addresses, it stays one."""
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(), torch.no_grad():  # a GPU's tensors, without one
        x = torch.empty(shape, dtype=torch.float16, device="cuda")
        weight = torch.empty(16, 8, 1, 1, dtype=torch.float16, device="cuda")
        with operators() as called:
            y = apply("conv2d", [x, weight], {})
    assert tuple(y.shape) == (*shape[:-3], 16, *shape[-2:])
    assert ("aten.bmm.default" in called) is alike
