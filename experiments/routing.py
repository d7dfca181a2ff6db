"""What mixtures of experts route by: places in order along an axis, the first few of them, and products of rows in groups, by
`fuser.compile` beside torch's own operators, each as a CUDA graph.

    python -m experiments.routing --out out            # on a GPU
    python -m experiments.routing --estimates          # what each is expected to take; needs no GPU
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import fuser
from experiments import modules
from experiments.script import parser
from experiments.script import script
from fuser.device import load_device
from fuser.lower.order_code import Order
from fuser.outputs import make_folder
from fuser.outputs import write_file
from search.measure.replays import captured
from search.order_time import order_seconds
from search.order_time import torch_seconds

SELECTED = (
    ((512, 8), 2), ((512, 64), 8), ((4096, 128), 8), ((2048, 256), 8), ((32768, 1024), 20), ((4096, 1024), 20),
    ((16384, 256), 16), ((64, 1000), 5), ((1024, 2048), 4), ((8, 8400), 100), ((64, 900), 100), ((32, 4096), 32),
    ((1, 4096), 8), ((1, 100000), 50), ((8, 50257), 50), ((65536, 64), 8),
)  # fmt: skip
"""Shapes, and how many of each row are taken."""
SORTED = (
    (1024,), (4096,), (64, 64), (4096, 16), (1024, 64), (256, 128), (64, 256), (16, 512), (8, 1024), (32768, 1024), (4096, 4096),
    (100, 100000), (1, 1000000), (4096, 64), (65536, 32),
)  # fmt: skip
GROUPED = (
    (1024, 8, 1024, 3584), (4096, 64, 1024, 768), (2048, 64, 1024, 1024), (8, 8, 1024, 3584), (16384, 8, 2048, 2048),
    (3200, 32, 1024, 1024), (1024, 8, 1792, 1024), (4096, 64, 384, 1024), (1024, 32, 1024, 2048), (32, 64, 1024, 768),
    (64, 32, 2048, 2048),
)  # fmt: skip
"""Rows, groups, elements of a row, columns."""


@dataclass(frozen=True)
class Task:
    """What is computed of tensors that ``make`` makes, and of what order."""

    name: str
    run: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    order: Order | None = None


def tasks() -> Iterator[Task]:
    """All of them."""
    import torch

    def numbers(shape: Sequence[int], dtype: str) -> Callable[[], tuple[Any, ...]]:
        if dtype == "int64":
            return lambda: (torch.randint(0, 64, tuple(shape), device="cuda"),)
        return lambda: (torch.randn(*shape, device="cuda").to(getattr(torch, dtype)),)

    for shape, k in SELECTED:
        for dtype in ("float32", "bfloat16"):
            order = Order(dtype, shape[-1], math.prod(shape[:-1]), 1, k, True)
            yield Task(f"topk/{by(shape)}-{k}-{dtype}", lambda x, k=k: x.topk(k, -1)[1], numbers(shape, dtype), order)
    for shape in SORTED:
        for dtype in ("float32", "int64"):
            order = Order(dtype, shape[-1], math.prod(shape[:-1]), 1, shape[-1], False)
            yield Task(f"argsort/{by(shape)}-{dtype}", lambda x: x.argsort(-1), numbers(shape, dtype), order)
    for rows, groups, inner, columns in GROUPED:
        for alike in (True, False):

            def make(sizes: tuple[int, ...] = (rows, groups, inner, columns), alike: bool = alike) -> tuple[Any, ...]:
                m, g, k, n = sizes
                x, w = (0.1 * torch.randn(s, device="cuda").bfloat16() for s in ((m, k), (g, n, k)))
                generator = torch.Generator().manual_seed(1)
                chances = torch.softmax(0.7 * torch.randn(g, generator=generator), 0)
                drawn = torch.multinomial(chances, m, True, generator=generator).bincount(minlength=g)
                counts = torch.full((g,), m // g) if alike else drawn
                ends = counts.cumsum(0)
                ends[-1] = m
                return x, w, ends.int().cuda()

            name = f"grouped/{by((rows, groups, inner, columns))}-{'even' if alike else 'skew'}"
            yield Task(name, lambda x, w, ends: torch._grouped_mm(x, w.transpose(1, 2), offs=ends), make)


def by(shape: Sequence[int]) -> str:
    """Of a shape what stands in a name."""
    return "x".join(map(str, shape))


def measured(task: Task) -> str:
    """A line of a task."""
    import torch

    class Module(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return task.run(*given)

    given = task.make()
    ours = fuser.compile(Module(), given, effort="instant")
    wanted, found = task.run(*given), ours(*given)
    same = torch.equal(wanted, found)
    if task.order is not None:  # of equal numbers any may come first
        wanted, found = (given[0].gather(-1, x) for x in (wanted, found))
    apart = (wanted.float() - found.float()).abs().max().item()
    calls = {"torch": lambda: task.run(*given), "ours": lambda: ours(*given)}
    kept = {name: captured(call) for name, call in calls.items()}
    us = modules.times({name: graph for name, (_, graph) in kept.items()})
    plan = ours.realised.candidate.us
    return (
        f"{task.name:36}{us['torch']:9.1f}{us['ours']:9.1f}{plan:9.1f}{us['torch'] / us['ours']:8.2f}  "
        f"{'equal' if same else 'equal numbers' if apart == 0 else f'apart {apart:.1e}'}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Times, or with ``--estimates`` what is expected of orders."""
    p = parser("experiments.routing", __doc__, "target", "out")
    p.add_argument("--estimates", action="store_true", help="what is expected of orders, without a GPU")
    args = p.parse_args(argv)
    every = list(tasks())
    if args.estimates:
        device = load_device(args.target)
        print(f"{'µs expected':36}{'torch':>9}{'ours':>9}")
        for task in every:
            if task.order is not None:
                both = (1e6 * f(task.order, device) for f in (torch_seconds, order_seconds))
                print(f"{task.name:36}" + "".join(f"{us:9.1f}" for us in both))
        return 0
    lines = [f"{'µs':36}{'torch':>9}{'ours':>9}{'expected':>9}{'×':>8}"]
    print(lines[0])
    for task in every:
        lines.append(measured(task))
        print(lines[-1], flush=True)
    write_file(make_folder(args.out) / "routing.txt", "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    script(main)
