"""What was chosen beside what torch's compiler makes of the same: both run on the GPU at hand, and the faster is kept.

The model prices what it has kernels for within some per cent; what torch's compiler makes of a module it knows less of. Two that
run say which is the faster, at the cost of compiling the second. The answer is kept in the cache folder.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import nullcontext
from contextlib import suppress
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuser import kept
from fuser.files import BAD_VALUE
from fuser.frontends.imported import Imported
from fuser.frontends.opened import opened
from fuser.lower.assembler import compiler
from fuser.lower.compile import cache_dir
from fuser.runtime.capture import capture_calls
from fuser.runtime.inductor import FAR
from fuser.runtime.inductor import FEW
from fuser.runtime.inductor import TIED
from fuser.runtime.inductor import agree
from search.cover.plan import Plan
from search.cover.theirs import LARGEST
from search.measure.machine import gpu_at_hand
from search.measure.versions import with_libraries

ROUNDS, SECONDS, LEAST = 5, 0.01, 2
"""Rounds in which both take turns, how long each runs in one, and how often at least."""
APART = 0.1
"""Relative difference of results from which one of two is wrong: networks of many layers differ by some per cent in bfloat16."""
AS_FAR = 1.25
"""How many times as far from torch's own operators as the compiler's results ours may be, where those are far away."""
DOUBTED = 1.25
"""How many times as long as is wanted of it else a plan may take by its price, where it is measured beside another."""
FAR_AHEAD = 0.4
"""Part of the time of torch's compiler, by the model, below which a plan is taken as it is: none of 13 such was behind, and the
least gain was 1.25."""

SHORT, UNROLLED = 4.0, 2000
"""Microseconds of a kernel below which its price is mostly how kernels begin and end; and the most operators of a plan that is
mostly such kernels, or a library's, with which it is measured all the same: a loop over steps that Python writes out, behind
torch's compiler twice among six, and five times as slow as a smoother of 1504 operators, for which that takes half a minute."""


@dataclass(frozen=True)
class Beside:
    """Microseconds of a call, one after the other, and of its CUDA graph (None where it cannot be captured). ``agree``: whether
    the results of both are alike."""

    ours_calls: float
    theirs_calls: float
    ours_graph: float | None = None
    theirs_graph: float | None = None
    agree: bool = True

    @property
    def ours(self) -> bool:
        """Whether our plan is kept: it is the faster as a CUDA graph, and, where that counts twice, over both ways to call it. Of
        two that differ what torch's compiler has is taken, which was compared with torch's operators on this GPU."""
        if not self.agree:
            return False
        calls = self.theirs_calls / self.ours_calls
        if self.ours_graph is None or self.theirs_graph is None:
            return calls >= 1.0
        graph = self.theirs_graph / self.ours_graph
        return graph >= 1.0 and graph**2 * calls >= 1.0

    def __str__(self) -> str:
        if not self.agree:
            return "our kernels fail on this GPU, or differ in their results from those of torch's compiler: torch's are taken"
        mine, its = (self.ours_calls, self.theirs_calls) if self.ours_graph is None else (self.ours_graph, self.theirs_graph)
        graph = "" if self.ours_graph is None else " in a CUDA graph"
        calls = (
            "" if self.ours_graph is None else f", called one after the other {self.ours_calls:.1f} and {self.theirs_calls:.1f}"
        )
        which = "ours are taken" if self.ours else "those are taken"
        return f"measured{graph}: our kernels {mine:.1f} µs, those of torch's compiler {its:.1f}{calls}; {which}"


