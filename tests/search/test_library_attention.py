"""What torch's own attention is expected to take."""

from __future__ import annotations

import pytest

from fuser.device import load_device
from search.library_attention import attention_seconds
from search.library_attention import is_aligned

H200 = load_device("h200")

MEASURED = [  # batch, heads, queries, keys, depth, causal, µs of an H200
    ("float32", 32, 32, 512, 512, 128, False, 3130),
    ("float32", 16, 24, 512, 512, 768, False, 6743),
    ("float32", 8, 16, 512, 512, 64, True, 195),
    ("float32", 8, 16, 512, 512, 64, False, 271),
    ("float32", 1, 16, 1, 4096, 128, False, 400),
    ("float32", 1, 12, 512, 512, 64, True, 56.5),
    ("float16", 8, 16, 512, 512, 64, True, 23.4),
    ("float16", 16, 24, 512, 512, 768, False, 1986),
    ("bfloat16", 4, 8, 1024, 1024, 256, False, 59.3),
]


@pytest.mark.parametrize("row", MEASURED)
def test_estimates_are_near_what_was_measured(row: tuple[str, int, int, int, int, int, bool, float]) -> None:
    dtype, batch, heads, queries, keys, depth, causal, measured = row
    q, k = (batch, heads, queries, depth), (batch, heads, keys, depth)
    assert attention_seconds(q, k, k, dtype, causal, H200) == pytest.approx(measured * 1e-6, rel=0.2)


def test_few_long_rows_take_as_long_as_one_of_them() -> None:
    def seconds(n: int) -> float:
        return attention_seconds((n, 1, 128), (n, 4096, 128), (n, 4096, 128), "float32", False, H200)

    assert seconds(1) == seconds(100)


def test_torch_has_no_such_kernel_for_rows_that_are_not_aligned() -> None:
    assert is_aligned((4, 8, 512, 64), (4, 8, 512, 64), "float32")
    assert not is_aligned((4, 8, 512, 66), (4, 8, 512, 64), "float32")
    assert not is_aligned((4, 8, 512, 64), (4, 8, 512, 60), "float16")
