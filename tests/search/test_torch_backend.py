"""``torch.compile(backend="mufuser")``: the same results, aliases, writes and strides as torch's, whatever the graph holds."""

from __future__ import annotations

import copy
import tomllib
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch._dynamo import list_backends  # noqa: E402
from torch._dynamo import register_backend  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import fuser  # noqa: E402
from fuser.errors import LeftToTorch  # noqa: E402
from fuser.errors import UsageError  # noqa: E402
from search.torch_backend import Door  # noqa: E402
from search.torch_backend import by_torchs_compiler  # noqa: E402
from search.torch_pieces import Givens  # noqa: E402
from search.torch_pieces import pieces  # noqa: E402
from search.torch_pieces import worth  # noqa: E402
from tests.functions import Fn  # noqa: E402
from tests.paths import ROOT  # noqa: E402

from .modules import SUITE  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
CPU = {"device": "cpu"}


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Compiled:
    """A module behind the backend, and a copy that torch runs."""

    def __init__(self, module: Any, **options: Any) -> None:
        self.module, self.plain = module, copy.deepcopy(module)
        self.doors: list[Door] = []

        def backend(graph: Any, inputs: Any, **more: Any) -> Any:
            door = fuser.torch_backend(graph, inputs, **more)
            self.doors.append(door)
            return door

        self.run = torch.compile(self.module, backend=backend, options=CPU | options)

    def agrees(self, *inputs: Any, tolerance: float = 1e-3) -> Any:
        """Results, their strides, and what becomes of the inputs and of the module's tensors."""
        others = copy.deepcopy(inputs)
        with torch.no_grad():
            got, want = self.run(*inputs), self.plain(*others)
        same(got, want, tolerance)
        same(inputs, others, tolerance)
        same(dict(self.module.state_dict()), dict(self.plain.state_dict()), tolerance)
        return got

    @property
    def kernels(self) -> int:
        return sum(len(p.made.graph.blocks) for d in self.doors for m in d.made.values() for p in m.pieces if p.made)

    @property
    def sizes(self) -> int:
        return sum(len(d.made) for d in self.doors)


def same(got: Any, want: Any, tolerance: float) -> None:
    mine, tree = torch.utils._pytree.tree_flatten(got)
    theirs, wanted = torch.utils._pytree.tree_flatten(want)
    assert tree == wanted
    for x, y in zip(mine, theirs, strict=True):
        if isinstance(y, torch.Tensor):
            torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)
            assert x.stride() == y.stride()
        else:
            assert type(x) is type(y)
            assert x == y


class Block(nn.Module):
    """Attention under a mask that is a buffer."""

    def __init__(self, rows: int = 4, width: int = 16) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.register_buffer("mask", torch.ones(rows, rows).tril().bool())

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2) / 4).masked_fill(~self.mask, float("-inf"))
        return scores.softmax(-1) @ v


def test_the_entry_point_is_the_backend() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    module, _, name = table["project"]["entry-points"]["torch_dynamo_backends"]["mufuser"].partition(":")
    assert getattr(import_module(module), name) is fuser.torch_backend


def test_parameters_stay_live_and_masks_are_watched() -> None:
    run, x = Compiled(Block().eval()), torch.randn(2, 4, 16)
    run.agrees(x)
    assert run.kernels > 0
    assert run.doors[0].made[None, ()].constants  # the mask
    with torch.no_grad():
        for m in (run.module, run.plain):
            m.qkv.weight.mul_(2)
    run.agrees(x)
    for m in (run.module, run.plain):
        m.mask.fill_(True)
    run.agrees(x)
    assert not run.doors[0].made[None, ()].constants  # it was written to: from now on it is an input
    for m in (run.module, run.plain):
        m.mask.fill_(True).tril_()
    run.agrees(x)
    assert len(run.doors) == run.sizes == 1


def test_frozen_parameters_stay_as_they_were() -> None:
    run, x = Compiled(Block().eval(), freeze=True), torch.randn(2, 4, 16)
    first = run.agrees(x)
    with torch.no_grad():
        run.module.qkv.weight.mul_(2)
        torch.testing.assert_close(run.run(x), first)


