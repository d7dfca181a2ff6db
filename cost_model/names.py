"""What the models are called that may rank candidates."""

from __future__ import annotations

from collections.abc import Mapping

REFINED, PAPER, CHAINED = NAMES = ("refined", "paper", "chained")
TITLES: Mapping[str, str] = {REFINED: "the refined model", PAPER: "MCFuser's model, equations 2 to 5"}
"""As output says which of them ranked; the third is the refined one for kernels of whole models."""
