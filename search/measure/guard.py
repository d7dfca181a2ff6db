"""Whether what all candidates of a program share is still what it was: their inputs, and the reference they are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from search.measure.session import Session

CHUNK = 1 << 22
"""Words of 8 bytes that are multiplied and added at once."""


class Spoiled(Exception):
    """A candidate wrote to what others read; ``who`` is its number, or -1 where several ran. The process is of no use then."""

    def __init__(self, who: int, names: str) -> None:
        super().__init__(f"writes what it may only read: {names}")
        self.who = who


class Guard:
    """Sums over the bytes of inputs and reference that no change of one word and hardly any of several leaves as they are."""

    def __init__(self, session: Session) -> None:
        self._tensors = dict(_shared(session))
        self._sums = self._now()

    def check(self, who: int) -> None:
        """Raise :class:`Spoiled` if something changed."""
        found = self._now()
        if changed := [n for n in found if found[n] != self._sums[n]]:
            raise Spoiled(who, ", ".join(sorted({n.partition("#")[0] for n in changed})))

    def _now(self) -> dict[str, int]:
        sums = {n: _sum(x) for n, x in self._tensors.items()}  # all of them are under way before the first is waited for
        return {n: int(x) for n, x in sums.items()}


def _shared(session: Session) -> Iterator[tuple[str, Any]]:
    """The bytes of every storage once, by a name and ``#`` with a number."""
    import torch

    sets = [session.check_inputs, *session.inputs, {f"reference of {n}": x for n, x in session.reference.items()}]
    seen: set[int] = set()
    for name, x in ((n, x) for tensors in sets for n, x in tensors.items()):
        storage = x.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            yield f"{name}#{len(seen)}", torch.empty(0, dtype=torch.uint8, device=x.device).set_(storage)


def _sum(data: Any) -> Any:
    """A number of 64 bits that depends on every byte and its place."""
    import torch

    whole = data.numel() // 8 * 8
    total = (data[whole:].long() * torch.arange(1, 1 + data.numel() - whole, device=data.device)).sum()
    words = data[:whole].view(torch.int64)
    weights = torch.arange(1, 2 * min(CHUNK, len(words)), 2, device=data.device)  # odd: no word's change is lost
    for chunk in words.split(CHUNK) if whole else ():
        total = total * 6364136223846793005 + (chunk * weights[: len(chunk)]).sum()
    return total
