"""What all tests with TVM share."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from importlib.util import find_spec

import pytest


@pytest.fixture(scope="session", autouse=True)
def build_options_are_read_once() -> Iterator[None]:
    """TVM reads all of its build options, which never change, for each shape that it lowers: a third of the time of a build."""
    if find_spec("tvm") is None or find_spec("tvm.relay") is None:
        yield
        return
    from tvm.relay.backend import te_compiler

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(te_compiler, "libinfo", functools.cache(te_compiler.libinfo))
        yield
