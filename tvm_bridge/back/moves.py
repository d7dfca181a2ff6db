"""Kernels between a caller's tensors, whose sizes are open, and a bucket's: inputs are padded, results cut, masks taken
out of tables. Sizes are integers that every launch gives."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

from fuser.errors import UnsupportedError
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import Tensor
from fuser.lower.compile import POINTER
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import compile_kernel
from fuser.lower.kernel_source import KernelSource
from search.buckets.places import Dims

BLOCK, WARPS = 1024, 4
"""Elements of a block."""
TEXT = """import triton
import triton.language as tl


@triton.jit
def {name}(x, y, {sizes}):
    i = tl.program_id(0){wide} * {block} + tl.arange(0, {block})
    inside = i < {total}
{body}
"""


def padding(given: Tensor, into: Tensor, dims: Dims, arch: int) -> KernelArtifact:
    """From what is real of a tensor to all of it: the last elements along a dimension stand again behind it, 0 where those are
    not finite."""
    names, lines, place, real = _walk(into, dims, clamped=True)
    lines += [f"v = tl.load(x + {place}, mask=inside)"]
    if into.dtype in FLOAT_DTYPES:
        lines += [f'v = tl.where(({real}) | (tl.abs(v) < float("inf")), v, 0.0)']
    lines += ["tl.store(y + i, v, mask=inside)"]
    return _compiled("pad", given, into, names, lines, arch)


def cutting(whole: Tensor, into: Tensor, dims: Dims, arch: int) -> KernelArtifact:
    """From all of a tensor to what is real of it."""
    names, lines, place, real = _walk(whole, dims, clamped=False)
    lines += [f"tl.store(y + {place}, tl.load(x + i, mask=inside), mask=inside & {real})"]
    return _compiled("cut", whole, into, names, lines, arch)


def window(table: Tensor, into: Tensor, symbol: str, bucket: int, arch: int) -> KernelArtifact:
    """The part of a table that begins where a size says (:class:`search.buckets.padded.Extra`)."""
    lines = [f"tl.store(y + i, tl.load(x + {bucket} - n0 + i, mask=inside), mask=inside)"]
    return _compiled("window", table, into, {symbol: "n0"}, lines, arch)


def _walk(tensor: Tensor, dims: Dims, clamped: bool) -> tuple[dict[str, str], list[str], str, str]:
    """Parameters by symbol, lines that find the place ``i`` of a tensor in a tensor of the true sizes, that place, and what says
    that it is real."""
    factors = [f for d in dims for f in d] or []
    names: dict[str, str] = {}
    for f in factors:
        if f.symbol:
            names.setdefault(f.symbol, f"n{len(names)}")
    lines, place, real, left = [], "0", [], "i"
    for k in reversed(range(len(factors))):
        lines.append(f"c{k} = {left} % {factors[k].extent}" if k else f"c{k} = {left}")
        if k:
            lines.append(f"r{k} = {left} // {factors[k].extent}")
            left = f"r{k}"
    for k, f in enumerate(factors):
        n = names.get(f.symbol, str(f.extent))
        at = f"tl.minimum(c{k}, {n} - 1)" if f.symbol and clamped else f"c{k}"
        place = f"({place}) * {n} + {at}" if k else at
        real += [f"(c{k} < {n})"] if f.symbol else []
    return names, lines, f"({place})", " & ".join(real)


def _compiled(kind: str, x: Tensor, y: Tensor, names: Mapping[str, str], lines: list[str], arch: int) -> KernelArtifact:
    total = max(math.prod(t.shape) for t in ((y,) if kind == "window" else (x, y)))
    if y.dtype not in POINTER:
        raise UnsupportedError(f"{y.name!r} has dtype {y.dtype}, which no kernel of ours moves", "convert it in front")
    wide = ".to(tl.int64)" if total >= 2**31 - BLOCK else ""
    body = "\n".join(f"    {line}" for line in lines)
    digest = hashlib.sha256(f"{body} {x.dtype} {total}".encode()).hexdigest()[:8]
    text = TEXT.format(name=f"{kind}_{digest}", sizes=", ".join(names.values()), wide=wide, block=BLOCK, total=total, body=body)
    source = KernelSource(
        f"{kind}_{digest}",
        text,
        (x.name, y.name),
        (x.dtype, y.dtype),
        (x.shape, y.shape),
        (y.name,),
        -(-total // BLOCK),
        WARPS,
        1,
        sizes=tuple(names),
    )
    return compile_kernel(source, arch)
