"""Softmaxes of large exponents, and tests that end in errors of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.program import TensorProgram
from fuser.superopt.rewrite.stabilize import stabilize_graph
from fuser.superopt.structures import structures
from fuser.superopt.verify import verifier
from fuser.superopt.verify.verdict import Rejected
from fuser.superopt.verify.verdict import Unknown
from fuser.superopt.verify.verdicts import kept_verdict
from fuser.superopt.verify.verifier import verify
from tests.builders import attention


def softmax(columns: int, stop: int = 0) -> TensorProgram:
    b = Builder("softmax", dtype="float32")
    y = b.softmax(b.input("X", (12, columns)))
    return b.build(Y=b.op("slice", y, axis=1, start=0, stop=stop) if stop else y)


BARE = (softmax(16), softmax(1), softmax(16, 8), attention(8, 16, 12, 12))


@pytest.mark.parametrize("program", BARE)
def test_a_bare_exponential_fails_where_exponents_are_large(program: TensorProgram):
    bare = fuse(program)
    assert verify(program, bare, rounds=1).accepted, "it is the same by algebra, and with numbers about 1"
    found = verify(program, bare, rounds=1, large=True)
    assert isinstance(found, Rejected)
    assert "differs in float32 where exponents are" in str(found)
    assert verify(program, structures(program)[0], rounds=1, large=True).accepted


@pytest.mark.parametrize("program", BARE)
def test_what_becomes_a_kernel_is_refused_with_one(program: TensorProgram, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    monkeypatch.setattr(verifier, "exponents", lambda program: {})  # whatever the comparison says
    found = kept_verdict(program, fuse(program))
    assert isinstance(found, Rejected)
    assert "no maximum of its own is subtracted" in str(found)
    assert kept_verdict(program, structures(program)[0]).accepted


def test_exponentials_of_the_program_itself_are_not_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    b = Builder("own", dtype="float32")
    x = b.input("X", (12, 16))
    program = b.build(Y=b.exp(x) @ b.input("V", (16, 8)), Z=b.softmax(x))
    assert kept_verdict(program, structures(program)[0]).accepted


def test_a_test_that_fails_itself_is_a_refusal(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise ValueError("cannot reshape array of size 80 into shape (14,10)")

    monkeypatch.setattr(verifier, "_verify", broken)
    program = softmax(16)
    found = verify(program, stabilize_graph(fuse(program)))
    assert isinstance(found, Unknown)
    assert "ValueError: cannot reshape" in str(found)
