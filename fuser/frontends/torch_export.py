"""A PyTorch module as a :class:`TensorProgram`, by way of ``torch.export``.

The op table drives the import: its ``torch`` column names the ATen operators of each entry. What the table cannot say, because
one ATen operator is several of ours or depends on its arguments, is a function here.

Tensors that depend neither on inputs nor on parameters (masks made in ``forward``, literals, integer buffers) are computed at
import: one element is a number, a causal mask is the operator ``causal_mask``, the others become inputs with a value.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from fuser.aten import call as run_aten
from fuser.aten import described
from fuser.aten import of_parts
from fuser.errors import ProgramError
from fuser.errors import RandomError
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.frontends.composed import reshaped
from fuser.frontends.imported import Called
from fuser.frontends.imported import Held
from fuser.frontends.imported import Imported
from fuser.frontends.imported import Result
from fuser.frontends.imported import Views
from fuser.frontends.imported import held_by
from fuser.frontends.imported import named_apart
from fuser.frontends.keeping import Owner
from fuser.frontends.keeping import changed_by_calls
from fuser.frontends.keeping import without_held
from fuser.frontends.keeping import writes
from fuser.frontends.quotients import as_quotients
from fuser.frontends.quotients import strictly
from fuser.frontends.roundings import with_roundings
from fuser.frontends.torch_call import Call
from fuser.frontends.torch_call import arguments
from fuser.frontends.torch_call import aten_name
from fuser.frontends.torch_call import dtype_name
from fuser.frontends.torch_call import fields_read
from fuser.frontends.torch_call import is_tensor
from fuser.frontends.torch_call import place_of
from fuser.frontends.torch_call import to_numpy
from fuser.frontends.torch_complex import Complex
from fuser.frontends.torch_complex import Parts
from fuser.frontends.torch_complex import as_complex
from fuser.frontends.torch_complex import computes
from fuser.frontends.torch_complex import in_parts
from fuser.frontends.torch_complex import is_complex
from fuser.frontends.torch_complex import real_borders
from fuser.frontends.torch_complex import unscaled
from fuser.frontends.torch_nodes import draws
from fuser.frontends.torch_nodes import is_empty
from fuser.frontends.torch_nodes import leaves
from fuser.frontends.torch_nodes import needed
from fuser.frontends.torch_nodes import no_dense
from fuser.frontends.torch_nodes import sound
from fuser.frontends.torch_nodes import static
from fuser.frontends.torch_norms import fold
from fuser.frontends.torch_pieces import by_strides
from fuser.frontends.torch_pieces import pieces
from fuser.frontends.torch_pieces import to_be_decomposed
from fuser.frontends.torch_pieces import without_derivatives
from fuser.frontends.torch_rules import BY_ATEN
from fuser.frontends.torch_rules import BY_TABLE
from fuser.frontends.torch_rules import IDENTITY
from fuser.frontends.torch_rules import empty
from fuser.frontends.torch_shapes import misstated
from fuser.frontends.torch_trace import traced
from fuser.frontends.torch_trace import without_writes
from fuser.frontends.torch_views import order_of
from fuser.frontends.torch_views import shown
from fuser.frontends.torch_whole import traced_as
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.opdef import names_of
from fuser.ir.ops import OPS
from fuser.ir.ops import Array
from fuser.ir.scales import tie_scales
from fuser.ir.subprogram import living

MODES = frozenset({"wrap_with_set_grad_enabled", "wrap_with_autocast", "wrap"})
"""Operators of a graph that compute what it does. Others (cond, map, scan) choose or repeat."""


def from_torch(
    module: Any,
    example_inputs: tuple[Any, ...] = (),
    name: str | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
) -> Imported:
    """Import a ``torch.nn.Module`` with the shapes and dtypes of ``example_inputs`` (and of the keyword arguments
    ``example_kwargs``), or a ``torch.export.ExportedProgram``.

    Raises :class:`ProgramError` where ``torch.export`` cannot trace the module or a dimension is dynamic, and
    :class:`UnsupportedError` naming the ATen operator and the line of the module where an operator has no counterpart.
    """
    import torch

    form, owner = None, None
    if isinstance(module, torch.export.ExportedProgram):
        exported, name = module, name or "torch"
    else:
        form = inspect.signature(module.forward)
        name = name or type(module).__name__
        exported, owner = traced(module, tuple(example_inputs), dict(example_kwargs or {}), name), Owner(module)
    without_derivatives(exported, name)
    if to_be_decomposed(exported.graph) or (exported is module and writes(exported)):  # the graph of another stays as it is
        exported = without_writes(exported)
    signature = exported.graph_signature
    if changed := changed_by_calls(exported):
        raise UnsupportedError(
            f"the module writes to {', '.join(changed)}: a program has no side effects",
            "return the new value, call module.eval(), or use torch.compile(module, backend='mufuser')",
        )
    importer = _Importer(exported.graph_module, name, {s.arg.name: held_by(exported, s) for s in signature.input_specs})
    returns = without_held(exported, importer.is_user)
    known, results = importer.run()
    users = [n for n in importer.nodes if n.op == "placeholder" and importer.is_user(n)]
    names = tuple(n.name if n.name in importer.inputs else "" for n in users)
    fixed = tuple(None if n.name in importer.inputs else importer.values[n] for n in users)
    parts = importer.borders.inputs.intersection(importer.inputs)
    called = Called(exported.call_spec.in_spec, returns, results, names, fixed, form, owner, parts)
    return replace(known, called=called)


def from_graph(module: Any, held: Mapping[str, Any], name: str) -> tuple[Imported, tuple[Result, ...]]:
    """Import a graph of ATen operators without side effects, a ``torch.fx.GraphModule`` whose nodes have fake tensors, and what
    it returns, in order. ``held`` are placeholders whose tensors never change, by name."""
    return _Importer(module, name, {n: Held(n, value) for n, value in held.items()}).run()


def _by_torch_name() -> dict[str, str]:
    """ATen operator, without the overload ``default``, to the op table's name."""
    return {t: op.name for op in OPS.values() for t in names_of(op.torch)}


