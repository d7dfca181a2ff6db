"""What a trace of a module must not stumble over."""

from __future__ import annotations

import random
from collections import deque
from functools import lru_cache
from types import FunctionType
from types import SimpleNamespace
from typing import Any
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.errors import UnsupportedError  # noqa: E402
from fuser.errors import UntraceableError  # noqa: E402
from fuser.errors import UsageError  # noqa: E402
from fuser.frontends.torch_export import from_torch  # noqa: E402

nn = torch.nn


def test_a_parameter_may_have_the_name_that_torch_gives_an_input() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))

        def forward(self, A: Any) -> Any:
            return (A @ self.a).relu()

    module, x = Mixed(), torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    imported = fuser.from_torch(module, (x,))
    assert imported.inputs == ("a",)
    got = imported.program.evaluate({"a": x.numpy(), **imported.params})
    torch.testing.assert_close(torch.from_numpy(next(iter(got.values()))).float(), module(x))


@pytest.mark.parametrize("causal", [True, False])
def test_masks_of_transformers_are_not_looked_into(causal: bool) -> None:
    drawn = torch.Generator().manual_seed(0)
    module = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 8, batch_first=True), 1).eval()
    x, memory = torch.randn(2, 5, 8, generator=drawn), torch.randn(2, 3, 8, generator=drawn)
    mask = nn.Transformer.generate_square_subsequent_mask(5) if causal else torch.randn(5, 5, generator=drawn)
    imported = fuser.from_torch(module, (x, memory, mask))
    values = {n: t.numpy() for n, t in zip(imported.inputs, (x, memory, mask), strict=True)}
    got = imported.program.evaluate({**values, **imported.params})
    torch.testing.assert_close(torch.from_numpy(next(iter(got.values()))).float(), module(x, memory, mask))