def test_what_a_frozen_module_sets_at_each_call_is_no_constant() -> None:
    module = Block().eval()
    module.register_buffer("scale", torch.zeros(16))

    def forward(x: Any) -> Any:
        module.scale = module.scale + 1
        return Block.forward(module, x) * module.scale

    run, x = torch.compile(forward, backend="mufuser", options=CPU | {"freeze": True}), torch.randn(2, 4, 16)
    with torch.no_grad():
        want = module(x)
        for i in range(1, 5):
            torch.testing.assert_close(run(x), want * i, rtol=1e-4, atol=1e-4)


def test_sizes_have_kernels_of_their_own_up_to_a_bound() -> None:
    run = Compiled(Block().eval(), shapes=2)
    for batch in (2, 3, 5, 3, 5):
        run.agrees(torch.randn(batch, 4, 16))
    assert run.sizes == 3  # one of static size, and two
    with pytest.warns(LeftToTorch, match="2 sets of sizes of one graph are compiled, and torch runs further ones"):
        run.agrees(torch.randn(7, 4, 16))
    assert run.sizes == 3


def test_a_graph_break_has_two_graphs() -> None:
    def broken(x: Any) -> Any:
        y = functional.gelu(x @ x.T)
        torch._dynamo.graph_break()
        return y.softmax(-1) @ x

    run = Compiled(Fn(broken))
    run.agrees(torch.randn(8, 16))
    assert len(run.doors) == 2
    assert run.kernels >= 2


def written(x: Any, y: Any) -> Any:
    y.mul_(2)
    x[0] = 1.0
    return (x @ x.T).relu(), y


def nested(x: Any, y: Any) -> Any:
    z = (x * 2).softmax(-1)
    views = {"part": z[:, :4], "half": z.chunk(2, 1)[1].T, "bits": z.view(torch.int32), "like": z.view_as(x), "in": x.T}
    return {"z": z, "again": (z, z), "none": None, "n": 3, "view": z.view(-1), "turned": z.T, **views, "const": torch.ones(2)}


def autocast(x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ x.T).relu()


def empty(x: Any, e: Any) -> Any:
    return (x @ x.T).relu(), e.sum(), torch.cat([e, x[:, :0]])


def promoted(x: Any, h: Any, i: Any) -> Any:
    return (x * h).exp() + i, h * 2.5, i / 2


