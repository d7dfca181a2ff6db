"""The part of Gluon that the generator uses, on a :class:`Machine`: generated texts run as plain Python with these modules."""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Mapping
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from fuser.errors import NoValidKernelError
from fuser.ir.rows import in_rows
from fuser.lower.emulator.machine import Barrier
from fuser.lower.emulator.machine import Hazard
from fuser.lower.emulator.machine import Machine
from fuser.lower.emulator.machine import Slot
from fuser.lower.emulator.machine import Work
from fuser.lower.emulator.machine import zeros
from fuser.lower.emulator.values import Memory
from fuser.lower.emulator.values import Pointer
from fuser.lower.emulator.values import Tensor
from fuser.lower.emulator.values import View
from fuser.lower.emulator.values import apply
from fuser.lower.emulator.values import dtype_of
from fuser.lower.emulator.values import held
from fuser.lower.emulator.values import layout_of
from fuser.lower.emulator.values import numbers
from fuser.lower.gluon.choices import SHARED
from fuser.lower.kernel_source import KernelSource

KEEPS_NAN = "all"
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int64": 8}


class _Ring:
    """An allocation of several slots."""

    def __init__(self, name: str, slots: Sequence[Any]) -> None:
        self.name, self.slots = name, slots

    def index(self, i: int) -> Any:
        if not 0 <= i < len(self.slots):
            raise Hazard(f"{self.name} has {len(self.slots)} slots, and slot {i} is asked for")
        return self.slots[i]


