"""``explain`` of a model shows what ``optimize`` chooses for it, and time apart is counted as that of a plan is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuser.cli import main
from tests.paths import RELAY
from tvm_bridge.api import optimize

torch = pytest.importorskip("torch")


class Images(torch.nn.Module):
    """What a library does best with channels last, between what it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.second, self.last = torch.nn.Conv2d(8, 16, 3, stride=2), torch.nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = torch.nn.functional.max_pool2d(torch.relu(self.norm(self.first(x))), 2)
        return self.last(torch.relu(self.second(x)).mean((2, 3)))


CASES = {
    "images": (Images, (1, 3, 16, 16)),
    "convolution": (lambda: torch.nn.Conv2d(3, 8, 3), (1, 3, 16, 16)),
    "one region": (lambda: torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32)), (16, 32)),
    "encoder": (None, ()),
}


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are chosen and verified as ever."""
    from search import taken
    from search.cover import chain
    from search.cover import model
    from search.realise import verified

    monkeypatch.setattr(chain, "compile_sources", lambda *_: ())
    monkeypatch.setattr(chain, "_within_registers", lambda candidate, _: candidate)
    for place in (model, taken):
        monkeypatch.setattr(place, "realise", lambda tuned, *_, **__: [verified(t) for t in tuned])


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("name", CASES)
def test_both_verbs_have_the_same_plan(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, shape = CASES[name]
    path, params = tmp_path / "model.pt2", None
    if make is None:
        path, params = RELAY / "encoder_torch.json", RELAY / "encoder_torch.params"
    else:
        torch.manual_seed(0)
        torch.export.save(torch.export.export(make().eval(), (torch.randn(shape),)), path)
    found = optimize(path, params, jobs=1, build=False, runtime="torch", on="none")
    made = found.made
    assert made is not None
    assert main(["explain", str(path), "--json", *(["--params", str(params)] if params else [])]) == 0
    shown = json.loads(capsys.readouterr().out)["plan"]
    assert [(p["names"], p["operators"], p["us"], p["layouts"]) for p in shown["parts"]] == [
        (list(p.names), list(p.operators), p.us, list(p.layouts)) for p in made.plan.parts
    ]
    assert (shown["us"], shown["chained_us"]) == (made.plan.us, made.plan.chained_us)
    # a library's call adds a bias and turns an image by kernels of its own, and has no epilogue, here as there
    assert made.plan.us < found.before_us
