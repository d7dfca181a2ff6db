"""Layers of sequences in chunks or steps, with memories, gates and maps of attention other than softmax's."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import scaled
from experiments.suite.users import call
from experiments.suite.users import floats

QKV = ((2, 2), (8, 2), (512, 16), (64, 8))
TOKENS = ((4, 2), (256, 8), (512, 16))


def linear(i: int = 1, o: int = 1, **more):
    return lambda n: nn.Linear(i * n(512, 16), o * n(512, 16), **more)


def heads_of(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def size_of(x: Tensor) -> int:
    return 64 if x.shape[-2] >= 64 else 4


# -- chunks ---------------------------------------------------------------------------------------------------------------------


def gated_chunks(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """Gated linear attention: keys decay by channel, a state goes from chunk to chunk."""
    c = size_of(q)
    log_a = functional.logsigmoid(gate).clamp(min=-0.5) / 16
    q, k, v, log_a = (x.unflatten(2, (-1, c)) for x in (q, k, v, log_a))
    a = log_a.cumsum(-2)
    last = a[..., -1:, :]
    q_in, k_in, k_out = q * a.exp() * q.shape[-1] ** -0.5, k * (-a).exp(), k * (last - a).exp()
    inner = (q_in @ k_in.mT).tril() @ v
    state = torch.zeros_like(k[:, :, 0].mT @ v[:, :, 0])
    out = []
    for i in range(q.shape[2]):
        out.append(inner[:, :, i] + q_in[:, :, i] @ state)
        state = state * last[:, :, i].mT.exp() + k_out[:, :, i].mT @ v[:, :, i]
    return torch.cat(out, dim=2), state


def retained_chunks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Retention by chunks: one decay for a head, a group norm of heads after."""
    h, c = q.shape[1], size_of(q)
    rate = torch.log(1 - torch.exp2(-5.0 - torch.arange(h, device=q.device))).to(q.dtype)
    at = torch.arange(c, device=q.device, dtype=q.dtype)
    far = at[:, None] - at[None]
    inner = torch.where(far >= 0, torch.exp(rate[:, None, None] * far.clamp(min=0)), 0.0)
    before = torch.exp(rate[:, None] * (at + 1))[..., None]
    after = torch.exp(rate[:, None] * (c - 1 - at))[..., None]
    state, out = torch.zeros_like(k[:, :, :1].mT @ v[:, :, :1]), []
    for qi, ki, vi in zip(q.split(c, 2), (k * k.shape[-1] ** -0.5).split(c, 2), v.split(c, 2), strict=True):
        out.append(((qi @ ki.mT) * inner) @ vi + (qi * before) @ state)
        state = state * torch.exp(rate * c)[:, None, None] + (ki * after).mT @ vi
    y = torch.cat(out, dim=2).transpose(1, 2)
    return functional.group_norm(y.flatten(0, 1).flatten(1), h, eps=1e-5).view(*y.shape[:2], -1)


