"""What is real of views and copies of padded tensors."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass

from fuser.errors import UnsupportedError
from search.buckets import places
from search.buckets.places import Dim
from search.buckets.places import Dims
from search.buckets.places import Factor
from search.buckets.site import Site

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Views:
    """Of the operator of a site. ``by_extents`` are dimensions by their extents at both sizes; ``least`` gathers what sizes must
    be at least."""

    site: Site
    by_extents: Callable[[Shape, Shape], Dims]
    least: dict[str, int]

    def regrouped(self, dims: Sequence[Dim], shape: Shape) -> Dims:
        return places.reshaped(tuple(dims), shape)

    def stretched(self, dims: Sequence[Dim], shape: Shape) -> Dims:
        new = self.by_extents(shape, self.site.other[self.site.its.output].shape)
        given = (*((),) * (len(shape) - len(dims)), *dims)
        return tuple(d if places.extent(d) == n and n > 1 else e for d, e, n in zip(given, new, shape, strict=True))

    def repeated(self, dim: Dim, times: int) -> Dim:
        if times != self.site.its.attr["times"]:
            raise UnsupportedError("repeats as often as a size says")
        return places.normal((*dim, Factor(times)))

    def part(self, dim: Dim, start: int, stop: int) -> Dim:
        its, names = self.site.its.attr, places.symbols(dim)
        if start != its["start"] or (names and len(dim) > 1):
            raise UnsupportedError("takes a part that begins where a size says")
        if names and stop == its["stop"]:
            self.least[names[0]] = max(self.least.get(names[0], 1), stop)
        elif stop != its["stop"]:
            if start:
                raise UnsupportedError("takes a part that ends where a size says")
            return self.by_extents((stop,), (its["stop"],))[0]
        return places.whole(stop - start)

    def joined(self, operands: Sequence[Dims], axis: int, shape: Shape) -> Dims:
        if len(operands) > 1 and any(places.symbols(x[axis]) for x in operands):
            raise UnsupportedError("joins tensors along a padded dimension")
        rest = places.aligned([(*x[:axis], *x[axis + 1 :]) for x in operands], len(shape) - 1)
        return (*rest[:axis], places.whole(shape[axis]), *rest[axis:])
