"""One ATen call in an exported graph, as the rules of the import see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fuser.errors import UnsupportedError
from fuser.frontends.builder import Builder
from fuser.frontends.builder import Ref
from fuser.ir.ops import OPS
from fuser.ir.ops import Array
from fuser.ir.program import DTYPE_BYTES


def dtype_name(dtype: Any, what: str) -> str:
    """``torch.float16`` -> ``float16``."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise UnsupportedError(f"{what} has dtype {name}, which is not supported", f"use one of {', '.join(DTYPE_BYTES)}")
    return name


def to_numpy(value: Any) -> Array:
    """A torch tensor as numpy; bfloat16 in float32."""
    import torch

    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).contiguous().numpy().copy()


@dataclass(frozen=True)
class Call:
    """One ATen call: ``args`` by schema name, with tensors of the program, torch constants and numbers as values."""

    b: Builder
    node: Any
    aten: str
    table: str
    args: dict[str, Any]
    result: Any
    """The fake tensor of the result (a list where there are several)."""
    constant: Callable[[Any, str], Ref]
    where: str

    def __getitem__(self, name: str) -> Any:
        return self.args.get(name)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.result.shape)

    @property
    def dtype(self) -> str:
        return dtype_name(self.result.dtype, self.where)

    def unsupported(self, what: str, hint: str) -> UnsupportedError:
        return UnsupportedError(f"{self.node.target} {what}: {self.where}", hint)

    def ref(self, value: Any, dtype: str | None = None) -> Ref:
        """A tensor of the program, in ``dtype`` if given (torch promotes operands)."""
        if not isinstance(value, Ref):
            value = self.constant(value, f"{self.node.name}.constant")
        if dtype and value.tensor.dtype != dtype:
            return self.b.op("cast", value, dtype=dtype)
        return value

    def tensor(self, name: str) -> Ref:
        return self.ref(self.args[name])

    def filled(self, number: float) -> Ref:
        """A constant tensor of one element, for numbers that the algebra has no place for."""
        import torch

        return self.constant(torch.tensor([number], dtype=self.result.dtype), f"{self.node.name}.constant")

    def elementwise(self) -> Ref:
        """The table's operator on all tensor arguments, in order."""
        tensors = [a for a in self.args.values() if is_tensor(a)][: OPS[self.table].arity]
        return self.b.op(self.table, *(self.ref(t, self.dtype) for t in tensors), dtype=self.dtype)

    def reshape(self, x: Ref, shape: tuple[int, ...]) -> Ref:
        return x if x.shape == shape else self.b.op("reshape", x, shape=shape)


def is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, (Ref, torch.Tensor))


def number_of(value: Any) -> float | int | None:
    """A number, also as a constant tensor of one element."""
    import torch

    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    return value if isinstance(value, (int, float)) else None