class _Block:
    """Gluon's modules for one block of threads."""

    def __init__(self, machine: Machine, number: int, blocks: int) -> None:
        self.machine, self.number, self.blocks = machine, number, blocks
        self.bytes = 0
        self.started: list[Work] = []
        self.committed: list[list[Work]] = []
        self.products = 0
        self.gl = self._language()
        self.mbarrier = SimpleNamespace(
            MBarrierLayout=lambda: "barriers", init=self.init, arrive=self.arrive, expect=self.expect, wait=self.wait
        )
        self.tma = SimpleNamespace(
            async_copy_global_to_shared=self.copy_in, async_copy_shared_to_global=self.copy_out, store_wait=self.store_wait
        )

    def modules(self, name: str, *_: Any) -> Any:
        """What ``__import__`` gives a text."""
        copies = SimpleNamespace(
            async_copy_global_to_shared=self.copy_by_threads, commit_group=self.commit, wait_group=self.wait_groups
        )
        ampere = SimpleNamespace(async_copy=copies, mma_v2=self.mma_v2)
        products = {"warpgroup_mma": self.mma, "warpgroup_mma_wait": self.mma_wait}
        hopper = SimpleNamespace(mbarrier=self.mbarrier, tma=self.tma, fence_async_shared=self.machine.fence, **products)
        gluon = SimpleNamespace(jit=lambda f: f, language=self.gl)
        found = {
            "triton.experimental": SimpleNamespace(gluon=gluon),
            "triton.experimental.gluon": gluon,
            "triton.experimental.gluon.language.nvidia.hopper": hopper,
            "triton.experimental.gluon.language.nvidia.ampere": ampere,
            "triton.language.extra.cuda": SimpleNamespace(gdc_wait=self.machine.pause, gdc_launch_dependents=self.machine.pause),
            "triton.language": SimpleNamespace(language=SimpleNamespace(PropagateNan=SimpleNamespace(ALL=KEEPS_NAN))),
        }
        return found[name]

    def _language(self) -> Any:
        def unary(f: Any) -> Any:
            return lambda x: apply(f, x)

        gl = SimpleNamespace(**{name: name for name in ("float16", "bfloat16", "float32", "int32", "int64", "int1")})
        names = ("exp", "exp2", "log", "log2", "sqrt", "abs", "floor", "ceil", "sin", "cos")
        vars(gl).update({name: unary(getattr(np, name)) for name in names})
        gl.erf = unary(np.vectorize(math.erf, otypes=[np.float32]))
        gl.constexpr, gl.static_range = (lambda x: x), range
        gl.SliceLayout = lambda dim, parent: ("slice", dim, parent)
        gl.DotOperandLayout = lambda side, parent, width: ("operand", side, parent, width)
        for name in ("NVMMADistributedLayout", "NVMMASharedLayout", "SwizzledSharedLayout", "BlockedLayout"):
            setattr(gl, name, lambda *a, name=name: (name, repr(a)))
        gl.program_id, gl.num_programs = (lambda _: self.number), (lambda _: self.blocks)
        gl.full = lambda shape, x, dtype, layout: Tensor(held(np.full(shape, x), dtype), dtype, layout)
        gl.zeros = lambda shape, dtype, layout: gl.full(shape, 0.0, dtype, layout)
        gl.arange = lambda a, b, layout: Tensor(np.arange(a, b), "int32", layout)
        gl.convert_layout = lambda x, layout: Tensor(x.now, x.dtype, layout)
        gl.reshape = lambda x, shape: Tensor(x.now.reshape(shape), x.dtype, ("reshaped", tuple(shape), x.layout))
        gl.where = lambda c, a, b: apply(np.where, c, a, b, dtype=dtype_of(a, b)) if isinstance(c, Tensor) else (a if c else b)
        gl.maximum = lambda a, b, propagate_nan=None: apply(np.maximum if propagate_nan else np.fmax, a, b)
        gl.minimum = lambda a, b, propagate_nan=None: apply(np.minimum if propagate_nan else np.fmin, a, b)
        gl.cast = lambda x, dtype: x.to(dtype) if isinstance(x, Tensor | Pointer) else Tensor(held(x, dtype), dtype)
        gl.sum = lambda x, dim: _folded(x, dim, functools.partial(np.sum, dtype=np.float32))
        gl.max = lambda x, dim: _folded(x, dim, np.fmax.reduce)
        gl.reduce = _reduce
        gl.load, gl.store = _load, _store
        gl.inline_asm_elementwise = lambda *_, **options: None  # hints alone
        gl.allocate_shared_memory, gl.warp_specialize = self.allocate, self.specialize
        return gl

    # -- shared memory and barriers -------------------------------------------------------------------------------------------

    def allocate(self, dtype: str, shape: list[int], layout: Any) -> _Ring:
        self.bytes += math.prod(shape) * BYTES[dtype]
        if self.bytes > SHARED:
            raise Hazard(f"a block asks for {self.bytes} bytes of shared memory, of {SHARED}")
        kind = "barrier" if layout == "barriers" else "buffer"
        name = f"{kind} {len(self.machine.barriers if kind == 'barrier' else self.machine.slots)}"
        if kind == "barrier":
            slots: list[Any] = [Barrier(f"{name}[{i}]") for i in range(shape[0])]
            self.machine.barriers += slots
            return _Ring(name, slots)
        made = [Slot(f"{name}[{i}]", zeros(tuple(shape[1:])), dtype) for i in range(shape[0])]
        self.machine.slots += made
        return _Ring(name, [View(self.machine, slot) for slot in made])

    def init(self, barrier: Barrier, count: int) -> None:
        barrier.count = barrier.left = count

    def arrive(self, barrier: Barrier, *, count: int = 1, pred: bool = True) -> None:
        self.machine.pause()
        if pred:
            self.machine.arrive(barrier, count)

    def expect(self, barrier: Barrier, size: int, pred: bool = True) -> None:
        self.machine.pause()
        if pred:
            self.machine.arrive(barrier, 1, size)

    def wait(self, barrier: Barrier, parity: int, pred: bool = True) -> None:
        if pred:
            self.machine.wait_for(barrier, parity)

    # -- copies ---------------------------------------------------------------------------------------------------------------

    def copy_in(self, memory: Memory, starts: list[int], barrier: Barrier, view: View, pred: bool = True) -> None:
        if not pred:
            return
        if view.shape != memory.descriptor.box:
            raise Hazard(f"a box of {memory.descriptor.box} is copied to a buffer of {view.shape}")
        self.machine.pause()

        def write() -> None:
            part, places = memory.box(starts)
            view.slot.data[...] = 0.0
            view.see(view.slot.data)[places] = part

        self.machine.copy_in(view.slot, barrier, math.prod(view.shape) * BYTES[memory.dtype], write)

    def copy_out(self, memory: Memory, starts: list[int], view: View) -> None:
        self.machine.pause()

        def write() -> None:
            part, places = memory.box(starts)
            part[...] = view.see(view.slot.data)[places]

        me = self.machine.current
        self.machine.start(me.stores, Work(f"a store of {me.name}", write, (view.slot,)))

    def store_wait(self, left: int) -> None:
        self.machine.pause()
        self.machine.wait(self.machine.current.stores, left)

    # -- copies by threads ----------------------------------------------------------------------------------------------------

    def copy_by_threads(self, view: View, pointer: Pointer, mask: Any = None) -> None:
        """All warps of a block meet where the compiler sees that they have to: what is left to be found is what is waited for."""
        self.machine.check_write(view.slot, by_engine=False)
        places, wanted = _masked(pointer, mask)
        if places.shape != view.shape:
            raise Hazard(f"elements of {places.shape} are copied to a buffer of {view.shape}")
        slot = view.slot
        slot.filling, slot.by, slot.version = True, None, slot.version + 1
        slot.reads, slot.touched = {}, {}
        slot.data[...] = np.nan

        def write() -> None:
            view.see(slot.data)[...] = np.where(wanted, pointer.memory[np.where(wanted, places, 0)], 0.0)

        self.started.append(Work(f"a copy to {slot.name}", write, (slot,)))

    def commit(self) -> None:
        self.committed.append(self.started)
        self.started = []

    def wait_groups(self, left: int) -> None:
        while len(self.committed) > left:
            for work in self.committed.pop(0):
                work.end()
                for slot in work.slots:
                    slot.filling = False
                    self.machine.current.clock[slot] = slot.version

    def mma_v2(self, a: Tensor, b: Tensor, acc: Tensor) -> Tensor:
        if (a.layout, b.layout) != tuple(("operand", side, acc.layout, 2) for side in (0, 1)):
            raise Hazard(f"operands of a product have layouts {a.layout} and {b.layout}, its result {acc.layout}")
        with np.errstate(all="ignore"):
            return Tensor(held(a.now @ b.now + acc.now, "float32"), "float32", acc.layout)

    # -- products -------------------------------------------------------------------------------------------------------------

    def mma(self, a: Tensor | View, b: View, acc: Tensor, *, use_acc: Any = True, is_async: bool = False) -> Tensor:
        self.machine.pause()
        me = self.machine.current
        before = acc.under
        if before is not None and before not in me.products and not before.done:
            raise Hazard(f"a product of {me.name} adds to what another group is computing")
        if isinstance(a, Tensor) and a.layout != ("operand", 0, acc.layout, 2):
            raise Hazard(f"the left operand of a product has layout {a.layout}, its result {acc.layout}")
        left = (lambda: a.see(a.slot.data)) if isinstance(a, View) else (lambda x=a.now: x)
        if (left().shape[0], b.shape[1]) != acc.data.shape or left().shape[1] != b.shape[0]:
            raise Hazard(f"a product of {left().shape} by {b.shape} gives {acc.data.shape}")
        cell = np.full(acc.data.shape, np.nan, np.float32)

        def multiply() -> None:
            if before is not None:
                before.end()
            with np.errstate(all="ignore"):
                cell[...] = left() @ b.see(b.slot.data) + (acc.data if use_acc else 0.0)

        self.products += 1
        slots = tuple(v.slot for v in (a, b) if isinstance(v, View))
        work = Work(f"product {self.products} of {me.name}", multiply, slots)
        self.machine.start(me.products, work)
        found = Tensor(cell, "float32", acc.layout, work)
        return found if is_async else self.mma_wait(0, (found,))

    def mma_wait(self, left: int = 0, deps: Sequence[Tensor] = ()) -> Any:
        self.machine.pause()
        me = self.machine.current
        self.machine.wait(me.products, left)
        found = tuple(x if x.under in me.products else Tensor(x.data, x.dtype, x.layout) for x in deps)
        return found[0] if len(found) == 1 else found

    # -- groups ---------------------------------------------------------------------------------------------------------------

    def specialize(self, functions: Sequence[tuple[Any, Any]], warps: Sequence[int], registers: Sequence[int]) -> None:
        if not len(functions) - 1 == len(warps) == len(registers):
            raise Hazard(f"{len(functions)} functions for {len(warps)} groups of warps beside the first")
        names = [f"group {i} ({f.__name__})" for i, (f, _) in enumerate(functions)]
        self.machine.run([(n, functools.partial(f, *args)) for n, (f, args) in zip(names, functions, strict=True)])


