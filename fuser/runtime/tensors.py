"""Tensors that a call takes: what is accepted, what is refused and why."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial
from typing import Any
from typing import NamedTuple

from fuser.errors import UsageError
from fuser.errors import first_line
from fuser.ir.program import Tensor
from fuser.runtime.launch import ALIGNMENT

SEVERAL = 4
"""Tensors of a dtype from which one launch copies all: it takes an H200 5 to 8 µs, a copy 1.3 and the host as long as many."""


class Spec(NamedTuple):
    """What an input or output must be; ``index`` is the number of its GPU, -1 for the CPU."""

    name: str
    shape: Any
    dtype: Any
    index: int  # type: ignore[assignment]  # not the tuple's method

    @staticmethod
    def of(tensor: Tensor, device: Any) -> Spec:
        import torch

        return Spec(
            tensor.name, torch.Size(tensor.shape), getattr(torch, tensor.dtype), -1 if device.index is None else device.index
        )

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.shape))}]:{str(self.dtype).removeprefix('torch.')}"

    @property
    def place(self) -> str:
        return "cpu" if self.index < 0 else f"cuda:{self.index}"


def addresses(specs: Iterable[Spec], tensors: Iterable[Any], tensor_type: type) -> tuple[int, ...] | None:
    """Addresses of tensors that are all as they must be; None where one is not, or where that takes a closer look. This is on
    the path of every call: some 0.3 µs a tensor."""
    found: list[int] = []
    try:
        for (_, shape, dtype, index), x in zip(specs, tensors, strict=True):
            if (
                not isinstance(x, tensor_type)
                or x.shape != shape
                or x.dtype is not dtype
                or x.get_device() != index
                or not x.is_contiguous()
                or x.is_neg()
                or (x.requires_grad and _gradients())
            ):
                return None
            found.append(x.data_ptr())
    except RuntimeError:  # sparse, or no memory behind it
        return None
    return tuple(found)


def maker(like: Any, device: Any = None) -> Callable[[], Any]:
    """What makes tensors like one (it may be of ``meta``), uninitialised, on its device or torch's current GPU."""
    import torch

    device = like.device if device is None else device
    # what torch's own compiled code allocates with: a third of the time of torch.empty
    quick = getattr(torch._C._dynamo.guards, f"_empty_strided_{device.type}", None)
    if quick is None:
        return partial(torch.empty_strided, like.shape, like.stride(), dtype=like.dtype, device=device)
    return partial(quick, tuple(like.shape), like.stride(), like.dtype)


def copier(tensors: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
    """What makes copies of these very tensors, by name, that lie as they do: one launch for several of a dtype."""
    import torch

    every = [*tensors.values()]
    makers = [maker(x) for x in every]
    alike: dict[Any, list[int]] = {}
    for i, x in enumerate(every):
        alike.setdefault(x.dtype, []).append(i)
    alone = [i for places in alike.values() for i in places if len(places) < SEVERAL]
    together = [(places, [every[i] for i in places]) for places in alike.values() if len(places) >= SEVERAL]

    def copies() -> dict[str, Any]:
        found = [make() for make in makers]
        for i in alone:
            found[i].copy_(every[i])
        for places, origins in together:
            torch._foreach_copy_([found[i] for i in places], origins)
        return dict(zip(tensors, found, strict=True))

    return copies


def _gradients() -> bool:
    import torch

    return torch.is_grad_enabled()


def torch_tensor(name: str, value: Any) -> Any:
    """``value`` itself, or what DLPack makes of it without a copy."""
    import torch

    if isinstance(value, torch.Tensor):
        return value
    if not hasattr(value, "__dlpack__"):
        raise UsageError(f"{name} is a {type(value).__name__}, no tensor", "pass a torch tensor, or something with __dlpack__")
    try:
        return torch.from_dlpack(value)
    except (AttributeError, TypeError, BufferError, RuntimeError) as error:
        raise UsageError(
            f"{name} is a {type(value).__name__} that torch cannot take: {first_line(error)}",
            "pass a torch tensor, or something writable with __dlpack__",
        ) from error


def _fitting(spec: Spec, value: Any) -> Any:
    """A tensor of the right shape, dtype and device."""
    tensor = torch_tensor(spec.name, value)
    _has_values(spec.name, tensor)
    if tensor.shape != spec.shape or tensor.dtype is not spec.dtype:
        got = f"{spec.name} must be {spec}, got {tuple(tensor.shape)} {tensor.dtype}"
        raise UsageError(got, "compile it for such tensors too, or a module for several sizes: buckets=")
    if str(tensor.device) != spec.place:
        raise UsageError(f"{spec.name} is on {tensor.device}, the kernels run on {spec.place}", f"move it: x.to({spec.place!r})")
    return tensor


def _has_values(name: str, tensor: Any) -> None:
    """Raises :class:`UsageError` for tensors whose elements do not lie in memory one by one."""
    import torch
    from torch._subclasses import FakeTensor

    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        what = f"{name} is a tensor inside of torch.func (vmap, grad or jvp): kernels take tensors as they lie in memory"
        raise UsageError(what, "transform the module, and compile a module that calls what comes of it: torch.vmap(module)")
    if tensor.is_nested:
        what = f"{name} is a nested tensor: kernels take tensors of one shape"
        raise UsageError(what, "pass torch.nested.to_padded_tensor(x, 0)")
    if tensor.layout is not torch.strided:
        raise UsageError(f"{name} is sparse ({tensor.layout}): kernels take dense tensors", "pass x.to_dense()")
    if isinstance(tensor, FakeTensor):
        raise UsageError(f"{name} is a FakeTensor: it has no values", "pass a tensor with values")


def accept(spec: Spec, value: Any) -> Any:
    """An input: a copy where it is not contiguous, not aligned, or what lies in memory is its negative (the imaginary part of a
    conjugate). Raises :class:`UsageError` naming the tensor and what is wrong
    with it."""
    import torch

    tensor = _fitting(spec, value)
    if tensor.requires_grad:
        if torch.is_grad_enabled():
            raise UsageError(f"{spec.name} requires a gradient; fused kernels have no backward", "call under torch.no_grad()")
        tensor = tensor.detach()
    tensor = tensor.resolve_neg()
    if not tensor.is_contiguous() or tensor.data_ptr() % ALIGNMENT:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return tensor


def check_outputs(specs: Sequence[Spec], given: Sequence[Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs by name. They are written while inputs are read: no output may overlap an input or another output."""
    found: dict[str, Any] = {}
    taken = [(n, *_range(x)) for n, x in others.items()]
    for spec, value in zip(specs, given, strict=True):
        tensor = _fitting(spec, value)
        if not tensor.is_contiguous() or tensor.is_neg() or tensor.data_ptr() % ALIGNMENT:
            raise UsageError(
                f"the output {spec.name} is not contiguous, or does not start at a multiple of {ALIGNMENT} bytes",
                "pass a tensor of its own, or none",
            )
        if tensor.requires_grad:
            raise UsageError(f"the output {spec.name} requires a gradient", "pass out.detach()")
        first, end = _range(tensor)
        if clash := [n for n, f, e in taken if first < e and f < end]:
            raise UsageError(f"the output {spec.name} overlaps {clash[0]} in memory", "pass a tensor of its own, or none")
        taken.append((spec.name, first, end))
        found[spec.name] = tensor
    return found


def _range(x: Any) -> tuple[int, int]:
    return x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()
