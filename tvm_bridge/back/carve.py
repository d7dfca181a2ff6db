"""Carving regions out of a live Relay module.

Each region becomes a call of a global function that the external compiler ``mufuser`` owns. The regions were found on our own
graph of the same module; they name its parts by position.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

import tvm
from tvm import relay

from fuser.errors import ProgramError
from tvm_bridge.to_program.numbering import ExprRef
from tvm_bridge.to_program.numbering import Key
from tvm_bridge.to_program.numbering import Numbering
from tvm_bridge.to_program.numbering import children_of
from tvm_bridge.to_program.numbering import key_of
from tvm_bridge.to_program.numbering import number
from tvm_bridge.to_program.numbering import op_name
from tvm_bridge.to_program.numbering import post_order

COMPILER = "mufuser"

# Operators that move or create data and compute nothing: a region may take in any of them unasked, and others may have a copy.
FREE = frozenset(
    (
        *(
            "annotation.stop_fusion",
            "broadcast_to",
            "broadcast_to_like",
            "cast",
            "collapse_sum_like",
            "copy",
            "expand_dims",
            "full",
        ),
        *("full_like", "nn.batch_flatten", "nn.dropout", "ones", "ones_like", "reshape", "reshape_like", "split", "squeeze"),
        *("strided_slice", "transpose", "zeros", "zeros_like"),
    )
)


@dataclass(frozen=True)
class RegionSpec:
    """A region to carve: the places of its calls in post-order, its inputs in the order of the kernels' arguments, its outputs.

    What the slice from ``outputs`` back to ``inputs`` reaches and no input has a part in (parameters, constants of more than one
    element, what is computed from them or from other inputs of the model) stays outside and is appended to the inputs. ``calls``
    may leave out operators that only move data; every other call between inputs and outputs must be listed.

    With ``weights`` the function is what kernels alone compute: it takes the inputs and these, nothing else, and its body is
    zeros. Regions of different ``key`` have different kernels, and share no function.
    """

    name: str
    calls: frozenset[int]
    inputs: tuple[ExprRef, ...]
    outputs: tuple[ExprRef, ...]
    weights: tuple[Any, ...] = ()
    key: str = ""


def _is_free(expr: Any) -> bool:
    return not isinstance(expr, relay.Call) or (isinstance(expr.op, tvm.ir.Op) and expr.op.name in FREE)


def _may_repeat(expr: Any) -> bool:
    """Whether a call may be computed in several places: element-wise operators, moves and reductions, by Relay's own classes."""
    if _is_free(expr):
        return True
    pattern = expr.op.get_attr("TOpPattern") if isinstance(expr.op, tvm.ir.Op) else None
    return pattern is not None and int(pattern) <= relay.op.OpPattern.COMM_REDUCE


def _is_scalar(constant: Any) -> bool:
    return all(int(extent) == 1 for extent in constant.data.shape)


@dataclass(frozen=True)
class _Region:
    """A region resolved against a module: ``body`` in post-order, ``inputs`` complete."""

    spec: RegionSpec
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    body: tuple[Any, ...]


def _slice(outputs: Sequence[Any], stops: Collection[Key], numbering: Numbering) -> list[Any]:
    """What the outputs are computed from, back to the places ``stops``, in post-order and without these."""
    root = relay.Tuple(list(outputs))
    below = post_order(root, lambda e: () if numbering.place(e) in stops else numbering.operands(e))
    return [expr for expr in below if numbering.place(expr) not in stops and expr is not root]


def _dependent(exprs: Sequence[Any], sources: Collection[Key], numbering: Numbering) -> set[Key]:
    """Places of ``sources`` and of the expressions, given in post-order, that depend on one of them."""
    found = set(sources)
    for expr in exprs:
        if any(numbering.place(o) in found for o in numbering.operands(expr)):
            found.add(numbering.place(expr))
    return found


def _fixed(exprs: Sequence[Any], numbering: Numbering) -> set[Key]:
    """Places of single numbers, and of what is computed from them alone."""
    found: set[Key] = set()
    for expr in exprs:
        if isinstance(expr, relay.Var | relay.Constant):
            known = isinstance(expr, relay.Constant) and _is_scalar(expr)
        else:
            single = isinstance(expr.checked_type, relay.TensorType) and all(int(e) == 1 for e in expr.checked_type.shape)
            known = single and _may_repeat(expr) and all(numbering.place(o) in found for o in numbering.operands(expr))
        if known:
            found.add(numbering.place(expr))
    return found