def delta_chunks(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """DeltaNet: within a chunk by forward substitution, between chunks by a state."""
    c = 16 if q.shape[2] >= 64 else 4
    q, k = functional.normalize(functional.silu(q), dim=-1), functional.normalize(functional.silu(k), dim=-1)
    beta = beta.sigmoid().unsqueeze(-1)
    q, k, v, kb = (x.unflatten(2, (-1, c)) for x in (q, k, v * beta, k * beta))
    strict = torch.ones(c, c, dtype=torch.bool, device=q.device).triu()
    t = -(kb @ k.mT).masked_fill(strict, 0)
    for i in range(1, c):
        row = t[..., i, :i] + (t[..., i, :, None] * t[..., :, :i]).sum(-2)
        t = torch.cat([t[..., :i, :], functional.pad(row, (0, c - i)).unsqueeze(-2), t[..., i + 1 :, :]], dim=-2)
    t = t + torch.eye(c, dtype=t.dtype, device=t.device)
    u, w = t @ v, t @ kb
    state, out = torch.zeros_like(k[:, :, 0].mT @ v[:, :, 0]), []
    for i in range(q.shape[2]):
        fresh = u[:, :, i] - w[:, :, i] @ state
        out.append(q[:, :, i] @ state + (q[:, :, i] @ k[:, :, i].mT).tril() @ fresh)
        state = state + k[:, :, i].mT @ fresh
    return torch.cat(out, dim=2)


def segsum(x: Tensor) -> Tensor:
    """Sums of all stretches, -inf where a stretch would end before it starts."""
    t = x.shape[-1]
    x = x.unsqueeze(-1).expand(*x.shape, t)
    x = x.masked_fill(~torch.ones(t, t, dtype=torch.bool, device=x.device).tril(-1), 0).cumsum(-2)
    return x.masked_fill(~torch.ones(t, t, dtype=torch.bool, device=x.device).tril(), -torch.inf)


def dual_scan(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Mamba-2's scan: products within chunks, states between them by one more product."""
    size = 64 if x.shape[1] >= 64 else 4
    x, a, b, c = (z.unflatten(1, (-1, size)) for z in (x, -functional.softplus(a), b, c))
    a = a.permute(0, 3, 1, 2)
    sums = a.cumsum(-1)
    near = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", c, b, torch.exp(segsum(a)), x)
    states = torch.einsum("bcln,bhcl,bclhp->bchpn", b, torch.exp(sums[..., -1:] - sums), x)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], dim=1)
    states = torch.einsum("bhzc,bchpn->bzhpn", torch.exp(segsum(functional.pad(sums[..., -1], (1, 0)))), states)
    far = torch.einsum("bcln,bchpn,bhcl->bclhp", c, states[:, :-1], torch.exp(sums))
    return (near + far).flatten(1, 2), states[:, -1]


