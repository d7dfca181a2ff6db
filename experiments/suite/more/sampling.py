"""What comes after the logits and between the layers of a server: samplers without chance, penalties, experts, states."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Keywords
from experiments.suite.case import scaled
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import whole

LOGITS = ((32, 3), (32000, 48))

# -- samplers -------------------------------------------------------------------------------------------------------------------


def top_k_renormed(p: Tensor, k: Tensor) -> Tensor:
    """Each row keeps its own number of probabilities."""
    p = p.softmax(-1)
    order = p.sort(dim=-1, descending=True).values
    least = order.gather(-1, (k - 1).unsqueeze(-1))
    p = torch.where(p >= least, p, 0.0)
    return p / p.sum(-1, keepdim=True)


def min_p_logits(logits: Tensor, temperature: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits / temperature.exp().unsqueeze(-1)
    p = torch.softmax(logits, dim=-1)
    low = p < share.sigmoid().unsqueeze(-1) * p.amax(dim=-1, keepdim=True)
    return logits.masked_fill(low, float("-inf")), low.logical_not().sum(-1)


def top_k_then_p(logits: Tensor, k: Tensor, p: Tensor) -> Tensor:
    """By one sort from the smallest on, and back to the tokens' places."""
    order, at = logits.sort(dim=-1, descending=False, stable=True)
    least = order.gather(1, (order.size(1) - k).unsqueeze(1))
    order = order.masked_fill(order < least, float("-inf"))
    out = order.float().softmax(dim=-1).cumsum(dim=-1) <= 1 - p.sigmoid().unsqueeze(1)
    out[:, -1] = False
    order = order.masked_fill(out, float("-inf"))
    return torch.empty_like(order).scatter_(dim=-1, index=at, src=order)


def typical(logits: Tensor, mass: float) -> Tensor:
    """Tokens whose surprise is near to the entropy."""
    log_p = logits.log_softmax(-1)
    entropy = -(log_p * log_p.exp()).nansum(-1, keepdim=True)
    far, at = torch.sort((-log_p - entropy).abs(), stable=True)
    total = logits.gather(-1, at).softmax(dim=-1).cumsum(dim=-1)
    last = (total < mass).sum(dim=1).clamp(max=far.shape[-1] - 1)
    drop = far > far.gather(1, last.view(-1, 1))
    return logits.masked_fill(drop.scatter(1, at, drop), -1e4)


def penalties(logits: Tensor, prompt: Tensor, output: Tensor, repeat: Tensor, often: Tensor, present: Tensor) -> Tensor:
    """For what was in the prompt, for how often a token came, and for that it came at all."""
    b, v = logits.shape
    in_prompt = torch.zeros(b, v + 1, dtype=torch.int32, device=logits.device)
    in_prompt = in_prompt.scatter_add(1, prompt, torch.ones_like(prompt, dtype=torch.int32))[:, :v] > 0
    count = torch.zeros(b, v + 1, dtype=torch.int32, device=logits.device)
    count = count.scatter_add_(1, output, torch.ones_like(output, dtype=torch.int32))[:, :v]
    rate = torch.where(in_prompt | (count > 0), 1 + repeat.sigmoid()[:, None], 1.0).to(logits.dtype)
    logits = torch.where(logits > 0, logits / rate, logits * rate)
    return logits - often[:, None] * count - present[:, None] * (count > 0)


def grammar_mask(bits: Tensor, logits: Tensor) -> Tensor:
    """32 tokens to a word; a grammar says which may come."""
    shift = torch.arange(32, dtype=torch.int32, device=bits.device)
    allowed = ((bits.unsqueeze(-1) >> shift) & 1).flatten(1)[:, : logits.shape[1]]
    return torch.where(allowed != 0, logits, torch.finfo(logits.dtype).min)


def no_repeated_pairs(logits: Tensor, tokens: Tensor) -> Tensor:
    """A token that followed the last two before is out."""
    windows = tokens.unfold(1, 3, 1)
    same = (windows[:, :, :2] == tokens[:, None, -2:]).all(-1)
    banned = torch.zeros_like(logits).scatter_reduce(1, windows[..., 2], same.to(logits.dtype), reduce="amax")
    return logits.masked_fill(banned > 0, float("-inf"))