def _resolve(spec: RegionSpec, numbering: Numbering) -> _Region:
    """The slice between outputs and inputs; raises :class:`ProgramError` where it does not match the region's calls."""
    inputs = [numbering.resolve(numbering.find(ref)) for ref in spec.inputs]
    outputs = [numbering.resolve(numbering.find(ref)) for ref in spec.outputs]
    if not outputs:
        raise ProgramError(f"region {spec.name!r} has no output")
    stops = {numbering.place(expr) for expr in inputs}
    if overlap := [ref for ref, expr in zip(spec.outputs, outputs, strict=True) if numbering.place(expr) in stops]:
        raise ProgramError(f"{overlap[0]} is both an input and an output of region {spec.name!r}")
    whole = _slice(outputs, stops, numbering)
    live = _dependent(whole, stops, numbering)
    if apart := [ref for ref, expr in zip(spec.outputs, outputs, strict=True) if numbering.place(expr) not in live]:
        raise ProgramError(f"{apart[0]}, an output of region {spec.name!r}, does not depend on the region's inputs")
    # What depends on no input (masks, tables of angles, weights in another shape) is computed once, outside, for all regions.
    inner = live | _fixed(whole, numbering)
    cut = {numbering.place(e) for e in whole if numbering.place(e) not in inner and not isinstance(e, relay.Tuple)}
    part = _slice(outputs, stops | cut, numbering)
    wanted = {numbering.place(o) for e in part for o in numbering.operands(e)}
    extra = {numbering.place(e): e for e in whole if numbering.place(e) in wanted & cut}
    for expr in part:
        if isinstance(expr, relay.Call) and numbering.place(expr) in live and not _is_free(expr):
            index = numbering.call_index[key_of(expr)]
            if index not in spec.calls:
                raise ProgramError(
                    f"region {spec.name!r} needs {op_name(expr)} (call {index}), which is not among its calls",
                    "add the call to the region, or its result to the region's inputs",
                )
    reached = {numbering.call_index[key_of(e)] for e in whole if isinstance(e, relay.Call)}
    for index in sorted(spec.calls - reached):
        call = numbering.find(ExprRef("call", index))
        if not _is_free(call):
            raise ProgramError(
                f"call {index} ({op_name(call)}) of region {spec.name!r} is not between its inputs and its outputs"
            )
    return _Region(spec, (*inputs, *extra.values()), tuple(outputs), tuple(part))


def _rebuild(expr: Any, operands: Sequence[Any]) -> Any:
    if isinstance(expr, relay.Call):
        return relay.Call(expr.op, list(operands), expr.attrs, expr.type_args, expr.span)
    if isinstance(expr, relay.Tuple):
        return relay.Tuple(list(operands))
    if isinstance(expr, relay.TupleGetItem):
        return relay.TupleGetItem(operands[0], expr.index)
    return expr


def _type_of(expr: Any) -> Any:
    if isinstance(expr, relay.TupleGetItem):
        return _type_of(expr.tuple_value).fields[expr.index]
    return expr.checked_type


def _function(region: _Region, numbering: Numbering) -> Any:
    """The region as a closed Relay function."""
    params = [relay.Var(f"input{i}", _type_of(expr)) for i, expr in enumerate(region.inputs)]
    made: dict[Key, Any] = {numbering.place(expr): param for expr, param in zip(region.inputs, params, strict=True)}
    for expr in region.body:
        made[numbering.place(expr)] = _rebuild(expr, [made[numbering.place(o)] for o in numbering.operands(expr)])
    results = [made[numbering.place(expr)] for expr in region.outputs]
    types = [_type_of(expr) for expr in region.outputs]
    single = len(results) == 1
    return relay.Function(params, results[0] if single else relay.Tuple(results), types[0] if single else relay.TupleType(types))


@dataclass(frozen=True)
class _Symbol:
    variable: Any
    function: Any
    regions: list[str]


