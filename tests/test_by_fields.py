"""A function whose options are one value is called with the fields of that."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import pytest

from fuser.by_fields import by_fields
from fuser.errors import UsageError


@dataclass(frozen=True)
class Options:
    first: int = 1
    second: str = "b"


@by_fields
def joined(a: int, *, options: Options, last: int = 0) -> tuple[int, Options, int]:
    """Says what it was given."""
    return a, options, last


def test_options_are_given_by_the_names_of_their_fields() -> None:
    assert joined(5, second="c") == (5, Options(second="c"), 0)
    assert joined(a=5, first=2, last=3) == (5, Options(2), 3)
    assert list(inspect.signature(joined).parameters) == ["a", "first", "second", "last"]
    assert joined.__doc__ == "Says what it was given."


@pytest.mark.parametrize("wrong", [{"options": Options()}, {"third": 3}])
def test_what_is_no_field_is_no_keyword(wrong: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=next(iter(wrong))):
        joined(1, **wrong)


def test_the_nearest_argument_is_named_and_where_all_are() -> None:
    with pytest.raises(UsageError, match="there is no argument 'secnd'") as error:
        joined(1, secnd="c")
    assert error.value.hint == "did you mean 'second'? arguments: a, first, second, last"
    with pytest.raises(UsageError, match="missing a required argument: 'a'") as error:
        joined()
    assert error.value.hint.startswith("arguments: a, ")
    with pytest.raises(UsageError, match="too many positional"):
        joined(1, 2)
