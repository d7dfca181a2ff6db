"""Objects with tensors among arguments and results: caches, say."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.errors import UnsupportedError  # noqa: E402
from fuser.errors import UsageError  # noqa: E402
from tests.functions import Fn  # noqa: E402


class Layer:
    def __init__(self, keys: Any = None) -> None:
        self.keys, self.kind = keys, torch.float32


class Cache:
    def __init__(self, *layers: Layer) -> None:
        self.layers, self.window = list(layers), 4

    def more(self, x: Any, i: int) -> Any:
        layer = self.layers[i]
        layer.keys = x if layer.keys is None else torch.cat((layer.keys, x))
        return layer.keys


class Decoder(torch.nn.Module):
    def forward(self, x: Any, cache: Cache | None = None) -> tuple[Any, Cache]:
        cache = Cache(Layer(), Layer()) if cache is None else cache
        return x @ cache.more(x + 1, 0).T + cache.more(x * 2, 1).sum(), cache


def test_a_module_gives_and_takes_a_cache() -> None:
    module, x = Decoder().eval(), torch.randn(3, 5)
    run = fuser.compile(module, (x,), device="cpu")
    (_, mine), (_, theirs) = run(x), module(x)
    assert type(mine) is Cache
    assert mine.window == 4
    assert mine.layers[1].kind is torch.float32
    torch.testing.assert_close([a.keys for a in mine.layers], [a.keys for a in theirs.layers])

    again, was = fuser.compile(module, (x, mine), device="cpu"), mine.layers[0]
    y, longer = again(x, mine)
    want, wanted = module(x, theirs)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close([a.keys for a in longer.layers], [a.keys for a in wanted.layers])
    assert longer is mine  # as the module does it
    assert longer.layers[0] is was
    mine.window = 5
    with pytest.raises(UsageError, match="called otherwise"):
        again(x, mine)


def test_an_object_of_one_tensor_is_no_tensor() -> None:
    x, layer = torch.randn(3, 5), Layer(torch.randn(4, 5))
    module = Fn(lambda x, layer: x @ layer.keys.T)
    run = fuser.compile(module, (x, layer), device="cpu")
    torch.testing.assert_close(run(x, layer), module(x, layer))
    torch.testing.assert_close(run(x, layer.keys), module(x, layer))


def _changes(x: Any, box: Any, some: list[Any], other: Any, by_name: dict[str, Any]) -> Any:
    """All that a module can do to its arguments but write to their tensors."""
    box.keys, box.count, box.new = box.keys + x, box.count + 1, x * 2
    del box.old
    some.append(some[0] * x)
    some[0], box.layers[0].keys = box.keys, None
    by_name["made"] = made = Layer(x + 1)
    box.layers.append(made)
    other.keys = x.sum(0)
    return {"x": x.exp(), "some": some, "layer": made, "kept": by_name["kept"]}


def test_what_a_module_changes_of_its_arguments_is_changed() -> None:
    def given() -> tuple[Any, ...]:
        box = Layer(torch.ones(2, 3))
        box.__dict__.update(count=0, old=torch.ones(1), layers=[Layer(torch.ones(4))])
        return torch.full((2, 3), 0.5), box, [torch.ones(2, 3)], Layer(), {"kept": torch.ones(2), "box": box}

    def numbers(x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return [*map(numbers, x)]
        held = x if isinstance(x, dict) else getattr(x, "__dict__", None)
        return x if held is None else {n: numbers(v) for n, v in held.items() if n not in ("box", "kind")}

    run, module = fuser.compile(Fn(_changes), given(), device="cpu"), Fn(_changes)
    mine, theirs = given(), given()
    got, want = run(*mine), module(*theirs)
    torch.testing.assert_close(numbers((got, mine)), numbers((want, theirs)))
    assert got["some"] is mine[2]
    assert got["layer"] is mine[1].layers[1] is mine[4]["made"]
    assert mine[4]["box"] is mine[1]
    assert got["kept"] is mine[4]["kept"]
    assert not hasattr(mine[1], "old")
    with pytest.raises(UsageError, match="called otherwise"):  # two boxes, where there was one
        run(*given()[:4], given()[4])


SEEN: list[Any] = []


class _Keeping(torch.nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.all, self.cache = where, [], Layer()
        self.bias, self.mask = torch.nn.Parameter(torch.ones(3)), None

    def forward(self, x: Any) -> Any:
        if self.where == "list":
            self.all.append(x)
        elif self.where == "object":
            self.cache.keys = x * 2
        elif self.where == "outside":
            SEEN.append(x.exp())
        elif self.mask is None:
            self.mask = torch.ones(3, 3).tril()
        return x * 2


@pytest.mark.parametrize(("where", "named"), [("list", "changes all"), ("object", "in cache"), ("outside", "in SEEN")])
def test_a_module_that_keeps_what_it_is_given_is_no_program(where: str, named: str) -> None:
    module = _Keeping(where)
    with pytest.raises(UnsupportedError, match=named):
        fuser.from_torch(module, (torch.ones(3),))
    assert not (SEEN or module.all or module.cache.keys)  # nothing of the trace stays


def test_a_module_may_keep_what_no_input_decides() -> None:
    assert len(fuser.from_torch(_Keeping("mask"), (torch.ones(3),)).program.nodes) == 1


def test_a_constant_of_one_element_has_its_rank() -> None:
    held = torch.ones(1, 1, 1)
    known = fuser.from_torch(Fn(lambda x: x * (held * 2)), (torch.randn(4),))
    assert known.program[known.program.outputs[0]].shape == (1, 1, 4)


def test_sizes_are_torchs_as_arguments_and_results() -> None:
    """Torch's pytrees open them and make tuples of them again."""
    module, x = Fn(lambda x, size: (x.reshape(size) * 2, x.size())), torch.randn(4, 6)
    size = torch.Size((6, 4))
    run = fuser.compile(module, (x, size), device="cpu")
    y, found = run(x, size)
    torch.testing.assert_close(y, x.reshape(6, 4) * 2)
    assert type(found) is torch.Size and found == (4, 6)
    with pytest.raises(UsageError, match="called otherwise"):
        run(x, torch.Size((3, 8)))