def prompt_log_probs(head, x: Tensor, tokens: Tensor, k: int) -> dict[str, Tensor]:
    """Log-probabilities of a prompt, their ranks, and the best of each place."""
    log_p = head(x).log_softmax(dim=-1, dtype=torch.float32)
    mine = log_p.gather(-1, tokens.unsqueeze(-1))
    best = log_p.topk(k, dim=-1).values
    return {"log_p": mine.squeeze(-1), "rank": (log_p > mine).sum(-1), "best": best, "gap": best[..., 0] - mine.squeeze(-1)}


def sharded_embedding(weight: Tensor, ids: Tensor, start: int, end: int) -> Tensor:
    """A part of the words is here, others are zero."""
    outside = (ids < start) | (ids >= end)
    y = functional.embedding((ids - start).masked_fill(outside, 0).clamp(max=len(weight) - 1), weight)
    return y.masked_fill_(outside.unsqueeze(-1), 0.0) * weight.shape[1] ** 0.5


def medusa_heads(heads, out, x: Tensor) -> Tensor:
    """Each head guesses one token farther."""
    return torch.stack([out(x + functional.silu(h(x))) for h in heads], dim=0).topk(3, dim=-1).values


def drafted_hidden(table, norm_e, norm_h, join, ids: Tensor, h: Tensor) -> Tensor:
    """A drafter's input: the next token's embedding beside the last hidden state, both normed."""
    e = norm_e(table(torch.roll(ids, -1, dims=1)))
    h = norm_h(torch.where((torch.arange(h.shape[1], device=h.device) == 0)[None, :, None], torch.zeros_like(h), h))
    return join(torch.cat([e, h], dim=-1))


# -- experts --------------------------------------------------------------------------------------------------------------------


