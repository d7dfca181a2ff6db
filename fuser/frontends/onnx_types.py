"""Whether a node of an ONNX graph reads dtypes that ONNX gives its operator: the checker does not ask."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from fuser.ir.program import FLOAT_DTYPES

WHOLE = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
NAMES = {"float32": "float", "float64": "double"}
"""What ONNX calls dtypes that numpy calls otherwise."""


def wrong_dtypes(op: str, dtypes: Sequence[str]) -> str:
    """What is wrong with the dtypes of an operator's inputs, by its newest version, which takes most; empty where nothing is.
    Inputs without a dtype, or with one that no kernel has, are left out."""
    bound: dict[str, str] = {}
    places = _places(op)
    for i, dtype in enumerate(dtypes):
        kind, allowed, alike = places[min(i, len(places) - 1)] if places else ("", None, False)
        like = _like(dtype)
        if not like or allowed is None:
            continue
        if not allowed & {f"tensor({NAMES.get(d, d)})" for d in like}:
            return f"reads {dtype}, which ONNX's {op} does not take"
        if alike and (other := bound.setdefault(kind, dtype)) != dtype and not (dtype in WHOLE and other in WHOLE):
            return f"reads {bound[kind]} and {dtype}, which ONNX's {op} takes to be one dtype"
    return ""


def _like(dtype: str) -> tuple[str, ...]:
    """All dtypes of the same kind: what an operator does with one, it does with another. None of those that no kernel has."""
    kinds = FLOAT_DTYPES, ("bool",), WHOLE
    return next((k for k in kinds if dtype in k), ())


@cache
def _places(op: str) -> tuple[tuple[str, frozenset[str] | None, bool], ...]:
    """Of each input the name of its type, the types that it may have, and whether all inputs of that name are of one type."""
    from onnx import defs

    try:
        schema = defs.get_schema(op)
    except defs.SchemaError:
        return ()
    kinds = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}
    return tuple(
        (i.type_str, kinds.get(i.type_str), i.is_homogeneous or i.option != defs.OpSchema.FormalParameterOption.Variadic)
        for i in schema.inputs
    )