def measured(
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    device: Any,
    tied: bool = False,
    compared: bool = True,
    eager: Callable[[], Any] | None = None,
) -> Beside:
    """Both called, compared, and timed in turn on a GPU. Of what is ``tied`` equal elements may be ordered either way. Where both
    are as far from what torch computes ``eager``-ly, rounding decides (of spikes, say), and neither is wrong. Raises what theirs
    raises; where ours raises it is not to be taken, but for want of memory."""
    import torch

    from search.measure.replays import in_turn

    def times(calls: Mapping[str, Callable[[], Any]]) -> list[float]:
        found = in_turn(calls, ROUNDS, SECONDS, LEAST)
        return [statistics.median(found[name]) for name in ("ours", "theirs")]

    gpu = torch.device(device).type == "cuda"
    with torch.no_grad(), torch.cuda.device(device) if gpu else nullcontext():
        its = _tensors(theirs())
        try:
            mine = _tensors(ours())
        except torch.OutOfMemoryError:
            raise
        except Exception:  # noqa: BLE001 - whatever it is, it does not run
            return Beside(*times({"ours": theirs, "theirs": theirs}), agree=False)
        same = not compared or agree(mine, its, TIED if tied else FEW, [True] * len(its), APART)
        if not same and eager is not None:
            same = _as_far(mine, its, _tensors(eager()))
        del mine, its
        graphs: dict[str, Any] = {}
        with suppress(RuntimeError):  # a library that waits for the GPU
            graphs = {name: capture_calls([call], warm=True) for name, call in (("ours", ours), ("theirs", theirs))}
        replays = times({n: graph.replay for n, graph in graphs.items()}) if graphs else (None, None)
        return Beside(*times({"ours": ours, "theirs": theirs}), *replays, agree=same)


def _as_far(mine: Sequence[Any], its: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Whether results of ours are about as near to what is wanted as theirs, which are no more than near."""
    ours, theirs = (max(map(_distance, found, wanted), default=math.inf) for found in (mine, its))
    return theirs > FAR and ours <= AS_FAR * theirs


def _distance(x: Any, y: Any) -> float:
    """Of a result from another, by the norm of that."""
    found = float((x.double() - y.double()).norm() / y.double().norm().clamp(1e-30))
    return math.inf if math.isnan(found) else found


def most_measured(plans: Sequence[Plan]) -> int:
    """Operators that torch's compiler may be given to be measured beside what these plans stand for: of more it makes something
    for minutes, where the model knows well what its own kernels take."""
    parts = [p for plan in plans for p in plan.parts]
    vague = sum(p.us for p in parts if p.library or p.us < SHORT * len(p.names))
    return UNROLLED if vague > 0.5 * sum(p.us for p in parts) else LARGEST


def _tensors(found: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [x for x in tree_leaves(opened(found)) if isinstance(x, torch.Tensor)]


def may_be_measured(device: str | None) -> bool:
    """Whether there is something to measure on, now."""
    import torch

    return device not in (None, "cpu") and not torch.cuda.is_current_stream_capturing()


# -- kept -----------------------------------------------------------------------------------------------------------------------


def file_of(*what: str, device: str | None) -> Path:
    """Where an answer is kept: by what was compiled and how, the GPU, and the versions of all that made it."""
    versions = (kept.source_hash("fuser", "cost_model", "search"), with_libraries(compiler()), repr(gpu_at_hand(device)))
    return cache_dir("beside") / f"{kept.text_hash(*what, *versions)}.json"


def key_of(known: Imported) -> str:
    """A program with how its inputs lie; and the shapes of its parameters, whose values decide nothing."""
    params = [(n, x.shape, str(x.dtype)) for n, x in sorted(known.params.items())]
    return f"{known.program.stable_hash()} {params} {sorted(known.orders.items())}"


def key_of_graph(graph: Any) -> str:
    """A graph of torch's operators, with the form of each value."""

    def form(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return [form(v) for v in value]
        return (tuple(value.shape), value.stride(), str(value.dtype)) if hasattr(value, "stride") else repr(value)

    return repr([(n.name, str(n.target), str(n.args), str(n.kwargs), form(n.meta.get("val"))) for n in graph.graph.nodes])


def read(file: Path) -> Beside | None:
    try:
        (value,) = kept.read(file)
        found = Beside(**value)
        numbers = [x for x in (found.ours_calls, found.theirs_calls, found.ours_graph, found.theirs_graph) if x is not None]
        timed = isinstance(found.ours_calls, float) and isinstance(found.theirs_calls, float)
        return found if timed and all(math.isfinite(x) and x > 0 for x in numbers) else None
    except (*BAD_VALUE, TypeError):  # there is none, or this program did not write it
        return None


def write(file: Path, found: Beside) -> None:
    kept.write(file, asdict(found))
