"""Inputs that are hard on a kernel, each for the programs to which it says something.

Every function is called with ``(program, generator, device)`` and returns torch tensors by name;
:class:`search.measure.session.Options` refers to it by name. The float64 reference gets the same values, already rounded to the
program's dtype.
"""

from __future__ import annotations

from typing import Any

from fuser.ir.program import TensorProgram

SHARP = 50.0
"""Standard deviation of queries and keys whose scores, over the root of the head size, reach ±1e4."""


def normal(program: TensorProgram, generator: Any, device: str, **scales: float) -> dict[str, Any]:
    """Standard normal, times the factor of a name."""
    import torch

    found = {}
    for name in program.inputs:
        t = program[name]
        x = torch.randn(t.shape, generator=generator, dtype=torch.float32, device=device) * scales.get(name, 1.0)
        found[name] = x.to(getattr(torch, t.dtype))
    return found


def logits(program: TensorProgram, generator: Any, device: str) -> dict[str, Any]:
    """Scores of standard deviation 2500, the largest about ±1e4: softmax is all but one-hot."""
    return normal(program, generator, device, Q=SHARP, K=SHARP)


def equal_logits(program: TensorProgram, generator: Any, device: str) -> dict[str, Any]:
    """Every key is the same, and large: softmax is uniform, and every shift by a maximum is a shift by all of it."""
    found = normal(program, generator, device, Q=SHARP, K=SHARP)
    found["K"] = found["K"][..., :1, :].expand(found["K"].shape).contiguous()
    return found


def outlier(program: TensorProgram, generator: Any, device: str) -> dict[str, Any]:
    """One key, somewhere behind the first tiles, is 100 times as large as the others."""
    found = normal(program, generator, device)
    keys = found["K"].shape[-2]
    found["K"][..., (2 * keys) // 3, :] *= 100.0
    return found


def masked(program: TensorProgram, generator: Any, device: str) -> dict[str, Any]:
    """A mask of zeros and minus infinities: half of the keys are absent, and for every fifth query all of them."""
    import math

    import torch

    found = normal(program, generator, device)
    mask = found["mask"]
    away = torch.rand(mask.shape, generator=generator, device=device) < 0.5
    if mask.shape[-2] > 1:
        away[..., ::5, :] = True
    found["mask"] = torch.where(away, -math.inf, 0.0).to(mask.dtype)
    return found


def zero_rows(program: TensorProgram, generator: Any, device: str) -> dict[str, Any]:
    """Every third row of what is normalized is zero, so that the epsilon alone keeps the quotient finite."""
    found = normal(program, generator, device)
    for name in ("X", "H", "Q", "K"):
        if name in found:
            found[name][..., ::3, :] = 0.0
    return found


def large(program: TensorProgram, generator: Any, device: str) -> dict[str, Any]:
    """Near the largest number of fp16: squares overflow 16 bits and their sum stays within 32. Gains are at most 1."""
    import torch

    found = normal(program, generator, device)
    x = torch.rand(found["X"].shape, generator=generator, device=device) * 2 - 1
    found["X"] = (x * 60000.0).to(found["X"].dtype)
    if "G" in found:
        found["G"] = torch.rand(found["G"].shape, generator=generator, device=device).to(found["G"].dtype)
    return found


def denormal(program: TensorProgram, generator: Any, device: str) -> dict[str, Any]:
    """Numbers below the smallest normal one of fp16: they must not be flushed to zero."""
    return normal(program, generator, device, X=1e-6)


def target(name: str) -> str:
    """What :class:`search.measure.session.Options` takes; standard normal inputs are its default."""
    return "" if name == "normal" else f"{__name__}:{name}"
