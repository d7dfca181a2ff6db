"""Objects with tensors among arguments and results: caches, say."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.errors import LeftToTorch  # noqa: E402
from fuser.errors import UnsupportedError  # noqa: E402
from fuser.errors import UsageError  # noqa: E402


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

    again = fuser.compile(module, (x, mine), device="cpu")
    y, longer = again(x, mine)
    want, wanted = module(x, theirs)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close([a.keys for a in longer.layers], [a.keys for a in wanted.layers])
    assert mine.layers[0].keys.shape == (3, 5)  # the one that was given stays
    mine.window = 5
    with pytest.raises(UsageError, match="called otherwise"):
        again(x, mine)


def test_an_object_of_one_tensor_is_no_tensor() -> None:
    x, layer = torch.randn(3, 5), Layer(torch.randn(4, 5))
    module = _Fn(lambda x, layer: x @ layer.keys.T)
    run = fuser.compile(module, (x, layer), device="cpu")
    torch.testing.assert_close(run(x, layer), module(x, layer))
    torch.testing.assert_close(run(x, layer.keys), module(x, layer))


@pytest.mark.parametrize("nested", [False, True])
def test_an_object_that_is_changed_and_not_returned_is_not_forgotten(nested: bool) -> None:
    def run(x: Any, cache: Any) -> Any:
        return (cache[0] if nested else cache).more(x, 0).sum(0)

    def given() -> Any:
        cache = Cache(Layer(torch.ones(2, 5)))
        return [cache] if nested else cache

    x, cache = torch.randn(3, 5), given()
    with pytest.raises(UnsupportedError, match=r"gives a Cache .* other tensors"):
        fuser.from_torch(_Fn(run), (x, given()))
    with pytest.warns(LeftToTorch, match="does not return it"):
        compiled = fuser.compile(_Fn(run), (x, given()), device="cpu")
    compiled(x, cache)
    assert (cache[0] if nested else cache).layers[0].keys.shape == (5, 5)


def test_a_constant_of_one_element_has_its_rank() -> None:
    held = torch.ones(1, 1, 1)
    known = fuser.from_torch(_Fn(lambda x: x * (held * 2)), (torch.randn(4),))
    assert known.program[known.program.outputs[0]].shape == (1, 1, 4)


class _Fn(torch.nn.Module):
    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run

    def forward(self, *inputs: Any) -> Any:
        return self.run(*inputs)
