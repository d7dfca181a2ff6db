"""How hard is looked, and what that leads to: candidates by their estimated or measured times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_model.names import REFINED
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule


@dataclass(frozen=True)
class Effort:
    """How much a search may do.

    ``population`` (N), ``top`` (n) and ``epsilon`` are the parameters of algorithm 1; epsilon is relative. ``patience``:
    generations without a gain of epsilon until the search has converged (the paper's 1 fits measured generations).
    ``exhaustive``: with the model alone, spaces up to this number of estimates are ranked completely. ``seconds``: budget,
    None for none. ``model``: which of :data:`cost_model.models.MODELS` ranks. ``each``: where all are ranked, so many of every
    choice of splits come behind the best.
    """

    name: str
    population: int
    top: int
    epsilon: float
    generations: int
    patience: int
    exhaustive: int
    seconds: float | None = None
    model: str = REFINED
    each: int = 0


INSTANT = Effort("instant", 512, 8, 0.01, 40, 5, 2_000_000)
QUICK = Effort("quick", 128, 10, 0.01, 16, 5, 400_000)
FULL = Effort("full", 256, 8, 0.002, 4000, 40, 4_000_000, 600.0)
EFFORTS: Mapping[str, Effort] = {e.name: e for e in (INSTANT, QUICK, FULL)}


@dataclass(frozen=True)
class Ranked:
    """A candidate with its estimate, and its measured time if it was measured (infinite if it failed); seconds."""

    candidate: Candidate
    estimate: float
    measured: float | None = None

    @property
    def seconds(self) -> float:
        return self.estimate if self.measured is None else self.measured

    @property
    def us(self) -> float:
        return self.seconds * 1e6

    @property
    def graph(self) -> KernelGraph:
        return self.candidate.graph

    @property
    def schedule(self) -> Schedule:
        return self.candidate.schedule


@dataclass(frozen=True)
class Generation:
    """What a generation found: the best of it, the best so far, and how many schedules were measured in it."""

    best: float
    best_so_far: float
    measured: int


@dataclass(frozen=True)
class Searched:
    """How a winner was found by measurements: ``origin`` is ``measured``, ``model`` where nothing could be measured, or the
    records that it was taken from; ``why`` what ended the search; ``failures`` are counted by class; ``seconds`` were spent;
    ``first_seconds`` is the measured time of the model's first choice (NaN where it has none)."""

    origin: str
    why: str
    measured: int
    failures: Mapping[str, int]
    history: tuple[Generation, ...]
    seconds: float
    first_seconds: float


@dataclass(frozen=True)
class Tuned:
    """The winner, what came next (best first; other structures and the winner's own next schedules, and in the end the best of
    every structure that is not among them), and how much was looked at. ``seconds`` it took, where somebody cares.
    """

    program: TensorProgram
    device: str
    winner: Ranked
    runners: tuple[Ranked, ...]
    structures: int
    candidates: int
    notes: tuple[str, ...] = ()
    searched: Searched | None = None
    seconds: float = 0.0

    @property
    def runner_up(self) -> Ranked | None:
        return self.runners[0] if self.runners else None
