"""Records that never stand in the way of a search: what cannot be read is not known, what cannot be written is said once."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import TypeVar

from fuser.console import warn
from fuser.errors import FuserError
from fuser.ir.mugraph import KernelGraph
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.winners import Winner

T = TypeVar("T")


class Careful(Records):
    """``failed`` says why nothing is kept any more, if so: a full disk, a file that is locked, removed, damaged or cannot be
    written. What was found in this process stays in its memory."""

    failed: str = ""

    def _tried(self, action: Callable[[], T], otherwise: T) -> T:
        if self.failed:
            return otherwise
        try:
            return action()
        except FuserError as error:
            self.failed = error.message
            warn(f"{error.message}: the search goes on, and what it measures from here on is not kept")
            return otherwise

    def add(self, record: Record, again: bool = False) -> bool:
        return self._tried(lambda: super(Careful, self).add(record, again), False)

    def add_structure(self, graph: KernelGraph, digest: str = "") -> str:
        return self._tried(lambda: super(Careful, self).add_structure(graph, digest), digest or graph.stable_hash())

    def add_winner(self, winner: Winner, graph: KernelGraph) -> None:
        self._tried(lambda: super(Careful, self).add_winner(winner, graph), None)

    def find(self, key: tuple[str, ...]) -> Record | None:
        return self._tried(lambda: super(Careful, self).find(key), None)

    def rows(self, **where: Any) -> Iterator[Record]:
        return iter(self._tried(lambda: list(super(Careful, self).rows(**where)), []))

    def winners(self, **where: str) -> Iterator[Winner]:
        return iter(self._tried(lambda: list(super(Careful, self).winners(**where)), []))

    def structure(self, digest: str) -> KernelGraph | None:
        return self._tried(lambda: super(Careful, self).structure(digest), None)
