"""Values whose hash is taken once: block graphs and schedules are keys of many tables, and deep."""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property
from typing import Any


class Hashed:
    """Of a frozen dataclass, which names ``__hash__`` as its own. What is cached stays in this process: hashes of texts are
    others in the next."""

    @cached_property
    def _hashed(self) -> int:
        return hash(tuple(getattr(self, f.name) for f in fields(self)))  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return self._hashed

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
