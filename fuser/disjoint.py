"""Disjoint sets that grow together (union-find)."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Iterable
from typing import Generic
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """Of ``members``, each in a set of its own until it is joined with others."""

    def __init__(self, members: Iterable[T]) -> None:
        self.parent = {m: m for m in members}

    def __contains__(self, member: T) -> bool:
        return member in self.parent

    def root(self, member: T) -> T:
        while self.parent[member] != member:
            member = self.parent[member]
        return member

    def join(self, a: T, b: T) -> None:
        self.parent[self.root(b)] = self.root(a)

    def sets(self) -> list[tuple[T, ...]]:
        """In the order of their first members, members in theirs."""
        found: dict[T, list[T]] = {}
        for m in self.parent:
            found.setdefault(self.root(m), []).append(m)
        return [tuple(s) for s in found.values()]
