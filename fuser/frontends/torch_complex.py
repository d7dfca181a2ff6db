"""Complex tensors of a graph of torch's operators: a program has their two parts.

What a graph is given and returns as complex numbers are tensors with a last dimension of two, as torch sees them itself
(``view_as_real``). Between these an operator computes with parts where :mod:`fuser.frontends.complex_numbers` has a rule for
it; else torch computes it (a Fourier transform), on such views.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from math import prod
from typing import Any

from fuser.aten import of_parts
from fuser.aten import real_view
from fuser.frontends.complex_numbers import Pair
from fuser.frontends.complex_numbers import as_last
from fuser.frontends.complex_numbers import mul
from fuser.frontends.complex_numbers import same
from fuser.frontends.complex_rules import rule_of
from fuser.frontends.complex_rules import takes_whole
from fuser.frontends.composed import cut
from fuser.frontends.composed import reshaped
from fuser.frontends.imported import Held
from fuser.frontends.imported import Result
from fuser.frontends.short_times import divides
from fuser.frontends.torch_call import arguments
from fuser.frontends.torch_nodes import as_function
from fuser.frontends.torch_nodes import leaves
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref


@dataclass(frozen=True, eq=False)
class Complex:
    """A complex tensor of a program: its parts (tensors of the program, or constants), and both as one where they came so."""

    real: Any
    imag: Any
    both: Ref | None = None


def in_parts(b: Builder, both: Ref) -> Complex:
    """A complex tensor of both parts in a last dimension."""
    last = len(both.shape) - 1
    real, imag = (reshaped(b, cut(b, both, last, i, i + 1), both.shape[:-1]) for i in (0, 1))
    return Complex(real, imag, both)


def both_of(b: Builder, real: Ref, imag: Ref) -> Ref:
    """Both parts in a last dimension."""
    return b.op("concat", *(reshaped(b, x, (*x.shape, 1)) for x in (real, imag)), axis=len(real.shape))


def as_complex() -> tuple[Any, ...]:
    """The view of both parts that is the complex tensor."""
    import torch

    return torch.ops.aten.view_as_complex.default, (), {}, None


def is_complex(x: Any) -> bool:
    import torch

    return isinstance(x, Complex) or (isinstance(x, torch.Tensor) and x.is_complex())


# what a graph is given, and what it returns


@dataclass(frozen=True)
class Borders:
    """A graph between real tensors, the placeholders whose tensors are seen so, the places of such results, and what these show
    by their nodes."""

    graph: Any
    held: Mapping[str, Held | None]
    inputs: frozenset[str] = frozenset()
    results: frozenset[int] = frozenset()
    shown: Mapping[Any, Any] = field(default_factory=dict)

    def seen(self, results: Sequence[Result]) -> tuple[Result, ...]:
        """Results of which some are complex numbers."""
        return tuple(_complex(r) if i in self.results else r for i, r in enumerate(results))


def _complex(result: Result) -> Result:
    """A result of complex numbers: an output of their parts, a view, or a constant."""
    return replace(result, complex=True) if result.value is None else replace(result, value=of_parts(result.value))


def real_borders(module: Any, held: Mapping[str, Held | None]) -> Borders:
    """A graph with real tensors for the complex ones that it is given and returns; ``held`` are placeholders with values."""
    import torch

    aten = torch.ops.aten
    ends = [n for n in module.graph.nodes if n.op in ("placeholder", "output")]
    mine = [n.name for n in ends if n.op == "placeholder" and _is_complex(n)]
    returned = leaves(ends[-1].args[0])
    theirs = [i for i, n in enumerate(returned) if _is_complex(n)]
    if not mine and not theirs:
        return Borders(module, held)
    graph, copies, wholes = torch.fx.Graph(), dict[Any, Any](), dict[Any, Any]()
    graph.graph_copy(module.graph, copies)
    last = [copies[n] for n in ends if n.op == "placeholder"]
    for node in [n for n in last if n.name in mine]:
        value = node.meta["val"]
        with graph.inserting_after(last[-1]):
            whole = graph.call_function(aten.view_as_complex.default, (node,))
        whole.meta = dict(node.meta)
        node.replace_all_uses_with(whole, delete_user_cb=lambda user, whole=whole: user is not whole)
        node.meta["val"] = _fake(value, real_view)
        wholes[node] = whole
    copies = {n: wholes.get(copy, copy) for n, copy in copies.items()}
    found = [copies.get(n, n) if isinstance(n, torch.fx.Node) else n for n in returned]
    views = {copy: _viewed(graph, copy, returned[i]) for i, copy in enumerate(found) if i in theirs}
    found = [views[copy] if i in theirs else copy for i, copy in enumerate(found)]
    graph.output(tuple(found)).meta = dict(ends[-1].meta)
    values = {n: replace(h, value=real_view(h.value)) if h and n in mine else h for n, h in held.items()}
    shown = {view: copy for copy, view in views.items()}
    return Borders(torch.fx.GraphModule(module, graph), values, frozenset(mine), frozenset(theirs), shown)


def _viewed(graph: Any, node: Any, origin: Any) -> Any:
    """A complex result as torch's view of it."""
    import torch

    for call in (torch.ops.aten.resolve_conj.default, torch.ops.aten.view_as_real.default):
        made = graph.call_function(call, (node,))
        made.meta = {**origin.meta, "val": _fake(node.meta["val"], call)}
        node = made
    return node


