"""Why two neighbours of a plan are two kernels and not one.

Where some candidate holds an operator and the one that reads it, the integer program is solved again with one of these candidates
required: the difference is what fusing them costs. Where there is none, the rule that excludes it is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass

from fuser.device import Device
from fuser.errors import NoValidKernelError
from fuser.files import counted
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from search.cover.ilp import Cover
from search.cover.ilp import cover
from search.cover.parts import LONGEST
from search.cover.parts import Part
from search.cover.shown import moves_only
from search.cover.shown import root
from search.regions import find_chains


@dataclass(frozen=True)
class Border:
    """Part ``first`` of a plan leaves ``tensor``, the result of the operator ``maker``, for ``reader`` in part ``second``, and
    why they are apart. Parts are numbers of the plan."""

    first: int
    second: int
    tensor: str
    maker: str
    reader: str
    reason: str


def borders(
    program: TensorProgram, chosen: Cover, considered: Mapping[Part, float], device: Device, part: int | None = None
) -> list[Border]:
    """The borders of a part, or of the whole plan: of equal ones the first. ``considered`` has the seconds of every candidate,
    infinite where there is no kernel."""
    return list(_Borders(program, chosen, considered, device).find(part))


class _Borders:
    def __init__(self, program: TensorProgram, chosen: Cover, considered: Mapping[Part, float], device: Device) -> None:
        self.program, self.chosen, self.considered, self.device = program, chosen, considered, device
        self.made = program.producers
        self.writer = {s: i for i, p in enumerate(chosen.parts) for s in p.leaves}

    def find(self, part: int | None) -> Iterator[Border]:
        seen: set[tuple[str, ...]] = set()
        for second, reader in enumerate(self.chosen.parts):
            for tensor, pitch in reader.takes:
                first = self.writer.get((tensor, pitch))
                if first is None or part not in (None, first, second) or not reader.nodes:
                    continue
                writer = self.chosen.parts[first]
                root = self.root(tensor)
                user = next((n for n in reader.nodes if root in map(self.root, self.made[n].inputs)), "")
                if root not in writer.nodes or not user:
                    continue
                key = (*(p.key for p in (writer, reader)), self.made[root].op, self.made[user].op)
                if key not in seen:
                    seen.add(key)
                    yield Border(first, second, tensor, root, user, self.reason(root, user))

    def root(self, name: str) -> str:
        return root(self.program, name)

    def reason(self, maker: str, reader: str) -> str:
        for node in (self.made[maker], self.made[reader]):
            if node.entry.kind in ("opaque", "library"):
                return f"{node.attr.get('callee', node.op)} is a library's"
        together = [p for p in self.considered if maker in p.nodes and reader in p.nodes]
        if not together:
            return self.rule(maker, reader)
        usable = [p for p in together if self.considered[p] < float("inf")]
        if not usable:
            return f"no kernel holds both: none of {counted(len(together), 'candidate')} fits {self.device.title}"
        try:
            other = cover(self.program, list(self.considered), self.considered, among=usable)
        except NoValidKernelError:
            return "whoever takes both leaves an operator that nothing can compute"
        more = (other.seconds - self.chosen.seconds) * 1e6
        one = next(p for p in other.parts if p in usable)
        ops = " ".join(self.made[n].op for n in one.nodes)
        kernel = f"the best kernel that holds both ({ops}, {self.considered[one] * 1e6:.2f} µs)"
        return f"with {kernel} a call would take {more:.2f} µs more" if more > 0 else f"{kernel} makes no difference"

    def rule(self, maker: str, reader: str) -> str:
        """Why no candidate holds both."""
        first, second = self.made[maker], self.made[reader]
        if maker in self.program.outputs:
            return f"{maker} is a result of the model"
        readers = {n.output for n in self.readers(maker)}
        if first.products and second.products:
            return find_chains(self.program, self.device)[1].get(maker) or "the chain of the two is no candidate"
        if second.products:
            return f"in front of a product, {first.op} would be computed again for every block of its columns"
        if first.products and second.entry.kind != "map":
            return f"{second.op} needs whole rows, of which a block of the product has a part"
        if len(readers) > 1:
            return f"the result is read by {len(readers)} operators"
        return f"a part holds at most {LONGEST} operators in front of its last one, and what lies between belongs to others"

    def readers(self, name: str) -> Iterator[Node]:
        for user in self.program.consumers[name]:
            if moves_only(user):
                yield from self.readers(user.output)
            else:
                yield user
