"""A PyTorch module as a :class:`TensorProgram`, by way of ``torch.export``.

The op table drives the import: its ``torch`` column names the ATen operators of each entry. What the table cannot say, because
one ATen operator is several of ours or depends on its arguments, is a function here.

Tensors that depend neither on inputs nor on parameters (masks made in ``forward``, lifted literals, integer buffers) are
computed at import: one element is a number, a causal mask is the operator ``causal_mask``, the others become inputs with a
value.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from fuser.errors import ProgramError
from fuser.errors import UnsupportedError
from fuser.frontends.builder import Builder
from fuser.frontends.builder import Ref
from fuser.frontends.quotients import as_quotients
from fuser.frontends.torch_call import Call
from fuser.frontends.torch_call import dtype_name
from fuser.frontends.torch_call import is_tensor
from fuser.frontends.torch_call import to_numpy
from fuser.frontends.torch_rules import BY_ATEN
from fuser.frontends.torch_rules import BY_TABLE
from fuser.frontends.torch_rules import IDENTITY
from fuser.ir.opdef import names_of
from fuser.ir.ops import OPS
from fuser.ir.ops import Array
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import TensorProgram
from fuser.ir.scales import tie_scales
from fuser.runtime.aten import call as run_aten
from fuser.runtime.aten import described


@dataclass(frozen=True)
class Imported:
    """A module as a program; ``inputs`` are the names of the user's inputs in the order of ``example_inputs``, flattened.

    ``params`` has the value of every other input of the program: parameters and buffers under their names in the module,
    constants under the name of the node that makes them. bfloat16 values are kept in float32.
    """

    program: TensorProgram
    params: Mapping[str, Array] = field(compare=False)
    inputs: tuple[str, ...]


def from_torch(module: Any, example_inputs: tuple[Any, ...] = (), name: str | None = None) -> Imported:
    """Import a ``torch.nn.Module`` with the shapes and dtypes of ``example_inputs``, or a ``torch.export.ExportedProgram``.

    Raises :class:`ProgramError` where ``torch.export`` cannot trace the module or a dimension is dynamic, and
    :class:`UnsupportedError` naming the ATen operator and the line of the module where an operator has no counterpart.
    """
    import torch

    if isinstance(module, torch.export.ExportedProgram):
        exported, name = module, name or "torch"
    else:
        name = name or type(module).__name__
        exported = _export(module, tuple(example_inputs), name)
    if any(_mutates(n) for n in exported.graph.nodes):
        # without in-place operators; the other ones stay as they are
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            exported = exported.run_decompositions({})
    return _Importer(exported, name).run()


def _export(module: Any, example_inputs: tuple[Any, ...], name: str) -> Any:
    import torch

    try:
        return torch.export.export(module, example_inputs)
    # torch.export without dynamo runs the module on fake tensors and passes on what the module raises
    except (RuntimeError, TypeError, ValueError) as error:
        first = str(error).strip().split("\n", 1)[0]
        raise ProgramError(
            f"torch.export cannot trace {name}: {first}",
            "run the module on the example inputs; its control flow must not depend on the values of tensors",
        ) from error


def _mutates(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def _by_torch_name() -> dict[str, str]:
    """ATen operator, without the overload ``default``, to the op table's name."""
    return {t: op.name for op in OPS.values() for t in names_of(op.torch)}


