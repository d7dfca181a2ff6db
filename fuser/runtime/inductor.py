"""What torch's own compiler (inductor) makes of a function, and whether that agrees with the function."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from fuser.runtime.joined import ORDERS
from fuser.runtime.joined import Run
from fuser.runtime.places import VIEWED

FAR = 0.02
"""Relative error from which what the compiler made is something else."""
AS_NEAR, ROUNDED = 1.1, 0.1
"""How many times as far from what is exact as torch's own operators the compiler's may be, where these are no farther than the
second, relative to the norm: else they are simply wrong."""
FEW, TIED = 0.01, 0.1
"""Part of the elements that may be others; of what was sorted, or is the place of the largest, since half precision has equal
numbers."""
TIES = (*ORDERS, "argmin", "argmax", "min.dim", "max.dim")


def inductor(graph: Any, run: Run, given: Sequence[Any]) -> Run | None:
    """What torch's compiler makes of a function, loaded, where it agrees with the function itself, or with what that gives for
    the same numbers in the next wider type, to which it may be as near: operator by operator half precision overflows where one
    kernel does not, and of what cancels both have rounding errors alone. What it does not take as a graph, in the context in
    which it was traced, it may take as a module."""
    whole = copy.deepcopy(graph)  # compiling a graph changes it
    other = TIED if is_tied(graph) else FEW
    counted = [False] * len(given) + _counted(graph)
    for way in (_of_graph, _of_module):
        with suppress(Exception):
            made = way(graph, whole)
            found, wanted = _called(made, given), _called(run, given)
            if agree(found, wanted, other, counted):
                return made
            with suppress(Exception):  # constants may be of the narrower type
                exact = _called(run, _wider(given))
                if agree(found, exact, other, counted) or all(map(_as_near, found, wanted, exact)):
                    return made
            if all(map(_finite, wanted)):
                continue
            # what overflows in one order of operations may not in another: numbers near one say more
            gentle = [_gentle(x) for x in given]
            wanted = _called(run, gentle)
            if all(map(_finite, wanted)) and agree(_called(made, gentle), wanted, other, counted):
                return made
    return None


def is_tied(graph: Any) -> bool:
    """Whether an operator of a graph orders elements, of which some may be equal."""
    return any(word in str(n.target) for n in graph.graph.nodes for word in TIES)


def _called(run: Run, given: Sequence[Any]) -> tuple[Any, ...]:
    """What a call leaves in copies of what it is given, and its results."""
    mine = [x.clone() for x in given]
    return (*mine, *run(*mine))


def _wider(given: Sequence[Any]) -> list[Any]:
    """The same numbers, those of half precision in float32; where there are none, in float64."""
    import torch

    halves, wide = any(map(_half, given)), torch.float64
    return [x.float() if _half(x) else x.to(wide) if x.dtype is torch.float32 and not halves else x for x in given]


def _finite(x: Any) -> bool:
    return not x.is_floating_point() or bool(x.isfinite().all())


def _gentle(x: Any) -> Any:
    """A tensor that lies alike, of numbers between 0.5 and 1.5."""
    return x.clone().tanh_().mul_(0.5).add_(1.0) if x.is_floating_point() else x.clone()


def _as_near(x: Any, y: Any, exact: Any) -> bool:
    """Whether a result is about as near to the exact one as the function's own: where it rests on differences of what is nearly
    equal, both are far away."""
    if not x.is_floating_point() or not exact.isfinite().all():
        return _alike(x, y, FEW)
    known = y.isfinite()  # elsewhere the function itself is of no help
    off, own, size = ((t.double()[known]).norm() for t in (x - exact, y - exact, exact))
    near = off <= own * (AS_NEAR if own <= ROUNDED * size else 1.0)
    return bool(near and (x - exact)[~known].double().norm() <= FAR * exact[~known].double().norm())


def _half(x: Any) -> bool:
    return x.is_floating_point() and x.element_size() == 2


def _of_graph(graph: Any, _: Any) -> Run:
    from torch._guards import TracingContext
    from torch._guards import tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.virtualized import V

    end = next(n for n in graph.graph.nodes if n.op == "output")
    end.meta["user_visible_output_idxs"] = [i for i, n in enumerate(end.args[0]) if hasattr(n, "meta")]  # they lie as here
    fakes = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
    mode = fakes[0].fake_mode  # another one would not know what is in the graph
    with config.patch(compile_threads=1), V.set_fake_mode(mode), tracing(TracingContext(mode)):
        made: Any = compile_fx_inner(graph, fakes, is_inference=True)
    ran = False

    def run(*xs: Any) -> Any:  # its first call ends what compiling it began; later ones go to what it calls
        nonlocal ran
        if ran:
            return made.current_callable(list(xs))
        found, ran = made(list(xs)), hasattr(made, "current_callable")
        return found

    return run


def _of_module(_: Any, module: Any) -> Run:
    import torch

    return torch.compile(module, dynamic=False)


def _counted(graph: Any) -> list[bool]:
    """Which results are sums of whole numbers, or of conditions."""
    (results,) = next(n for n in graph.graph.nodes if n.op == "output").args

    def counted(x: Any) -> bool:
        while str(getattr(x, "target", "")).startswith(VIEWED):
            x = x.args[0]
        return str(getattr(x, "target", "")).startswith(("aten.sum.", "aten.cumsum."))

    return [counted(x) for x in results]


def agree(found: Sequence[Any], wanted: Sequence[Any], other: float, counted: Sequence[bool], far: float = FAR) -> bool:
    """Whether results are those that are ``wanted``: see :func:`_alike`."""
    return len(found) == len(wanted) == len(counted) and all(
        x.shape == y.shape and _alike(x, y, other, c, far) for x, y, c in zip(found, wanted, counted, strict=True)
    )


def _alike(x: Any, y: Any, other: float, counted: bool = False, far: float = FAR) -> bool:
    """Whether two results agree as far as their dtype lets them: their distance is no more than ``far``, relative to the norm; up
    to a part ``other`` of the elements may be others, of whole numbers, and where equal elements may be ordered either way. Of
    many conditions that are ``counted`` some were rounded the other way."""
    import torch

    if not x.is_floating_point():  # a number that was rounded the other way, a place of one that is as large
        near = counted and (x.double() - y.double()).norm() <= far * y.double().norm()
        return bool(near or (x != y).double().mean() <= other)
    if not torch.equal(x.isnan(), y.isnan()):
        return False
    x, y = (t.double().nan_to_num(0.0, 1e30, -1e30) for t in (x, y))
    if (x - y).norm() <= far * y.norm():
        return True
    return other > FEW and bool(((x - y).abs() > far * y.abs().clamp(y.square().mean().sqrt())).double().mean() <= other)
