"""A tuning record, of which tests make others."""

from __future__ import annotations

from search.measure.measurement import Measurement
from search.measure.rows import Record

ROW = Record(
    "mcfuser/G1",
    "p",
    "s",
    "[]",
    "h",
    "GPU",
    "triton 3.6.0",
    Measurement(time_us=3.5),
    environment='{"driver": "1"}',
    generator="g",
)