PIECES = 24
"""Most operators that one of torch becomes: what is more (a recurrent network) is better left to torch."""


class _Importer:
    """One walk over the nodes of an exported graph."""

    def __init__(self, module: Any, name: str, held: Mapping[str, Held | None]) -> None:
        self.borders = real_borders(module, named_apart(held))
        self.module, self.held = self.borders.graph, self.borders.held
        self.nodes = list(self.module.graph.nodes)
        self.builder = Builder(name, reserved=frozenset(n.name for n in self.nodes))
        self.values: dict[Any, Any] = {}
        self.params: dict[str, Array] = {}
        self.literals: set[str] = set()
        self.by_name = _by_torch_name()
        self.inputs: list[str] = []
        self.live = needed(self.nodes)
        self.parts = Parts(self.builder, self._inline, self._constant, self.params)

    def is_user(self, node: Any) -> bool:
        return self.held.get(node.name) is None

    def run(self) -> tuple[Imported, tuple[Result, ...]]:
        """The program and the results of the graph, in order."""
        results: list[Result] = []
        outputs: dict[str, Ref] = {}
        for node in sorted((n for n in self.nodes if n.op == "placeholder"), key=lambda n: not self.is_user(n)):  # users' first
            self._placeholder(node)
        for node in self.nodes:
            if node.op == "call_function" and node in self.live:
                self.values[node] = self._call(node)
            elif node.op == "get_attr":
                self.values[node] = getattr(self.module, node.target)
            elif node.op == "output":
                results = [self._result(n, outputs) for n in leaves(node.args[0])]
        ones = {n for n in self.literals if self.params[n].size == 1 and self.params[n].item() == 1}
        program = living(self.builder.build(**outputs), {*self.builder.inputs, *(r.base for r in results)})
        program = with_roundings(strictly(as_quotients(tie_scales(program), ones)))
        params = {n: v for n, v in self.params.items() if n in program.inputs}
        named = {ref.name: name for name, ref in outputs.items()}  # as the program has them now
        results = [replace(r, base=named.get(r.base, r.base)) for r in results]
        whole = traced_as(self.module, program, self.values, {n: h for n, h in self.held.items() if h}, named)
        return Imported(program, params, tuple(self.inputs), traced=whole), self.borders.seen(results)

    def _result(self, node: Any, outputs: dict[str, Ref]) -> Result:
        """A result of the graph; what is computed is an output of the program, once, and what is only passed on is copied."""
        import torch

        value = self.values[node] if isinstance(node, torch.fx.Node) else node
        if not is_tensor(value):
            return Result(value=value)
        if 0 in value.shape and not isinstance(value, Ref):  # nothing is computed of it
            return Result(value=torch.empty(tuple(value.shape), dtype=value.dtype, device=node.meta["val"].device))
        ref, (base, views) = self._tensor(node, value), self._shown(node)
        if ref.name in self.builder.inputs:
            ref = self.builder.op("reshape", ref, shape=ref.shape)
            self.values[node] = ref
        name = next((n for n, r in outputs.items() if r is ref), node.name)
        if name in self.builder.names:  # a placeholder's
            name = ref.name
        outputs[name] = ref
        return Result(name, None, base, views, order_of(node.meta["val"]))

    def _shown(self, node: Any) -> tuple[str, Views]:
        """The tensor of which the module returns views, or the input that it returns; none where that is a tensor of its own."""
        origin, views = shown(self.borders.shown.get(node, node))
        if origin.name in self.inputs:
            return origin.name, views
        if not views or (value := self.values.get(origin)) is None:
            return "", ()
        if is_complex(value):
            return (self.parts.both(value).name, (as_complex(), *views)) if isinstance(value, Complex) else ("", ())
        ref = self._tensor(origin, value)
        if ref.name in self.builder.inputs:  # what the module holds is returned as a copy
            ref = self.values[origin] = self.builder.op("reshape", ref, shape=ref.shape)
        return ref.name, views

    def _placeholder(self, node: Any) -> None:
        import torch

        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            self.values[node] = value
            return
        kept = self.held.get(node.name)
        if value.layout is not torch.strided:
            raise no_dense(node.name, value)
        if kept is None:
            shape = static(node.name, value.shape)
            self.values[node] = self.builder.input(node.name, shape, dtype_name(value.dtype, node.name))
            self.inputs.append(node.name)
            return
        if node not in self.live:
            return
        tensor, shape = kept.value.detach(), tuple(value.shape)
        if tensor.is_meta:
            raise UsageError(
                f"{kept.name} is on the meta device: it has no values",
                "load them first: module.to_empty(device='cpu'), then load_state_dict",
            )
        if kept.fixed or not tensor.is_floating_point() or 0 in shape:
            self.values[node] = tensor
            return
        self.params[kept.name] = to_numpy(tensor)
        self.values[node] = self.builder.input(kept.name, shape, dtype_name(tensor.dtype, kept.name))

    def _tensor(self, node: Any, value: Any) -> Ref:
        """A tensor of the program; a constant becomes an input with a value."""
        return value if isinstance(value, Ref) else self._constant(value, node.name)

    def _constant(self, value: Any, name: str) -> Ref:
        unique, i = name, 0
        while unique in self.builder.names:
            i += 1
            unique = f"{name}.{i}"
        self.params[unique] = to_numpy(value)
        self.literals.add(unique)
        return self.builder.input(unique, static(unique, value.shape), dtype_name(value.dtype, unique))

    def _call(self, node: Any) -> Any:
        import torch
        from torch.fx.node import map_arg

        args = map_arg(node.args, self.values.__getitem__)
        kwargs = map_arg(node.kwargs, self.values.__getitem__)
        if node.target is operator.getitem:
            return args[0][args[1]]
        if str(node.target) in MODES:
            inner = next(i for i, a in enumerate(args) if isinstance(a, torch.fx.GraphModule))
            return self._inline(args[inner], args[inner + 1 :])
        if not isinstance(node.target, torch._ops.OpOverload):
            raise self._unsupported(node, str(node.target))
        result, operands = node.meta.get("val"), leaves([*args, *kwargs.values()])
        if isinstance(result, torch.Tensor) and is_empty(node.name, result):
            return empty(result)  # what is left over where a rotary embedding turns all of a head
        if not any(isinstance(v, (Ref, Complex)) for v in operands):
            if draws(node, args, kwargs):
                raise self._unsupported(node, str(node.target))
            return node.target(*args, **kwargs)
        if computes(node, operands):
            return self._complex(node, args, kwargs)
        return self._real(node, args, kwargs)

    def _real(self, node: Any, args: Any, kwargs: Any) -> Any:
        """An operator on real numbers: by a rule, the table, or torch's."""
        aten = aten_name(node.target)
        result = node.meta.get("val")
        if aten in IDENTITY:
            return args[0]
        table = self.by_name.get(aten, "")
        rule: Callable[[Call], Any] | None = BY_ATEN.get(aten) or BY_TABLE.get(table)
        if rule is None and table in OPS:
            rule = fold if OPS[table].over_axes else Call.by_entry
        before, value = len(self.builder.since(0)), None
        if rule is not None:
            call = Call(self.builder, node, aten, table, arguments(node, args, kwargs), result, self._constant, place_of(node))
            try:
                value = call.whole(rule(call))
            except (UnsupportedError, ProgramError):
                if draws(node, args, kwargs):
                    raise
        if value is None or (isinstance(value, Ref) and not sound(value, self.builder, before)):
            self._undo(before)
            return self._left(node, args, kwargs)
        return self._shaped(value, result)

    def _shaped(self, value: Any, result: Any) -> Any:
        """A result with the dimensions that it should have: constants of one element are numbers here, whatever their rank."""
        other = isinstance(value, Ref) and value.shape != tuple(result.shape) and prod(value.shape) == result.numel()
        return reshaped(self.builder, value, tuple(result.shape)) if other else value

    def _inline(self, module: Any, args: Sequence[Any]) -> Any:
        """A part of the graph under another mode of autograd or autocast."""
        places = iter(args)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = next(places)
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            elif node.op == "output":
                from torch.fx.node import map_arg

                return map_arg(node.args[0], self.values.__getitem__)
        raise AssertionError("a graph has an output")

    def _complex(self, node: Any, args: Any, kwargs: Any) -> Any:
        """An operator on complex numbers: of parts, or torch's."""
        value, plain = self.parts.of(node, self.values), unscaled(node, args)
        if value is not None or plain is None:
            return self._left(node, args, kwargs) if value is None else value
        args, number = plain
        return self.parts.scaled(node, self._left(node, args, kwargs), number)

    def _left(self, node: Any, args: Any, kwargs: Any) -> Any:
        """An operator that the table lacks is torch's to compute: now where parameters alone decide it, else at every call."""
        import torch
        from torch.fx.node import map_arg

        result, read = node.meta.get("val"), fields_read(node)
        if isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise ProgramError(f"the number {node.name!r} depends on values", "leave it a tensor, or export the part around it")
        if result is None:  # an assertion
            return None
        try:
            detail, tensors = described(args, kwargs, lambda v: "complex" if is_complex(v) else "tensor" if is_tensor(v) else "")
        except TypeError as error:
            raise self._unsupported(node, f"{node.target} with {error}") from error
        refs = [self.parts.whole(t, f"{node.name}.constant") for t in tensors]
        callee = str(node.target)
        if draws(node, args, kwargs) or not refs or by_strides(node):
            raise self._unsupported(node, callee)
        if all(r.name in self.params for r in refs):
            values = [torch.from_numpy(self.params[r.name]).to(getattr(torch, r.tensor.dtype)) for r in refs]
            found = run_aten(callee, detail, values)
            if isinstance(result, torch.Tensor):
                return of_parts(found) if is_complex(result) else found
            return [of_parts(x) if is_complex(r) else x for x, r in zip(found, result, strict=True)]
        known = self._pieces(node, args, kwargs)
        if known is not None:
            return known
        fakes: Any = map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
        if other := misstated(node.target, fakes[0], fakes[1], result):
            raise self._unsupported(node, f"{callee} with results of shapes {other},")
        if isinstance(result, torch.Tensor):
            return self._opaque(node, result, -1, refs, callee, detail)
        return [self._opaque(node, r, i, refs, callee, detail) if i in read else None for i, r in enumerate(result)]

    def _pieces(self, node: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The operator as torch itself makes it of others, where these are few, known, and at most one of them is a library's;
        not where it gathers by indices, for which torch has kernels of its own."""
        flat = [v for v in leaves([list(args), *kwargs.values()]) if is_tensor(v) or isinstance(v, Complex)]
        parts = computes(node, flat)
        module = None if parts and not node.target._can_decompose() else pieces(node, PIECES)
        if module is None:
            return None
        before = len(self.builder.since(0))
        try:
            value = self._inline(module, flat)
        except (UnsupportedError, ProgramError):
            value = None
        ops = [n.op for n in self.builder.since(before)]
        gone = {"opaque", "index", "index_put"}.intersection(ops) or sum(OPS[op].kind == "library" for op in ops) > 1
        gone = ops.count("opaque") > 1 if parts else gone
        if value is None or gone or len(ops) > PIECES:
            self._undo(before)
            return None
        return value

    def _opaque(self, node: Any, result: Any, field: int, refs: Sequence[Ref], callee: str, detail: str) -> Ref | Complex:
        shape, dtype = static(node.name, result.shape), dtype_name(result.dtype.to_real(), node.name)
        lying = (*shape, 2) if is_complex(result) else shape
        made = self.builder.op("opaque", *refs, dtype=dtype, callee=callee, detail=detail, shape=lying, field=field)
        return made if lying == shape else in_parts(self.builder, made)

    def _undo(self, before: int) -> None:
        self.builder.undo(before)
        self.parts.boths.clear()

    def _unsupported(self, node: Any, what: str) -> UnsupportedError:
        kind = RandomError if hasattr(node.target, "tags") and draws(node, node.args, node.kwargs) else UnsupportedError
        return kind(
            f"the operator {what} has no counterpart in the op table: {place_of(node)}",
            "import the part of the module around it (export a submodule), or add the operator to fuser/ir/ops.py",
        )
