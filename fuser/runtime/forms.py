"""Operators of the op table that torch has in another form, on its tensors: operands, and attributes by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from fuser.ir.program import FLOAT_DTYPES


def where(c: Any, x: Any, y: Any) -> Any:
    import torch

    return torch.where(c != 0, x, y)


def cast(x: Any, dtype: str) -> Any:
    """A reference in float64 stays in float64, as whole numbers where it is cast to such."""
    import torch

    if x.dtype != torch.float64:
        return x.to(getattr(torch, dtype))
    return (x != 0).double() if dtype == "bool" else x if dtype in FLOAT_DTYPES else x.trunc()


def causal_mask(x: Any, offset: Any = 0) -> Any:
    import torch

    keep = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril(int(offset))
    return x.masked_fill(~keep, -math.inf)


def triu(x: Any, offset: Any, out: Any = None) -> Any:
    import torch

    return torch.triu(x, offset + 1, out=out)


def concat(*xs: Any, axis: int, out: Any = None) -> Any:
    import torch

    return torch.cat(xs, axis, out=out)


def slice(x: Any, axis: int, start: int, stop: int) -> Any:
    return x.narrow(axis, start, stop - start)


def _at(indices: Sequence[Any], dims: Sequence[int]) -> list[Any]:
    return [None] * dims[0] + [i.long() for i in indices]


def index(x: Any, *indices: Any, dims: Sequence[int]) -> Any:
    import torch

    return torch.ops.aten.index(x, _at(indices, dims))


def index_put(x: Any, values: Any, *indices: Any, dims: Sequence[int], accumulate: bool = False) -> Any:
    import torch

    return torch.ops.aten.index_put(x, _at(indices, dims), values, accumulate)


def index_select(x: Any, index: Any, dim: int) -> Any:
    return x.index_select(dim, index.long())


def gather(x: Any, index: Any, dim: int) -> Any:
    return x.gather(dim, index.long())


def scatter(x: Any, index: Any, src: Any, dim: int) -> Any:
    return x.scatter(dim, index.long(), src)


def scatter_reduce(x: Any, index: Any, src: Any, dim: int, reduce: str, include_self: bool = True) -> Any:
    return x.scatter_reduce(dim, index.long(), src, reduce, include_self=include_self)


def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    return x.masked_scatter(mask != 0, source)


def argtopk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return x.topk(k, dim, largest, sorted)[1]


def reflection_pad(x: Any, padding: Sequence[int]) -> Any:
    from torch.nn import functional

    return functional.pad(x, padding, "reflect")


def replication_pad(x: Any, padding: Sequence[int]) -> Any:
    from torch.nn import functional

    return functional.pad(x, padding, "replicate")


def resize(x: Any, output_size: Sequence[int], mode: str, align_corners: bool = False) -> Any:
    from torch.nn import functional

    names = {
        "linear": ("linear", "bilinear", "trilinear")[len(output_size) - 1],
        "cubic": "bicubic",
        "nearest_exact": "nearest-exact",
    }
    corners = None if "nearest" in mode else align_corners
    return functional.interpolate(x, tuple(output_size), mode=names.get(mode, mode), align_corners=corners)


def _places(name: str) -> Any:
    def call(x: Any, **attrs: Any) -> Any:
        from torch.nn import functional

        return getattr(functional, name)(x, return_indices=True, **attrs)[1]

    return call


max_pool1d_places, max_pool2d_places, max_pool3d_places = (_places(f"max_pool{n}d") for n in (1, 2, 3))
adaptive_max_pool1d_places, adaptive_max_pool2d_places, adaptive_max_pool3d_places = (
    _places(f"adaptive_max_pool{n}d") for n in (1, 2, 3)
)


def _convolved(name: str) -> Any:
    def call(*xs: Any, **attrs: Any) -> Any:
        import torch
        from torch.nn import functional

        if not _by_pixels(xs, attrs):
            return getattr(functional, name)(*xs, **attrs)
        x, weight = xs
        y = torch.bmm(weight.flatten(1).expand(len(x), -1, -1), x.flatten(2))
        return y.view(len(x), len(weight), *x.shape[2:])

    return call


def _by_pixels(xs: Sequence[Any], attrs: Mapping[str, Any]) -> bool:
    """Whether a convolution of half precision is a product of matrices for each image, with rows at even addresses. cuDNN takes
    it for one, or turns the image twice: 192 channels to 1024 of 6 images of 1000 pixels took an H100 27 µs, where two such
    products took 13."""
    x, *weights = xs
    return (
        len(weights) == 1
        and x.dim() == weights[0].dim()
        and x.is_cuda
        and x.element_size() == 2
        and x.is_contiguous()
        and not math.prod(x.shape[2:]) % 8
        and math.prod(weights[0].shape[2:]) == 1
        and attrs.get("groups", 1) == 1
        and set(_several(attrs.get("stride", ()))) <= {1}
        and set(_several(attrs.get("padding", ()))) <= {0}
    )


conv1d, conv2d, conv3d = (_convolved(f"conv{n}d") for n in (1, 2, 3))


def _last(name: str) -> Any:
    """Of tensors whose channels are the last dimension. A call is to be short: it is made for each image."""
    planes = name.replace("1d", "2d")

    def call(*xs: Any, **attrs: Any) -> Any:
        from torch.nn import functional

        if xs[0].dim() > 3:
            first, back = _TURNED[xs[0].dim()]
            return getattr(functional, name)(*[x.permute(*first) for x in xs], **attrs).permute(*back)
        # torch knows channels to be neighbours in images only
        attrs = {k: v if k == "groups" else (0 if "padding" in k else 1, *_several(v)) for k, v in attrs.items() if v != ()}
        y = getattr(functional, planes)(*[x.unsqueeze(1).permute(0, 3, 1, 2) for x in xs], **attrs)
        return y.squeeze(2).permute(0, 2, 1)

    return call


_TURNED = {4: ((0, 3, 1, 2), (0, 2, 3, 1)), 5: ((0, 4, 1, 2, 3), (0, 2, 3, 4, 1))}
"""Of so many dimensions: the channels to the front, and back."""


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


conv1d_last, conv2d_last, conv3d_last = (_last(f"conv{n}d") for n in (1, 2, 3))
conv_transpose1d_last, conv_transpose2d_last, conv_transpose3d_last = (_last(f"conv_transpose{n}d") for n in (1, 2, 3))
max_pool1d_last, max_pool2d_last, max_pool3d_last = (_last(f"max_pool{n}d") for n in (1, 2, 3))
avg_pool1d_last, avg_pool2d_last, avg_pool3d_last = (_last(f"avg_pool{n}d") for n in (1, 2, 3))


def rms_norm(x: Any, gain: Any = None, eps: float = 1e-5) -> Any:
    from torch.nn import functional

    return functional.rms_norm(x, x.shape[-1:], gain, eps)


def layer_norm(x: Any, gain: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    from torch.nn import functional

    return functional.layer_norm(x, x.shape[-1:], gain, bias, eps)


def group_norm(x: Any, gain: Any = None, bias: Any = None, *, groups: int, eps: float = 1e-5) -> Any:
    from torch.nn import functional

    return functional.group_norm(x, groups, gain, bias, eps)


def instance_norm(x: Any, gain: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    from torch.nn import functional

    return functional.instance_norm(x, None, None, gain, bias, eps=eps)


def batch_norm(x: Any, mean: Any, var: Any, gain: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    from torch.nn import functional

    return functional.batch_norm(x, mean, var, gain, bias, eps=eps)


def explicit_attention(q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool, keep_nan: bool = False) -> Any:
    """Matmul, softmax, matmul; a fully masked row gives zero. With ``keep_nan`` a NaN that is not of such a row stays one, at
    the cost of another pass."""
    import torch

    few = q.dtype in (torch.float32, torch.float64)  # half precision would round queries that are scaled
    scores = torch.matmul(q * scale, k.transpose(-1, -2)) if few else torch.matmul(q, k.transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores + mask
    if causal:
        scores = causal_mask(scores, scores.shape[-1] - scores.shape[-2])
    p = torch.softmax(scores, -1)
    if mask is not None or causal:
        p = p.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0) if keep_nan else torch.nan_to_num(p, nan=0.0)
    return torch.matmul(p, v)


def library_attention(q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool) -> Any:
    """Torch's own kernels of attention; of causal ones only where there are as many keys as queries."""
    from torch.nn import functional

    return functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)


