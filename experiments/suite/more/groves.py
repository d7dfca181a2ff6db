"""Heads, critics and recommenders in bfloat16: products with parts of tables, experts, streams and masks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.arenas import part
from experiments.suite.more.arenas import weights
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.users import call


def taught_in_parts(mine, theirs, x: Tensor, y: Tensor, target: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    """Distillation through two heads without all logits at once: divergence at a temperature, beside the hard loss."""
    soft, hard = torch.zeros((), device=x.device), torch.zeros((), device=x.device)
    for a, b, t in zip(x.chunk(parts), y.chunk(parts), target.chunk(parts), strict=True):
        s = mine(a).float()
        p, q = torch.log_softmax(theirs(b).float() / 2, -1), torch.log_softmax(s / 2, -1)
        m = torch.logaddexp(p, q) - 0.6931471805599453
        soft = soft + 2 * (p.exp() * (p - m) + q.exp() * (q - m)).sum()
        hard = hard + functional.cross_entropy(s, t, ignore_index=0, reduction="sum")
    return soft / len(x), hard / (target != 0).sum().clamp(min=1)


def gathered_row_products(w: Tensor, scale: Tensor, which: Tensor, x: Tensor) -> Tensor:
    """Some experts' bytes, one vector."""
    return (w[which].to(x.dtype) @ x) * (0.01 * scale.abs())[which]


def alternating_updates(router, correct, coefficients, up, down, x: Tensor) -> Tensor:
    """Gemma 3n: four streams are foretold by each other, one of them is computed, all are put right by the difference."""
    many = len(x)
    modes = torch.tanh(router(functional.rms_norm(x[0], x.shape[-1:])).float())
    mix = coefficients(modes.to(x.dtype)).unflatten(-1, (many, many))
    said = x + torch.einsum("jbtd,btij->ibtd", x, mix)
    a, b = up(functional.rms_norm(said[0], x.shape[-1:])).chunk(2, -1)
    done = said[0] + down(functional.gelu(a, approximate="tanh") * b)
    again = torch.tanh(router(functional.rms_norm(done, x.shape[-1:])).float()).to(x.dtype)
    gains = 1 + correct(again).permute(2, 0, 1).unsqueeze(-1)
    return said + (done - said[0]) * gains


def mixture_of_softmaxes(prior, latent, words: Tensor, x: Tensor, many: int) -> Tensor:
    """Several softmaxes over all words, mixed by the context, as a logarithm."""
    pi = torch.softmax(prior(x).float(), -1)
    h = torch.tanh(latent(x)).unflatten(-1, (many, -1))
    p = torch.softmax((h @ words.T).float() * words.shape[1] ** -0.5, -1)
    return torch.log(torch.einsum("nk,nkv->nv", pi, p) + 1e-8).to(x.dtype)


def ensemble_of_critics(given, x: Tensor, chosen: Tensor, reward: Tensor) -> tuple[Tensor, Tensor]:
    """Ten critics in one product each layer; the least of two that were drawn is the target, their spread is told."""
    w1, b1, w2, b2, w3 = given
    y = torch.einsum("bi,eio->ebo", x, w1) * x.shape[1] ** -0.5 + b1[:, None]
    y = torch.relu(functional.layer_norm(y, y.shape[-1:]))
    y = torch.relu(functional.layer_norm(torch.baddbmm(b2[:, None], y, w2, alpha=w2.shape[1] ** -0.5), w2.shape[-1:]))
    q = (y @ w3.unsqueeze(-1)).squeeze(-1).float()
    return reward.float() + 0.99 * q[chosen].amin(0), q.std(0)