def _folded(x: Tensor, dim: int, f: Any) -> Tensor:
    return Tensor(held(f(x.now, axis=dim), x.dtype), x.dtype, x.layout and ("slice", dim, x.layout))


def _reduce(x: Tensor, dim: int, combine: Any) -> Tensor:
    parts = [Tensor(p, x.dtype) for p in np.moveaxis(x.now, dim, 0)]
    return Tensor(functools.reduce(combine, parts).now, x.dtype, x.layout and ("slice", dim, x.layout))


def _masked(pointer: Pointer, mask: Any) -> tuple[Any, Any]:
    layout_of(pointer.at, mask)
    places, wanted = np.broadcast_arrays(pointer.places(), True if mask is None else numbers(mask))
    used = places[wanted]
    if used.size and (used.min() < 0 or used.max() >= pointer.memory.size):
        raise Hazard(f"a pointer goes to element {int(used.max())} of {pointer.memory.size}")
    return places, wanted


def _load(pointer: Pointer, mask: Any = None, other: Any = 0.0) -> Tensor:
    places, wanted = _masked(pointer, mask)
    found = np.where(wanted, pointer.memory[np.where(wanted, places, 0)], other)
    return Tensor(held(found, pointer.dtype), pointer.dtype, layout_of(pointer.at))


