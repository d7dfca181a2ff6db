"""Where the tests find the repository and their data."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
RELAY = DATA / "relay"
"""Models as Relay's importers leave them."""

MUGRAPHS = DATA / "mugraphs"
"""µGraphs written by hand."""
