"""What Triton's interpreter needs to run generated kernels on CPU tensors."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from fuser.ir.ops import Array
from fuser.ir.ops import op as op_def
from fuser.lower.cluster_code import EXCHANGE
from fuser.lower.cluster_code import LEAVE

if TYPE_CHECKING:
    from fuser.lower.kernel_source import KernelSource

INLINE = frozenset({"gdc_wait", "gdc_launch_dependents", "prefetch_l2", "bring_l2", LEAVE})
"""Functions of generated modules that are inline assembly and compute nothing."""


def prepare(module: ModuleType) -> None:
    """Make a generated module run in the interpreter."""
    if hasattr(module, EXCHANGE):
        setattr(module, EXCHANGE, Exchanges(module))
    _as_compiled()
    _looks_up_once()
    _count_with_scalars()
    _maxima_of_a_gpu()
    _bfloat16_of_a_gpu()
    _conditions_on_scalars()
    _folds_of_tiles()
    for name in INLINE & vars(module).keys():
        setattr(module, name, _nothing)


@dataclass(eq=False)
class Exchanges:
    """What blocks of a cluster exchange, where one runs after another: a block gets what the others left when they ran last, so
    that with each round one more exchange has the right numbers."""

    module: ModuleType
    blocks: int = 1
    left: dict[tuple[int, int], Any] = field(default_factory=dict)

    def __call__(self, x: Any, number: Any) -> tuple[Any, ...]:
        from triton.runtime.interpreter import interpreter_builder

        program, exchange = interpreter_builder.grid_idx[0], int(getattr(number, "value", number))
        self.left[exchange, program] = x
        first = program // self.blocks * self.blocks
        return tuple(self.left.get((exchange, first + rank), x) for rank in range(self.blocks))


def run(source: KernelSource, kernel: Any, arguments: Sequence[Any]) -> None:
    """All programs of a kernel one after the other, in as many rounds as exchanges between them need."""
    if source.exchanges:
        exchanges = kernel.fn.__globals__[EXCHANGE]
        exchanges.blocks, exchanges.left = source.cluster, {}
    for _ in range(source.exchanges + 1):
        kernel[(source.grid,)](*arguments)


@contextmanager
def blocks_of(numbers: Sequence[int]) -> Iterator[None]:
    """Within, the first program of a launch is the one of the first number, and so on."""
    from triton import language as tl
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    before = builder.create_get_program_id

    def numbered(self: Any, axis: int) -> Any:
        return interpreter.TensorHandle(np.array([numbers[self.grid_idx[axis]]], dtype=np.int32), tl.int32)

    builder.create_get_program_id = numbered  # type: ignore[method-assign]
    try:
        yield
    finally:
        builder.create_get_program_id = before  # type: ignore[method-assign]


def _nothing(*_: Any) -> None:
    """What waiting for earlier kernels and prefetching are where one kernel runs after another."""


@functools.cache
def _as_compiled() -> None:
    """Whole numbers that overflow wrap around, as on a GPU; asking each sum and product whether it does is half of the time."""
    from triton.runtime.interpreter import interpreter_builder as builder

    if hasattr(builder.options, "sanitize_overflow"):
        builder.options = replace(builder.options, sanitize_overflow=False)


@functools.cache
def _looks_up_once() -> None:
    """What the interpreter finds again at each operation, and at each call of a function within a kernel: the types of shapes,
    dtypes, and the members of the language in whose place it puts others."""
    from triton.language import core
    from triton.runtime import interpreter

    if not all(hasattr(interpreter, n) for n in ("_get_np_dtype", "_patch_lang", "_LangPatchScope", "tl")):
        return
    type_of, known = core._type_for_tuple_values, dict[tuple[int, ...], Any]()
    dtype_of, dtypes = interpreter._get_np_dtype, dict[str, Any]()
    patch, patched = interpreter._patch_lang, set[int]()

    def type_of_shape(values: Any, fields: Any = None) -> Any:
        shape = tuple([x.value if type(x) is core.constexpr else x for x in values])
        if fields or any(type(n) is not int for n in shape):
            return type_of(values, fields)
        if shape not in known:
            known[shape] = type_of(values)
        return known[shape]

    def dtype_of_scalar(scalar: Any) -> Any:
        if type(scalar) is not core.dtype:  # a pointer
            return dtype_of(scalar)
        if scalar.name not in dtypes:
            dtypes[scalar.name] = dtype_of(scalar)
        return dtypes[scalar.name]

    def patched_once(fn: Any) -> Any:
        languages = {id(x) for x in fn.__globals__.values() if x is core or x is interpreter.tl}
        if languages and languages <= patched:
            return interpreter._LangPatchScope()  # within a kernel
        patched.update(languages)
        found = patch(fn)
        restore = found.restore

        def restored() -> None:
            patched.clear()
            restore()

        found.restore = restored  # type: ignore[method-assign]
        return found

    core._type_for_tuple_values = type_of_shape
    interpreter._get_np_dtype = dtype_of_scalar
    interpreter._patch_lang = patched_once


@functools.cache
def _count_with_scalars() -> None:
    """A loop may start at the number of the program: the interpreter has that as an array of one element, which NumPy from 2.4 on
    does not take for a number."""
    from triton.runtime import interpreter

    patch = getattr(interpreter, "_patch_lang_tensor", None)
    if patch is None:
        return

    @functools.wraps(patch)
    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched  # type: ignore[assignment]


@functools.cache
def _maxima_of_a_gpu() -> None:
    """What drops NaN on a GPU drops it here too (the interpreter's ``tl.maximum`` always keeps it), and what keeps it is not
    folded element by element."""
    from triton import language as tl
    from triton.runtime import interpreter

    def larger(self: Any, a: Any, b: Any) -> Any:
        return self.binary_op(a, b, np.fmax)

    interpreter.InterpreterBuilder.create_maxnumf = larger  # type: ignore[method-assign]
    apply = interpreter.ReduceOps.apply_impl

    @functools.wraps(apply)
    def folded(self: Any, values: Any) -> Any:
        if self.combine_fn == tl.standard._elementwise_max:
            return self.min_max(values[0], val_reduce_op=np.fmax.reduce)
        if getattr(self.combine_fn, "__name__", "") == op_def("max").triton:
            return self.min_max(values[0], val_reduce_op=np.maximum.reduce)
        return apply(self, values)

    interpreter.ReduceOps.apply_impl = folded  # type: ignore[method-assign]


@functools.cache
def _bfloat16_of_a_gpu() -> None:
    """The interpreter holds bfloat16 as 16 bits, and multiplies those as integers; it cuts off where a GPU rounds to nearest, and
    has no constants."""
    from triton import language as tl
    from triton.runtime import interpreter

    handle, builder = interpreter.TensorHandle, interpreter.InterpreterBuilder
    dot, cast = builder.create_dot, builder.cast_impl

    def as_float32(x: Any) -> Any:
        return handle(_widened(x.data), tl.float32) if x.dtype.scalar == tl.bfloat16 else x

    def create_dot(self: Any, a: Any, b: Any, *rest: Any, **more: Any) -> Any:
        return dot(self, as_float32(a), as_float32(b), *rest, **more)

    def cast_impl(self: Any, x: Any, wanted: Any) -> Any:
        if x.dtype.scalar == tl.bfloat16 and wanted.scalar == tl.float32:
            return as_float32(x)
        if x.dtype.scalar == tl.float32 and wanted.scalar == tl.bfloat16:
            return handle(_narrowed(x.data), tl.bfloat16)
        return cast(self, x, wanted)

    builder.create_dot = create_dot  # type: ignore[method-assign]
    builder.cast_impl = cast_impl  # type: ignore[method-assign]
    builder.get_bf16 = lambda self, value: handle(_narrowed(np.array([value], np.float32)), tl.bfloat16)  # type: ignore[attr-defined]


@functools.cache
def _conditions_on_scalars() -> None:
    """The interpreter gives comparisons their operands' dtype: a scalar's, as a tile, is to be one of conditions all the same."""
    from triton import language as tl
    from triton.runtime import interpreter

    splat = interpreter.InterpreterBuilder.create_splat

    def create_splat(self: Any, tile: Any, x: Any) -> Any:
        truth = np.asarray(x.data).dtype == np.bool_
        return splat(self, tile, interpreter.TensorHandle(x.data, tl.int1) if truth else x)

    interpreter.InterpreterBuilder.create_splat = create_splat  # type: ignore[method-assign]


@functools.cache
def _folds_of_tiles() -> None:
    """Scans and reductions put whole tiles together: the interpreter calls their functions for each element."""
    from triton.runtime import interpreter

    def put_together(self: Any, first: Sequence[Any], second: Sequence[Any]) -> Sequence[Any]:
        made = self.combine_fn.fn(*first, *second)
        return made if isinstance(made, tuple) else (made,)

    def scan(self: Any, given: Sequence[Any]) -> list[Any]:
        """Twice as far apart each time."""
        found = list(given)
        axis, shape = self.axis, given[0].handle.data.shape
        at = np.arange(shape[axis]).reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])
        step = 1
        while step < shape[axis]:
            before = [self.to_tensor(np.roll(x.handle.data, step, axis), x.dtype) for x in found]
            both = zip(put_together(self, before, found), found, strict=True)
            found = [self.to_tensor(np.where(at >= step, y.handle.data, x.handle.data), x.dtype) for y, x in both]
            step *= 2
        return found

    def reduce(self: Any, given: Sequence[Any]) -> list[Any]:
        """Neighbours first."""
        axis, rank = self.axis, given[0].handle.data.ndim
        if axis is None:
            given, axis = [self.to_tensor(x.handle.data.reshape(-1), x.dtype) for x in given], 0
        while (count := given[0].handle.data.shape[axis]) > 1:
            several = [[np.take(x.handle.data, range(i, count, 2), axis) for x in given] for i in (0, 1)]
            halves = [[self.to_tensor(y, x.dtype) for y, x in zip(ys, given, strict=True)] for ys in several]
            given = put_together(self, *halves)
        found = [x.handle.data if self.keep_dims else np.squeeze(x.handle.data, axis) for x in given]
        if self.axis is None:
            found = [x.reshape((1,) * rank) if self.keep_dims else x.item() for x in found]
        return [self.to_tensor(y, x.dtype) for y, x in zip(found, given, strict=True)]

    interpreter.ScanOps.generic_scan = scan
    interpreter.ReduceOps.generic_reduce = reduce


def _widened(bits: Array) -> Array:
    """The numbers of bfloat16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _narrowed(x: Array) -> Array:
    """The bits of numbers as bfloat16, rounded to nearest, halves to even; NaN stays NaN."""
    bits = np.ascontiguousarray(x).view(np.uint32).reshape(x.shape)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


def host_arguments(source: KernelSource, tensors: Sequence[Any]) -> list[Any]:
    """Torch tensors as Triton's own launcher and interpreter take them: Triton's descriptor objects where the kernel has them."""
    if not source.descriptors:
        return list(tensors)
    from triton.tools.tensor_descriptor import TensorDescriptor

    found = []
    for i, d in source.passed:
        tensor = tensors[i]
        if d is not None:
            base = tensor.reshape(-1)[d.offset :]
            tensor = TensorDescriptor(base, list(d.shape), list(d.strides), list(d.box))
        found.append(tensor)
    return found
