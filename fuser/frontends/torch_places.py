"""ATen's sorting, indexing, pooling with places, and general convolution: rules from a call to library operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fuser.frontends.composed import cut
from fuser.frontends.torch_call import Call
from fuser.frontends.torch_call import fields_read
from fuser.frontends.torch_call import is_tensor
from fuser.frontends.torch_call import number_of
from fuser.ir.builder import Ref
from fuser.ir.element_windows import LARGEST
from fuser.ir.element_windows import each
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import FLOATS


def _order(c: Call, **more: Any) -> Ref:
    """The places in order; of equal elements in theirs, stable or not."""
    x = c.tensor("self")
    return c.b.op("argsort", x, dim=c.axis(c["dim"], x), descending=c["descending"], dtype="int64", **more)


def _sorted(c: Call) -> tuple[Ref, Ref]:
    """The places in order, and the elements at them."""
    x = c.tensor("self")
    dim = c.axis(c["dim"], x)
    if "k" in c.args:
        places = c.b.op("argtopk", x, k=c["k"], dim=dim, largest=c["largest"], sorted=c["sorted"], dtype="int64")
    else:
        # where nobody reads the places, equal elements may change theirs, which takes a third of the time
        places = _order(c) if 1 in fields_read(c.node) else _order(c, stable=False)
    return c.b.op("gather", x, places, dim=dim), places


BINS = 4096
"""Most numbers that are counted one by one."""


def _over_all(c: Call) -> Ref | None:
    """A pooling by one window that holds all of the trailing axes, which is a fold of them."""
    x, rank = c.tensor("self"), int(c.aten.split("_with")[0][-2])
    lead, own = x.shape[:-rank], x.shape[-rank:]
    padding, dilation = (each(tuple(c[n] or ()), rank, d) for n, d in (("padding", 0), ("dilation", 1)))
    window = each(tuple(c["kernel_size"]), rank, 1)
    whole = not any(padding) and set(dilation) == {1} and all(n <= k for n, k in zip(own, window, strict=True))
    if not whole or c["divisor_override"] is not None:
        return None
    fold = "max" if c.aten.startswith("max") else "mean"
    return c.b.op(fold, x, axis=tuple(range(len(lead), len(x.shape))), keepdims=True)


def _pooled(c: Call) -> Ref | None:
    whole = _over_all(c)
    return c.by_entry() if whole is None else whole


def _pool(c: Call) -> tuple[Ref, Ref | None]:
    x, name = c.tensor("self"), c.aten.split("_with")[0]
    if 1 not in fields_read(c.node) and (y := _over_all(c)) is not None:
        return y, None
    attrs: dict[str, Any] = {n: tuple(c[n]) for n in ("kernel_size", "stride", "padding", "dilation") if c[n]}
    if c["ceil_mode"]:
        attrs["ceil_mode"] = True
    places = c.b.op(f"{name}_places", x, dtype="int64", **attrs) if 1 in fields_read(c.node) else None
    return c.b.op(name, x, **attrs), places


def _adaptive(c: Call) -> Any:
    """A pooling into so many parts along each axis: a fold, windows side by side, or windows of one more or less."""
    x, size, name = c.tensor("self"), tuple(c["output_size"]), c.aten.lstrip("_")
    rank, largest = len(size), "max" in name
    lead, own = x.shape[:-rank], x.shape[-rank:]
    window = [-(-n // m) for n, m in zip(own, size, strict=True)]
    places = None
    if size == (1,) * rank and not (largest and 1 in fields_read(c.node)):
        y = c.b.op("max" if largest else "mean", x, axis=tuple(range(len(lead), len(x.shape))), keepdims=True)
        return (y, None) if largest else y
    if largest and 1 in fields_read(c.node):
        if math.prod(window) >= LARGEST:
            return None
        places = c.b.op(f"{name}_places", x, output_size=size, dtype="int64")
    if any(n % m for n, m in zip(own, size, strict=True)):
        if math.prod(w + 1 for w in window) > LARGEST:
            return None
        y = c.b.op(name, x, output_size=size)
    elif math.prod(window) <= LARGEST:
        y = c.b.op(name.removeprefix("adaptive_"), x, kernel_size=tuple(window))
    else:
        parts = c.reshape(x, (*lead, *(e for m, w in zip(size, window, strict=True) for e in (m, w))))
        axes = tuple(len(lead) + 2 * i + 1 for i in range(rank))
        y = c.reshape(c.b.op("max" if largest else "mean", parts, axis=axes, keepdims=False), (*lead, *size))
    return (y, places) if largest else y


def _resized(c: Call) -> Ref | None:
    """Between elements of the operand. Left where the steps are others than the sizes say, or where torch rounds them."""
    x = c.tensor("input")
    rank = len(x.shape) - 2
    size, own = c.shape[-rank:], x.shape[-rank:]
    if c["scale_factors"] and any(n * s != m for n, s, m in zip(own, c["scale_factors"], size, strict=True)):
        return None
    if "bicubic" in c.aten or "linear" in c.aten:
        if x.tensor.dtype not in FLOAT_DTYPES:  # torch rounds whole numbers in ways of its own
            return None
        mode = "cubic" if "bicubic" in c.aten else "linear"
        return c.b.op("resize", x, output_size=size, mode=mode, align_corners=bool(c["align_corners"]))
    whole = all(m % n == 0 for n, m in zip(own, size, strict=True))
    if whole and "exact" not in c.aten:
        for i, (n, m) in enumerate(zip(own, size, strict=True)):
            x = x if n == m else c.b.op("repeat", x, axis=2 + i, times=m // n)
        return x
    if any(_rounded(n, m, "exact" in c.aten) for n, m in zip(own, size, strict=True)):
        return None
    return c.b.op("resize", x, output_size=size, mode="nearest_exact" if "exact" in c.aten else "nearest")


def _rounded(n: int, m: int, middle: bool) -> bool:
    """Whether the nearest of n elements is another one in float32, for some of m."""
    step = np.float32(n) / np.float32(m)
    at = np.arange(m, dtype=np.float32) + np.float32(0.5 if middle else 0)
    near = np.minimum(np.floor(at * step).astype(int), n - 1)
    exact = (2 * np.arange(m) + 1) * n // (2 * m) if middle else np.arange(m) * n // m
    return bool((near != exact).any())


def _images(c: Call) -> Ref | None:
    """A convolution of images, or of a single one."""
    x, rank = c.tensor("input"), len(c["weight"].shape) - 2
    if len(x.shape) == rank + 2:
        return c.by_entry()
    y = replace(c, args={**c.args, "input": c.reshape(x, (1, *x.shape))}).by_entry()
    return y and c.reshape(y, c.shape)


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
    """A number, or a tensor, in place of what is there or added to it."""
    x, index, added = c.tensor("self"), c.ref(c["index"]), c.aten == "scatter_add"
    given = c.ref(c["src"], c.dtype) if is_tensor(c["src"]) else c.filled(number_of(c["value"]) or 0)
    if x.shape and index.shape == _with(x.shape, c["dim"], 1):
        return _in_one_place(c, x, index, given, added)
    if added:
        return c.b.op("scatter_reduce", x, index, given, dim=c["dim"], reduce="sum")
    src = given if is_tensor(c["src"]) else c.b.op("broadcast", given, shape=index.shape)
    return c.b.op("scatter", x, index, src, dim=c["dim"])


def _with(shape: tuple[int, ...], dim: int, extent: int) -> tuple[int, ...]:
    return tuple(extent if i == dim % len(shape) else n for i, n in enumerate(shape))


def _in_one_place(c: Call, x: Ref, index: Ref, src: Ref, added: bool) -> Ref:
    """Where one place is named along an axis, a choice for each element."""
    import torch

    dim = c["dim"] % len(x.shape)
    for axis, n in enumerate(index.shape) if len(src.shape) == len(x.shape) else ():
        src = cut(c.b, src, axis, 0, n)
    places = torch.arange(x.shape[dim], dtype=getattr(torch, index.tensor.dtype))
    along = c.reshape(c.constant(places, f"{c.node.name}.places"), _with((1,) * len(x.shape), dim, x.shape[dim]))
    there = c.b.op("add", x, src, dtype=c.dtype) if added else src
    return c.b.op("where", c.b.op("eq", index, along, dtype="bool"), there, x, dtype=c.dtype)


def _any_of(c: Call) -> Ref:
    """Along several axes one by one, the last first."""
    x = c.tensor("self")
    rank, name = len(x.shape), c.aten.split(".")[0]
    axes = range(rank) if c["dim"] is None else [c.axis(d, x) for d in c["dim"]]
    for d in sorted(axes, reverse=True):
        x = c.b.op(name, x, dim=d, keepdim=bool(c["keepdim"]), dtype="bool")
    return x


def _grouped(c: Call) -> Ref | None:
    """Rows in groups, each times a matrix of its own. Left where it is not rows that are divided, where more is asked for, and in
    dtypes that no kernel multiplies."""
    first, second = ("self", "mat2") if "mat2" in c.args else ("input", "weight")
    x, weights, ends = c.tensor(first), c.tensor(second), c["offs"]
    dtype = x.tensor.dtype
    rows = len(x.shape) == 2 and len(weights.shape) == 3 and dtype in FLOATS
    if not rows or ends is None or c["bias"] is not None or {c.dtype, weights.tensor.dtype} != {dtype}:
        return None
    made = c.b.maker(weights)
    if made and made[0].op == "transpose" and dict(made[0].attrs)["perm"] == (0, 2, 1):
        return c.b.op("grouped_matmul", x, *made[1], c.tensor("offs"), transposed=True)
    return c.b.op("grouped_matmul", x, weights, c.tensor("offs"))


def _histogram(c: Call) -> Ref | None:
    """Of whole numbers, one a bin; as numbers, since CPUs have no other. Of many bins torch's float32 takes some for the next."""
    x, bins = c.tensor("self"), c["bins"]
    made = c.b.maker(x)
    if made and made[0].op == "cast" and x.tensor.dtype in ("float32", "float64"):
        x = made[1][0]
    if x.tensor.dtype not in ("int32", "int64") or (c["min"], c["max"]) != (0, bins - 1) or not 2 <= bins <= BINS:
        return None
    return c.b.op("counts", x, bins=bins, dtype=c.dtype)


