"""What is checked: the named workloads, and programs of odd sizes, dtypes and inputs."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass

from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram
from fuser.workloads import workload
from fuser.workloads import workload_names

SCORES = ("normal", "logits", "equal_logits", "outlier")
NORMED = ("normal", "zero_rows", "large", "denormal")


@dataclass(frozen=True)
class Case:
    """A program and the names of the inputs (:mod:`experiments.soundness.inputs`) that it is tried on."""

    program: TensorProgram
    inputs: tuple[str, ...] = ("normal",)

    @property
    def name(self) -> str:
        return self.program.name


def attention(
    name: str,
    sizes: tuple[int, int, int, int, int],
    inputs: tuple[str, ...] = ("normal",),
    mask: tuple[int, ...] = (),
    causal: bool = False,
    dtype: str = "float16",
) -> Case:
    """``sizes``: heads, queries, keys, widths of keys and of values."""
    heads, m, n, k, h = sizes
    b = Builder(f"odd/{name}", dtype)
    q, key, v = b.input("Q", (heads, m, k)), b.input("K", (heads, n, k)), b.input("V", (heads, n, h))
    return Case(b.build(O=b.attention(q, key, v, b.input("mask", mask) if mask else None, causal=causal)), inputs)


def repeated_heads() -> Case:
    """Seven query heads share a key head, which the program repeats."""
    b = Builder("odd/attention-7-to-1")
    q, k, v = b.input("Q", (14, 33, 64)), b.input("K", (2, 200, 64)), b.input("V", (2, 200, 64))
    return Case(b.build(O=b.attention(q, b.op("repeat", k, axis=0, times=7), b.op("repeat", v, axis=0, times=7))))


def folded_heads() -> Case:
    """Seven query heads as rows of their key head."""
    b = Builder("odd/attention-7-folded")
    q, k, v = b.input("Q", (2, 7, 33, 64)), b.input("K", (2, 200, 64)), b.input("V", (2, 200, 64))
    return Case(b.build(O=b.attention(q.reshape(2, 231, 64), k, v).reshape(2, 7, 33, 64)))


def chain(name: str, dtype: str = "float16", activation: str = "", batch: int = 1) -> Case:
    b = Builder(f"odd/{name}", dtype)
    lead = (batch,) if batch > 1 else ()
    c = b.input("A", (*lead, 197, 72)) @ b.input("B", (*lead, 72, 300))
    return Case(b.build(E=(b.op(activation, c) if activation else c) @ b.input("D", (*lead, 300, 40))))


def norms() -> Iterator[Case]:
    for dtype, tail in (("float16", ""), ("bfloat16", "-bf16"), ("float32", "-fp32")):
        inputs = NORMED if dtype == "float16" else ("normal", "zero_rows")
        b = Builder(f"odd/rmsnorm-4100{tail}", dtype)
        y = b.rms_norm(b.input("X", (3, 4100)), b.input("G", (4100,))) @ b.input("W", (4100, 260))
        yield Case(b.build(Y=y), inputs)
        b = Builder(f"odd/layernorm-1000{tail}", dtype)
        x, g, beta = b.input("X", (37, 1000)), b.input("G", (1000,)), b.input("beta", (1000,))
        yield Case(b.build(Y=b.layer_norm(x, g, beta)), inputs)
    b = Builder("odd/softmax-1001")
    yield Case(b.build(Y=b.softmax(b.input("X", (29, 1001)))), ("normal", "large"))
    b = Builder("odd/rms-rows-1100")
    h, x, alpha = (b.input(n, (5, 1100)) for n in ("H", "X", "alpha"))
    yield Case(b.build(Y=b.rms_norm(x + alpha * (b.rms_norm(h) - x))), ("normal", "zero_rows"))
    b = Builder("odd/qknorm")
    q, k, v = b.input("Q", (3, 33, 80)), b.input("K", (3, 501, 80)), b.input("V", (3, 501, 80))
    yield Case(b.build(O=b.attention(b.rms_norm(q), b.rms_norm(k), v)), ("normal", "zero_rows", "logits"))


def products() -> Iterator[Case]:
    yield chain("chain")
    yield chain("chain-batch", batch=3)
    yield chain("chain-relu", activation="relu")
    yield chain("chain-gelu-bf16", "bfloat16", "gelu")
    yield chain("chain-fp32", "float32")
    b = Builder("odd/lora")
    x = b.input("X", (5, 1000))
    yield Case(b.build(Y=x @ b.input("W", (1000, 520)) + (x @ b.input("A", (1000, 12))) @ b.input("B", (12, 520))))
    b = Builder("odd/gated-mlp")
    x = b.input("X", (7, 520))
    yield Case(b.build(Y=b.silu(x @ b.input("W1", (520, 264))) * (x @ b.input("W2", (520, 264)))))
    b = Builder("odd/adapter")
    x = b.input("X", (19, 520))
    yield Case(b.build(Y=b.relu(x @ b.input("A", (520, 24))) @ b.input("B", (24, 520)) + x))
    b = Builder("odd/experts")
    x = b.input("X", (3, 5, 200))
    yield Case(b.build(Y=b.relu(x @ b.input("A", (3, 200, 328))) @ b.input("B", (3, 328, 200))))
    b = Builder("odd/bias-relu")
    yield Case(b.build(Y=b.relu(b.input("A", (197, 200)) @ b.input("C", (200, 300)) + b.input("v", (300,)))))


def odd_cases() -> Iterator[Case]:
    """Programs of odd sizes, dtypes and inputs."""
    yield attention("attention-197", (3, 197, 197, 64, 64), SCORES)
    yield attention("attention-197-bf16", (3, 197, 197, 64, 64), SCORES, dtype="bfloat16")
    yield attention("attention-197-fp32", (2, 197, 197, 64, 64), SCORES, dtype="float32")
    for size in (72, 80, 96):
        yield attention(f"attention-head-{size}", (2, 100, 256, size, size), ("normal", "logits"))
    yield attention("attention-head-64-40", (2, 64, 300, 64, 40))
    yield attention("attention-3000-keys", (2, 64, 3000, 64, 64), SCORES)
    yield attention("attention-1-query", (4, 1, 1000, 64, 64), SCORES)
    yield repeated_heads()
    yield folded_heads()
    yield attention("causal-197", (2, 197, 197, 64, 64), SCORES, causal=True)
    yield attention("causal-more-keys", (2, 100, 333, 64, 64), ("normal", "logits"), causal=True)
    yield attention("causal-more-queries", (2, 150, 70, 64, 64), ("normal", "logits"), causal=True)
    yield attention("mask-of-keys", (3, 50, 333, 64, 64), ("masked",), mask=(1, 1, 333))
    yield attention("mask-with-empty-rows", (3, 50, 333, 64, 64), ("masked",), mask=(1, 50, 333))
    yield from products()
    yield from norms()


def sharp_workloads(name: str) -> tuple[str, ...]:
    """Attention of the published workloads is tried on large scores too; more inputs are for the small programs."""
    attends = any(n.products > 1 for n in workload(name).nodes)
    return ("normal", "logits") if attends else ("normal",)


def select(patterns: Iterable[str]) -> list[Callable[[], Case]]:
    """Cases by names and globs, in order, each built when it is called. Raises :class:`UsageError` where one fits nothing."""
    odd = {c.name: c for c in odd_cases()}
    names = [*workload_names(), *odd]
    found: dict[str, Callable[[], Case]] = {}
    for pattern in patterns:
        hits = [n for n in names if fnmatch.fnmatchcase(n, pattern)]
        if not hits:
            raise UsageError(f"no case fits {pattern!r}", "cases are the named workloads and odd/…; globs work: 'odd/*'")
        for name in hits:
            found[name] = (lambda n=name: odd[n]) if name in odd else (lambda n=name: Case(workload(n), sharp_workloads(n)))
    return list(found.values())


def case(name: str) -> Case:
    """One case by its full name."""
    (make,) = select([name])
    return make()