def _is_complex(node: Any) -> bool:
    return is_complex(getattr(node, "meta", {}).get("val"))


def _fake(x: Any, call: Callable[[Any], Any]) -> Any:
    """What a call makes of a tensor without values."""
    import torch

    with getattr(x, "fake_mode", None) or nullcontext(), torch.no_grad():
        return call(x)


# operators


def computes(node: Any, values: Sequence[Any]) -> bool:
    """Whether a call has to do with complex numbers, of tensors of a program."""
    several = node.meta.get("val")
    made = several if isinstance(several, (list, tuple)) else [several]
    return any(isinstance(v, Complex) for v in values) or any(map(is_complex, [*values, *made]))


Inline = Callable[[Any, Sequence[Any]], Any]
"""Computes a graph of real tensors on values of a program."""


@dataclass(frozen=True)
class Parts:
    """Calls of complex numbers as graphs of real ones, each traced once."""

    builder: Builder
    inline: Inline
    constant: Callable[[Any, str], Ref]
    params: Mapping[str, Any]
    boths: dict[Complex, Ref] = field(default_factory=dict)
    traced: dict[Any, tuple[Any, Any] | None] = field(default_factory=dict)

    def of(self, node: Any, values: Mapping[Any, Any]) -> Any:
        """What a rule makes of a call, with ``values`` of its operands; None where there is none."""
        import torch

        rule, first = rule_of(node.target), next((values.get(a) for a in node.args[:1] if isinstance(a, torch.fx.Node)), None)
        if isinstance(first, Complex) and rule is same:
            return first
        if isinstance(first, Complex) and rule is as_last:
            return self.both(first)
        if rule is None or not self._divides(node, values):
            return None
        call, operands = as_function(node, rule)
        plain = str(torch.fx.map_arg((node.args, node.kwargs), lambda _: ...))
        return self._applied(call, (node.target, plain), operands, [values[n] for n in operands], node, takes_whole(node.target))

    def both(self, value: Complex) -> Ref:
        """Both parts of a complex tensor as one tensor, the same each time."""
        if value not in self.boths:
            self.boths[value] = self.whole(value, "parts")
        return self.boths[value]

    def whole(self, value: Any, name: str) -> Ref:
        """An operand of torch's: of complex numbers both parts."""
        if isinstance(value, Complex):
            return value.both or both_of(self.builder, *(self.whole(x, name) for x in (value.real, value.imag)))
        return value if isinstance(value, Ref) else self.constant(real_view(value), name)

    def _divides(self, node: Any, values: Mapping[Any, Any]) -> bool:
        """Whether nothing is in the way of a transform back: torch looks at the window's values."""
        if str(node.target) != "aten.istft.default":
            return True
        import torch

        args = arguments(node, node.args, node.kwargs)
        window = values.get(args["window"])
        if isinstance(window, Ref):
            window = torch.from_numpy(self.params[window.name]) if window.name in self.params else None
        return divides(args, window)

    def scaled(self, node: Any, x: Any, number: float) -> Any:
        """The value ``x`` of a node, times a number."""

        def call(z: Any) -> Any:
            return mul(z, number) if isinstance(z, Pair) else z * number

        return self._applied(call, number, [node], [x], node)

    def _applied(
        self,
        function: Callable[..., Any],
        name: Any,
        operands: Sequence[Any],
        values: Sequence[Any],
        at: Any,
        whole: bool = False,
    ) -> Any:
        """A function of pairs (of ``whole`` complex tensors), and of real ones; None where it knows no answer. Its operators are
        of the line of ``at``."""
        fakes = [n.meta["val"] for n in operands]
        key = name, tuple((tuple(x.shape), x.dtype, x.device) for x in fakes)
        if key not in self.traced:
            self.traced[key] = _traced(function, fakes, at, whole)
        if (found := self.traced[key]) is None:
            return None
        graph, form = found
        for n in graph.graph.nodes:
            n.meta["stack_trace"] = at.stack_trace
        rest = iter(self.inline(graph, [p for x in values for p in ([x] if whole else _parts(x))]))
        made = [_one(next(rest), next(rest)) if pair else next(rest) for pair in (form if isinstance(form, list) else [form])]
        return made if isinstance(form, list) else made[0]


