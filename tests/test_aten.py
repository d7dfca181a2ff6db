"""Operators of torch that the op table lacks, called as they were."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fuser.aten import UNCHECKED  # noqa: E402
from fuser.aten import _unless_captured  # noqa: E402
from fuser.aten import operator  # noqa: E402


@pytest.mark.parametrize("callee", UNCHECKED)
def test_within_a_cuda_graph_nobody_waits_for_a_matrix_to_be_checked(callee: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.eye(4) * 3 + 0.5
    given = [x, torch.randn(4, 2)] if "solve" in callee else [x]
    assert torch.equal(operator(callee)(*given), operator(UNCHECKED[callee])(*given)[0])

    class OnGpu:
        is_cuda = True

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    call = _unless_captured(lambda *_: "waits", lambda *_: ("does not", "info"))
    assert call(OnGpu()) == "does not"
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert call(OnGpu()) == call(x) == "waits"
