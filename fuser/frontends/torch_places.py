"""ATen's sorting, indexing, pooling with places, and general convolution: rules from a call to library operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuser.frontends.torch_call import Call
from fuser.frontends.torch_call import is_tensor
from fuser.frontends.torch_call import number_of
from fuser.ir.builder import Ref


def _read(c: Call, i: int) -> bool:
    """Whether somebody reads this one of several results."""
    return any(u.args[1] == i and u.users for u in c.node.users) if c.node.users else True


def _sorted(c: Call) -> tuple[Ref, Ref]:
    """The places in order, and the elements at them."""
    x, dim = c.tensor("self"), c["dim"]
    if "k" in c.args:
        places = c.b.op("argtopk", x, k=c["k"], dim=dim, largest=c["largest"], sorted=c["sorted"], dtype="int64")
    else:
        places = c.b.op("argsort", x, dim=dim, descending=c["descending"], dtype="int64")
    return c.b.op("gather", x, places, dim=dim), places


def _pool(c: Call) -> tuple[Ref, Ref | None] | None:
    if c["ceil_mode"]:
        return None
    x, name = c.tensor("self"), c.aten.split("_with")[0]
    attrs: dict[str, Any] = {n: tuple(c[n]) for n in ("kernel_size", "stride", "padding", "dilation") if c[n]}
    places = c.b.op(f"{name}_places", x, dtype="int64", **attrs) if _read(c, 1) else None
    return c.b.op(name, x, **attrs), places


def _convolution(c: Call) -> Ref:
    operands = [c.ref(c[n], c.dtype) for n in ("input", "weight", "bias") if c[n] is not None]
    attrs: dict[str, Any] = {n: tuple(c[n]) for n in ("stride", "padding", "dilation")} | {"groups": c["groups"]}
    rank = len(operands[1].shape) - 2
    if c["transposed"]:
        return c.b.op(f"conv_transpose{rank}d", *operands, output_padding=tuple(c["output_padding"]), **attrs)
    return c.b.op(f"conv{rank}d", *operands, **attrs)


def _places(c: Call) -> tuple[list[Ref], list[int]] | None:
    """The indices of axes that stand side by side, and these axes; bits, whose number is only known when they are, are left."""
    dims = [i for i, t in enumerate(c["indices"]) if t is not None]
    refs = [c.ref(c["indices"][i]) for i in dims]
    if dims != [*range(dims[0], dims[-1] + 1)] or any(r.tensor.dtype in ("bool", "uint8") for r in refs):
        return None
    return refs, dims


def _index(c: Call) -> Ref | None:
    found = _places(c)
    return found and c.b.op("index", c.tensor("self"), *found[0], dims=tuple(found[1]))


def _index_put(c: Call) -> Ref | None:
    found, x = _places(c), c.tensor("self")
    values = c.ref(c["values"], c.dtype)
    return found and c.b.op("index_put", x, values, *found[0], dims=tuple(found[1]), accumulate=bool(c["accumulate"]))


def _scatter(c: Call) -> Ref:
    """A number, or a tensor that is added."""
    x, index = c.tensor("self"), c.ref(c["index"])
    if not is_tensor(c["src"]):
        src = c.b.op("broadcast", c.filled(number_of(c["value"]) or 0), shape=index.shape)
        return c.b.op("scatter", x, index, src, dim=c["dim"])
    return c.b.op("scatter_reduce", x, index, c.ref(c["src"], c.dtype), dim=c["dim"], reduce="sum")


def _any_of(c: Call) -> Ref:
    """Along several axes one by one, the last first."""
    x = c.tensor("self")
    rank, name = len(x.shape), c.aten.split(".")[0]
    axes = range(rank) if c["dim"] is None else [d % rank for d in c["dim"]]
    for d in sorted(axes, reverse=True):
        x = c.b.op(name, x, dim=d, keepdim=bool(c["keepdim"]), dtype="bool")
    return x


RULES: dict[str, Callable[[Call], Any]] = {
    "sort": _sorted, "sort.stable": _sorted, "topk": _sorted, "any.dims": _any_of, "all.dims": _any_of,
    "max_pool2d_with_indices": _pool, "max_pool3d_with_indices": _pool, "convolution": _convolution,
    "index.Tensor": _index, "index_put": _index_put, "scatter.value": _scatter, "scatter_add": _scatter,
}  # fmt: skip
"""Rules by ATen's name."""