def _so_far(c: Call) -> Ref | None:
    made = c.b.maker(c.tensor("self"))
    attrs = dict(made[0].attrs) if made and made[0].op == "counts" else {}
    if made and attrs and not attrs.get("so_far") and c.dtype in ("int32", "int64"):  # where groups end
        return c.b.op("counts", *made[1], bins=attrs["bins"], so_far=True, dtype=c.dtype)
    return c.by_entry()


RULES: dict[str, Callable[[Call], Any]] = {
    "sort": _sorted, "sort.stable": _sorted, "argsort.stable": _order, "topk": _sorted, "any.dims": _any_of, "all.dims": _any_of,
    **{f"conv{n}d": _images for n in (1, 2, 3)},
    **{f"conv_transpose{n}d{'.input' * (n > 1)}": _images for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": _pool for n in (1, 2, 3)}, "convolution": _convolution,
    **{f"{kind}_pool{n}d": _pooled for kind in ("avg", "max") for n in (1, 2, 3)},
    **{f"{lead}adaptive_{kind}_pool{n}d": _adaptive for lead in ("", "_") for kind in ("avg", "max") for n in (1, 2, 3)},
    **{f"{lead}upsample_nearest{how}{n}d.vec": _resized for lead, how in (("", ""), ("_", "_exact")) for n in (1, 2, 3)},
    **{f"upsample_{name}.vec": _resized for name in ("linear1d", "bilinear2d", "trilinear3d", "bicubic2d")},
    "index.Tensor": _index, "index_put": _index_put, "scatter.value": _scatter, "scatter.src": _scatter,
    "scatter_add": _scatter, "histc": _histogram, "cumsum": _so_far,
    **dict.fromkeys(("_grouped_mm", "transformers.grouped_mm_fallback"), _grouped),
}  # fmt: skip
"""Rules by ATen's name."""
