"""A program at the sizes of a bucket that computes the same for every smaller size.

Inputs are padded by copies of their last element along a dimension, where finite (so that what is computed of the padding is as
tame as what is real), results are cut. In between, what is real must only depend on what is: element by element it does, a fold
over a padded dimension gets a mask with its identity in front; numbers that are powers of a size become inputs.

What a size changes is seen by holding two imports of the same model at different sizes against each other. What cannot be shown
to be right is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from fuser.errors import UnsupportedError
from fuser.frontends.imported import Imported
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.ops import Array
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Scalar
from search.buckets import places
from search.buckets.padded import Extra
from search.buckets.padded import Padded
from search.buckets.places import Dim
from search.buckets.places import Dims
from search.buckets.places import Factor
from search.buckets.site import Site
from search.buckets.site import Value
from search.buckets.site import alike
from search.buckets.site import fold_of
from search.buckets.site import tame
from search.buckets.site import value_of
from search.buckets.trials import tried
from search.buckets.views import Views

HINT = "give that dimension a fixed size (export without it being dynamic), or leave the model to torch"


def padded(known: Imported, sizes: Mapping[str, int], other: Imported, others: Mapping[str, int]) -> Padded:
    """The import ``known``, of the ``sizes`` by symbol, for all smaller ones; ``other`` is the same model at ``others``, which
    differ in every symbol (but for sizes of 1, which have no smaller ones).

    Raises :class:`UnsupportedError` naming the operator that padding would change."""
    if len(known.program.nodes) != len(other.program.nodes) or len(known.program.inputs) != len(other.program.inputs):
        raise UnsupportedError(f"{known.program.name!r} is another program for {_said(sizes)} than for {_said(others)}", HINT)
    if known.called is not None and other.called is not None:
        results = [k.called.results for k in (known, other) if k.called is not None]
        told = [[getattr(r.value, "shape", r.value) for r in several if not r.name] for several in results]  # empty tensors, too
        if told[0] != told[1]:
            raise UnsupportedError(
                f"{known.program.name!r} returns a number that {' or '.join(sizes)} decides", "return tensors alone"
            )
    active = {s: n for s, n in sizes.items() if n > 1}
    name = known.program.name
    walk = _Walk(Builder(name, reserved=frozenset(known.program.table)), active, others, f"{name!r} cannot be padded")
    env: dict[str, Value] = {}
    for n, m in zip(known.program.inputs, other.program.inputs, strict=True):
        env[n] = walk.input(n, known, m, other)
    walk.run(known.program, other.program, env)
    outputs = {n: env[n] for n in dict.fromkeys(known.program.outputs)}
    program = walk.builder.build(**{n: v.ref for n, v in outputs.items()})
    dims = {n: tuple(map(places.bare, env[n].dims)) for n in (*known.inputs, *outputs)}
    params = dict(known.params) | walk.constants
    mine = replace(known, program=program, params=params, traced=None)
    return Padded(mine, dict(sizes), tuple(walk.extras.values()), dims, walk.least)


def _said(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{k}={v}" for k, v in sizes.items())


class _Walk:
    """One walk over both programs. ``sizes`` are those that may be smaller in a call."""

    def __init__(self, builder: Builder, sizes: Mapping[str, int], others: Mapping[str, int], refusal: str) -> None:
        self.builder, self.sizes, self.others, self.refusal = builder, sizes, others, refusal
        self.pairs = {(n, others[s]): s for s, n in sizes.items()}
        self.extras: dict[str, Extra] = {}
        self.inputs: dict[str, Ref] = {}
        self.constants: dict[str, Array] = {}
        self.least: dict[str, int] = {}
        self.masked: dict[tuple[str, ...], Ref] = {}

    # -- what is given ------------------------------------------------------------------------------------------------------

    def dims(self, shape: tuple[int, ...], other: tuple[int, ...]) -> Dims:
        """Dimensions by their extents at both sizes."""
        if len(shape) != len(other):
            raise UnsupportedError("has another number of dimensions at other sizes")
        found: list[Dim] = []
        for n, m in zip(shape, other, strict=True):
            if n != m and (n, m) not in self.pairs and n != 1:
                raise UnsupportedError(f"has a dimension of {n} that is {m} for {_said(self.others)}, which is none of the sizes")
            found.append((Factor(n, self.pairs[n, m]),) if (n, m) in self.pairs else places.whole(n))
        return tuple(found)

    def input(self, name: str, known: Imported, theirs: str, other: Imported) -> Value:
        mine, its = known.program[name], other.program[theirs]
        try:
            dims = self.dims(mine.shape, its.shape)
        except UnsupportedError as error:
            raise UnsupportedError(f"{name!r} {error.message}", HINT) from error
        if name in known.params and not alike(known.params[name], other.params[theirs]):
            raise UnsupportedError(f"the values of {name!r}, which no input decides, depend on {' and '.join(self.sizes)}", HINT)
        return Value(self.builder.input(name, mine.shape, mine.dtype), dims)

    def extra(self, symbol: str, kind: str, dtype: str, rank: int) -> Ref:
        """An input over a symbol, as a column with ``rank`` - 1 dimensions behind it: ``keep``, 1 where an element is real and
        else 0; ``bias``, 0 and -inf; or a power of the size (``kind`` its exponent)."""
        size, number = self.sizes[symbol], kind not in ("keep", "bias")
        name = f"{symbol}.{kind}.{dtype}.{rank}".replace("/", "_over_").replace(":", "_")
        if name not in self.inputs:
            if number:
                table = np.arange(size, 0, -1, dtype=np.float64) ** float(Fraction(kind))
            else:
                real, padding = (1.0, 0.0) if kind == "keep" else (0.0, -np.inf)
                table = np.repeat([real, padding], size)
            table = table.astype("float32" if dtype == "bfloat16" else dtype)
            length = 1 if number else size
            self.inputs[name] = self.builder.input(name, (length, *(1,) * (rank - 1)), dtype)
            self.extras[name] = Extra(name, symbol, table, length)
        return self.inputs[name]

    # -- masks --------------------------------------------------------------------------------------------------------------

    def column(self, x: Value, dim: int, factor: int, kind: str) -> Ref:
        """``keep`` or ``bias`` over one factor of a dimension, to be broadcast against the tensor."""
        dims, behind = x.dims[dim], len(x.dims) - 1 - dim
        symbol, dtype = dims[factor].symbol, x.ref.tensor.dtype
        if len(dims) == 1:
            return self.extra(symbol, kind, dtype, 1 + behind)
        b, v = self.builder, self.extra(symbol, kind, dtype, 1)
        shape = [f.extent if i == factor else 1 for i, f in enumerate(dims)]
        v = b.op("broadcast", b.op("reshape", v, shape=tuple(shape)), shape=tuple(f.extent for f in dims))
        return b.op("reshape", v, shape=(places.extent(dims), *(1,) * behind))

    def mask(self, op: str, *refs: Ref) -> Ref:
        """An operator with a mask, once for equal operands."""
        key = (op, *(r.name for r in refs))
        if key not in self.masked:
            self.masked[key] = self.builder.op(op, *refs, dtype=refs[op == "where"].tensor.dtype)
        return self.masked[key]

    def biased(self, x: Value, dim: int) -> Value:
        """-inf where a dimension is padded."""
        ref = x.ref
        for i, f in enumerate(x.dims[dim]):
            if f.symbol:
                ref = self.mask("add", ref, self.column(x, dim, i, "bias"))
        return replace(x, ref=ref, tame=False)

    def kept(self, x: Value, dim: int, identity: float = 0.0) -> Value:
        """``identity`` where a dimension is padded."""
        ref, dtype = x.ref, x.ref.tensor.dtype
        for i, f in enumerate(x.dims[dim]):
            if not f.symbol or (f.zero and identity == 0):
                continue
            keep = self.column(x, dim, i, "keep")
            if x.tame and identity == 0 and dtype != "bool":
                ref = self.mask("mul", ref, keep)
            else:
                ref = self.mask("where", keep, ref, self.constant(identity, dtype))
        dims = (*x.dims[:dim], places.zeroed(x.dims[dim]) if identity == 0 else x.dims[dim], *x.dims[dim + 1 :])
        return Value(ref, dims, math.isfinite(identity))

    def constant(self, number: float, dtype: str) -> Ref:
        name = f"fill.{number}.{dtype}"
        if name not in self.inputs:
            self.inputs[name] = self.builder.input(name, (1,), dtype)
            self.constants[name] = np.array([number], "float32" if dtype == "bfloat16" else dtype)
        return self.inputs[name]

    # -- operators ----------------------------------------------------------------------------------------------------------

    def run(self, program: TensorProgram, other: TensorProgram, env: dict[str, Value]) -> None:
        theirs = dict(zip(program.inputs, other.inputs, strict=True))
        for node, its in zip(program.nodes, other.nodes, strict=True):
            site = Site(node, its, program, other, theirs, tuple(env[n] for n in node.inputs))
            try:
                if node.op != its.op or tuple(theirs[n] for n in node.inputs) != its.inputs:
                    raise UnsupportedError("is another operator at other sizes")
                found = self.node(site, env)
                if (shape := places.shape_at(found.dims, self.others)) != other[its.output].shape:
                    raise UnsupportedError(f"has the shape {other[its.output].shape} for {_said(self.others)}, not {shape}")
            except UnsupportedError as error:
                if error.hint:
                    raise
                what = f"{node.attr.get('callee', node.op)} ({node.output})"
                said = f"{self.refusal} along {' or '.join(self.sizes)}: {what} {error.message}"
                raise UnsupportedError(said, HINT) from error
            env[node.output] = found
            theirs[node.output] = its.output

    def node(self, site: Site, env: Mapping[str, Value]) -> Value:
        node, kind = site.node, site.node.entry.kind
        if kind == "composite":
            return self.composite(site, env)
        if kind in ("library", "opaque"):
            return self.library(site, env)
        attrs, power = site.attributes(env)
        args = list(site.args)
        if kind == "reduce":
            for axis in sorted(i % len(args[0].dims) for i in node.attr["axis"]):
                args[0] = self.folded(args[0], axis, node)
        elif kind == "contract":
            args = self.contracted(*args)
        if power:
            return self.scaled(args[0], power, attrs["scalar"], site)
        dims = getattr(self, f"_{kind}")(site, args)
        return Value(self.emit(site, [a.ref for a in args], attrs), dims, tame(node, args, site.program.bound(node)))

    def emit(self, site: Site, refs: list[Ref], attrs: Mapping[str, Any]) -> Ref:
        node = site.node
        name = node.output if node.output not in self.builder.names else None
        attrs = {k: v for k, v in attrs.items() if k != "dtype"}
        return self.builder.op(node.op, *refs, name=name, dtype=site.program[node.output].dtype, **attrs)

    def folded(self, x: Value, axis: int, node: Node) -> Value:
        """The operand of a fold, with its identity where it is padded."""
        if not places.symbols(x.dims[axis]):
            return x
        identity = node.entry.identity
        if identity is None:
            raise UnsupportedError("folds a padded dimension, and has no identity")
        if (dtype := x.ref.tensor.dtype) not in FLOAT_DTYPES and identity == -math.inf:
            return self.kept(x, axis, float(np.iinfo(dtype).min) if dtype != "bool" else 0.0)
        return self.biased(x, axis) if identity == -math.inf and x.tame else self.kept(x, axis, identity)

    def contracted(self, a: Value, b: Value) -> list[Value]:
        """The operands of a product, one of them 0 where the summed dimension is padded, the other finite."""
        k, row = len(a.dims) - 1, len(b.dims) - 2
        left, right = a.dims[k], b.dims[row]
        if places.bare(left) != places.bare(right):
            raise UnsupportedError("sums over elements of which other ones are padded")
        changing = [(f, g) for f, g in zip(left, right, strict=True) if f.symbol]
        if not changing:
            return [a, b]
        if not all(f.zero for f, _ in changing) and not all(g.zero for _, g in changing):
            if math.prod(a.ref.shape) <= math.prod(b.ref.shape):
                a = self.kept(a, k)
            else:
                b = self.kept(b, row)
        if all(f.zero for f in a.dims[k] if f.symbol):
            return [a, self.tamed(b, row)]
        return [self.tamed(a, k), b]

    def tamed(self, x: Value, dim: int) -> Value:
        """Finite where a dimension is padded."""
        return x if x.tame else self.kept(replace(x, dims=tuple(map(places.bare, x.dims))), dim)

    def scaled(self, x: Value, power: Mapping[str, Fraction], scalar: Scalar, site: Site) -> Value:
        """The operand times powers of sizes, and a number."""
        ref, dtype = x.ref, site.program[site.node.output].dtype
        if scalar != Scalar():
            ref = self.builder.op("scale", ref, scalar=scalar, dtype=dtype)
        for symbol, exponent in power.items():
            ref = self.builder.op("mul", ref, self.extra(symbol, str(exponent), "float32", 1), dtype=dtype)
        ref = ref if x.ref.shape else self.builder.op("reshape", ref, shape=())
        return Value(ref, x.dims, x.tame)

    def _map(self, site: Site, args: list[Value]) -> Dims:
        shape = site.program[site.node.output].shape
        dims = places.aligned([a.dims for a in args], len(shape))
        if site.node.indexed and any(len(d) > 1 for d in dims[-2:] if places.symbols(d)):
            raise UnsupportedError("counts the elements of a dimension that is joined with a padded one")
        return tuple(self._zero(site, args, d, len(dims) - i) for i, d in enumerate(dims))

    def _zero(self, site: Site, args: list[Value], dim: Dim, back: int) -> Dim:
        """A dimension, ``back`` from the end, with what is known to be 0 in its padding."""
        node = site.node
        here = [a.dims[-back] if len(a.dims) >= back else () for a in args]
        if not places.symbols(dim):
            return dim
        if node.op == "mul":
            zeros = [d == places.zeroed(dim) for d in here]
            safe = any(z and all(a.tame for a in args if a is not b) for z, b in zip(zeros, args, strict=True))
        else:
            nothing = len(args) == 1 and not node.indexed and value_of(node, [np.zeros(1)], site.program.bound(node)) == 0
            safe = here[0] == places.zeroed(dim) and nothing
        return places.zeroed(dim) if safe else dim

    def _reduce(self, site: Site, args: list[Value]) -> Dims:
        x, over = args[0], {i % len(args[0].dims) for i in site.node.attr["axis"]}
        keep = site.node.attr.get("keepdims")
        return tuple(() if i in over else places.bare(d) for i, d in enumerate(x.dims) if keep or i not in over)

    def _contract(self, site: Site, args: list[Value]) -> Dims:
        a, b = args
        rank = len(site.program[site.node.output].shape)
        return (
            *places.aligned([a.dims[:-2], b.dims[:-2]], rank - 2),
            places.bare(a.dims[-2]),
            places.bare(b.dims[-1]),
        )

    def _view(self, site: Site, args: list[Value]) -> Dims:
        if site.node.entry.dims is None:
            raise UnsupportedError("moves elements in a way that nothing is known of")
        of = Views(site, self.dims, self.least)
        shape = site.program[site.node.output].shape
        return tuple(site.node.entry.dims(of, [x.dims for x in args], site.node.attr, shape))

    _data = _view

    # -- operators of several, and of others --------------------------------------------------------------------------------

    def composite(self, site: Site, env: Mapping[str, Value]) -> Value:
        """As it is, where nothing in it needs a mask; else as what it is made of, but for softmax and attention, which take
        one."""
        node, args = site.node, list(site.args)
        inner, its = site.inside()
        dry = _Walk(Builder(node.op), self.sizes, self.others, f"{self.refusal} (in {node.op})")
        given = zip(inner.inputs, args, strict=True)
        held = {n: replace(a, ref=dry.builder.input(n, a.ref.shape, a.ref.tensor.dtype)) for n, a in given}
        dry.run(inner, its, held)
        if dry.least:
            raise UnsupportedError("takes a part of a padded dimension")
        dims = held["y"].dims
        if dry.extras:
            if node.op == "softmax":
                axis = node.attr.get("axis", -1) % len(dims)
                args[0] = self.biased(args[0], axis)
                dims = (*dims[:axis], places.zeroed(dims[axis]), *dims[axis + 1 :])
            elif node.op == "attention":
                args = self.attended(args)
            else:
                real = dict(zip(inner.inputs, args, strict=True))
                self.run(inner, its, real)
                return real["y"]
        attrs, power = site.attributes(env)
        if power:
            raise UnsupportedError("has a number that is a power of a size")
        return Value(self.emit(site, [a.ref for a in args], attrs), dims, all(a.tame for a in site.args))

    def attended(self, args: list[Value]) -> list[Value]:
        q, k, v, *mask = args
        keys, rank = len(k.dims) - 2, len(q.dims)
        if not places.symbols(k.dims[keys]):
            return args
        row = Value(q.ref, (*((),) * (rank - 1), k.dims[keys]))
        columns = [self.column(row, rank - 1, i, "bias") for i, f in enumerate(k.dims[keys]) if f.symbol]
        for c in columns:
            mask = [replace(mask[0], ref=self.mask("add", mask[0].ref, c))] if mask else [Value(c, row.dims)]
        return [q, k, self.tamed(v, len(v.dims) - 2), *mask]

    def library(self, site: Site, env: Mapping[str, Value]) -> Value:
        """What a library computes is tried out: results that are real must not change with what is padded. A fold is masked."""
        node, args = site.node, list(site.args)
        attrs, power = site.attributes(env, sizes=("shape",))
        if power:
            raise UnsupportedError("has a number that is a power of a size")
        shape, its = site.program[node.output].shape, site.other[site.its.output].shape
        if node.op == "embedding" and not places.symbols(args[0].dims[0]):
            dims = (*args[1].dims, *args[0].dims[1:])
        else:
            dims = self.dims(shape, its)
            if (identity := fold_of(node)) is not None:
                for i in range(len(args[0].dims)):
                    args[0] = self.kept(args[0], i, identity)
            elif any(places.symbols(d) for a in args for d in a.dims):
                kinds = [(a.dims, a.ref.tensor.dtype) for a in args]
                tried(site.functions(), kinds, dims, (self.sizes, self.others))
        return Value(self.emit(site, [a.ref for a in args], attrs), dims, tame=node.op == "embedding")