def counts(x: Any, bins: int, so_far: bool = False, dtype: str = "int64") -> Any:
    import torch

    at = torch.arange(bins, device=x.device)
    x = x.reshape(-1, 1)
    return ((x <= at) & (x >= 0) if so_far else x == at).sum(0).to(getattr(torch, dtype))


def in_groups(x: Sequence[int], out: Sequence[int], dtype: str) -> bool:
    """Whether torch has one kernel for rows in groups of this shape and dtype, wherever they end."""
    return dtype == "bfloat16" and x[1] % 8 == out[1] % 8 == 0


def grouped_matmul(x: Any, weights: Any, ends: Any, transposed: bool = False) -> Any:
    """Group by group, which asks where they end; in a trace, where nobody can say, by torch's kernel (which does not write rows
    behind the last group), or else every row by every matrix."""
    import torch
    from torch._subclasses.fake_tensor import is_fake

    weights = weights.transpose(1, 2) if transposed else weights
    y, begin = x.new_zeros(x.shape[0], weights.shape[2]), 0
    if torch.compiler.is_compiling() or is_fake(ends):
        at = torch.arange(x.shape[0], device=x.device)[:, None]
        if x.is_cuda and hasattr(torch, "_grouped_mm") and in_groups(x.shape, y.shape, str(x.dtype).removeprefix("torch.")):
            return torch.where(at < ends[-1], torch._grouped_mm(x, weights, offs=ends.int()), y)
        for weight, end in zip(weights, ends, strict=True):
            y, begin = torch.where((at >= begin) & (at < end), x @ weight, y), end
        return y
    for weight, end in zip(weights, ends.long().tolist(), strict=True):
        y[begin:end] = x[begin:end] @ weight
        begin = end
    return y
