"""The named programs against formulas written down independently."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fuser.errors import UsageError
from fuser.workloads import WORKLOADS
from fuser.workloads import match
from fuser.workloads import workload
from fuser.workloads import workload_names

Array = np.ndarray[Any, np.dtype[Any]]
NAMES = workload_names()


def rms(x: Array) -> Array:
    return x / np.sqrt(np.einsum("...i,...i->...", x, x)[..., None] / x.shape[-1] + 1e-5)


def attend(q: Array, k: Array, v: Array) -> Array:
    weights = np.exp(np.einsum("hmk,hnk->hmn", q, k) / math.sqrt(q.shape[-1]))
    return np.einsum("hmn,hnd->hmd", weights, v) / np.einsum("hmn->hm", weights)[..., None]


def chain(A: Array, B: Array, D: Array) -> Array:
    return np.einsum("bmk,bkn,bnh->bmh", A, B, D, optimize=True)


def attention(Q: Array, K: Array, V: Array) -> Array:
    return attend(Q, K, V)


def grouped(Q: Array, K: Array, V: Array) -> Array:
    """Query head i reads key head i // group."""
    group = len(Q) // len(K)
    return np.concatenate([attend(q[None], K[i // group][None], V[i // group][None]) for i, q in enumerate(Q)])


def moe(X: Array, A: Array, B: Array) -> Array:
    return np.stack([np.clip(x @ a, 0, None) @ b for x, a, b in zip(X, A, B, strict=True)])


def mlp20(X: Array, W: Array, v: Array) -> Array:
    for w, bias in zip(W, v, strict=True):
        X = np.clip(X @ w + bias[None, :], 0, None)
    return X


def layernorm(X: Array, G: Array, B: Array) -> Array:
    return (X - X.mean(-1)[:, None]) / np.sqrt(X.var(-1)[:, None] + 1e-5) * G + B


SMALL: dict[str, tuple[dict[str, int], Callable[..., Array]]] = {
    "mcfuser/G11": ({"batch": 2, "M": 7, "N": 5, "K": 3, "H": 4}, chain),
    "mcfuser/S6": ({"heads": 3, "M": 7, "N": 9, "K": 5, "H": 4}, attention),
    "mirage/gqa-spec:8": ({"heads": 3, "M": 7, "N": 9, "K": 5, "H": 4}, attention),
    "mirage/gqa-repeat:8": ({"heads": 3, "group": 2, "M": 7, "N": 9, "K": 5, "H": 4}, grouped),
    "mirage/qknorm": ({"heads": 2, "M": 6, "N": 9, "K": 5, "H": 4}, lambda Q, K, V: attend(rms(Q), rms(K), V)),
    "mirage/rmsnorm": ({"rows": 3, "D": 8, "N": 5}, lambda X, G, W: (rms(X) * G[None]) @ W),
    "mirage/lora": ({"rows": 3, "D": 8, "N": 5, "R": 2}, lambda X, W, A, B: X @ (W + A @ B)),
    "mirage/gated-mlp": (
        {"rows": 3, "D": 8, "N": 5},
        lambda X, W1, W2: (X @ W1) / (1 + np.exp(-(X @ W1))) * (X @ W2),
    ),
    "mirage/ntrans": ({"rows": 3, "D": 8}, lambda H, X, alpha: rms((1 - alpha) * X + alpha * rms(H))),
    "mirage/mlp": ({"rows": 3, "D": 8, "R": 2}, lambda X, A, B: X + np.clip(X @ A, 0, None) @ B),
    "mirage/moe": ({"E": 3, "rows": 4, "D": 6, "F": 5}, moe),
    "graphene/gemm": ({"M": 5, "N": 4, "K": 3}, lambda A, C: np.einsum("mk,kn->mn", A, C)),
    "graphene/gemm-bias-relu": ({"M": 5, "N": 4, "K": 3}, lambda A, C, v: np.clip(A @ C + v[None], 0, None)),
    "graphene/mlp20": ({"layers": 4, "M": 5, "D": 6}, mlp20),
    "graphene/lstm": ({"M": 5, "N": 4, "K": 3}, lambda X, H, W, U, v: np.clip(X @ W + H @ U + v[None], 0, None)),
    "graphene/layernorm": ({"rows": 5, "D": 7}, layernorm),
    "graphene/fmha": ({"heads": 2, "M": 5, "N": 6, "K": 4, "H": 3}, attention),
}


@pytest.mark.parametrize("name", SMALL)
def test_program_equals_formula(name: str, rng: np.random.Generator) -> None:
    sizes, formula = SMALL[name]
    program = workload(name, dtype="float16", **sizes)
    inputs = {n: rng.standard_normal(program[n].shape) for n in program.inputs}
    (found,) = program.evaluate(inputs).values()
    np.testing.assert_allclose(found, formula(**inputs), rtol=1e-11, atol=1e-11)


def test_every_formula_is_checked() -> None:
    assert {WORKLOADS[n.partition(":")[0]].formula for n in SMALL} == {w.formula for w in WORKLOADS.values()}


@pytest.mark.parametrize("name", NAMES)
def test_builds_in_half_precision_with_one_output(name: str) -> None:
    program = workload(name)
    assert program.name == name
    assert {t.dtype for t in program.tensors} == {"float16"}
    assert len(program.outputs) == 1
    assert workload(name, dtype="bfloat16")[program.outputs[0]].dtype == "bfloat16"


SHAPES = {
    "mcfuser/G4": "A[1,512,256] B[1,256,512] D[1,512,256] -> [1,512,256]",
    "mcfuser/G12": "A[8,1024,128] B[8,128,1024] D[8,1024,128] -> [8,1024,128]",
    "mcfuser/S6": "Q[16,256,80] K[16,256,80] V[16,256,80] -> [16,256,80]",
    "mcfuser/S8": "Q[1,768,64] K[1,384,64] V[1,384,64] -> [1,768,64]",
    "mirage/mha-inc": "Q[32,1,64] K[32,4096,64] V[32,4096,64] -> [32,1,64]",
    "mirage/gqa-inc:8": "Q[16,8,64] K[16,4096,64] V[16,4096,64] -> [16,8,64]",
    "mirage/mqa-spec": "Q[1,1024,64] K[1,4096,64] V[1,4096,64] -> [1,1024,64]",
    "mirage/mqa-prefill:8": "Q[8,16384,64] K[8,4096,64] V[8,4096,64] -> [8,16384,64]",
    "mirage/gqa-repeat:8": "Q[128,32,64] K[16,4096,64] V[16,4096,64] -> [128,32,64]",
    "mirage/qknorm:8": "Q[16,256,64] K[16,4096,64] V[16,4096,64] -> [16,256,64]",
    "mirage/rmsnorm:8": "X[16,4096] G[4096] W[4096,6144] -> [16,6144]",
    "mirage/lora": "X[16,4096] W[4096,4096] A[4096,16] B[16,4096] -> [16,4096]",
    "mirage/gated-mlp:8": "X[64,4096] W1[4096,4096] W2[4096,4096] -> [64,4096]",
    "mirage/ntrans": "H[8,4096] X[8,4096] alpha[8,4096] -> [8,4096]",
    "mirage/mlp:8": "X[128,4096] A[4096,16] B[16,4096] -> [128,4096]",
    "mirage/moe:8": "X[8,64,4096] A[8,4096,2048] B[8,2048,4096] -> [8,64,4096]",
    "graphene/gemm-bias-relu": "A[5376,2048] C[2048,5376] v[5376] -> [5376,5376]",
    "graphene/mlp20": "X[4096,128] W[20,128,128] v[20,128] -> [4096,128]",
    "graphene/lstm": "X[1024,1024] H[1024,1024] W[1024,1024] U[1024,1024] v[1024] -> [1024,1024]",
    "graphene/layernorm": "X[12288,1024] G[1024] B[1024] -> [12288,1024]",
    "graphene/fmha": "Q[512,384,64] K[512,384,64] V[512,384,64] -> [512,384,64]",
}


@pytest.mark.parametrize("name", SHAPES)
def test_published_shapes(name: str) -> None:
    program = workload(name)

    def text(n: str) -> str:
        return f"[{','.join(map(str, program[n].shape))}]"

    assert f"{' '.join(n + text(n) for n in program.inputs)} -> {text(program.outputs[0])}" == SHAPES[name]


def test_a_batch_of_one_is_the_plain_name() -> None:
    assert workload("mirage/rmsnorm:1") == workload("mirage/rmsnorm")
    assert workload("mirage/rmsnorm:3")["X"].shape == (6, 4096)
    assert workload("mirage/rmsnorm:8", rows=5)["X"].shape == (5, 4096)


def test_names_and_globs() -> None:
    assert len(match(["mcfuser/*"])) == 21
    assert match(["mcfuser/S1", "mcfuser/S*", "mcfuser/S1"]) == [f"mcfuser/S{i}" for i in range(1, 10)]
    assert match(["mirage/r*"]) == ["mirage/rmsnorm", "mirage/rmsnorm:8"]
    assert len(match(["mirage/*:8"])) == 17
    assert match(["mirage/lora:08"]) == ["mirage/lora:8"]


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("mirage/rmsnrom", "no workload 'mirage/rmsnrom'", "mirage/rmsnorm"),
        ("G4", "no workload 'G4'", "suite/case|mcfuser/G4"),
        ("mcfuser/g1", "no workload", "mcfuser/G1"),
        ("mcfuser/G1:8", "has no batch", "mcfuser/G1"),
        ("mirage/lora:0", "not a positive whole number", "mirage/lora:8"),
        ("mirage/lora:b", "not a positive whole number", "mirage/lora:8"),
        ("nobody/*", "no workload fits", "graphene, mcfuser, mirage"),
    ],
)
def test_unknown_names(name: str, message: str, hint: str) -> None:
    import re

    with pytest.raises(UsageError, match=message) as e:
        match([name])
    assert re.search(hint, e.value.hint)


def test_unknown_size() -> None:
    with pytest.raises(UsageError, match="no size Q") as e:
        workload("mcfuser/G1", Q=3)
    assert "batch, M, N, K, H" in e.value.hint