def _traced(function: Callable[..., Any], fakes: Sequence[Any], at: Any, whole: bool) -> tuple[Any, Any] | None:
    """A function as a graph of the parts of what it is given, and which of its results (of its one result) are pairs."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    form: list[Any] = []

    def on_parts(*parts: Any) -> Any:
        rest = iter([_as_wide(p, at.meta["val"]) for p in parts])
        found = function(*[Pair(next(rest), next(rest)) if x.is_complex() and not whole else next(rest) for x in fakes])
        if found is NotImplemented:
            raise NotImplementedError
        several = list(found) if isinstance(found, (list, tuple)) else [found]
        several = [_like(x, y) for x, y in zip(several, at.meta["val"] if len(several) > 1 else [at.meta["val"]], strict=False)]
        pairs = [isinstance(x, Pair) for x in several]
        form[:] = [pairs if isinstance(found, (list, tuple)) else pairs[0]]
        return [p for x in several for p in ((x.real, x.imag) if isinstance(x, Pair) else (x,))]

    mode = next((x.fake_mode for x in fakes if hasattr(x, "fake_mode")), None)
    try:
        with mode or nullcontext(), torch.no_grad():
            like = [p for x in fakes for p in ([_part(x), _part(x)] if x.is_complex() and not whole else [x])]
            graph = make_fx(on_parts, pre_dispatch=True)(*like)
    except (NotImplementedError, RuntimeError, TypeError, ValueError, AttributeError, ArithmeticError, LookupError):
        return None
    return graph, form[0]


def _as_wide(x: Any, result: Any) -> Any:
    """An operand in float64 where the result is of such parts."""
    import torch

    wide = isinstance(result, torch.Tensor) and result.dtype == torch.complex128
    return x.double() if wide and x.dtype == torch.float32 else x


def _like(x: Any, result: Any) -> Any:
    """A result as torch has it, in shape and dtype."""
    import torch

    if not isinstance(x, (Pair, torch.Tensor)) or not isinstance(result, torch.Tensor):
        return x
    dtype, shape = result.dtype.to_real(), result.shape

    def alike(p: Any) -> Any:
        return p if p.is_complex() or (p.dtype, p.shape) == (dtype, shape) else p.to(dtype).expand(shape)

    return Pair(alike(x.real), alike(x.imag)) if isinstance(x, Pair) else alike(x)


def _part(x: Any) -> Any:
    """A part of a complex tensor without values, as one of its own."""
    import torch

    return torch.empty(x.shape, dtype=x.dtype.to_real(), device=x.device)


def _parts(x: Any) -> list[Any]:
    if isinstance(x, Complex):
        return [x.real, x.imag]
    return [x.real.contiguous(), x.imag.contiguous()] if is_complex(x) else [x]


def _one(real: Any, imag: Any) -> Any:
    """A complex tensor of parts; a constant of constants."""
    import torch

    constant = isinstance(real, torch.Tensor) and isinstance(imag, torch.Tensor)
    return torch.complex(real, imag) if constant else Complex(real, imag)


# Fourier transforms


def unscaled(node: Any, args: Sequence[Any]) -> tuple[tuple[Any, ...], float] | None:
    """The arguments of a Fourier transform that is not normalized, and the number by which its result is one that is; None of
    other calls. What follows multiplies besides."""
    name = str(node.target)
    if name not in [f"aten._fft_{kind}.default" for kind in ("c2c", "r2c", "c2r")] or not args[2]:
        return None
    x, dims = node.args[0].meta["val"], args[1]
    extents = [x.shape[d] for d in dims]
    if name.startswith("aten._fft_c2r"):
        extents[-1] = args[3]
    count = prod(int(n) for n in extents)
    return (*args[:2], 0, *args[3:]), count**-0.5 if args[2] == 1 else 1 / count
