"""What a user would pick instead: torch eager, cuBLASLt's epilogues, torch.compile, scaled_dot_product_attention with its
backends, FlexAttention.

Every peer is made from the program itself (:mod:`experiments.natural`), so that all workloads have them; attention inside a
program goes to the backend that the peer names. Peers are checked against float64 like any candidate, by the same worker.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from experiments.natural import Function
from experiments.natural import has_epilogue
from experiments.natural import natural
from experiments.natural import scaled_attention
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.ir.program import TensorProgram
from fuser.runtime.forms import explicit_attention
from fuser.runtime.torch_program import Attention
from fuser.runtime.torch_program import run_steps
from fuser.runtime.torch_program import steps
from search.measure.timing import External

TARGET = "experiments.peers:make"
MODE = "max-autotune-no-cudagraphs"
"""Of torch.compile: the bench captures everything into CUDA graphs itself."""

PEERS: dict[str, str] = {
    "eager": "PyTorch as a competent user writes it: addmm, fused norms, lerp; attention as bmm, softmax, bmm",
    "cublaslt": "the same with bias and ReLU in cuBLASLt's epilogue (torch._addmm_activation)",
    "inductor": f"torch.compile, {MODE}; attention written out",
    "inductor-sdpa": f"torch.compile, {MODE}; attention left to the SDPA backend that PyTorch prefers",
    "flash": "scaled_dot_product_attention, flash backend",
    "cudnn": "scaled_dot_product_attention, cuDNN backend",
    "flex": f"FlexAttention, compiled, {MODE}",
}
"""Every peer by name."""

FAST_PEERS = ("eager", "cublaslt", "flash", "cudnn")
"""Peers that need no compiler of their own."""


def applies(name: str, program: TensorProgram) -> bool:
    """Whether a peer has a form of its own of a program."""
    if name == "cublaslt":
        return has_epilogue(program)
    if name == "inductor-sdpa":  # for attention alone that is the backend itself
        return _has_attention(program) and any(n.products < 2 and n.entry.kind != "view" for n in program.nodes)
    return name in ("eager", "inductor") or _has_attention(program)


def _has_attention(program: TensorProgram) -> bool:
    return any(n.products > 1 for n in program.nodes)


def known_peers(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once; :class:`UsageError` for one that is unknown."""
    names = tuple(dict.fromkeys(names))
    if unknown := [n for n in names if n not in PEERS]:
        raise UsageError(f"there is no peer {unknown[0]!r}", f"peers are {', '.join(PEERS)}")
    return names


def peers_of(program: TensorProgram, names: Iterable[str] = tuple(PEERS)) -> tuple[External, ...]:
    """The peers among ``names`` that apply to a program."""
    return tuple(External(TARGET, n) for n in known_peers(names) if applies(n, program))


def make(program: TensorProgram, name: str, device: str) -> Function:
    """The function of a peer, from inputs by name to outputs by name. Raises :class:`UnsupportedError` where it cannot do the
    program."""
    known_peers([name])
    if name in ("inductor", "inductor-sdpa", "flex"):
        _fresh_compiler(program.stable_hash())
    if name in ("inductor", "inductor-sdpa"):
        return _inductor(program, device, explicit_attention if name == "inductor" else _sdpa(None))
    attention = {"flash": _sdpa, "cudnn": _sdpa, "flex": _flex}.get(name, lambda _: scaled_attention)(name)
    return natural(program, attention, epilogue=name == "cublaslt")


# -- compiled ones ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _fresh_compiler(program: str) -> None:
    """Forget what was compiled for another program, or the limit of recompilations makes later programs eager ones.

    Once a program and no more: peers of one program are made one after another and captured together, and a reset between the
    two makes an earlier one compile again inside the capture, which CUDA forbids.
    """
    import torch

    torch._dynamo.reset()


def _never_in_capture(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Compiling inside a capture breaks the capture with a message about something else; this says what happened."""
    import torch

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            if not _capturing():
                return compiled(*args, **kwargs)
            with torch.compiler.set_stance("fail_on_recompile"):
                return compiled(*args, **kwargs)

    return call


def _capturing() -> bool:
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _inductor(program: TensorProgram, device: str, attention: Attention) -> Function:
    import torch

    todo, inputs, outputs = steps(program), program.inputs, program.outputs

    def positional(*tensors: Any) -> Any:
        found = run_steps(todo, dict(zip(inputs, tensors, strict=True)), attention)
        return tuple(found[n] for n in outputs)

    # the interpreter of the CPU is there to try a run out, not to be tuned
    mode = MODE if device == "cuda" else "default"
    compiled = _never_in_capture(torch.compile(positional, mode=mode, fullgraph=True, dynamic=False))
    return lambda values: dict(zip(outputs, compiled(*(values[n] for n in inputs)), strict=True))


def _four(x: Any) -> Any:
    """[batch, heads, rows, columns], as the attention functions want it."""
    while x.dim() < 4:
        x = x[None]
    return x


def _sdpa(backend: str | None) -> Attention:
    """Attention by one backend, or by the one that PyTorch prefers."""
    import contextlib

    from torch.nn import functional
    from torch.nn.attention import SDPBackend
    from torch.nn.attention import sdpa_kernel

    which = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}

    def attention(q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool) -> Any:
        if causal and q.shape[-2] != k.shape[-2]:
            raise UnsupportedError("SDPA aligns a causal mask to the other corner when there are fewer queries than keys")
        with sdpa_kernel(which[backend]) if backend else contextlib.nullcontext():
            out = functional.scaled_dot_product_attention(_four(q), _four(k), _four(v), mask, is_causal=causal, scale=scale)
        return out.reshape(*q.shape[:-1], v.shape[-1])

    return attention


def _flex(_: str) -> Attention:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    compiled = _never_in_capture(torch.compile(flex_attention, mode=MODE, dynamic=False))

    @lru_cache
    def upto(offset: int) -> Callable[..., Any]:
        # one function for each offset: flex_attention compiles again for another one
        return lambda score, b, h, i, j: torch.where(j <= i + offset, score, -float("inf"))

    def attention(q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool) -> Any:
        if mask is not None:
            raise UnsupportedError("FlexAttention takes a mask as a function, not as a tensor")
        masked = upto(k.shape[-2] - q.shape[-2]) if causal else None
        out = compiled(_four(q), _four(k), _four(v), score_mod=masked, scale=scale)
        return out.reshape(*q.shape[:-1], v.shape[-1])

    return attention
