"""The choice for a model, kept in the cache folder: which parts, by which candidates. It goes by the model's forms, the device's
numbers, how parts are priced and our own source, as prices do; what else could have been chosen is found again when it is asked
for."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

from fuser import kept
from fuser.errors import FuserError
from fuser.files import BAD_VALUE
from fuser.ir.program import TensorProgram
from fuser.lower.compile import cache_dir
from search.cover.ilp import Cover
from search.cover.offers import Form
from search.cover.offers import Offers
from search.cover.offers import Pricing
from search.cover.offers import best_form
from search.cover.parts import Part
from search.cover.prices import document
from search.cover.prices import from_document
from search.ranked import Tuned


@dataclass(frozen=True)
class Kept(Offers):
    """A choice without what it was chosen from, ``several`` forms by ``pricing``: of that the structures and candidates that were
    ``counted``."""

    several: tuple[Form, ...] = ()
    pricing: Pricing | None = None
    chosen: Cover | None = None
    counted: tuple[int, int] = (0, 0)

    @cached_property
    def all(self) -> Offers:
        assert self.pricing is not None
        return best_form(self.several, self.pricing)

    @cached_property
    def cheapest(self) -> Cover:
        assert self.chosen is not None
        return self.chosen

    @property
    def looked_at(self) -> tuple[int, int]:
        return self.counted


def file_of(several: Sequence[Form], pricing: Pricing, compiled: bool) -> Path:
    """Where a choice is kept. ``compiled``: one among candidates that compile, too."""
    ours = kept.source_hash("fuser", "cost_model", "search")
    forms = [(f.program.stable_hash(), [(n, a.shape, str(a.dtype)) for n, a in sorted(f.params.items())]) for f in several]
    how = (pricing.libraries, pricing.seed, pricing.layouts, pricing.greedy, compiled)
    return cache_dir("choices") / f"{kept.text_hash(ours, repr(forms), repr(pricing.device), repr(how))}.json"


def read(file: Path, several: Sequence[Form], pricing: Pricing) -> Kept | None:
    """What was chosen before, if it was."""
    try:
        (value,) = kept.read(file)
        programs = [TensorProgram.from_json(p) for p in value["programs"]]
        parts = tuple(_part(p, programs) for p in value["parts"])
        tuned = {key: from_document(t, programs[i], pricing.device) for key, (i, t) in value["tuned"].items()}
        chosen = Cover(parts, *value["cover"])
        form, counted = several[value["form"]], tuple(value["counted"])
        mine = {p: tuned[p.key] for p in parts}
        more = (tuple(several), replace(pricing, executor=None), chosen, (counted[0], counted[1]))
        return Kept(form.program, form.params, parts, mine, None, inf, pricing.greedy, *more)
    except (*BAD_VALUE, FuserError):  # there is none, or this program did not write it
        return None


def write(file: Path, several: Sequence[Form], offers: Offers, chosen: Cover, by: Mapping[str, Tuned]) -> None:
    """Keep a choice among offers: its parts ``by`` what was found for them, by their keys."""
    places: dict[str, int] = {}
    programs = list[TensorProgram]()
    for part in chosen.parts:
        if part.program.stable_hash() not in places:
            places[part.program.stable_hash()] = len(programs)
            programs.append(part.program)
    at = {p: places[p.program.stable_hash()] for p in chosen.parts}
    kept.write(
        file,
        {
            "form": [f.program for f in several].index(offers.program),
            "programs": [p.to_json() for p in programs],
            "parts": [[p.nodes, at[p], p.names, p.rows, p.weights] for p in chosen.parts],
            "tuned": {p.key: [at[p], document(by[p.key])] for p in chosen.parts},
            "cover": [chosen.seconds, chosen.gap, chosen.rounds, chosen.candidates],
            "counted": offers.looked_at,
        },
    )


def _part(value: Sequence[Any], programs: Sequence[TensorProgram]) -> Part:
    nodes, program, names, rows, weights = value
    names, rows, weights = (tuple((n, x) for n, x in pairs) for pairs in (names, rows, weights))
    return Part(tuple(nodes), programs[program], names, rows, weights)