def lightning(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
    """Linear attention in blocks with slopes, a sum of outer products before each, a gate and a norm after."""
    c = size_of(q)
    q, k = functional.silu(q), functional.silu(k)
    at = torch.arange(c, device=q.device)
    slope = torch.exp2(-8.0 * (torch.arange(q.shape[1], device=q.device) + 1) / q.shape[1])
    decay = torch.exp(-slope[:, None, None] * (at[:, None] - at[None]).clamp(min=0)).tril().to(q.dtype)
    q, k, v = (x.unflatten(2, (-1, c)) for x in (q, k, v))
    outer = torch.einsum("bhgck,bhgcv->bhgkv", k, v).cumsum(2)
    y = ((q @ k.mT) * decay[:, None]) @ v + q @ functional.pad(outer[:, :, :-1], (0, 0, 0, 0, 1, 0))
    y = y.flatten(2, 3).transpose(1, 2).flatten(2)
    return functional.rms_norm(y, y.shape[-1:]) * gate.sigmoid()


def fast_weights(q: Tensor, k: Tensor, v: Tensor, w0: Tensor, rate: float = 0.1) -> Tensor:
    """Test-time training: a layer's weight learns by the gradient of each block, with a residual norm."""
    w, out, c = w0.expand(q.shape[0], -1, -1, -1), [], size_of(q)
    for qi, ki, vi in zip(q.split(c, 2), k.split(c, 2), v.split(c, 2), strict=True):
        z = ki @ w
        target, std = vi - ki, z.std(-1, correction=0, keepdim=True) + 1e-4
        y = (z - z.mean(-1, keepdim=True)) / std
        d = 2 * (y - target) / y.shape[-1]
        dz = (d - d.mean(-1, keepdim=True) - y * (d * y).mean(-1, keepdim=True)) / std
        attn = (qi @ ki.mT).tril()
        out.append(qi + functional.layer_norm(qi @ w - rate / c * (attn @ dz), z.shape[-1:]))
        w = w - rate / c * ki.mT @ dz
    return torch.cat(out, dim=2)


class NeuralMemory(nn.Module):
    """Titans': a network of two layers is the memory; surprise has momentum and what is old is forgotten."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w1, self.w2 = (nn.Parameter(torch.randn(width, width) / width**0.5) for _ in range(2))
        self.to_kv, self.to_q = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, width, bias=False)
        self.rates = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.to_kv(x).chunk(2, -1)
        k, q = functional.normalize(k, dim=-1), functional.normalize(self.to_q(x), dim=-1)
        w1, w2 = (w.expand(len(x), -1, -1) for w in (self.w1, self.w2))
        s1, s2, out = torch.zeros_like(w1), torch.zeros_like(w2), []
        for ki, vi, qi, r in zip(*(z.chunk(4, dim=1) for z in (k, v, q, self.rates(x))), strict=True):
            out.append(functional.silu(qi @ w1) @ w2)
            lr, keep, decay = r.mean(1, keepdim=True).sigmoid().unsqueeze(-1).unbind(2)
            h = ki @ w1
            gate = h.sigmoid()
            wrong = (functional.silu(h) @ w2 - vi) * 2 / ki.shape[1]
            g2 = functional.silu(h).mT @ wrong
            g1 = ki.mT @ ((wrong @ w2.mT) * (gate * (1 + h * (1 - gate))))
            s1, s2 = keep * s1 - lr * g1, keep * s2 - lr * g2
            w1, w2 = (1 - decay * 0.1) * w1 + s1, (1 - decay * 0.1) * w2 + s2
        return x + torch.cat(out, dim=1)


# -- steps ----------------------------------------------------------------------------------------------------------------------


def exponential_gates(r: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """xLSTM's scalar memories, with a stabiliser, heads that mix within."""
    b, t, h, d = x.shape[0], x.shape[1], r.shape[0], r.shape[1]
    y, c, n, m = (torch.zeros(b, h, d, dtype=x.dtype, device=x.device) for _ in range(4))
    out = []
    for i in range(t):
        z, f, o, e = (x[:, i].view(b, h, 4, d) + torch.einsum("bhd,hdk->bhk", y, r).unflatten(-1, (4, d))).unbind(2)
        log_f = functional.logsigmoid(f)
        new = torch.maximum(log_f + m, e)
        a, g = torch.exp(log_f + m - new), torch.exp(e - new)
        c, n, m = a * c + g * torch.tanh(z), a * n + g, new
        y = torch.sigmoid(o) * c / n.clamp(min=1e-3)
        out.append(y)
    return torch.stack(out, dim=1).flatten(2), c


def matrix_memories(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    """xLSTM's matrix memories, all steps at once."""
    log_f = functional.logsigmoid(f).cumsum(-1)
    d = log_f.unsqueeze(-1) - log_f.unsqueeze(-2) + i.unsqueeze(-2)
    d = d.masked_fill(torch.ones_like(d[0, 0], dtype=torch.bool).triu(1), float("-inf"))
    most = d.amax(-1, keepdim=True)
    s = (q @ k.mT) * q.shape[-1] ** -0.5 * torch.exp(d - most)
    return (s / torch.maximum(s.sum(-1, keepdim=True).abs(), torch.exp(-most))) @ v


def gated_recurrence(conv, ra, rx, a: Tensor, x: Tensor) -> Tensor:
    """Griffin's: a short convolution, then a linear recurrence by doubling strides."""
    x = functional.pad(x.mT, (3, 0))
    x = conv(x).mT
    log_a = -8.0 * torch.sigmoid(ra(x)) * functional.softplus(a)
    h = torch.sqrt(-torch.expm1(2 * log_a) + 1e-6) * torch.sigmoid(rx(x)) * x
    step = 1
    while step < x.shape[1]:
        h = h + torch.exp(log_a) * functional.pad(h[:, :-step], (0, 0, step, 0))
        log_a = log_a + functional.pad(log_a[:, :-step], (0, 0, step, 0))
        step *= 2
    return h


def rwkv_seven(r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, bonus: Tensor) -> Tensor:
    """A state moved by a diagonal and a product of two vectors, step by step."""
    b, t, h, d = r.shape
    w, a = torch.exp(-0.606531 * torch.sigmoid(w)), torch.sigmoid(a)
    kk = functional.normalize(k, dim=-1)
    state, out = torch.zeros(b, h, d, d, dtype=r.dtype, device=r.device), []
    for i in range(t):
        moved = torch.einsum("bhvk,bhk->bhv", state, -kk[:, i])
        state = state * w[:, i, :, None] + moved[..., None] * (kk * a)[:, i, :, None] + v[:, i, ..., None] * k[:, i, :, None]
        out.append(torch.einsum("bhvk,bhk->bhv", state, r[:, i]))
    y = functional.group_norm(torch.stack(out, 1).flatten(2).flatten(0, 1), h, eps=64e-5).view(b, t, h, d)
    return (y + (r * k * bonus).sum(-1, keepdim=True) * v).flatten(2)


def turing_heads(controller, memory: Tensor, weights: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A neural Turing machine's step: by content, by shifts, sharpened; then the memory is erased and written."""
    m = memory.shape[-1]
    k, e, a, s, beta, g, gamma = controller(x).split([m, m, m, 3, 1, 1, 1], dim=-1)
    content = functional.cosine_similarity(memory, k.tanh().unsqueeze(1), dim=-1, eps=1e-6)
    w = torch.softmax(functional.softplus(beta) * content, dim=-1)
    w = g.sigmoid() * w + (1 - g.sigmoid()) * weights.softmax(-1)
    around = functional.pad(w.unsqueeze(1), (1, 1), mode="circular").squeeze(1).unfold(-1, 3, 1)
    w = (around * s.softmax(-1).unsqueeze(1)).sum(-1) ** (1 + functional.softplus(gamma))
    w = w / (w.sum(-1, keepdim=True) + 1e-6)
    memory = memory * (1 - w.unsqueeze(-1) * e.sigmoid().unsqueeze(1)) + w.unsqueeze(-1) * a.unsqueeze(1)
    return torch.bmm(w.unsqueeze(1), memory).squeeze(1), memory, w


CASES: dict[str, Case] = {
    "gated_chunks": call(gated_chunks, *(QKV,) * 4),
    "retained_chunks": call(retained_chunks, *(QKV,) * 3),
    "delta_chunks": call(delta_chunks, *((*QKV[:2], (128, 8), QKV[3]),) * 3, (*QKV[:2], (128, 8))),
    "dual_scan": call(
        dual_scan,
        ((2, 2), (512, 16), (16, 2), (64, 8)),
        ((2, 2), (512, 16), (16, 2)),
        *(((2, 2), (512, 16), (64, 4)),) * 2,
    ),
    "lightning": call(lightning, *(QKV,) * 3, ((2, 2), (512, 16), (512, 16))),
    "fast_weights": call(fast_weights, *(QKV,) * 3, ((8, 2), (64, 8), (64, 8))),
    "neural_memory": scaled(lambda n: (NeuralMemory(n(256, 16)), (floats(n, (8, 2), (256, 8), (256, 16)),))),
    "exponential_gates": call(exponential_gates, ((4, 2), (64, 4), (256, 16)), ((32, 2), (12, 4), (1024, 32))),
    "matrix_memories": call(matrix_memories, *(QKV,) * 3, *(QKV[:3],) * 2),
    "gated_recurrence": call(
        gated_recurrence,
        ((512, 16),),
        TOKENS,
        parts=(lambda n: nn.Conv1d(n(512, 16), n(512, 16), 4, groups=n(512, 16)), linear(), linear()),
    ),
    "rwkv_seven": call(rwkv_seven, *(((8, 2), (12, 3), (8, 2), (64, 8)),) * 5, ((8, 2), (64, 8))),
    "turing_heads": call(
        turing_heads,
        ((64, 2), (128, 6), (64, 8)),
        ((64, 2), (128, 6)),
        ((64, 2), (256, 12)),
        parts=(lambda n: nn.Linear(n(256, 12), 3 * n(64, 8) + 6),),
    ),
}
