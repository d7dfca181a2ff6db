"""What one thread block does: statements in SSA order over named axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property
from typing import Any
from typing import Literal

from fuser.errors import ProgramError
from fuser.files import shown
from fuser.ir.access import Access
from fuser.ir.applied import Applied
from fuser.ir.hashed import Hashed
from fuser.ir.opdef import OPS
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import attributes_to_json
from fuser.ir.rows import row_step
from fuser.ir.scalar import Scalar
from fuser.ir.scalar import tied

FREE = 0
"""Extent of an axis whose size a schedule chooses: the number of parts that a reduction is split into."""

AXIS = -1
"""In a block, ``Extent(axis, AXIS)`` is the extent of an axis: constants follow the sizes of the block."""


@dataclass(frozen=True)
class Axis:
    """A named iteration range of ``extent`` elements (:data:`FREE` where a schedule chooses it)."""

    name: str
    extent: int


@dataclass(frozen=True)
class Rescale:
    """On every update an accumulator is first multiplied by exp(``degree`` · (old − new)) of the running maximum ``maximum``."""

    maximum: str
    degree: int


@dataclass(frozen=True)
class Stmt(Applied):
    """One statement of a block: load a value, compute it, or store it.

    ``axes`` index the value. ``reduce`` are the axes that a contraction or fold sums over; where one of them has a loop part, the
    value is an accumulator. ``running`` names operands that are read inside their own accumulation (the running maximum of online
    softmax).
    """

    kind: Literal["load", "compute", "store"]
    value: str
    axes: tuple[str, ...]
    dtype: str
    op: str = ""
    args: tuple[str, ...] = ()
    reduce: tuple[str, ...] = ()
    attrs: tuple[tuple[str, Any], ...] = ()
    access: Access | None = None
    running: tuple[str, ...] = ()
    rescale: tuple[Rescale, ...] = ()

    @property
    def key(self) -> str:
        """``L_A``, ``C_S`` or ``S_O``, as MCFuser writes statements."""
        return f"{self.kind[0].upper()}_{self.value}"

    @cached_property
    def attr(self) -> dict[str, Any]:
        return dict(self.attrs)

    @property
    def at(self) -> Access:
        """Where a load or a store lies in device memory."""
        assert self.access is not None
        return self.access

    @cached_property
    def related(self) -> frozenset[str]:
        """Axes whose loops the statement must stand in."""
        return frozenset(self.axes) | frozenset(self.reduce)

    @property
    def constant_axes(self) -> frozenset[str]:
        """Axes whose extents the constants of the statement are tied to."""
        return frozenset(e.tensor for e in tied(self.attrs) if e.dim == AXIS)

    def __str__(self) -> str:
        shape = f"[{','.join(self.axes)}]"
        if self.kind == "load":
            return f"{self.value}{shape} = load {self.access}"
        if self.kind == "store":
            return f"store {self.access} = {self.value}"
        args = [f"~{a}" if a in self.running else a for a in self.args] + [f"{k}={v}" for k, v in self.attrs]
        over = f" over {','.join(self.reduce)}" if self.reduce else ""
        scale = "".join(f" rescaled by exp({r.degree}·Δ{r.maximum})" for r in self.rescale)
        return f"{self.value}{shape} = {self.op}({', '.join(args)}){over}{scale}"

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"kind": self.kind, "value": self.value, "axes": list(self.axes), "dtype": self.dtype}
        if self.access:
            out["access"] = self.access.to_json()
        if self.kind == "compute":
            out |= {"op": self.op, "args": list(self.args), "reduce": list(self.reduce), "attrs": attributes_to_json(self.attrs)}
        if self.running:
            out["running"] = list(self.running)
        if self.rescale:
            out["rescale"] = [[r.maximum, r.degree] for r in self.rescale]
        return out


@dataclass(frozen=True)
class BlockGraph(Hashed):
    """What one thread block does.

    ``splits`` pairs a reduced axis with the grid axis that counts its parts: the block then reduces only its part and
    the value gains that grid axis, so that a later kernel finishes the reduction.
    """

    name: str
    axes: tuple[Axis, ...]
    stmts: tuple[Stmt, ...]
    splits: tuple[tuple[str, str], ...] = ()

    __hash__ = Hashed.__hash__

    @cached_property
    def extents(self) -> dict[str, int]:
        return {a.name: a.extent for a in self.axes}

    @cached_property
    def by_value(self) -> dict[str, Stmt]:
        """The statement that defines each value."""
        return {s.value: s for s in self.stmts if s.kind != "store"}

    @cached_property
    def contracts(self) -> bool:
        """Whether it has a product."""
        return any(s.contracts for s in self.computes)

    @cached_property
    def loads(self) -> tuple[Stmt, ...]:
        return tuple(s for s in self.stmts if s.kind == "load")

    @cached_property
    def computes(self) -> tuple[Stmt, ...]:
        return tuple(s for s in self.stmts if s.kind == "compute")

    @cached_property
    def stores(self) -> tuple[Stmt, ...]:
        return tuple(s for s in self.stmts if s.kind == "store")

    @cached_property
    def spatial(self) -> tuple[str, ...]:
        """Axes of every stored value that nothing sums over: those that may be divided over the grid."""
        common = frozenset.intersection(*(frozenset(s.axes) for s in self.stores)) - frozenset(self.reduced)
        return tuple(a.name for a in self.axes if a.name in common)

    @cached_property
    def reduced(self) -> tuple[str, ...]:
        """Axes that some statement sums over."""
        over = {a for s in self.stmts for a in s.reduce}
        return tuple(a.name for a in self.axes if a.name in over)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Device tensors that the kernel reads."""
        return tuple(dict.fromkeys(s.access.source for s in self.loads if s.access))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        return tuple(s.access.tensor for s in self.stores if s.access)

    def scalar(self, value: Scalar) -> float:
        """A constant at this block's sizes."""
        return value.value(lambda e: self.extents[e.tensor])

    def axes_of(self, reduce: Collection[str], *operands: Collection[str]) -> set[str]:
        """The axes of a result: those of its operands but for what is summed over, and the parts of what is summed over in
        parts."""
        return {a for own in operands for a in own if a not in reduce} | {g for a, g in self.splits if a in reduce}

    def fresh(self, name: str) -> str:
        """The name, or a longer one that no value has."""
        while name in self.by_value:
            name += "_"
        return name

    def users(self, value: str) -> tuple[Stmt, ...]:
        return self._users.get(value, ())

    @cached_property
    def _users(self) -> dict[str, tuple[Stmt, ...]]:
        found: dict[str, list[Stmt]] = {}
        for s in self.stmts:
            for value in dict.fromkeys((*s.args, s.value) if s.kind == "store" else s.args):
                found.setdefault(value, []).append(s)
        return {value: tuple(stmts) for value, stmts in found.items()}

    @cached_property
    def sources(self) -> dict[str, frozenset[str]]:
        """All that each value is computed from."""
        return self._closed(lambda s: s.args)

    @cached_property
    def origins(self) -> dict[str, frozenset[str]]:
        """The same without what is read while it still accumulates."""
        return self._closed(lambda s: [a for a in s.args if a not in s.running])

    def _closed(self, read: Callable[[Stmt], Sequence[str]]) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for s in self.by_value.values():
            found[s.value] = frozenset(read(s)).union(*(found[a] for a in read(s)))
        return found

    def with_extents(self, sizes: Mapping[str, int]) -> BlockGraph:
        """The same structure at other sizes (reduced sizes for checking, split counts of a schedule)."""
        new = replace(self, axes=tuple(Axis(a.name, sizes.get(a.name, a.extent)) for a in self.axes))
        if not any(s.access and s.access.pitch for s in self.stmts):
            return new

        def resized(s: Stmt) -> Stmt:
            pitched = s.access if s.access and s.access.pitch else None
            return replace(s, access=pitched.resized(new.extents, row_step(s.dtype))) if pitched else s

        return replace(new, stmts=tuple(map(resized, self.stmts)))

    def validate(self) -> BlockGraph:
        known: dict[str, Stmt] = {}
        if len(self.extents) != len(self.axes):
            raise ProgramError(f"block {self.name!r} has two axes of one name: {', '.join(a.name for a in self.axes)}")
        for s in self.stmts:
            self._check_axes(s)
            self._check_operands(s, known)
            self._check_shifts(s, known)
            if s.kind != "store":
                known[s.value] = s
        if not self.stores:
            raise ProgramError(f"block {self.name!r} stores nothing")
        return self

    def _check_axes(self, s: Stmt) -> None:
        names = set(self.extents)
        if missing := (s.related | set(s.access.axes if s.access else ())) - names:
            raise ProgramError(f"block {self.name!r}: {s} uses the unknown axes {sorted(missing)}")
        if any(len(set(axes)) < len(axes) for axes in (s.axes, s.reduce)):
            raise ProgramError(f"block {self.name!r}: {s} has an axis twice")
        if s.access and set(s.access.axes) != set(s.axes):
            raise ProgramError(f"block {self.name!r}: {s} has axes {s.axes}, its access those of {s.access}")
        if s.access and s.access.window:
            self.check_window(s)
        if s.access and s.access.pitch:
            self._check_pitch(s, s.access)
        if foreign := [e for e in tied(s.attrs) if e.dim != AXIS]:
            raise ProgramError(
                f"block {self.name!r}: {s} has a constant tied to {foreign[0].tensor!r}, not as an axis of its own"
            )
        if missing := s.constant_axes - names:
            raise ProgramError(f"block {self.name!r}: {s} has a constant tied to the absent axes {sorted(missing)}")
        if unknown := [d for d in (s.dtype, s.attr.get("dtype", s.dtype)) if d not in DTYPE_BYTES]:
            raise ProgramError(f"block {self.name!r}: {s} has the unknown dtype {shown(unknown[0])}")

    def _check_operands(self, s: Stmt, known: Mapping[str, Stmt]) -> None:
        if missing := [a for a in (*s.args, *((s.value,) if s.kind == "store" else ())) if a not in known]:
            raise ProgramError(f"block {self.name!r}: {s} reads {missing[0]!r} before it is defined")
        if s.kind != "store" and s.value in known:
            raise ProgramError(f"block {self.name!r}: {s.value!r} is defined twice")
        if s.kind == "store" and (extra := set(known[s.value].axes) - set(s.axes)):
            raise ProgramError(f"block {self.name!r}: {s} drops the axes {sorted(extra)} of the value")
        if s.kind == "compute":
            self._check_operator(s)
            expected = self.axes_of(s.reduce, *(known[v].axes for v in s.args))
            if set(s.axes) != expected:
                raise ProgramError(f"block {self.name!r}: {s} has axes {s.axes}, its operands give {sorted(expected)}")

    def _check_operator(self, s: Stmt) -> None:
        if s.entry.arity >= 0 and s.op in OPS and len(s.args) != s.entry.arity:
            raise ProgramError(f"block {self.name!r}: {s}: {s.op} takes {s.entry.arity} operands")
        if s.reduce and s.op in OPS and not s.folds:
            raise ProgramError(f"block {self.name!r}: {s}: {s.op} folds no axes")

    def _check_shifts(self, s: Stmt, known: Mapping[str, Stmt]) -> None:
        if wrong := [n for n in (*s.running, *(r.maximum for r in s.rescale)) if n in known and not known[n].maximizes]:
            raise ProgramError(f"block {self.name!r}: {s} is shifted by {wrong[0]!r}, which is no maximum")
        for r in s.rescale:
            if r.maximum not in known or set(known[r.maximum].axes) - set(s.axes):
                raise ProgramError(f"block {self.name!r}: {s} is rescaled by {r.maximum!r}, which is absent or has other axes")

    def check_window(self, stmt: Stmt) -> None:
        """A window lies inside of its tensor."""
        assert stmt.access is not None and stmt.access.window is not None
        window, sizes = stmt.access.window, stmt.access.shape(self.extents)
        if stmt.kind == "store":
            raise ProgramError(f"block {self.name!r}: {stmt} stores a window; only loads have one")
        whole = window.seen
        inside = (
            len(sizes) == len(whole) == len(window.starts)
            and math.prod(whole) == math.prod(window.shape)
            and all(x >= 0 and x + n <= most for x, n, most in zip(window.starts, sizes, whole, strict=True))
        )
        if not inside:
            raise ProgramError(f"block {self.name!r}: {stmt} has shape {sizes}, which is not inside of {whole}")

    def _check_pitch(self, s: Stmt, access: Access) -> None:
        """Rows of one axis, none of which reaches into the next."""
        if access.window or len(access.dims[-1:]) != 1 or len(access.dims[-1]) != 1:
            raise ProgramError(f"block {self.name!r}: {s} has rows that are no single axis of a whole tensor")
        if access.pitch < self.extents[access.dims[-1][0]]:
            raise ProgramError(f"block {self.name!r}: {s} has rows of {access.pitch} elements, which are longer")

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "axes": [[a.name, a.extent] for a in self.axes],
            "splits": [list(s) for s in self.splits],
            "stmts": [s.to_json() for s in self.stmts],
        }

    def __str__(self) -> str:
        axes = ", ".join(f"{a.name}={a.extent or '?'}" for a in self.axes)
        split = "".join(f", {a} split over {g}" for a, g in self.splits)
        return "\n".join([f"kernel {self.name} [{axes}{split}]", *(f"  {s}" for s in self.stmts)])


def ordered(axes: Iterable[str], order: Iterable[Axis]) -> tuple[str, ...]:
    """``axes`` without repetition in the order of a block's axes."""
    wanted = set(axes)
    return tuple(a.name for a in order if a.name in wanted)


def live(stmts: Iterable[Stmt]) -> tuple[Stmt, ...]:
    """Statements without those that nothing reads."""
    needed: set[str] = set()
    kept: list[Stmt] = []
    for s in reversed(tuple(stmts)):
        if s.kind == "store" or s.value in needed:
            needed |= {*s.args, s.value, *(r.maximum for r in s.rescale)}
            kept.append(s)
    return tuple(reversed(kept))
