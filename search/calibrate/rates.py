"""Rates of the GPU at hand by operators of torch: what a launch costs, what device memory and L2 move, what tensor cores
multiply.

Each is a row like any other, so that a later run reads it back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.ir.builder import Builder
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import TensorProgram
from search.measure.measurer import Bench
from search.measure.rows import Record
from search.measure.timing import External

TARGET = "search.calibrate.rates:by_torch"
SUITE = "rates"
LARGE = 1 << 27
"""Elements of float16 that a copy moves, and a sum reads, for the rate of device memory."""
AGAIN = 32
"""Times that a call copies what stays in L2, so that what a call costs by itself is little."""
SIDE = 8192
"""Of the products that give the rates of tensor cores."""
DTYPES: Mapping[str, str] = {"float16": "tensor_fp16", "bfloat16": "tensor_bf16", "float32": "tensor_tf32"}
"""Of the products, and the number of a device that each is."""
EXACT = 0.05
"""Error that products of tf32, bfloat16 and sums of many terms may have."""


@dataclass(frozen=True)
class Rates:
    """Seconds of a launch (a trivial kernel in a CUDA graph), bytes a second of a large copy (read and written), of a large sum
    and of a copy within L2, FLOP/s of a large product by dtype; None for what was not measured."""

    launch: float | None
    copy: float | None
    read: float | None
    l2: float | None
    products: Mapping[str, float]


def negation(count: int) -> TensorProgram:
    b = Builder(f"{SUITE}/negation-{count}")
    return b.build(Y=-b.input("X", (count,)))


def sums(count: int) -> TensorProgram:
    """Of the rows of a square."""
    b = Builder(f"{SUITE}/sums-{count}")
    side = math.isqrt(count)
    return b.build(Y=b.sum(b.input("X", (side, side)), 1))


def product(size: int, dtype: str = "float16") -> TensorProgram:
    b = Builder(f"{SUITE}/product-{size}-{dtype}", dtype)
    return b.build(Y=b.input("A", (size, size)) @ b.input("B", (size, size)))


def cached(count: int) -> TensorProgram:
    """A negation whose tensors stay in L2."""
    return replace(negation(count), name=f"{SUITE}/cached-{count}")


def by_torch(program: TensorProgram, name: str, device: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The operator of one of these programs; products of float32 by tf32, copies within L2 several times."""
    import torch

    def again(x: Any) -> Any:
        y = torch.neg(x)
        for _ in range(AGAIN - 1):
            torch.neg(x, out=y)
        return y

    operators: Mapping[str, Callable[..., Any]] = {
        "negation": torch.neg,
        "cached": again,
        "sums": lambda x: torch.sum(x, 1),
        "product": torch.matmul,
    }
    operator = operators[name]
    torch.backends.cuda.matmul.allow_tf32 = True

    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {program.outputs[0]: operator(*(inputs[n] for n in program.inputs))}

    return call


def seconds(bench: Bench, program: TensorProgram, name: str) -> float:
    """Of a call at best, as measured by this run, now or by an earlier part of it. Raises :class:`EnvironmentError_` where it
    cannot be measured."""
    row = next(bench.records.rows(workload=program.name, repeat=bench.run, status="ok"), None)
    row = row or bench.measure(program, [External(TARGET, name)], again=True)[0]
    if not row.ok or not row.time_us:
        raise EnvironmentError_(f"{program.name} cannot be measured here: {row.status}: {row.detail}", "is the device free?")
    return least(row) or 0.0


def least(row: Record) -> float | None:
    """Seconds of a call at best; clocks that are held back and other programs make it longer."""
    us = row.measurement.min_us or row.time_us
    return 1e-6 * us if row.ok and us else None


def programs(memory: float, l2: float) -> list[tuple[TensorProgram, str, bool]]:
    """What is measured on a GPU with so many bytes: programs, operators, and whether tensors shall stay in L2."""
    count = 1 << int(math.log2(min(LARGE, memory / 64)))
    large = [(negation(count), "negation", False), (sums(1 << (2 * int(math.log2(count) / 2))), "sums", False)]
    # of 2 sets of tensors both are half of L2 at most
    small = [(cached(int(l2) // part), "cached", True) for part in (64, 16)]
    return [(negation(64), "negation", False), *large, *small, *((product(SIDE, d), "product", False) for d in DTYPES)]


def measured(bench: Bench, memory: float, l2: float, step: Callable[[str], None]) -> None:
    """Measure what is not measured yet; what cannot be is left out. Raises :class:`EnvironmentError_` where nothing works."""
    before, failed = bench.options, list[EnvironmentError_]()
    found = programs(memory, l2)
    try:
        for program, name, within in found:
            bench.options = replace(before, l2_factor=1e-3 if within else before.l2_factor, rounds=15, tolerance=EXACT)
            try:
                us = 1e6 * seconds(bench, program, name)
                step(f"{program.name.removeprefix(SUITE + '/')} {us:.2f} µs")
            except EnvironmentError_ as error:
                failed.append(error)
                step(error.message)
    finally:
        bench.options = before
    if len(failed) == len(found):
        raise failed[0]


def rates_of(rows: Iterable[Record]) -> Rates:
    """What rows say, as far as they do."""
    times: dict[tuple[str, ...], float] = {}
    for row in rows:
        suite, _, what = row.workload.partition("/")
        if suite == SUITE and (best := least(row)):
            times[tuple(what.split("-"))] = best

    def sized(kind: str) -> list[tuple[int, float]]:
        return sorted((int(k[1]), t) for k, t in times.items() if k[0] == kind)

    item, moved, read, kept = DTYPE_BYTES["float16"], sized("negation"), sized("sums"), sized("cached")
    launch = moved[0][1] if moved and moved[0][0] == 64 else None
    copy = 2 * item * moved[-1][0] / moved[-1][1] if moved and moved[-1][0] > 64 else None
    slope = None
    if len(kept) > 1 and kept[-1][1] > kept[0][1]:  # without what a launch costs
        slope = AGAIN * 2 * item * (kept[-1][0] - kept[0][0]) / (kept[-1][1] - kept[0][1])
    products = {k[2]: 2 * int(k[1]) ** 3 / t for k, t in times.items() if k[0] == "product"}
    return Rates(launch, copy, item * read[-1][0] / read[-1][1] if read else None, slope, products)
