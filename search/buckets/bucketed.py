"""A program for all sizes up to the largest bucket: a set of kernels for each, chosen when it is called."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from fuser.device import Device
from fuser.errors import LeftToTorch
from fuser.errors import UsageError
from fuser.frontends.imported import Called
from search.as_function import AsFunction
from search.buckets.asked import Sizes
from search.buckets.padded import Padded
from search.buckets.places import Dims
from search.buckets.places import shape_at
from search.buckets.sizes import said
from search.calling import as_module
from search.calling import plain
from search.calling import real_parts
from search.calling import returned
from search.calling import tensors_alone

if TYPE_CHECKING:
    from search.compiled import CompiledProgram


@dataclass(frozen=True)
class Bucket:
    """The kernels for sizes up to ``padded.sizes``."""

    padded: Padded
    made: CompiledProgram

    @property
    def sizes(self) -> Sizes:
        return self.padded.sizes


@dataclass(eq=False, repr=False)
class BucketedProgram(AsFunction):
    """A program whose sizes are known when it is called, which is as for :class:`search.compiled.CompiledProgram`.

    The bucket is the smallest that has room; inputs are copied into it, padded with their last elements, and results are cut to
    their true sizes. Sizes beyond the largest bucket are the ``whole`` module's, if there is one."""

    name: str
    target: Device
    device: str | None
    buckets: tuple[Bucket, ...]
    called: Called | None = None
    whole: Callable[..., Any] | None = None
    _tables: dict[tuple[int, str], Any] = field(default_factory=dict)

    def _said(self) -> str:
        return f"the compiled {self.name!r}"

    def _place(self) -> str | None:
        return self.device

    def _dtypes(self) -> set[str]:
        program = self._first.known.program
        return {program[n].dtype for n in program.inputs}

    @property
    def inputs(self) -> tuple[str, ...]:
        return self._first.known.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        return self._first.known.program.outputs

    @property
    def _first(self) -> Padded:
        return self.buckets[-1].padded

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        given = self._arguments(inputs, named)
        if self.bucket_of(sizes := self.sizes_of(given)) is None and self.whole is not None:
            return self._by_torch(sizes, inputs, named)
        found = self.by_name(given)
        if self.called is not None and not plain(self.called, self.inputs, self.outputs):
            return returned(self.called, found, (inputs, named))
        return tuple(found.values()) if len(found) > 1 else found[self.outputs[0]]

    def by_name(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by the program's names, for inputs by name."""
        sizes = self.sizes_of(given)
        bucket = self.bucket_of(sizes)
        if bucket is None:
            largest = said(self._first.sizes)
            raise UsageError(f"{self.name!r} has no kernels for {said(sizes)}: its largest bucket is {largest}", "add a bucket")
        padded, device = bucket.padded, given[self.inputs[0]].device
        values = {n: padded_tensor(x, padded.dims[n], sizes) for n, x in given.items()}
        for i, e in enumerate(padded.extras):
            values[e.name] = self._table(bucket, i, device)[bucket.sizes[e.symbol] - sizes[e.symbol] :][: e.length].reshape(
                padded.known.program[e.name].shape
            )
        found = bucket.made(**{n: values[n] for n in bucket.made.inputs})
        found = dict(zip(self.outputs, found if isinstance(found, tuple) else (found,), strict=True))
        return {n: cut(y, padded.dims[n], sizes) for n, y in found.items()}

    def _table(self, bucket: Bucket, i: int, device: Any) -> Any:
        import torch

        key = id(bucket.padded.extras[i]), str(device)
        if key not in self._tables:
            extra = bucket.padded.extras[i]
            dtype = getattr(torch, bucket.padded.known.program[extra.name].dtype)
            self._tables[key] = torch.tensor(extra.table).to(device=device, dtype=dtype)
        return self._tables[key]

    def _arguments(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        if self.called is not None and not tensors_alone(self.called, self.inputs, inputs, named):
            found = as_module(self.called, repr(self.name), inputs, named)
        else:
            found = dict(zip(self.inputs, inputs, strict=False)) | dict(named)
        if set(found) != set(self.inputs) or len(inputs) + len(named) != len(found):
            raise UsageError(f"{self.name!r} takes {', '.join(self.inputs)}, got {len(inputs) + len(named)} inputs")
        import torch

        found = {n: x if isinstance(x, torch.Tensor) else torch.from_dlpack(x) for n, x in found.items()}
        return dict(real_parts(self.called, self._first.known.program, found))

    def sizes_of(self, given: Mapping[str, Any]) -> dict[str, int]:
        """The sizes that tensors have. Raises :class:`UsageError` where they do not fit."""
        found: dict[str, int] = {}
        for n, x in given.items():
            dims = self._first.dims[n]
            if len(x.shape) == len(dims):
                for dim, size in zip(dims, x.shape, strict=True):
                    for f in dim:
                        found.setdefault(f.symbol, int(size)) if f.symbol else None
        for n, x in given.items():
            dims = self._first.dims[n]
            wanted = shape_at(dims, found) if all(f.symbol in found for d in dims for f in d if f.symbol) else None
            if tuple(x.shape) != wanted:
                form = ", ".join("·".join(f.symbol or str(f.extent) for f in d) or "1" for d in dims)
                raise UsageError(f"{n} must be [{form}], got {list(x.shape)}", f"sizes here: {said(found)}")
        for s, n in found.items():
            least = max(b.padded.least.get(s, 1) for b in self.buckets)
            if n < least:
                raise UsageError(f"{self.name!r} takes no {said({s: n})}", f"at least {least}")
        return found

    def bucket_of(self, sizes: Sizes) -> Bucket | None:
        """The smallest bucket that has room for these sizes; None beyond the largest."""
        return next((b for b in self.buckets if all(n <= b.sizes[s] for s, n in sizes.items())), None)

    def _by_torch(self, sizes: Sizes, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        import torch

        largest = said(self._first.sizes)
        warnings.warn(f"torch runs {said(sizes)}: the largest bucket is {largest}", LeftToTorch, stacklevel=3)
        assert self.whole is not None
        with torch.no_grad():
            return self.whole(*inputs, **named)

    def explain(self, kernel: str | None = None) -> str:
        """:meth:`search.compiled.CompiledProgram.explain` of each bucket."""
        return "\n\n".join(f"up to {said(b.sizes)}\n{b.made.explain(kernel)}" for b in self.buckets)

    def save(self, folder: str | Path) -> list[dict[str, Any]]:
        """:meth:`search.compiled.CompiledProgram.save` of each bucket, into a folder of its own."""
        return [m for b in self.buckets for m in b.made.save(Path(folder) / folder_name(b.sizes))]

    def __repr__(self) -> str:
        each = "; ".join(said(b.sizes) for b in self.buckets)
        return f"<BucketedProgram {self.name} for {self.target.title}, up to {each}>"


def folder_name(sizes: Sizes) -> str:
    return "_".join(f"{s}_{n}".replace(":", "_") for s, n in sizes.items())


def padded_tensor(x: Any, dims: Dims, sizes: Sizes) -> Any:
    """The tensor with its last elements again behind them, as far as a bucket reaches; itself where it fills it. What is not
    finite is 0 there: a mask multiplies it."""
    import torch

    shape = tuple(f.extent if (f := next((f for f in d if f.symbol), None)) else n for d, n in zip(dims, x.shape, strict=True))
    if shape == tuple(x.shape):
        return x
    made = torch.empty(shape, dtype=x.dtype, device=x.device)
    made[tuple(map(slice, x.shape))] = x
    for i, (n, whole) in enumerate(zip(x.shape, shape, strict=True)):
        if n < whole:
            last = made.narrow(i, n - 1, 1)
            last = torch.nan_to_num(last, 0.0, 0.0, 0.0) if x.is_floating_point() else last
            made.narrow(i, n, whole - n).copy_(last.expand(made.narrow(i, n, whole - n).shape))
    return made


def cut(y: Any, dims: Dims, sizes: Sizes) -> Any:
    """What is real of a result."""
    factors = [f for d in dims for f in d]
    if all(len(d) <= 1 for d in dims):
        for i, n in enumerate(shape_at(dims, sizes)):
            y = y.narrow(i, 0, n)
        return y
    inner = y.reshape([f.extent for f in factors])
    for i, f in enumerate(factors):
        inner = inner.narrow(i, 0, sizes[f.symbol]) if f.symbol else inner
    return inner.reshape(shape_at(dims, sizes))
