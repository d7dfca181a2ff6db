"""A live Relay module as one ``main`` of operator calls: without functions, lets, and inputs that share a name.

Regions are carved from such a graph alone; they would otherwise end at every function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relay

from tvm_bridge.read.relay_graph import apart_by_name
from tvm_bridge.to_program.numbering import children_of
from tvm_bridge.to_program.numbering import key_of
from tvm_bridge.to_program.numbering import post_order

PLAIN = relay.Var | relay.Constant | relay.Tuple | relay.TupleGetItem | tvm.ir.Op


def is_one_main(mod: Any) -> bool:
    """Whether a module has the form that :func:`one_main` gives it, or has no ``main`` to bring into it."""
    if "main" not in [str(v.name_hint) for v in mod.get_global_vars()] or not isinstance(mod["main"], relay.Function):
        return True
    main = mod["main"]
    names = [str(p.name_hint) for p in main.params]
    plain = all(isinstance(e, PLAIN | relay.Call) for e in post_order(main.body))
    return len(mod.functions) == 1 and plain and [*apart_by_name(names)] == names


def one_main(mod: Any) -> Any:
    """The module with everything in ``main``, which computes what it did. It is as it was where it has control flow, recursion or
    functions that a compiler of their own takes: the reader says of these what they are."""
    if is_one_main(mod) or not _can_be(mod):
        return mod
    functions = relay.transform.ToGraphNormalForm()(mod)
    main = functions["main"]
    body = _inlined(main.body, functions)
    names = apart_by_name([str(p.name_hint) for p in main.params])
    params = [relay.Var(n, p.type_annotation, p.span) for n, p in zip(names, main.params, strict=True)]
    body = relay.bind(body, dict(zip(main.params, params, strict=True)))
    made = relay.Function(params, body, main.ret_type, main.type_params, main.attrs)
    return relay.transform.InferType()(tvm.IRModule({mod.get_global_var("main"): made}, mod.type_definitions))


def _can_be(mod: Any) -> bool:
    """Whether no function calls itself, and there is nothing in them but operators, lets and calls of functions."""
    below: dict[str, set[str]] = {}
    for variable, function in mod.functions.items():
        if not isinstance(function, relay.Function):
            return False
        found = below.setdefault(str(variable.name_hint), set())
        for expr in post_order(function):
            if isinstance(expr, relay.Function) and expr.attrs and "Compiler" in expr.attrs:
                return False
            if isinstance(expr, relay.GlobalVar):
                found.add(str(expr.name_hint))
            elif not isinstance(expr, PLAIN | relay.Call | relay.Let | relay.Function):
                return False
    while leaves := [name for name, callees in below.items() if not callees & below.keys()]:
        for name in leaves:
            del below[name]
    return not below


def _inlined(root: Any, mod: Any) -> Any:
    """An expression with the bodies of functions in the place of their calls. What they share is made once: a body gets its
    arguments when it is done, and these stay the expressions that they are."""

    def below(expr: Any) -> Sequence[Any]:
        return (mod[expr],) if isinstance(expr, relay.GlobalVar) else children_of(expr)

    made: dict[Any, Any] = {}
    for expr in post_order(root, below):
        children = [made[key_of(child)] for child in below(expr)]
        made[key_of(expr)] = _rebuilt(expr, children)
    return made[key_of(root)]


def _rebuilt(expr: Any, children: Sequence[Any]) -> Any:
    if isinstance(expr, relay.Call):
        called, *args = children
        if isinstance(called, relay.Function):
            return relay.bind(called.body, dict(zip(called.params, args, strict=True)))
        return relay.Call(called, args, expr.attrs, expr.type_args, expr.span)
    if isinstance(expr, relay.Tuple):
        return relay.Tuple(children, expr.span)
    if isinstance(expr, relay.TupleGetItem):
        value, field = children[0], int(expr.index)
        return value.fields[field] if isinstance(value, relay.Tuple) else relay.TupleGetItem(value, field, expr.span)
    if isinstance(expr, relay.GlobalVar):
        return children[0]
    if isinstance(expr, relay.Function):
        return relay.Function(expr.params, children[0], expr.ret_type, expr.type_params, expr.attrs)
    return expr