def permuted(q: Any) -> Any:
    x = functional.scaled_dot_product_attention(q, q, q)  # which torch lays out as its operands lie
    return x.transpose(1, 2).reshape(2, 6, 16)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "writes to inputs": (written, lambda: (torch.randn(8, 16), torch.randn(3))),
    "nested results": (nested, lambda: (torch.randn(8, 16), torch.randn(1))),
    "strided input": (lambda x: (x.exp() @ x.T).relu(), lambda: (torch.randn(16, 8).T,)),
    "strided result": (lambda x: x.T.exp(), lambda: (torch.randn(16, 8),)),
    "view of a result that lies otherwise": (permuted, lambda: (torch.randn(2, 6, 2, 8).transpose(1, 2),)),
    "expanded input": (lambda x: (x + 1).softmax(-1), lambda: (torch.randn(1, 8).expand(4, 8),)),
    "one number": (lambda x, s: (x * s).softmax(-1).sum(), lambda: (torch.randn(4, 8), torch.tensor(2.0))),
    "empty tensors": (empty, lambda: (torch.randn(4, 8), torch.zeros(0, 0))),
    "integers": (lambda x, i: (x.softmax(-1)[i], i + 1, i % 3 == 0), lambda: (torch.randn(8, 4), torch.arange(5))),
    "promotion": (promoted, lambda: (torch.rand(4, 4), torch.rand(4, 4).half(), torch.arange(4))),
    "complex numbers": (lambda x: torch.fft.fft(x.softmax(-1)).abs().softmax(-1), lambda: (torch.randn(4, 8),)),
    "shape from values": (lambda x: x.relu().softmax(-1)[x[:, 0] > 0].exp(), lambda: (torch.randn(8, 4),)),
    "nothing to do": (lambda x: x, lambda: (torch.randn(4),)),
    "integers alone": (lambda i: i.cumsum(0), lambda: (torch.arange(5),)),
    "no inputs": (lambda: torch.ones(4, 4).exp(), lambda: ()),
    "no outputs": (lambda x: x.add_(1) and None, lambda: (torch.zeros(()),)),
    "same tensor twice": (lambda x, y: (x @ y.T).exp(), lambda: (torch.randn(4, 4),) * 2),
    "autocast": (autocast, lambda: (torch.randn(8, 16),)),
    "16 bits": (lambda x: functional.silu(x @ x.T) @ x, lambda: (torch.randn(16, 16).bfloat16() / 4,)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_whatever_a_graph_holds(case: str) -> None:
    f, inputs = CASES[case]
    given = inputs()
    wide = any(x.dtype == torch.bfloat16 for x in given) or case == "autocast"
    run = Compiled(Fn(f))
    got = run.agrees(*given, tolerance=3e-2 if wide else 2e-3)
    made = [p for d in run.doors for m in d.made.values() for p in m.pieces]
    assert not any(p.why for p in made)
    if case == "nested results":
        assert {got[n].data_ptr() for n in ("view", "turned", "part", "bits", "like")} == {got["z"].data_ptr()}
    if case == "strided input":
        assert made[0].made and list(made[0].made.orders.values()) == [(1, 0)]  # nothing is copied


def test_random_numbers_are_drawn_at_every_call() -> None:
    run = Compiled(Fn(lambda x: (functional.dropout(x.exp(), 0.5, True) @ x.T).relu()))
    x = torch.randn(16, 16)
    with torch.no_grad():
        torch.manual_seed(1)
        first = run.run(x)
        second = run.run(x)
        torch.manual_seed(1)
        torch.testing.assert_close(first, run.plain(x), rtol=1e-3, atol=1e-3)
    assert not torch.equal(first, second)
    assert run.kernels


def test_random_numbers_are_drawn_in_the_order_of_torch() -> None:
    """What is made of later ones belongs to no kernels in front of earlier ones."""

    def several(x: Any) -> Any:
        first = torch.bernoulli((x @ x.T).sigmoid())
        return first, torch.randperm(16), torch.rand(16) + x

    run, x = Compiled(Fn(several)), torch.randn(16, 16)
    torch.manual_seed(1)
    want = run.plain(x)
    torch.manual_seed(1)
    same(run.run(x), want, 1e-3)
    assert run.kernels


def test_statistics_of_a_batch_are_updated() -> None:
    run = Compiled(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)).train())
    run.agrees(torch.randn(6, 8))
    run.agrees(torch.randn(6, 8))
    assert int(run.module[1].num_batches_tracked) == 2


def test_training_is_refused_and_gradients_are_never_silently_lost() -> None:
    run, x = Compiled(Block()), torch.randn(2, 4, 16)
    run.module.train()
    with pytest.raises(UsageError, match="the model is in training mode") as error:
        run.run(x)
    assert "model.eval()" in error.value.hint
    run.module.eval()
    with pytest.raises(UsageError, match="its kernels have no backward"):
        run.run(x).sum().backward()
    with torch.inference_mode():
        torch.testing.assert_close(run.run(x), run.plain(x), rtol=1e-3, atol=1e-3)


def test_what_has_no_gradient_in_torch_has_none_here() -> None:
    """Features of a frozen model, in front of layers that are trained elsewhere."""

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                y = self.a(x)
            return y.relu(), self.a(x).detach()

    for training in (False, True):
        run, head, x = Compiled(Frozen().train(training)), nn.Linear(4, 1), torch.randn(3, 4)
        found = run.run(x)
        assert run.kernels
        assert not any(y.requires_grad for y in found)
        same(found, run.plain(x), 1e-3)
        head(found[0]).sum().backward()
        assert head.weight.grad is not None


def test_gradients_of_an_input_are_torchs_in_training_too() -> None:
    run, x = Compiled(nn.Linear(4, 4).requires_grad_(False).train()), torch.randn(3, 4, requires_grad=True)
    with pytest.warns(LeftToTorch, match="an input that requires gradients"):
        (got,) = torch.autograd.grad(run.run(x).square().sum(), x)
    (want,) = torch.autograd.grad(run.plain(x).square().sum(), x)
    torch.testing.assert_close(got, want)