def _name_functions(regions: Sequence[_Region], numbering: Numbering, taken: set[str], share: bool) -> list[_Symbol]:
    """One global function for each region, or for each set of equal regions."""
    found: list[_Symbol] = []
    by_hash: dict[tuple[int, str], list[_Symbol]] = {}
    for region in regions:
        function = _function(region, numbering)
        bucket = by_hash.setdefault((int(tvm.ir.structural_hash(function)), region.spec.key), [])
        same = next((s for s in bucket if share and tvm.ir.structural_equal(s.function, function)), None)
        if same is not None:
            same.regions.append(region.spec.name)
            found.append(same)
            continue
        base = symbol = f"{COMPILER}_{re.sub(r'[^0-9A-Za-z_]', '_', region.spec.name)}"
        suffix = 1
        while symbol in taken:
            symbol, suffix = f"{base}_{suffix}", suffix + 1
        taken.add(symbol)
        found.append(_Symbol(relay.GlobalVar(symbol), function, [region.spec.name]))
        bucket.append(found[-1])
    return found


def _kernels_alone(region: _Region) -> Any:
    """A function of the region's inputs and weights in the place of its own: only what kernels make of them counts."""
    types = [*map(_type_of, region.inputs), *(relay.TensorType(w.shape, w.dtype) for w in region.spec.weights)]
    params = [relay.Var(f"input{i}", t) for i, t in enumerate(types)]
    results = [relay.zeros(t.shape, t.dtype) for t in map(_type_of, region.outputs)]
    return relay.Function(params, results[0] if len(results) == 1 else relay.Tuple(results))


def _owners(regions: Sequence[_Region], numbering: Numbering) -> dict[Key, str]:
    """Which region computes each call that is too much to repeat; raises where two do."""
    owner: dict[Key, str] = {}
    for region in regions:
        for expr in region.body:
            if isinstance(expr, relay.Call) and not _may_repeat(expr):
                other = owner.setdefault(key_of(expr), region.spec.name)
                if other != region.spec.name:
                    index = numbering.call_index[key_of(expr)]
                    raise ProgramError(f"call {index} ({op_name(expr)}) is in the regions {other!r} and {region.spec.name!r}")
    return owner


def _stitch(regions: Sequence[_Region], symbols: Sequence[_Symbol], numbering: Numbering) -> Any:
    """The body of ``main`` with a call in the place of each region; raises :class:`ProgramError` if a region is not convex."""
    replaced = {numbering.place(out): (i, j) for i, region in enumerate(regions) for j, out in enumerate(region.outputs)}
    owner = _owners(regions, numbering)
    made: dict[Key, Any] = {}
    calls: dict[int, Any] = {}
    active: set[int] = set()
    stack: list[tuple[Any, bool]] = [(numbering.resolve(numbering.function.body), False)]
    while stack:
        expr, expanded = stack.pop()
        place = numbering.place(expr)
        if place in made:
            continue
        i, j = replaced.get(place, (-1, -1))
        operands = regions[i].inputs if i >= 0 else numbering.operands(expr)
        if not expanded:
            if i < 0 and place in owner:
                raise ProgramError(
                    f"the result of {op_name(expr)} (call {numbering.call_index[place]}) "
                    f"is used outside its region {owner[place]!r}",
                    "make it an output of the region, or leave it out",
                )
            if i in active and i not in calls:
                raise ProgramError(
                    f"an input of region {regions[i].spec.name!r} depends on one of its outputs: the region is not convex",
                    "take in the operators between them, or split the region",
                )
            stack.append((expr, True))
            if i not in calls:
                if i >= 0:
                    active.add(i)
                stack.extend((operand, False) for operand in operands)
            continue
        if i < 0:
            made[place] = _rebuild(expr, [made[numbering.place(o)] for o in operands])
            continue
        if i not in calls:
            weights = [relay.const(w) for w in regions[i].spec.weights]
            calls[i] = relay.Call(symbols[i].variable, [*(made[numbering.place(o)] for o in operands), *weights])
        made[place] = calls[i] if len(regions[i].outputs) == 1 else relay.TupleGetItem(calls[i], j)
    return made[numbering.place(numbering.resolve(numbering.function.body))]


