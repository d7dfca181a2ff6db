"""What a user would pick instead: torch eager, torch.compile, scaled_dot_product_attention with its backends, FlexAttention.

Every peer is made from the program itself (:func:`fuser.runtime.torch_program.run_program`), so that all workloads have them;
attention inside a program goes to the backend that the peer names. Peers are checked against float64 like any candidate, by the
same worker.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.ir.program import TensorProgram
from fuser.runtime.torch_program import run_program
from fuser.runtime.torch_program import run_steps
from fuser.runtime.torch_program import steps
from search.timing import External

TARGET = "experiments.peers:make"
ATTENTION_PEERS = ("flash", "cudnn", "flex")
PEERS = ("eager", "inductor", *ATTENTION_PEERS)
TITLES = {
    "eager": "PyTorch eager",
    "inductor": 'torch.compile(mode="max-autotune-no-cudagraphs")',
    "flash": "SDPA, flash backend",
    "cudnn": "SDPA, cuDNN backend",
    "flex": "FlexAttention, compiled",
}

Function = Callable[[dict[str, Any]], dict[str, Any]]


def has_attention(program: TensorProgram) -> bool:
    return any(n.op == "attention" for n in program.nodes)


def peers_of(program: TensorProgram, names: Iterable[str] = PEERS) -> tuple[External, ...]:
    """The peers among ``names`` that apply to a program."""
    names = tuple(names)
    if unknown := [n for n in names if n not in PEERS]:
        raise UsageError(f"there is no peer {unknown[0]!r}", f"peers are {', '.join(PEERS)}")
    attention = has_attention(program)
    return tuple(External(TARGET, n) for n in names if attention or n not in ATTENTION_PEERS)


def make(program: TensorProgram, name: str, device: str) -> Function:
    """The function of a peer, from inputs by name to outputs by name. Raises :class:`UnsupportedError` where it cannot do the
    program."""
    if name == "eager":
        return lambda inputs: run_program(program, inputs)  # attention as matmul, softmax, matmul
    if name == "inductor":
        return _inductor(program, device)
    if name in ("flash", "cudnn"):
        attention = _sdpa(name)
        return lambda inputs: run_program(program, inputs, attention)
    if name == "flex":
        attention = _flex()
        return lambda inputs: run_program(program, inputs, attention)
    raise UsageError(f"there is no peer {name!r}", f"peers are {', '.join(PEERS)}")


def _inductor(program: TensorProgram, device: str) -> Function:
    import torch

    todo, inputs, outputs = steps(program), program.inputs, program.outputs

    def positional(*tensors: Any) -> Any:
        found = run_steps(todo, dict(zip(inputs, tensors, strict=True)))
        return tuple(found[n] for n in outputs)

    # a fresh compiler state: otherwise the recompile limit turns later programs into eager ones
    torch._dynamo.reset()
    mode = "max-autotune-no-cudagraphs" if device == "cuda" else "default"
    compiled = torch.compile(positional, mode=mode, fullgraph=True, dynamic=False)

    def call(inputs: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            found = compiled(*(inputs[n] for n in program.inputs))
        return dict(zip(program.outputs, found, strict=True))

    return call


def _four(x: Any) -> Any:
    """[batch, heads, rows, columns], as the attention functions want it."""
    while x.dim() < 4:
        x = x[None]
    return x


def _sdpa(backend: str) -> Callable[..., Any]:
    from torch.nn import functional
    from torch.nn.attention import SDPBackend
    from torch.nn.attention import sdpa_kernel

    which = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[backend]

    def attention(q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool) -> Any:
        if causal and q.shape[-2] != k.shape[-2]:
            raise UnsupportedError("SDPA aligns a causal mask to the other corner when there are fewer queries than keys")
        with sdpa_kernel(which):
            out = functional.scaled_dot_product_attention(_four(q), _four(k), _four(v), mask, is_causal=causal, scale=scale)
        return out.reshape(*q.shape[:-1], v.shape[-1])

    return attention


def _flex() -> Callable[..., Any]:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, mode="max-autotune-no-cudagraphs", dynamic=False)

    def attention(q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool) -> Any:
        if mask is not None:
            raise UnsupportedError("FlexAttention takes a mask as a function, not as a tensor")

        def keep(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return torch.where(j <= i + (k.shape[-2] - q.shape[-2]), score, -float("inf"))

        with torch.no_grad():
            out = compiled(_four(q), _four(k), _four(v), score_mod=keep if causal else None, scale=scale)
        return out.reshape(*q.shape[:-1], v.shape[-1])

    return attention
