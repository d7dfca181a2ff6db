"""The plans of several buckets as recipes over one set of weights: each pads what it is given and cuts what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

from fuser.ir.ops import Array
from fuser.ir.program import Tensor
from fuser.lower.compile import neutral
from search.buckets.asked import Sizes
from search.buckets.bucketed import Bucket
from search.buckets.places import Dims
from search.buckets.places import symbols
from search.buckets.pool import Pool
from tvm_bridge.back.moves import cutting
from tvm_bridge.back.moves import padding
from tvm_bridge.back.moves import window
from tvm_bridge.back.recipe import Call
from tvm_bridge.back.recipe import Launch
from tvm_bridge.back.recipe import Recipe
from tvm_bridge.back.recipe import alike
from tvm_bridge.back.recipe import launch_of
from tvm_bridge.back.recipe import recipe_of


@dataclass(frozen=True)
class BucketRecipe:
    """``buckets`` are recipes with the sizes that each has room for, the smallest first; ``weights`` those of all of them, and
    ``least`` the least sizes that a caller may have. Inputs and outputs are those of each."""

    name: str
    arch: int
    buckets: tuple[tuple[Sizes, Recipe], ...]
    weights: tuple[str, ...]
    table: Mapping[str, Tensor] = field(repr=False)
    least: Mapping[str, int]

    @property
    def largest(self) -> Recipe:
        return self.buckets[-1][1]

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(s for _, r in self.buckets for s in r.launches)

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(s for _, r in self.buckets for s in r.calls)

    @property
    def steps(self) -> tuple[Launch | Call, ...]:
        return tuple(s for _, r in self.buckets for s in r.steps)


def recipe_of_buckets(buckets: Sequence[Bucket], dependent: bool = True) -> tuple[BucketRecipe, dict[str, Array]]:
    """The recipe, and its weights by name."""
    pool, names, values = Pool(), dict[tuple[int, str], str](), dict[str, Array]()
    known: dict[str, Launch] = {}
    table: dict[str, Tensor] = {}
    found = []
    for bucket in buckets:
        recipe, mine = _one(bucket, dependent)
        new: dict[str, str] = {}
        for n in recipe.weights:  # equal weights are one, whatever they are called
            x, dtype = pool.array(mine[n]), recipe.table[n].dtype
            key = id(x), dtype
            if key not in names:
                names[key] = n if n not in values else f"{n}.{len(values)}"
                values[names[key]] = x
                table[names[key]] = replace(recipe.table[n], name=names[key])
            new[n] = names[key]
        renamed = {n: f"{n}.local" for n in recipe.table if n in new.values() and n not in new}
        found.append((bucket.sizes, _shared(_renamed(recipe, new | renamed), known)))
    least = {s: max(b.padded.least.get(s, 1) for b in buckets) for s in buckets[-1].sizes}
    first = found[-1][1]
    used = dict.fromkeys(n for _, r in found for n in r.weights)
    return BucketRecipe(first.name, first.arch, tuple(found), tuple(used), table, least), values


def _one(bucket: Bucket, dependent: bool) -> tuple[Recipe, dict[str, Array]]:
    """The recipe of a bucket over the caller's tensors, with its weights: tables of masks are among them."""
    inner, padded, arch = recipe_of(bucket.made, dependent), bucket.padded, bucket.made.target.arch
    inner = _renamed(inner, {n: f"{n}.whole" for n in (*padded.known.inputs, *inner.outputs)})
    table, dims, front, back = dict(inner.table), dict[str, Dims](), [], []
    values = {n: bucket.made.params[n] for n in inner.weights}
    givers = {s: n for n in padded.known.inputs for d in padded.dims[n] for s in symbols(d)}
    for n in padded.known.inputs:
        whole = table[f"{n}.whole"]
        table[n] = replace(whole, name=n)
        if any(map(symbols, padded.dims[n])):
            dims[n] = padded.dims[n]
            front.append(launch_of(padding(table[n], whole, dims[n], arch), False))
    for e in padded.extras:
        if e.name not in table:
            continue
        name = f"{e.name}.table"
        table[name], values[name] = Tensor(name, e.table.shape, table[e.name].dtype), e.table
        made = window(table[name], table[e.name], e.symbol, bucket.sizes[e.symbol], arch)
        front.append(launch_of(made, False, (givers[e.symbol],)))
    for n in padded.known.program.outputs:
        whole = table[f"{n}.whole"]
        table[n] = replace(whole, name=n)
        if any(map(symbols, padded.dims[n])):
            dims[n] = padded.dims[n]
            sized = dict.fromkeys(givers[s] for d in dims[n] for s in symbols(d))
            back.append(launch_of(cutting(whole, table[n], dims[n], arch), False, tuple(sized)))
    plain = {f"{n}.whole": n for n in (*padded.known.inputs, *padded.known.program.outputs) if n not in dims}
    weights = tuple(n for n in values if n in inner.weights or n.endswith(".table"))
    steps = alike([*front, *_awake(inner.steps), *back])
    outer = Recipe(inner.name, arch, padded.known.inputs, weights, padded.known.program.outputs, steps, table, dims)
    return _renamed(outer, plain), values


def _awake(steps: Sequence[Launch | Call]) -> tuple[Launch | Call, ...]:
    """The first kernel waits for what is in front of it."""
    return tuple(replace(s, dependent=False) if i == 0 and isinstance(s, Launch) else s for i, s in enumerate(steps))


def _renamed(recipe: Recipe, new: Mapping[str, str]) -> Recipe:
    """The recipe with other names of tensors."""

    def of(n: str) -> str:
        return new.get(n, n)

    def several(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(map(of, names))

    steps: list[Launch | Call] = []
    for s in recipe.steps:
        if isinstance(s, Call):
            steps.append(replace(s, args=several(s.args), output=of(s.output)))
            continue
        source = s.artifact.source
        described = tuple(replace(d, tensor=of(d.tensor)) for d in source.descriptors)
        source = replace(source, args=several(source.args), outputs=several(source.outputs), descriptors=described)
        made = replace(
            s.artifact, source=source, descriptors=tuple(replace(d, tensor=of(d.tensor)) for d in s.artifact.descriptors)
        )
        steps.append(replace(s, artifact=made, args=several(s.args), outputs=several(s.outputs), sized=several(s.sized)))
    return replace(
        recipe,
        inputs=several(recipe.inputs),
        outputs=several(recipe.outputs),
        weights=tuple(dict.fromkeys(several(recipe.weights))),
        steps=tuple(steps),
        table={of(n): replace(t, name=of(n)) for n, t in recipe.table.items()},
        dims={of(n): d for n, d in recipe.dims.items()},
    )


def _shared(recipe: Recipe, known: dict[str, Launch]) -> Recipe:
    """The recipe with kernels that are equal to one of ``known`` under its name."""
    steps: list[Launch | Call] = []
    for s in recipe.steps:
        if isinstance(s, Launch):
            first = known.setdefault(f"{neutral(s.artifact.source)} {s.dependent}", s)
            s = replace(s, artifact=first.artifact.over(s.artifact.source))
        steps.append(s)
    return replace(recipe, steps=tuple(steps))