def test_a_trace_that_fails_prints_no_graph(capfd: pytest.CaptureFixture[str]) -> None:
    class Branch(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if x.sum() > 0 else x - 1

    with pytest.raises(UntraceableError, match="data-dependent"):
        fuser.from_torch(Branch(), (torch.randn(3),))
    assert "def forward" not in capfd.readouterr().err


def test_hooks_of_a_first_call_do_not_stay() -> None:
    """transformers has hooks collect the states of layers, which the first call installs."""

    class Collecting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
            self.hooked = False

        def forward(self, x: Any) -> Any:
            if not self.hooked:
                for layer in self.layers:
                    layer.register_forward_hook(lambda _, args, made: made * 2)
                self.hooked = True
            for layer in self.layers:
                x = layer(x)
            return x

    module, x = Collecting(), torch.randn(3, 4)
    known = from_torch(module, (x,))
    assert not module.hooked and not any(layer._forward_hooks for layer in module.layers)
    wanted = module(x)
    torch.testing.assert_close(module(x), wanted)  # they were installed once
    (made,) = known.program.evaluate({**known.params, known.inputs[0]: x.numpy()}).values()
    torch.testing.assert_close(torch.from_numpy(made).float(), wanted)


def twice(x: Any) -> Any:
    return torch.full((4,), 2.0, device=x.device)


made_outside: Any = None


class FirstCall(nn.Module):
    """Its first call makes what later ones use."""

    shared: Any = None
    kept: ClassVar[dict[str, Any]] = {}

    def __init__(self, what: str) -> None:
        super().__init__()
        self.layer, self.what, self.ready = nn.Linear(4, 4), what, False
        self.register_buffer("empty", None)

    @lru_cache  # noqa: B019
    def cached(self, size: int) -> Any:
        return torch.full((size,), 2.0)

    def forward(self, x: Any) -> Any:
        return self.layer(x) * getattr(self, self.what)(x)

    def buffer(self, x: Any) -> Any:
        if not hasattr(self, "late"):
            self.register_buffer("late", twice(x), persistent=False)
        return self.late

    def filled(self, x: Any) -> Any:
        if self.empty is None:
            self.empty = twice(x)
        return self.empty

    def parameter(self, x: Any) -> Any:
        if not hasattr(self, "factor"):
            self.factor = nn.Parameter(twice(x))
        return self.factor

    def part(self, x: Any) -> Any:
        if not self.ready:
            self.layer, self.ready = nn.Sequential(self.layer, nn.ReLU()), True
        return twice(x)

    def weight(self, x: Any) -> Any:
        if not self.ready:
            self.layer.weight, self.ready = nn.Parameter(self.layer.weight * 3), True
        return twice(x)

    def written(self, x: Any) -> Any:
        if not self.ready:
            self.layer.load_state_dict({n: 3 * t for n, t in self.layer.state_dict().items()})
            self.ready = True
        return twice(x)

    def cache(self, x: Any) -> Any:
        return self.cached(x.shape[-1])

    def of_class(self, x: Any) -> Any:
        if FirstCall.shared is None:
            FirstCall.shared = twice(x)
        return FirstCall.shared

    def in_class(self, x: Any) -> Any:
        if "twice" not in self.kept:
            self.kept["twice"] = twice(x)
        return self.kept["twice"]

    def outside(self, x: Any) -> Any:
        global made_outside
        if made_outside is None:
            made_outside = twice(x)
        return made_outside


WAYS = [n for n, f in vars(FirstCall).items() if isinstance(f, FunctionType) and n[0] != "_" and n != "forward"]


@pytest.mark.parametrize("what", WAYS)
@pytest.mark.filterwarnings("ignore")
def test_a_module_that_is_compiled_first_is_what_it_would_be(what: str) -> None:
    x, several = torch.randn(3, 4), []
    for _ in range(2):
        torch.manual_seed(0)
        several.append(FirstCall(what))
    module, twin = several
    with torch.no_grad():
        run = fuser.compile(module, (x,), target="h200", device="cpu")
        wanted = [twin(x) for _ in range(3)]
        for call in (run, module):
            for want in wanted:
                torch.testing.assert_close(call(x), want, rtol=1e-3, atol=1e-3)
    assert module.state_dict().keys() == twin.state_dict().keys()


class Once(nn.Module):
    """A hook that takes itself away."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        hook = self.layer.register_forward_pre_hook(lambda *given: (hook.remove(), given[-1][0] * 5)[1])

    def forward(self, x: Any) -> Any:
        return self.layer(x)


def test_hooks_that_go_are_a_side_effect() -> None:
    module = Once()
    with pytest.raises(UnsupportedError, match="hooks of the next"):
        from_torch(module, (torch.randn(3, 4),))
    assert module.layer._forward_pre_hooks


def test_what_has_no_shape_yet_is_named() -> None:
    with pytest.raises(UsageError, match=r"0\.weight of Sequential has no shape"):
        from_torch(nn.Sequential(nn.LazyLinear(4)), (torch.randn(3, 4),))


count = 0


class Remembering(nn.Module):
    """What a call leaves for the next one is where a trace does not look."""

    calls = 0

    def __init__(self, what: str) -> None:
        super().__init__()
        self.layer, self.what = nn.Linear(4, 4), what
        self.last: deque[Any] = deque(maxlen=2)
        self.seen, self.state = set[int](), SimpleNamespace(n=0)
        n = 0

        def step() -> int:
            nonlocal n
            n += 1
            return n

        self.step = step

    def forward(self, x: Any) -> Any:
        return self.layer(x) * getattr(self, self.what)(x)

    def frames(self, x: Any) -> Any:
        self.last.append(x)
        return sum(f.mean() for f in self.last)

    def numbers(self, x: Any) -> int:
        self.seen.add(len(self.seen))
        return len(self.seen)

    def namespace(self, x: Any) -> int:
        self.state.n += 1
        return self.state.n

    def closure(self, x: Any) -> int:
        return self.step()

    def of_class(self, x: Any) -> int:
        type(self).calls += 1
        return type(self).calls

    def outside(self, x: Any) -> int:
        global count
        count += 1
        return count

    def chance(self, x: Any) -> float:
        return random.random()


@pytest.mark.parametrize("what", ["frames", "numbers", "namespace", "closure", "of_class", "outside", "chance"])
def test_what_a_call_leaves_elsewhere_is_a_side_effect(what: str) -> None:
    module = Remembering(what)
    with pytest.raises((UnsupportedError, UntraceableError)):
        from_torch(module, (torch.randn(3, 4),))
    assert (list(module.last), module.seen, module.state.n, Remembering.calls, count) == ([], set(), 0, 0, 0)


def test_what_nothing_computes_with_is_none() -> None:
    class Counting(Remembering):
        def forward(self, x: Any) -> Any:
            self.numbers(x)
            self.last.append(x)
            return self.layer(x)

    module = Counting("numbers")
    assert from_torch(module, (torch.randn(3, 4),)).program.outputs
    assert not module.last and not module.seen
