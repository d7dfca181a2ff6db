"""Records that never stand in the way of a search: what cannot be read is not known, what cannot be written is said once."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
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
    written; it is read on, unless that fails too (``blind``). What was found in this process stays in its memory."""

    failed: str = ""
    blind: bool = False

    def __init__(self, path: Path | str) -> None:
        super().__init__(path, reading=True)

    def _tried(self, action: Callable[[], T], otherwise: T, reads: bool = False) -> T:
        if self.blind or (self.failed and not reads):
            return otherwise
        try:
            return action()
        except FuserError as error:
            if not self.failed:
                warn(f"{error.message}: the search goes on, and what it measures from here on is not kept")
            self.failed, self.blind = error.message, reads
            return otherwise

    def add(self, record: Record, again: bool = False) -> bool:
        return self._tried(lambda: super(Careful, self).add(record, again), False)

    def add_structure(self, graph: KernelGraph, digest: str = "") -> str:
        return self._tried(lambda: super(Careful, self).add_structure(graph, digest), digest or graph.stable_hash())

    def add_winner(self, winner: Winner, graph: KernelGraph) -> None:
        self._tried(lambda: super(Careful, self).add_winner(winner, graph), None)

    def find(self, key: tuple[str, ...]) -> Record | None:
        return self._tried(lambda: super(Careful, self).find(key), None, True)

    def rows(self, **where: Any) -> Iterator[Record]:
        return iter(self._tried(lambda: list(super(Careful, self).rows(**where)), [], True))

    def winners(self, **where: str) -> Iterator[Winner]:
        return iter(self._tried(lambda: list(super(Careful, self).winners(**where)), [], True))

    def structure(self, digest: str) -> KernelGraph | None:
        return self._tried(lambda: super(Careful, self).structure(digest), None, True)
