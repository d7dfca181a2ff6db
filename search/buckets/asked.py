"""Buckets as they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence

Sizes = Mapping[str, int]
Buckets = Mapping[str, Sequence[int]]
"""Sizes by the name of a dimension, ascending."""