class SharedExperts(nn.Module):
    """All experts on all tokens by one einsum, weights by sigmoids of the best groups, beside one expert for all."""

    def __init__(self, width: int, inner: int, experts: int) -> None:
        super().__init__()
        self.experts = experts
        self.gate = nn.Linear(width, experts, bias=False)
        self.register_buffer("correction", torch.randn(experts) * 0.1)
        self.w1, self.w2 = (nn.Parameter(torch.randn(experts, *s) * 0.05) for s in ((width, 2 * inner), (inner, width)))
        self.shared_up, self.shared_down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def route(self, x: Tensor) -> Tensor:
        scores = self.gate(x).float().sigmoid()
        biased = (scores + self.correction.float()).view(len(x), 4, -1)
        best = biased.amax(-1).topk(2, dim=-1).indices
        kept = torch.zeros(len(x), 4, device=x.device).scatter(1, best, 1.0)
        chosen = torch.topk((biased * kept.unsqueeze(-1)).flatten(1), 2, dim=-1).indices
        weights = scores.gather(1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        return torch.zeros_like(scores).scatter(1, chosen, weights).to(x.dtype)

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        gate, up = torch.einsum("td,edf->etf", x, self.w1).chunk(2, dim=-1)
        y = torch.einsum("etf,efd->etd", functional.silu(gate) * up, self.w2)
        y = torch.einsum("etd,te->td", y, self.route(x))
        gate, up = self.shared_up(x).chunk(2, dim=-1)
        return (y + self.shared_down(functional.silu(gate) * up)).view_as(hidden_states)


def sorted_experts(gate, w1: Tensor, w2: Tensor, x: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Tokens are laid in order of their experts, up to a capacity, and come back weighed."""
    t, e = x.shape[0], w1.shape[0]
    weight, which = gate(x).softmax(-1).topk(2, dim=-1)
    which, token = which.flatten(), torch.arange(t, device=x.device).repeat_interleave(2)
    place = (functional.one_hot(which, e).cumsum(0) - 1).gather(1, which[:, None]).squeeze(1)
    fits = place < capacity
    slot = torch.where(fits, which * capacity + place, e * capacity)
    rows = torch.zeros(e * capacity + 1, x.shape[1], dtype=x.dtype, device=x.device).index_copy(0, slot, x[token])
    y = torch.bmm(functional.gelu(torch.bmm(rows[:-1].view(e, capacity, -1), w1)), w2).flatten(0, 1)
    y = functional.pad(y, (0, 0, 0, 1))[slot] * (weight.flatten() * fits)[:, None]
    return y.view(t, 2, -1).sum(1), fits.logical_not().sum()


def clamped_experts(router, w1: Tensor, b1: Tensor, w2: Tensor, x: Tensor) -> Tensor:
    """gpt-oss: gate and value lie one beside the other, both within bounds; few tokens gather their experts' weights."""
    g, at = torch.topk(router(x), k=2, dim=-1)
    y = torch.einsum("beck,bk->bec", w1[at], x) + b1[at]
    glu, linear = y[..., ::2].clamp(max=7.0), y[..., 1::2].clamp(min=-7.0, max=7.0)
    y = glu * torch.sigmoid(1.702 * glu) * (linear + 1)
    return torch.einsum("beck,bek,be->bc", w2[at], y, g.softmax(dim=1))


def null_experts(gate, up, down, x: Tensor) -> tuple[Tensor, Tensor]:
    """Some experts do nothing: the token itself is their result."""
    logits = gate(x)
    p = logits.softmax(-1)
    free = p[..., -2:].sum(-1, keepdim=True)
    h = up(x).unflatten(-1, (logits.shape[-1] - 2, -1)).relu().square() * p[..., :-2, None]
    z = torch.logsumexp(logits.float(), dim=-1).square().mean()
    return down(h.flatten(-2)) + free * x, z


# -- states ---------------------------------------------------------------------------------------------------------------------


def conv_update(weight: Tensor, bias: Tensor, state: Tensor, slots: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """A causal convolution's last inputs lie in a table of states, by request."""
    old = state[slots]
    both = torch.cat([old, x.unsqueeze(-1)], dim=-1)
    y = functional.silu((both * weight).sum(-1) + bias)
    return y, state.index_put((slots,), both[..., 1:])


class StateStep(nn.Module):
    """Mamba-2's step for one token: heads with one rate each, groups that share keys and queries, a gated norm after."""

    def __init__(self, heads: int, size: int, states: int) -> None:
        super().__init__()
        self.a_log, self.dt_bias, self.d = (nn.Parameter(torch.randn(heads) * 0.5) for _ in range(3))
        self.norm, self.sizes = nn.Parameter(torch.ones(heads * size)), [heads * size, heads * size, states, states, heads]
        self.heads = heads

    def forward(self, packed: Tensor, *, state: Tensor) -> tuple[Tensor, Tensor]:
        z, x, b, c, dt = torch.split(packed, self.sizes, dim=-1)
        dt = functional.softplus(dt + self.dt_bias)
        x = x.unflatten(-1, (self.heads, -1))
        decay = torch.exp(dt * -torch.exp(self.a_log))
        state = state * decay[..., None, None] + torch.einsum("bh,bhp,bn->bhpn", dt, x, b)
        y = torch.einsum("bhpn,bn->bhp", state, c) + self.d[:, None] * x
        y = y.flatten(1) * functional.silu(z)
        return functional.rms_norm(y, (y.shape[-1],), self.norm, 1e-5), state


def gated_delta_step(state: Tensor, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """A state forgets, then what it says of the key is put right."""
    q, k = (z * torch.rsqrt((z * z).sum(-1, keepdim=True) + 1e-6) for z in (q, k))
    decay, beta = functional.logsigmoid(gates[0]).exp(), gates[1].sigmoid()
    state = state * decay[..., None, None]
    wrong = v - torch.einsum("bhkv,bhk->bhv", state, k)
    state = state + k.unsqueeze(-1) * (beta.unsqueeze(-1) * wrong).unsqueeze(-2)
    return torch.einsum("bhkv,bhk->bhv", state, q) * q.shape[-1] ** -0.5, state


CASES: dict[str, Case] = {
    "top_k_renormed": call(top_k_renormed, LOGITS, lambda n: torch.randint(1, n(200, 9), (n(32, 3),))),
    "min_p_logits": call(min_p_logits, LOGITS, ((32, 3),), ((32, 3),)),
    "top_k_then_p": call(top_k_then_p, LOGITS, lambda n: torch.randint(1, n(100, 9), (n(32, 3),)), ((32, 3),)),
    "typical": call(typical, LOGITS, 0.4),
    "penalties": call(penalties, LOGITS, whole(49, (32, 3), (512, 9)), whole(49, (32, 3), (256, 7)), *(((32, 3),),) * 3),
    "grammar_mask": call(grammar_mask, lambda n: torch.randint(-(2**31), 2**31, (n(32, 3), n(1000, 2))).to(torch.int32), LOGITS),
    "no_repeated_pairs": call(no_repeated_pairs, LOGITS, whole(5, (32, 3), (1024, 20))),
    "prompt_log_probs": call(
        prompt_log_probs,
        ((1, 1), (384, 7), (1024, 16)),
        whole(48, (1, 1), (384, 7)),
        5,
        parts=(lambda n: nn.Linear(n(1024, 16), n(32000, 48), bias=False),),
    ),
    "sharded_embedding": call(sharded_embedding, ((8000, 12), (1536, 16)), whole(48, (8, 2), (256, 9)), 12, 24),
    "medusa_heads": call(
        medusa_heads,
        ((16, 2), (1024, 16)),
        parts=(
            lambda n: nn.ModuleList(nn.Linear(n(1024, 16), n(1024, 16)) for _ in range(4)),
            lambda n: nn.Linear(n(1024, 16), n(16000, 32), bias=False),
        ),
    ),
    "drafted_hidden": call(
        drafted_hidden,
        whole(48, (4, 2), (128, 6)),
        ((4, 2), (128, 6), (1024, 16)),
        parts=(
            lambda n: nn.Embedding(n(32000, 48), n(1024, 16)),
            *(lambda n: nn.RMSNorm(n(1024, 16), eps=1e-6),) * 2,
            lambda n: nn.Linear(n(2048, 32), n(1024, 16), bias=False),
        ),
    ),
    "shared_experts": scaled(lambda n: (SharedExperts(n(768, 16), n(384, 8), 16), (floats(n, (4, 2), (128, 5), (768, 16)),))),
    "sorted_experts": call(
        sorted_experts,
        ((8, 4), (512, 16), (1024, 24)),
        ((8, 4), (1024, 24), (512, 16)),
        ((1024, 12), (512, 16)),
        lambda n: n(288, 6),
        parts=(lambda n: nn.Linear(n(512, 16), n(8, 4), bias=False),),
    ),
    "clamped_experts": call(
        clamped_experts,
        ((16, 4), (768, 24), (512, 16)),
        ((16, 4), (768, 24)),
        ((16, 4), (512, 16), (384, 12)),
        ((4, 2), (512, 16)),
        parts=(lambda n: nn.Linear(n(512, 16), n(16, 4)),),
    ),
    "null_experts": call(
        null_experts,
        ((4, 2), (256, 5), (512, 16)),
        parts=(
            lambda n: nn.Linear(n(512, 16), 10, bias=False),
            lambda n: nn.Linear(n(512, 16), 8 * n(128, 4)),
            lambda n: nn.Linear(8 * n(128, 4), n(512, 16)),
        ),
    ),
    "conv_update": call(
        conv_update,
        ((2048, 16), 4),
        ((2048, 16),),
        ((128, 5), (2048, 16), 3),
        lambda n: torch.randperm(n(128, 5))[: n(64, 3)],
        ((64, 3), (2048, 16)),
    ),
    "state_step": scaled(
        lambda n: (
            StateStep(n(32, 2), n(64, 8), n(128, 16)),
            (
                floats(n, (48, 3), (4384, 66)),
                Keywords(state=floats(n, (48, 3), (32, 2), (64, 8), (128, 16))),
            ),
        )
    ),
    "gated_delta_step": call(
        gated_delta_step,
        ((32, 2), (16, 2), (128, 8), (128, 8)),
        *(((32, 2), (16, 2), (128, 8)),) * 3,
        lambda n: tuple(floats(n, (32, 2), (16, 2)) for _ in range(2)),
    ),
}