class _Importer:
    """One walk over the nodes of an exported graph."""

    def __init__(self, exported: Any, name: str) -> None:
        self.exported, self.nodes = exported, list(exported.graph.nodes)
        self.builder = Builder(name, reserved=frozenset(n.name for n in self.nodes))
        self.values: dict[Any, Any] = {}
        self.params: dict[str, Array] = {}
        self.literals: set[str] = set()
        self.by_name = _by_torch_name()
        self.inputs: list[str] = []
        self.live = self._live()

    def _live(self) -> set[Any]:
        live = {n for n in self.nodes if n.op == "output"}
        for node in reversed(self.nodes):
            if node in live:
                live.update(node.all_input_nodes)
        return live

    def run(self) -> Imported:
        signature = self.exported.graph_signature
        if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
            changed = ", ".join([*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()])
            raise UnsupportedError(
                f"the module writes to {changed}: a program has no side effects", "return the new value, or call module.eval()"
            )
        outputs: dict[str, Ref] = {}
        specs = {s.arg.name: s for s in signature.input_specs}
        # the user's inputs first
        for node in sorted((n for n in self.nodes if n.op == "placeholder"), key=lambda n: not _is_user(specs[n.name])):
            self._placeholder(node, specs[node.name])
        for node in self.nodes:
            if node.op == "call_function" and node in self.live:
                self.values[node] = self._call(node)
            elif node.op == "get_attr":
                self.values[node] = getattr(self.exported.graph_module, node.target)
            elif node.op == "output":
                by_name = {n.name: n for n in node.all_input_nodes}
                for made in signature.user_outputs:
                    if made in by_name:
                        outputs[made] = self._tensor(by_name[made], self.values[by_name[made]])
        ones = {n for n in self.literals if self.params[n].size == 1 and self.params[n].item() == 1}
        program = as_quotients(tie_scales(self.builder.build(**outputs)), ones)
        return Imported(program, {n: v for n, v in self.params.items() if n in program.inputs}, tuple(self.inputs))

    def _placeholder(self, node: Any, spec: Any) -> None:
        import torch

        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            self.values[node] = value
            return
        shape = _static(node, value.shape)
        if _is_user(spec):
            self.values[node] = self.builder.input(node.name, shape, dtype_name(value.dtype, node.name))
            self.inputs.append(node.name)
            return
        if node not in self.live:
            return
        store = self.exported.constants if spec.target in self.exported.constants else self.exported.state_dict
        held = store[spec.target].detach()
        if spec.kind.name == "CONSTANT_TENSOR" or not held.is_floating_point():
            self.values[node] = held
            return
        self.params[spec.target] = to_numpy(held)
        self.values[node] = self.builder.input(spec.target, shape, dtype_name(held.dtype, spec.target))

    def _tensor(self, node: Any, value: Any) -> Ref:
        """A tensor of the program; a constant becomes an input with a value."""
        if isinstance(value, Ref):
            return value
        return self._constant(value, node.name)

    def _constant(self, value: Any, name: str) -> Ref:
        unique, i = name, 0
        while unique in self.builder.names:
            i += 1
            unique = f"{name}.{i}"
        self.params[unique] = to_numpy(value)
        self.literals.add(unique)
        return self.builder.input(unique, tuple(value.shape), dtype_name(value.dtype, unique))

    def _call(self, node: Any) -> Any:
        import torch
        from torch.fx.node import map_arg

        args = map_arg(node.args, self.values.__getitem__)
        kwargs = map_arg(node.kwargs, self.values.__getitem__)
        if node.target is operator.getitem:
            return args[0][args[1]]
        if inner := [a for a in args if isinstance(a, torch.fx.GraphModule)]:
            return self._inline(inner[0], args[args.index(inner[0]) + 1 :])
        if not isinstance(node.target, torch._ops.OpOverload):
            raise self._unsupported(node, str(node.target))
        aten = str(node.target).removeprefix("aten.").removesuffix(".default")
        result = node.meta.get("val")
        if isinstance(result, torch.Tensor):
            _static(node, result.shape)
        if not _has_ref((args, kwargs)):
            if torch.Tag.nondeterministic_seeded in node.target.tags:
                raise self._unsupported(node, str(node.target))
            return node.target(*args, **kwargs)
        if aten in IDENTITY:
            return args[0]
        table = self.by_name.get(aten, "")
        rule: Callable[[Call], Any] | None = BY_ATEN.get(aten) or BY_TABLE.get(table)
        if rule is None and table in OPS:
            rule = Call.by_entry
        if rule is None:
            return self._left(node, args, kwargs)
        call = Call(self.builder, node, aten, table, _arguments(node, args, kwargs), result, self._constant, self._where(node))
        value = rule(call)
        if value is None:
            return self._left(node, args, kwargs)
        moves = table in OPS and (OPS[table].kind in ("view", "data", "library") or OPS[table].typed == "truth")
        if isinstance(value, Ref) and not moves and value.tensor.dtype not in FLOAT_DTYPES:
            return self._left(node, args, kwargs)
        return value

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

    def _left(self, node: Any, args: Any, kwargs: Any) -> Any:
        """An operator that the table lacks is torch's to compute: now where parameters alone decide it, else at every call."""
        import torch

        result = node.meta.get("val")
        if result is None:  # an assertion
            return None
        try:
            detail, tensors = described(args, kwargs, is_tensor)
        except TypeError as error:
            raise self._unsupported(node, f"{node.target} with {error}") from error
        refs = [t if isinstance(t, Ref) else self._constant(t, f"{node.name}.constant") for t in tensors]
        callee = str(node.target)
        if torch.Tag.nondeterministic_seeded in node.target.tags or not refs:
            raise self._unsupported(node, callee)
        if all(r.name in self.params for r in refs):
            values = [torch.from_numpy(self.params[r.name]).to(getattr(torch, r.tensor.dtype)) for r in refs]
            return run_aten(callee, detail, values)
        results = [result] if isinstance(result, torch.Tensor) else list(result)
        made = [
            self.builder.op(
                "opaque",
                *refs,
                dtype=dtype_name(r.dtype, node.name),
                callee=callee,
                detail=detail,
                shape=_static(node, r.shape),
                field=-1 if isinstance(result, torch.Tensor) else i,
            )
            for i, r in enumerate(results)
        ]
        return made[0] if isinstance(result, torch.Tensor) else made

    @staticmethod
    def _where(node: Any) -> str:
        """The line of the module, and the submodule."""
        trace = [line.strip() for line in (node.stack_trace or "").strip().splitlines()]
        files = [i for i, line in enumerate(trace) if line.startswith("File ")]
        # the innermost line outside torch itself is the user's
        own = [i for i in files if "/torch/nn/" not in trace[i]] or files
        place = " ".join(trace[own[-1] : own[-1] + 2]) if own else "an unknown line"
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        if stack and stack[-1][0]:
            kind = stack[-1][1]
            place += f" (submodule {stack[-1][0]}, a {getattr(kind, '__name__', str(kind)).rsplit('.', 1)[-1]})"
        return place

    def _unsupported(self, node: Any, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"the operator {what} has no counterpart in the op table: {self._where(node)}",
            "import the part of the module around it (export a submodule), or add the operator to fuser/ir/ops.py",
        )


def _is_user(spec: Any) -> bool:
    return spec.kind.name == "USER_INPUT"


def _has_ref(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_ref, value))
    if isinstance(value, dict):
        return any(map(_has_ref, value.values()))
    return isinstance(value, Ref)


def _arguments(node: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by the names of the ATen schema, defaults filled in."""
    found = {a.name: a.default_value for a in node.target._schema.arguments if a.has_default_value()}
    positional = [a.name for a in node.target._schema.arguments if not a.kwarg_only]
    return {**found, **dict(zip(positional, args, strict=False)), **kwargs}


def _static(node: Any, shape: Any) -> tuple[int, ...]:
    for i, extent in enumerate(shape):
        if not isinstance(extent, int):
            raise ProgramError(
                f"dimension {i} of {node.name!r} is dynamic ({extent}): shapes must be static",
                "export without dynamic_shapes, at the sizes that you deploy",
            )
        if extent < 1:
            raise ProgramError(f"dimension {i} of {node.name!r} is empty", "give example inputs of the sizes that you deploy")
    return tuple(shape)