def test_what_cannot_be_compiled_runs_in_torch_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of luck\nmore")

    monkeypatch.setattr("search.torch_pieces.compile_program", broken)
    run, x = Compiled(Block().eval()), torch.randn(2, 4, 16)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run.agrees(x)
        run.agrees(x)
    ours = [str(w.message) for w in found if w.category is LeftToTorch]
    assert ours == ["torch runs a part of a graph that could not be compiled: out of luck"]


def test_what_no_kernel_stands_for_is_torchs_compilers_unless_it_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a GPU; here what is asked of it."""

    def graph(f: Callable[..., Any], *args: Any) -> Any:
        return make_fx(f)(*args)

    x, where = torch.randn(4, 4), torch.device("cpu")
    turned = graph(lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(4, 2, 2)) * 1j).exp(), x)
    assert not worth(turned, pieces(turned, Givens(), "turned", where, CPU)[1], where)
    mixed = graph(lambda x: torch.view_as_real(torch.fft.fft(x @ x)) + (x @ x)[..., None], x)
    assert worth(mixed, pieces(mixed, Givens(), "mixed", where, CPU)[1], where)
    assert worth(graph(lambda x: torch.rand_like(x) + x, x), [], where)
    monkeypatch.setattr(torch._inductor, "compile", lambda module, _: module)
    run = by_torchs_compiler(turned, [x])
    assert run is not turned
    torch.testing.assert_close(run(x), turned(x))


def test_tensors_of_the_cpu_are_torchs_unless_the_interpreter_is_asked_for() -> None:
    run = torch.compile(Fn(lambda x: (x @ x.T).exp()), backend=fuser.torch_backend)
    x = torch.randn(4, 4)
    with pytest.warns(LeftToTorch, match=r"torch runs a graph on cpu: kernels are for GPUs \(options=\{'device': 'cpu'\}"):
        torch.testing.assert_close(run(x), (x @ x.T).exp())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"frozen": True}, "the backend mufuser has no option 'frozen'"),
        ({"device": "tpu"}, "cannot be told to run on 'tpu'"),
        ({"shapes": 0}, "shapes=0 is no number of sizes"),
        ({"target": "h300"}, "there is no device specification for target 'h300'"),
    ],
)
def test_options_that_there_are_not(options: dict[str, Any], said: str) -> None:
    run = torch.compile(Fn(lambda x: x + 1), backend=fuser.torch_backend, options=options)
    with pytest.raises(UsageError, match=said):
        run(torch.ones(2))


def test_the_name_is_found_where_it_is_registered() -> None:
    if "mufuser" not in list_backends():  # a source tree has no entry point
        register_backend(fuser.torch_backend, name="mufuser")
    torch._dynamo.reset()
    run = torch.compile(lambda x: (x @ x).relu(), backend="mufuser", options={"device": "cpu"})
    assert run(torch.ones(2, 2)).tolist() == [[2.0, 2.0], [2.0, 2.0]]


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITE)
def test_the_suite_of_modules_behind_the_backend(name: str) -> None:
    module, inputs = SUITE[name]()
    run = Compiled(module.eval())
    run.agrees(*inputs, tolerance=1e-3)
    assert all(not p.why for d in run.doors for m in d.made.values() for p in m.pieces)


def test_threads_may_call_it_for_the_first_time_at_once() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU()).eval()
    run = torch.compile(module, backend=fuser.torch_backend, options={"device": "cpu", "checked": False})  # type: ignore[arg-type]

    def agrees(rows: int) -> None:
        x = torch.randn(rows, 16)
        with torch.no_grad():
            torch.testing.assert_close(run(x), module(x))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(agrees, (1, 2, 3, 2, 1, 3)))


@pytest.mark.parametrize("cast", [True, False])
def test_autocast_is_off_within_a_graph_that_has_its_casts(cast: bool) -> None:
    """What a piece leaves to torch is not cast again."""
    from search.torch_functional import functional

    seen: list[bool] = []

    def ran(x: Any) -> tuple[Any]:
        seen.append(torch._C._is_any_autocast_enabled())
        return (x,)

    def compiled(module: Any, given: Any) -> Any:
        _, _, run, into = functional(module, given, lambda *_: [])
        into.append(ran)
        return run

    x = torch.randn(4, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=cast):
        torch.compile(lambda x: x.relu() * 2, backend=compiled, dynamic=False)(x)
    assert seen == [False]
