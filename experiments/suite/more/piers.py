"""Language models in bfloat16: chunks with states between, sparse branches, packed rows, caches that layers share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.operators import wide
from experiments.suite.users import call


def channel_decays_in_chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Kimi's delta attention: each channel of a key has its own decay; a triangular system in a chunk, a state between."""
    b, h, t, d = q.shape
    q, k, v, g = (x.float().view(b, h, t // size, size, -1) for x in (q, k, v, -0.1 * functional.softplus(g.float())))
    q, k = functional.normalize(q, dim=-1) * d**-0.5, functional.normalize(k, dim=-1)
    beta = torch.sigmoid(beta.float()).view(b, h, t // size, size, 1)
    sums = torch.cumsum(g, 3)
    up, down = k * torch.exp(sums), k * torch.exp(-sums)
    system = torch.eye(size, device=q.device) + (beta * (up @ down.mT)).tril(-1)
    solved = torch.linalg.solve_triangular(system, torch.cat([beta * v, beta * up], -1), upper=False)
    u, w = solved.split([v.shape[-1], d], -1)
    asked = q * torch.exp(sums)
    inner, last = (asked @ down.mT).tril(), torch.exp(sums[:, :, :, -1:])
    state, out = torch.zeros(b, h, d, v.shape[-1], device=q.device), []
    for i in range(t // size):
        new = u[:, :, i] - w[:, :, i] @ state
        out.append(asked[:, :, i] @ state + inner[:, :, i] @ new)
        state = last[:, :, i].mT * state + (down[:, :, i] * last[:, :, i]).mT @ new
    return torch.cat(out, 2).bfloat16(), state


def three_branches(compress, gate, q: Tensor, k: Tensor, v: Tensor, x: Tensor, sizes: tuple[int, int, int]) -> Tensor:
    """Native sparse attention whole: blocks as one key, the best blocks in full, a window; three gates add them up."""
    (b, h, t, d), (block, chosen, window) = q.shape, sizes
    groups = h // k.shape[1]
    at = torch.arange(t, device=q.device)
    kb, vb = (compress(y.unflatten(2, (-1, block)).flatten(3)) for y in (k, v))
    k, v, kb, vb = (y.repeat_interleave(groups, 1) for y in (k, v, kb, vb))
    over = (torch.arange(t // block, device=q.device) + 1) * block - 1 <= at[:, None]
    p = torch.softmax((q @ kb.mT).float() * d**-0.5 + torch.where(over, 0.0, -1e9), -1) * over
    best = p.view(b, -1, groups, t, t // block).sum(2)
    best = torch.where(at[:, None] // block == torch.arange(t // block, device=q.device), 1e3, best)
    hot = torch.zeros_like(best).scatter(-1, best.topk(chosen, -1).indices, 1.0).repeat_interleave(groups, 1)
    causal = at <= at[:, None]
    mask = hot.bool().repeat_interleave(block, -1) & causal
    s = (q @ k.mT).float() * d**-0.5
    near = causal & (at[:, None] - at < window)
    y = [p.to(q.dtype) @ vb, *(torch.softmax(s.masked_fill(~m, -torch.inf), -1).to(q.dtype) @ v for m in (mask, near))]
    gates = torch.sigmoid(gate(x)).unflatten(-1, (3, h)).permute(2, 0, 3, 1).unsqueeze(-1)
    return (torch.stack(y) * gates).sum(0).transpose(1, 2).flatten(2)


def routed_memories(router, qs, keys, values, x: Tensor, most: int = 2) -> Tensor:
    """Mixture of memories: a token is written to two of some states and to a shared one, and reads from the same."""
    w, at = torch.softmax(router(x).float(), -1).topk(most, -1)
    gates = torch.zeros(*x.shape[:2], len(keys) - 1, device=x.device).scatter(-1, at, w / w.sum(-1, keepdim=True)).to(x.dtype)
    q, y = torch.relu(qs(x)), torch.zeros_like(x)
    for i, (fk, fv) in enumerate(zip(keys, values, strict=True)):
        gate = gates[..., i : i + 1] if i < len(keys) - 1 else torch.ones_like(x[..., :1])
        k, v = torch.relu(fk(x)) * (gate > 0), fv(x)
        y += gate * ((q @ k.mT / k.shape[-1]).tril() @ v)
    return y


def convolved_within_rows(x: Tensor, taps: Tensor, bias: Tensor, ids: Tensor) -> Tensor:
    """A short convolution over sequences that lie one after the other: nothing comes from the one before."""
    y = bias + x * taps[:, -1]
    for i in range(1, taps.shape[1]):
        same = (ids[i:] == ids[:-i]).unsqueeze(-1)
        y[i:] += torch.where(same, x[:-i], 0) * taps[:, -1 - i]
    return x + functional.silu(y)


def rows_of(many, total):
    """Numbers of rows, in order."""
    return lambda n: torch.randint(0, n(*many), (n(*total),)).sort().values


def tempered_state(gates, qk, out, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Rodimus: a temperature says both how much is forgotten and how much is written."""
    size = state.shape[-1]
    select, tau = gates(x).float().chunk(2, -1)
    g, tau = functional.softplus(select), torch.sigmoid(tau)
    q, k = qk(x).float().chunk(2, -1)
    keep, write, s, y = torch.exp(-g * tau), g.pow(tau), state.float(), []
    v = functional.silu(x.float())
    for t in range(x.shape[1]):
        s = s * keep[:, t, None] + v[:, t, :, None] * (functional.normalize(k[:, t], dim=-1) * write[:, t])[:, None]
        y.append(torch.einsum("bdn,bn->bd", s, q[:, t]) * size**-0.5)
    return out(torch.stack(y, 1).to(x.dtype)), s


def bonus_for_the_present(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, size: int) -> Tensor:
    """RWKV-6 by chunks: decays of channels and tokens, a bonus where the key is the query's own."""
    b, h, t, d = r.shape
    r, k, v, w = (x.float().view(b, h, -1, size, d) for x in (r, k, v, -torch.exp(w.float().clamp(max=0.5) - 2)))
    sums = torch.cumsum(w, 3)
    before = sums - w
    inner = ((r * torch.exp(before)) @ (k * torch.exp(-sums)).mT).tril(-1)
    inner = inner + torch.diag_embed((r * u.float()[:, None, None] * k).sum(-1))
    state, out = torch.zeros(b, h, d, d, device=r.device), []
    for i in range(t // size):
        end = sums[:, :, i, -1:]
        out.append(inner[:, :, i] @ v[:, :, i] + (r[:, :, i] * torch.exp(before[:, :, i])) @ state)
        state = torch.exp(end).mT * state + (k[:, :, i] * torch.exp(end - sums[:, :, i])).mT @ v[:, :, i]
    return functional.group_norm(torch.cat(out, 2).transpose(1, 2).reshape(b * t, h * d), h).view(b, t, -1).bfloat16()


def norm_and_gate_with_residue(x: Tensor, gate: Tensor, residue: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The residue is kept in float32 behind it, whatever comes in."""
    total = x.float() + residue.float()
    mean = total.mean(-1, keepdim=True)
    y = (total - mean) * torch.rsqrt((total - mean).square().mean(-1, keepdim=True) + 1e-5)
    return ((y * weight.float() + bias.float()) * functional.silu(gate.float())).to(x.dtype), total


def blocks_with_a_running_maximum(q: Tensor, k: Tensor, v: Tensor, size: int) -> Tensor:
    """Flash attention by hand: two loops over blocks, what was summed is rescaled, results are written in place."""
    out = torch.empty_like(q)
    for i in range(0, q.shape[2], size):
        mine = q[:, :, i : i + size] * q.shape[-1] ** -0.5
        most = torch.full_like(mine[..., :1], -torch.inf, dtype=torch.float32)
        total, y = torch.zeros_like(most), torch.zeros_like(mine, dtype=torch.float32)
        for j in range(0, i + 1, size):
            s = (mine @ k[:, :, j : j + size].mT).float()
            if i == j:
                s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
            new = torch.maximum(most, s.amax(-1, keepdim=True))
            p, scale = torch.exp(s - new), torch.exp(most - new)
            total, y = total * scale + p.sum(-1, keepdim=True), y * scale + (p.to(v.dtype) @ v[:, :, j : j + size]).float()
            most = new
        out[:, :, i : i + size] = (y / total).to(q.dtype)
    return out


def one_cache_for_two_layers(kv, layers, x: Tensor, heads: int) -> Tensor:
    """YOCO's second half: keys and values are made once; every layer asks them and has a gated network."""
    k, v = kv(functional.rms_norm(x, x.shape[-1:])).unflatten(-1, (2, heads // 4, -1)).permute(2, 0, 3, 1, 4)
    for ask, out, up, down in layers:
        q = ask(functional.rms_norm(x, x.shape[-1:])).unflatten(-1, (heads, -1)).transpose(1, 2)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + out(y.transpose(1, 2).flatten(2))
        a, b = up(functional.rms_norm(x, x.shape[-1:])).chunk(2, -1)
        x = x + down(functional.silu(a) * b)
    return x


def lines(many, i: int, o: int, small: tuple[int, int], **more):
    return lambda n: nn.ModuleList(wide(i, o, small, **more)(n) for _ in range(many))


LONG, KEYS = ((2, 1), (16, 2), (1024, 8), (64, 4)), ((2, 1), (2, 1), (1024, 16), (64, 4))
ASKED, WIDE = ((2, 1), (16, 4), (1024, 16), (64, 4)), ((4096, 5), (2048, 12))
BFLOAT16: dict[str, Case] = {
    "channel_decays_in_chunks": call(
        lambda *x: channel_decays_in_chunks(*x, size=32 if x[0].shape[2] > 99 else 4), LONG, LONG, LONG, LONG, LONG[:3]
    ),
    "three_branches": call(
        lambda f, g, *x: three_branches(f, g, *x, sizes=(32, 8, 128) if x[0].shape[2] > 99 else (4, 2, 5)),
        *(ASKED, KEYS, KEYS, ((2, 1), (1024, 16), (512, 8))),
        parts=(wide(2048, 64, (16, 4), bias=False), wide(512, 48, (8, 12))),
    ),
    "routed_memories": call(
        routed_memories,
        ((4, 2), (1024, 6), (512, 8)),
        parts=(
            *(wide(512, 4, (8, 4)), wide(512, 128, (8, 4), bias=False)),
            *(lines(5, 512, o, (8, s), bias=False) for o, s in ((128, 4), (512, 8))),
        ),
    ),
    "convolved_within_rows": call(
        convolved_within_rows,
        *(((16384, 11), (2048, 5)), ((2048, 5), 4), ((2048, 5),), rows_of((37, 3), (16384, 11))),
    ),
    "tempered_state": call(
        tempered_state,
        *(((32, 2), (16, 3), (2048, 8)), ((32, 2), (2048, 8), (64, 4))),
        parts=(wide(2048, 128, (8, 8)), wide(2048, 128, (8, 8), bias=False), wide(2048, 1024, (8, 6), bias=False)),
    ),
    "bonus_for_the_present": call(
        lambda *x: bonus_for_the_present(*x, size=16 if x[0].shape[2] > 99 else 4),
        *(((4, 1), (16, 2), (512, 8), (64, 4)),) * 4,
        ((16, 2), (64, 4)),
    ),
    "norm_and_gate_with_residue": call(norm_and_gate_with_residue, *((WIDE,) * 3), (WIDE[1],), (WIDE[1],)),
    "blocks_with_a_running_maximum": call(
        lambda *x: blocks_with_a_running_maximum(*x, size=256 if x[0].shape[2] > 99 else 3),
        *(((4, 1), (16, 2), (1024, 9), (128, 4)),) * 3,
    ),
    "one_cache_for_two_layers": call(
        lambda f, g, x: one_cache_for_two_layers(f, g, x, 16 if x.shape[-1] > 99 else 4),
        ((2, 1), (1024, 7), (1024, 16)),
        parts=(
            wide(1024, 512, (16, 8), bias=False),
            lambda n: nn.ModuleList(
                nn.ModuleList(
                    wide(i, o, s, bias=False)(n)
                    for i, o, s in (
                        (1024, 1024, (16, 16)),
                        (1024, 1024, (16, 16)),
                        (1024, 5632, (16, 24)),
                        (2816, 1024, (12, 16)),
                    )
                )
                for _ in range(2)
            ),
        ),
    ),
}
CASES: dict[str, Case] = BFLOAT16
"""In the number format that the group is meant for."""
