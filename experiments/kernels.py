"""The reference kernels: sources of the best known schedules of every named workload, by their hashes.

    python -m experiments.kernels                 # which of them this tree generates otherwise than the committed list says
    python -m experiments.kernels --update        # write the list again: read its difference before you commit it
    python -m experiments.kernels --sources out   # write the sources, to compare those of two trees: diff -r

Nothing is ranked, and no GPU or compiler is needed.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.candidates import best_known
from experiments.script import parser
from experiments.script import script
from fuser.device import load_device
from fuser.errors import FuserError
from fuser.lower.triton_source import generate_graph
from fuser.outputs import write_file
from search.measure.known import PACKAGED
from search.measure.known import load
from search.measure.records import Records

LIST = Path(__file__).parent / "kernels.txt"
BEST = 2
"""Schedules of each workload."""


@dataclass(frozen=True)
class Reference:
    """A kernel of the ``rank``-th best schedule of a workload; ``text`` is what was generated, or why nothing was."""

    workload: str
    rank: int
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.workload} {self.rank} {self.name} {hashlib.sha256(self.text.encode()).hexdigest()[:16]}"


def references(device: str) -> Iterator[Reference]:
    """Kernels of the best known schedules on a device, sorted by workload."""
    title = load_device(device).title
    with Records(":memory:") as records:
        load(records, [PACKAGED / f"{device}.jsonl.xz"])
        for workload in sorted({r.workload for r in records.rows(device=title, kind="kernel")}):
            for rank, known in enumerate(best_known(records, workload, title, BEST)):
                try:
                    sources = generate_graph(known.candidate.graph, known.candidate.schedule)
                except FuserError as error:
                    yield Reference(workload, rank, "refused", error.message)
                    continue
                yield from (Reference(workload, rank, s.name, s.text) for s in sources)


def changes(committed: str, kernels: Iterable[Reference]) -> tuple[str, ...]:
    """Lines of a unified difference from the committed list to these kernels; none where they are the same."""
    now = "".join(f"{k}\n" for k in kernels)
    lines = difflib.unified_diff(committed.splitlines(), now.splitlines(), LIST.name, "generated now", n=0, lineterm="")
    return tuple(line for line in lines if not line.startswith("@@"))


def main(argv: Sequence[str] | None = None) -> int:
    p = parser("experiments.kernels", __doc__)
    p.add_argument("--device", default="h200", help="whose best known schedules they are")
    p.add_argument("--update", action="store_true", help="write the committed list again")
    p.add_argument("--sources", type=Path, metavar="FOLDER", help="write every source into a folder")
    args = p.parse_args(argv)
    kernels = tuple(references(args.device))
    if args.sources:
        args.sources.mkdir(parents=True, exist_ok=True)
        for k in kernels:
            write_file(args.sources / f"{k.workload.replace('/', '_')}.{k.rank}.{k.name}.py", k.text)
    found = changes(LIST.read_text(encoding="utf-8") if LIST.exists() else "", kernels)
    print("\n".join(found or (f"{len(kernels)} reference kernels, none is altered",)))
    if args.update:
        write_file(LIST, "".join(f"{k}\n" for k in kernels))
        return 0
    if found:
        print("these reference kernels are altered: --update, if that is meant")
    return 1 if found else 0


if __name__ == "__main__":
    script(main)
