from __future__ import annotations

from fuser.disjoint import DisjointSets


def test_joined_sets_stand_where_their_first_members_do() -> None:
    sets = DisjointSets("abcdef")
    sets.join("e", "b")
    sets.join("f", "e")
    sets.join("b", "f")
    sets.join("d", "c")
    assert sets.sets() == [("a",), ("b", "e", "f"), ("c", "d")]
    assert sets.root("b") == sets.root("e") != sets.root("a")
    assert "a" in sets
    assert "g" not in sets
