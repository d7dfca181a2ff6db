"""Triton's interpreter and its compiler in one process, in any order, in threads, with TRITON_INTERPRET set before or not."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import triton.language as tl
from triton import knobs
from triton.language import semantic  # noqa: F401 - a module of the language that only its interpreter loads

import fuser
from fuser.errors import FuserError
from fuser.errors import first_line
from fuser.errors import said
from fuser.ir.program import TensorProgram
from fuser.lower.forms import form
from tests.paths import ROOT


def program() -> TensorProgram:
    """Its kernel calls functions of Triton's library, and those have the one form or the other."""
    b = fuser.Builder("p")
    return b.build(Y=b.softmax(b.silu(b.input("X", (8, 32)))))


def interpreted() -> bool:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((8, 32))).half()
    wanted = torch.softmax(torch.nn.functional.silu(x.double()), -1)
    return bool((fuser.compile(program(), device="cpu")(x) - wanted).abs().max() < 1e-3)


def compiled() -> bool:
    (ptx,) = fuser.compile(program(), target="a100", checked=False).ptx
    return "ex2.approx" in ptx


def test_both_forms_in_turn_and_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    before = [dict(vars(x)) for x in (tl, tl.core, tl.math, tl.tensor)]
    library = type(tl.sum)
    assert [f() for f in (interpreted, compiled, interpreted, compiled)] == [True] * 4
    with ThreadPoolExecutor(4) as threads:
        assert all(f.result() for f in [threads.submit(f) for f in (interpreted, compiled, interpreted, compiled)])
    assert type(tl.sum) is library
    assert [dict(vars(x)) for x in (tl, tl.core, tl.math, tl.tensor)] == before


def test_a_form_inside_the_other() -> None:
    flag = knobs.runtime.interpret
    with form(interpreted=True):
        name = type(tl.sum).__name__
        with form(interpreted=False):
            assert type(tl.sum).__name__ == "JITFunction"
            assert not knobs.runtime.interpret
        assert type(tl.sum).__name__ == name == "InterpretedFunction"
        with pytest.raises(ValueError, match="stop"), form(interpreted=False):
            raise ValueError("stop")
        assert knobs.runtime.interpret
    assert knobs.runtime.interpret == flag


@pytest.mark.slow
def test_with_the_interpreter_switched_on_beforehand(tmp_path: Path) -> None:
    """In a process for each order, forked from one that has imported all."""
    code = (
        "import os\nfrom tests.lower.test_forms import compiled, interpreted\n"
        "for first, second in ((interpreted, compiled), (compiled, interpreted)):\n"
        "    if os.fork() == 0:\n"
        "        print(first(), second(), first(), second(), flush=True)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "TRITON_ALWAYS_COMPILE": "1",
        "MUFUSER_CACHE": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.splitlines() == ["True True True True"] * 2, done.stderr


def test_no_message_is_empty() -> None:
    assert FuserError("").message == "FuserError without a message"
    assert said(ValueError(" no ")) == "no"
    assert first_line(ValueError("one\ntwo")) == "one"
    try:
        raise AssertionError
    except AssertionError as error:
        assert said(error).startswith("AssertionError at test_no_message_is_empty:")
    try:
        raise RuntimeError("") from ValueError("the cause")
    except RuntimeError as error:
        assert said(error) == "the cause"
