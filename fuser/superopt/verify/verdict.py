"""What the verifier says of a µGraph, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fuser.files import counted


@dataclass(frozen=True)
class Accepted:
    """Passed. ``bound``: proven probability that a wrong µGraph passes these rounds; ``heuristic``: what is not proven.

    ``law``: whether acceptance needed exp(a + b) = exp(a)·exp(b). ``sizes``: extents of the program's axes in each round.
    ``real_size``: a sample of output blocks was tested at the real size too, but for the axes ``cut``, with the extents that they
    had instead.
    """

    rounds: int
    primes: tuple[tuple[int, int], ...]
    law: bool
    bound: float
    heuristic: tuple[str, ...]
    sizes: tuple[tuple[tuple[str, int], ...], ...]
    float_error: float
    real_size: bool = False
    cut: tuple[tuple[str, int], ...] = ()

    kind: ClassVar[str] = ""
    accepted: ClassVar[bool] = True

    def _text(self, what: str, odds: str) -> str:
        law = " with the law of exp" if self.law else ""
        cut = f" (but {', '.join(f'{a}={n}' for a, n in self.cut)})" if self.cut else ""
        real = f"; tested at the real size too{cut}" if self.real_size else ""
        return f"{what} in {counted(self.rounds, 'round')}{law}: {odds}; float64 error {self.float_error:.1e}{real}"


@dataclass(frozen=True)
class Verified(Accepted):
    """Passed, and a bound below 1 is proven."""

    kind: ClassVar[str] = "verified"

    def __str__(self) -> str:
        if not self.rounds:  # nothing was transformed
            return f"{self.kind}: {'; '.join(self.heuristic)}"
        return self._text(self.kind, f"a wrong graph passes with probability ≤ {self.bound:.1e}")


@dataclass(frozen=True)
class Agrees(Accepted):
    """Passed all tests, but they bound nothing: ``bound`` is 1, and ``heuristic`` says why."""

    kind: ClassVar[str] = "agrees, not proven"

    def __str__(self) -> str:
        return self._text(self.kind + ",", "nothing bounds how likely a wrong graph passes")


@dataclass(frozen=True)
class Rejected:
    """Differs. ``witness_seed`` gives the round that shows it (:func:`fuser.superopt.verify.verifier.replay`); -1 where no round
    was needed."""

    why: str
    witness_seed: int = -1
    law: bool = False
    sizes: tuple[tuple[str, int], ...] = ()

    kind: ClassVar[str] = "rejected"
    accepted: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"rejected: {self.why}"


@dataclass(frozen=True)
class Unknown:
    """Neither: the test has no meaning for this µGraph, and ``why`` says which part of it."""

    why: str

    kind: ClassVar[str] = "unknown"
    accepted: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"not decided: {self.why}"


Verdict = Verified | Agrees | Rejected | Unknown