class GuidedMasks(nn.Module):
    """MaskNet: the whole row makes masks for its own normed fields; three such blocks side by side."""

    def __init__(self, fields: int, width: int, out: int) -> None:
        super().__init__()
        d = fields * width
        self.width, self.norm = width, nn.LayerNorm(width)
        self.masks = nn.ModuleList(nn.Sequential(nn.Linear(d, d // 2), nn.ReLU(), nn.Linear(d // 2, d)) for _ in range(3))
        self.lines = nn.ModuleList(nn.Sequential(nn.Linear(d, out), nn.LayerNorm(out), nn.ReLU()) for _ in range(3))
        self.last = nn.Sequential(nn.Linear(3 * out, out), nn.ReLU(), nn.Linear(out, 1))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x.unflatten(1, (-1, self.width))).flatten(1)
        done = [line(normed * mask(x)) for mask, line in zip(self.masks, self.lines, strict=True)]
        return torch.sigmoid(self.last(torch.cat(done, 1))).squeeze(1)


def late_interaction(q: Tensor, d: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """ColBERT: each word of a query takes its best word of a document; the best documents of each query."""
    q, d = functional.normalize(q, dim=-1), functional.normalize(d, dim=-1)
    s = torch.einsum("qid,ktd->qkit", q, d).masked_fill(~real[None, :, None], -torch.inf)
    s = s.amax(-1).float().sum(-1)
    return s, s.topk(3, -1).values


class PersonalGates(nn.Module):
    """PEPNet: what is known of a person scales the embeddings, then every layer of every task by twice a sigmoid."""

    def __init__(self, width: int, who: int, layers: tuple[int, ...], tasks: int) -> None:
        super().__init__()
        self.first = self.gate(width + who, width)
        ways = list(zip((width, *layers), layers, strict=False))
        self.lines = nn.ModuleList(nn.ModuleList(nn.Linear(i, o) for i, o in ways) for _ in range(tasks))
        self.gates = nn.ModuleList(self.gate(width + who, sum(layers)) for _ in range(tasks))
        self.heads, self.layers = nn.ModuleList(nn.Linear(layers[-1], 1) for _ in range(tasks)), layers

    @staticmethod
    def gate(i: int, o: int) -> nn.Module:
        return nn.Sequential(nn.Linear(i, o), nn.ReLU(), nn.Linear(o, o), nn.Sigmoid())

    def forward(self, x: Tensor, who: Tensor) -> Tensor:
        x = x * 2 * self.first(torch.cat([x, who], 1))
        both, done = torch.cat([x.detach(), who], 1), []
        for lines, gate, head in zip(self.lines, self.gates, self.heads, strict=True):
            y = x
            for line, g in zip(lines, gate(both).split(self.layers, 1), strict=True):
                y = functional.leaky_relu(line(y)) * g * 2
            done.append(head(y))
        return torch.cat(done, 1)


TOKENS, CRITIC = ((1024, 12), (1024, 8)), ((512, 6), (512, 6))
BFLOAT16: dict[str, Case] = {
    "taught_in_parts": call(
        lambda *x: taught_in_parts(*x, parts=4),
        *(TOKENS, ((1024, 12), (2048, 9)), below((16384, 11), (1024, 12))),
        parts=(wide(1024, 16384, (8, 11), bias=False), wide(2048, 16384, (9, 11), bias=False)),
    ),
    "gathered_row_products": call(
        gathered_row_products,
        lambda n: torch.randint(-128, 128, (n(16, 3), n(4096, 7), n(8192, 9))).to(torch.int8),
        *(((16, 3), (4096, 7)), below((16, 3), (4, 2)), ((8192, 9),)),
    ),
    "alternating_updates": call(
        alternating_updates,
        (4, (2, 1), (1024, 6), (2048, 8)),
        parts=(
            *(wide(2048, 4, (8, 4), bias=False), part(nn.Linear, 4, 4, bias=False), part(nn.Linear, 4, 16, bias=False)),
            *(wide(2048, 8192, (8, 24), bias=False), wide(4096, 2048, (12, 8), bias=False)),
        ),
    ),
    "mixture_of_softmaxes": call(
        lambda f, g, w, x: mixture_of_softmaxes(f, g, w, x, 5),
        *(((33278, 19), (280, 6)), ((700, 5), (620, 8))),
        parts=(part(nn.Linear, (620, 8), 5, bias=False), lambda n: nn.Linear(n(620, 8), 5 * n(280, 6))),
    ),
    "ensemble_of_critics": call(
        ensemble_of_critics,
        *(((8192, 5), (393, 7)), lambda _: torch.tensor([7, 2]), ((8192, 5),)),
        parts=(weights((10, (393, 7), CRITIC[0]), (10, CRITIC[0]), (10, *CRITIC), (10, CRITIC[1]), (10, CRITIC[1])),),
    ),
    "guided_masks": call(lambda m, x: m(x), ((16384, 5), (624, 32)), parts=(part(GuidedMasks, (39, 4), (16, 8), (256, 6)),)),
    "late_interaction": call(
        late_interaction,
        *(((32, 3), (32, 4), (128, 8)), ((300, 5), (180, 7), (128, 8))),
        lambda n: torch.arange(n(180, 7)) < torch.randint(1, n(180, 7) + 1, (n(300, 5), 1)),
    ),
    "personal_gates": call(
        lambda m, x, who: m(x, who),
        *(((16384, 5), (512, 8)), ((16384, 5), (64, 3))),
        parts=(lambda n: PersonalGates(n(512, 8), n(64, 3), (n(256, 6), n(128, 5), n(64, 4)), 2),),
    ),
}
CASES: dict[str, Case] = BFLOAT16
"""In the number format that the group is meant for."""
