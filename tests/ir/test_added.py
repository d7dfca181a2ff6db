"""What is added to the op table at run time is known to processes of ours, or they say how it can be."""

from __future__ import annotations

import base64
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from fuser import kept
from fuser.errors import UsageError
from fuser.ir.added import packed
from fuser.ir.added import unpack
from fuser.ir.builder import Builder
from fuser.ir.opdef import OPS
from fuser.ir.opdef import OpDef
from fuser.ir.program import infer_shape
from fuser.lower import check
from fuser.pools import APART

VALUE = OpDef("bend", "map", 1, np.arctan, triton="{0}", sfu=1.0)
LAMBDA = OpDef("bend", "map", 1, lambda x, **_: np.arctan(x), triton="{0}")
MODULE = """from fuser.ir.opdef import OpDef
from fuser.ir.ops import OPS
OPS["bend"] = OpDef("bend", "map", 1, formula=lambda x: x.then("exp") + 1)
"""


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A table that is put back."""
    monkeypatch.setitem(OPS, "bend", VALUE)
    return monkeypatch


def test_an_entry_goes_by_value(table: pytest.MonkeyPatch) -> None:
    data, before = packed(), kept.source_hash("fuser.ir")
    table.delitem(OPS, "bend")
    assert kept.source_hash("fuser.ir") != before  # what was found with it is not known without it
    unpack(data)
    assert OPS["bend"] == VALUE
    assert kept.source_hash("fuser.ir") == before


def test_functions_that_nobody_finds_are_an_error_where_they_are_asked_for(table: pytest.MonkeyPatch) -> None:
    table.setitem(OPS, "bend", LAMBDA)
    data = packed()
    table.delitem(OPS, "bend")
    unpack(data)
    assert "bend" not in {n for e in OPS.values() for n in (*e.torch, *e.relay)}  # of others these are asked
    with pytest.raises(UsageError, match=r"'bend' was added .*\n.*module"):
        Builder("p").op("bend", Builder("p").input("X", (2, 3)))


def test_the_checker_says_so_too(table: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    table.setitem(OPS, "bend", LAMBDA)
    b = Builder("p")
    program = b.build(Y=b.op("bend", b.input("X", (2, 3))))
    line = {"program": program.to_json(), "graph": {}, "schedule": [], "entries": base64.b64encode(packed()).decode()}
    table.delitem(OPS, "bend")
    read, write = os.pipe()
    with os.fdopen(write, "w") as into, os.fdopen(read) as out:
        into.write(json.dumps(line) + "\n")
        into.close()
        table.setattr(sys, "stdin", out)
        check.main()
    ready, said = map(json.loads, capsys.readouterr().out.splitlines())
    assert ready == {"ready": True}
    assert "'bend' was added" in said["refused"][0]


def test_a_module_that_adds_it_is_imported_by_every_process(table: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "my_operators.py").write_text(MODULE)
    table.syspath_prepend(tmp_path)
    import_module("my_operators")
    table.delitem(sys.modules, "my_operators")
    assert OPS["bend"] != VALUE
    with ProcessPoolExecutor(1, APART) as pool:
        assert pool.submit(infer_shape, "bend", [(2, 3)], {}).result() == (2, 3)