def _store(pointer: Pointer, x: Any, mask: Any = None) -> None:
    layout_of(pointer.at, x, mask)
    places, wanted = _masked(pointer, mask)
    pointer.memory[places[wanted]] = np.broadcast_to(held(numbers(x), pointer.dtype), places.shape)[wanted]


def emulate(source: KernelSource, inputs: Mapping[str, Any], poison: float = math.nan, seed: int = 0) -> dict[str, Any]:
    """Run a kernel in Gluon on numpy arrays; outputs, filled with ``poison`` first, come back as float32 arrays. ``seed`` decides
    who runs when.

    Raises :class:`Hazard` where groups of warps wait for each other for ever, or use shared memory without knowing that they may.
    """
    memory = {}
    for name, dtype, shape in zip(source.args, source.dtypes, source.shapes, strict=True):
        whole = np.full(shape, poison) if name in source.outputs else in_rows(np.asarray(inputs[name]), shape).reshape(shape)
        memory[name] = np.array(held(whole, dtype)).reshape(-1)
    code = compile(source.text, source.name, "exec")
    for number in range(source.grid):
        machine = Machine(seed * 7919 + number)
        block = _Block(machine, number, source.grid)
        scope: dict[str, Any] = {"__builtins__": {**vars(builtins), "__import__": block.modules}}
        exec(code, scope)
        arguments = []
        for i, d in source.passed:
            where, dtype = memory[source.args[i]], source.dtypes[i]
            arguments.append(Memory(where, dtype, d) if d else Pointer(where, dtype))
        try:
            scope[source.name](*arguments)
            if any((*block.committed, block.started)):
                raise Hazard("the block ends while copies into its shared memory are under way")
            machine.end()
        except Hazard as error:
            raise Hazard(f"{source.name}, block {number}: {error.message}", error.hint) from error
        except (TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            raise NoValidKernelError(f"the emulator cannot run {source.name}: {type(error).__name__}: {error}") from error
    return {n: memory[n].reshape(s) for n, s in zip(source.args, source.shapes, strict=True) if n in source.outputs}