def carve(mod: Any, regions: Sequence[RegionSpec], share: bool = True) -> Any:
    """A module in which every region is a call of a global function that the external compiler ``mufuser`` compiles.

    The function's body is the region's own Relay expression, so that the module stays valid without the compiler. Weights are
    arguments, and with ``share`` equal regions (all layers of a model) are calls of one function: :func:`region_symbols` tells
    which. Relay's own ``Inline`` pass takes one call of a function only, so compile shared ones through :func:`inline_regions`.
    Lets of ``main`` are inlined. Raises :class:`ProgramError` for regions that overlap, leak, are not convex or do not belong
    to the module.
    """
    typed = relay.transform.InferType()(mod)
    numbering = number(typed)
    names = [spec.name for spec in regions]
    if len(set(names)) != len(names):
        raise ProgramError("two regions have the same name")
    found = [_resolve(spec, numbering) for spec in regions]
    symbols = _name_functions(found, numbering, {str(v.name_hint) for v in typed.get_global_vars()}, share)
    alone = [replace(r, inputs=r.inputs[: len(r.spec.inputs)]) if r.spec.weights else r for r in found]
    symbols = [replace(s, function=_kernels_alone(r)) if r.spec.weights else s for s, r in zip(symbols, alone, strict=True)]
    main = numbering.function
    body = _stitch(alone, symbols, numbering)
    functions = dict(typed.functions.items())
    functions[typed.get_global_var("main")] = relay.Function(main.params, body, main.ret_type, main.type_params, main.attrs)
    for symbol in symbols:
        functions[symbol.variable] = symbol.function.with_attr(
            {
                "Compiler": COMPILER,
                "Primitive": tvm.tir.IntImm("int32", 1),
                "Inline": tvm.tir.IntImm("int32", 1),
                "global_symbol": symbol.variable.name_hint,
                "mufuser_regions": list(symbol.regions),
            }
        )
    return relay.transform.InferType()(tvm.IRModule(functions, typed.type_definitions))


def _values(expr: Any) -> tuple[Any, ...]:
    """Operands of a call, fields of a tuple: what is left below an expression after :func:`carve`, which removes lets."""
    if isinstance(expr, relay.Call):
        return tuple(expr.args)
    return children_of(expr) if isinstance(expr, relay.Tuple | relay.TupleGetItem) else ()


def _fresh(function: Any) -> Any:
    """A copy with parameters of its own: a variable may be bound only once in a module."""
    params = [relay.Var(p.name_hint, p.type_annotation) for p in function.params]
    made = {key_of(old): new for old, new in zip(function.params, params, strict=True)}
    for expr in post_order(function.body, _values):
        if key_of(expr) not in made:
            made[key_of(expr)] = _rebuild(expr, [made[key_of(child)] for child in _values(expr)])
    return relay.Function(params, made[key_of(function.body)], function.ret_type, function.type_params, function.attrs)


def inline_regions(mod: Any) -> Any:
    """Put each region's function in the place of its global variable, the form that Relay's compilers take.

    That is what Relay's ``Inline`` pass does, for any number of calls of one function. The compilers' own caches make them one
    again.
    """
    functions = region_functions(mod)
    made: dict[Key, Any] = {}
    main = mod["main"]
    for expr in post_order(main.body, _values):
        children = [made[key_of(child)] for child in _values(expr)]
        carved = isinstance(expr, relay.Call) and isinstance(expr.op, relay.GlobalVar) and functions.get(str(expr.op.name_hint))
        made[key_of(expr)] = relay.Call(_fresh(carved), children) if carved else _rebuild(expr, children)
    body = relay.Function(main.params, made[key_of(main.body)], main.ret_type, main.type_params, main.attrs)
    kept = {variable: function for variable, function in mod.functions.items() if str(variable.name_hint) not in functions}
    kept[mod.get_global_var("main")] = body
    return relay.transform.InferType()(tvm.IRModule(kept, mod.type_definitions))


def region_functions(mod: Any) -> dict[str, Any]:
    """Symbol to function of what :func:`carve` made."""
    return {
        str(variable.name_hint): function
        for variable, function in mod.functions.items()
        if isinstance(function, relay.Function) and function.attrs and str(function.attrs.get("Compiler", "")) == COMPILER
    }


def region_symbols(mod: Any) -> dict[str, str]:
    """Name of each carved region to the symbol of its function."""
    return {str(name): symbol for symbol, function in region_functions(mod).items() for name in function.attrs["mufuser_regions"]}
