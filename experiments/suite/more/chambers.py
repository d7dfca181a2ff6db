"""Blocks of published networks of tokens, sounds, molecules, graphs and scenes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import whole

# -- tokens ---------------------------------------------------------------------------------------------------------------------


class FluxSingle(nn.Module):
    """One product gives queries, keys, values and the feed-forward's inside; one takes both together back."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.mod = heads, nn.Linear(width, 3 * width)
        self.first, self.second = nn.Linear(width, 7 * width), nn.Linear(5 * width, width)
        self.norm_q, self.norm_k = nn.RMSNorm(width // heads), nn.RMSNorm(width // heads)

    def forward(self, x: Tensor, c: Tensor, turns: Tensor) -> Tensor:
        shift, scale, gate = self.mod(functional.silu(c)).unsqueeze(1).chunk(3, -1)
        h = self.first(functional.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift)
        qkv, up = h.split([3 * x.shape[-1], 4 * x.shape[-1]], -1)
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

        def turned(t: Tensor) -> Tensor:
            pairs = t.float().unflatten(-1, (-1, 1, 2))
            return (turns[..., 0] * pairs[..., 0] + turns[..., 1] * pairs[..., 1]).flatten(-2).type_as(t)

        y = functional.scaled_dot_product_attention(turned(self.norm_q(q)), turned(self.norm_k(k)), v)
        return x + gate * self.second(torch.cat([y.transpose(1, 2).flatten(2), functional.gelu(up, approximate="tanh")], -1))


def decoupled_cross(q, kv_text, kv_image, out, x: Tensor, text: Tensor, image: Tensor) -> Tensor:
    """IP-Adapter: the same queries attend to words and to tokens of an image."""
    a = q(x).unflatten(-1, (8, -1)).transpose(1, 2)
    done = 0
    for f, given, scale in ((kv_text, text, 1.0), (kv_image, image, 0.6)):
        k, v = f(given).unflatten(-1, (2, 8, -1)).permute(2, 0, 3, 1, 4)
        done = done + scale * functional.scaled_dot_product_attention(a, k, v)
    return x + out(done.transpose(1, 2).flatten(2))


def infinite_attention(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, segment: int) -> Tensor:
    """Infini-attention: each segment attends within itself, and reads a memory of those before."""
    memory, total, done = 0.0, 0.0, []
    for a, b, c in zip(q.split(segment, 2), k.split(segment, 2), v.split(segment, 2), strict=True):
        local = functional.scaled_dot_product_attention(a, b, c, is_causal=True)
        sa, sb = functional.elu(a) + 1, functional.elu(b) + 1
        if done:
            g = torch.sigmoid(gate)[:, None, None]
            local = g * (sa @ memory) / (sa @ total).clamp(min=1e-3) + (1 - g) * local
        memory, total = memory + sb.transpose(-2, -1) @ c, total + sb.sum(2).unsqueeze(-1)
        done.append(local)
    return torch.cat(done, 2)


def moving_average_gate(alpha: Tensor, delta: Tensor, beta: Tensor, eta: Tensor, x: Tensor) -> Tensor:
    """Mega: damped averages in several dimensions, as one long kernel, by transforms."""
    p = torch.sigmoid(alpha.float())
    log = torch.log1p(-p * torch.sigmoid(delta.float()))
    power = torch.exp(log.unsqueeze(-1) * torch.arange(x.shape[1], device=x.device))
    kernel = torch.einsum("dn,dnl->dl", p * beta.float() * eta.float(), power)
    n = 2 * x.shape[1]
    y = torch.fft.irfft(torch.fft.rfft(x.float().mT, n) * torch.fft.rfft(kernel, n), n)[..., : x.shape[1]]
    return functional.silu(y.mT.to(x.dtype) + x)


def mixture_of_depths(router, norm, up, down, x: Tensor, most: int) -> Tensor:
    """Only tokens that the router likes best pass through the block; others stay as they are."""
    score = router(x).squeeze(-1).float()
    at = score.topk(most, dim=1).indices.sort(1).values
    index = at.unsqueeze(-1).expand(-1, -1, x.shape[-1])
    y = down(functional.gelu(up(norm(x.gather(1, index))))) * torch.sigmoid(score.gather(1, at)).unsqueeze(-1).to(x.dtype)
    return x.scatter_add(1, index, y)


def embed_positions_norm(words, places, kinds, norm, ids: Tensor, types: Tensor) -> Tensor:
    """RoBERTa: places count only words that are no padding."""
    real = (ids != 1).long()
    return norm(words(ids) + places(torch.cumsum(real, 1) * real + 1) + kinds(types))


# -- sounds ---------------------------------------------------------------------------------------------------------------------


def vocos_head(norm, out, window: Tensor, x: Tensor) -> Tensor:
    """Magnitudes and phases from features, then an inverse transform with overlaps."""
    n = window.shape[0]
    m, p = out(norm(x)).float().mT.chunk(2, 1)
    m = torch.exp(m).clamp(max=1e2)
    frames = torch.fft.irfft(torch.complex(m * torch.cos(p), m * torch.sin(p)), n, dim=1)
    w = torch.hann_window(n, device=x.device)
    size = (1, n + n // 4 * (x.shape[1] - 1))
    y = functional.fold(frames * w[:, None], size, (1, n), stride=(1, n // 4))
    weight = functional.fold((w * w)[None, :, None].expand(1, -1, x.shape[1]), size, (1, n), stride=(1, n // 4))
    return (y / weight.clamp(min=1e-3)).flatten(1)[:, n // 2 : -(n // 2)].to(x.dtype)


def location_sensitive(query, memory, local, v, state: Tensor, encoded: Tensor, before: Tensor, lengths: Tensor):
    """Tacotron 2: scores from the state, what is encoded, and where attention was before."""
    where = local[1](local[0](before).transpose(1, 2))
    energy = v(torch.tanh(query(state).unsqueeze(1) + where + memory(encoded))).squeeze(-1)
    mask = torch.arange(encoded.shape[1], device=encoded.device)[None] >= lengths[:, None] + 1
    w = torch.softmax(energy.masked_fill(mask, float("-inf")), 1)
    return torch.bmm(w.unsqueeze(1), encoded).squeeze(1), torch.stack([w, before[:, 1] + w], 1)


def branchformer(norm, up, inner, conv, down, x: Tensor) -> Tensor:
    """E-Branchformer's local branch: half of the channels gate the other half after a convolution in time."""
    a, b = functional.gelu(up(norm(x))).chunk(2, -1)
    return x + down(a * conv(inner(b).transpose(1, 2)).transpose(1, 2))


def band_split(norms, lines, mask, spectrum: Tensor) -> Tensor:
    """BSRNN: each band of a complex spectrum has a norm and a product of its own; a mask through GLU comes back."""
    x = torch.view_as_real(spectrum).permute(0, 2, 1, 3).to(lines[0].weight.dtype)
    bands = zip(x.split([f.in_features // 2 for f in lines], 2), norms, lines, mask, strict=True)
    out = [functional.glu(m(torch.tanh(f(g(y.flatten(2)))))).unflatten(-1, (-1, 2)) for y, g, f, m in bands]
    return torch.view_as_complex((torch.cat(out, 2) * x).float().contiguous()).transpose(1, 2)


# -- molecules, graphs and scenes -----------------------------------------------------------------------------------------------


def ending_node_attention(norm, qkv, bias, gate, out, pair: Tensor) -> Tensor:
    """AlphaFold: pairs with the same end attend to each other, biased by the third edge of the triangle."""
    x = norm(pair.transpose(-2, -3))
    q, k, v = qkv(x).unflatten(-1, (3, 4, -1)).permute(3, 0, 1, 4, 2, 5)
    y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias(x).permute(0, 3, 1, 2).unsqueeze(1))
    return pair + out(torch.sigmoid(gate(x)) * y.transpose(2, 3).flatten(3)).transpose(-2, -3)


def conditioned_transition(scale, shift, up, down, gate, a: Tensor, s: Tensor) -> Tensor:
    """AlphaFold 3: norms steered by a condition, SwiGLU, and a gate by the condition."""
    t = functional.layer_norm(s, s.shape[-1:])
    x = torch.sigmoid(scale(t)) * functional.layer_norm(a, a.shape[-1:]) + shift(t)
    u, v = up(x).chunk(2, -1)
    return a + torch.sigmoid(gate(s)) * down(functional.silu(u) * v)


def gps_layer(message, qkv, out, norm, mlp, x: Tensor, edges: Tensor, e: Tensor) -> Tensor:
    """GraphGPS: messages along edges and attention of all nodes, added, then a feed-forward."""
    local = torch.zeros_like(x).index_add(0, edges[1], functional.relu(x[edges[0]] + e))
    q, k, v = qkv(x).unflatten(-1, (3, 4, -1)).permute(1, 2, 0, 3)
    y = functional.scaled_dot_product_attention(q[None], k[None], v[None])[0].transpose(0, 1).flatten(1)
    h = norm(x + message(x + local)) + norm(x + out(y))
    return norm(h + mlp(h))


def vector_attention(qkv, place, weigh, x: Tensor, points: Tensor, near: Tensor) -> Tensor:
    """Point Transformer: weights for each channel from differences to neighbours."""
    q, k, v = qkv(x).chunk(3, -1)
    d = place(points[:, None] - points[near])
    w = torch.softmax(weigh(q[:, None] - k[near] + d), dim=1)
    return x + (w * (v[near] + d)).sum(1)


def integrated_encoding(layers, means: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Mip-NeRF: waves damped by how wide a cone is, then colours and densities."""
    scale = 2.0 ** torch.arange(12, device=means.device, dtype=means.dtype)
    y = (means[..., None, :] * scale[:, None]).flatten(-2)
    damp = torch.exp(-0.5 * (spread.square()[..., None, :] * scale[:, None] ** 2).flatten(-2))
    out = layers(torch.cat([damp * torch.sin(y), damp * torch.cos(y)], -1))
    return torch.sigmoid(out[..., :3]) * 1.002 - 0.001, functional.softplus(out[..., 3] - 1)


def spectrum(n) -> Tensor:
    return torch.complex(floats(n, (8, 1), (257, 13), (500, 5)), floats(n, (8, 1), (257, 13), (500, 5)))


def bands(make):
    """Widths of bands that are narrower below."""
    return lambda n: nn.ModuleList(make(w) for w in (n(17, 1), n(40, 2), n(80, 4), n(120, 6)))


def norm(*width):
    return lambda n: nn.LayerNorm(n(*width))


W, PAIR, LATENT = (768, 16), (128, 8), (1024, 16)
CASES: dict[str, Case] = {
    "flux_single": call(
        lambda m, *x: m(*x),
        *(((2, 1), (1280, 5), LATENT), ((2, 1), LATENT), (1, 1, (1280, 5), (32, 4), 2, 2)),
        parts=(lambda n: FluxSingle(n(*LATENT), n(16, 2)),),
    ),
    "decoupled_cross": call(
        decoupled_cross,
        *(((4, 1), (4096, 7), (640, 16)), ((4, 1), (77, 3), W), ((4, 1), (16, 2), W)),
        parts=(
            *(wide(640, 640, (16, 16), bias=False), wide(768, 1280, (16, 32), bias=False)),
            *(wide(768, 1280, (16, 32), bias=False), wide(640, 640, (16, 16))),
        ),
    ),
    "infinite_attention": call(
        lambda q, k, v, g: infinite_attention(q, k, v, g, q.shape[2] // 4), *(((4, 1), 8, (2048, 12), (64, 8)),) * 3, (8,)
    ),
    "moving_average_gate": call(moving_average_gate, *(((512, 6), 16),) * 4, ((8, 2), (2048, 11), (512, 6))),
    "mixture_of_depths": call(
        lambda route, before, up, down, x: mixture_of_depths(route, before, up, down, x, x.shape[1] // 4),
        ((8, 2), (2048, 12), W),
        parts=(wide(768, 1, (16, 1), bias=False), norm(*W), wide(768, 3072, (16, 32)), wide(3072, 768, (32, 16))),
    ),
    "embed_positions_norm": call(
        embed_positions_norm,
        *(below((50265, 30), (32, 2), (512, 7)), whole(2, (32, 2), (512, 7))),
        parts=(
            *(lambda n: nn.Embedding(n(50265, 30), n(768, 12), padding_idx=1), lambda n: nn.Embedding(n(514, 9), n(768, 12), 1)),
            *(lambda n: nn.Embedding(2, n(768, 12)), lambda n: nn.LayerNorm(n(768, 12))),
        ),
    ),
    "vocos_head": call(
        vocos_head, *(((1024, 16),), ((16, 2), (512, 7), (512, 8))), parts=(norm(512, 8), wide(512, 1026, (8, 18)))
    ),
    "location_sensitive": call(
        location_sensitive,
        *(((64, 2), LATENT), ((64, 2), (200, 6), (512, 8)), ((64, 2), 2, (200, 6)), below((200, 6), (64, 2))),
        parts=(
            *(wide(1024, 128, (16, 6), bias=False), wide(512, 128, (8, 6), bias=False)),
            lambda n: nn.ModuleList((nn.Conv1d(2, n(32, 3), 31, padding=15, bias=False), wide(32, 128, (3, 6), bias=False)(n))),
            wide(128, 1, (6, 1), bias=False),
        ),
    ),
    "branchformer": call(
        branchformer,
        ((16, 2), (500, 9), (512, 8)),
        parts=(
            *(norm(512, 8), wide(512, 3072, (8, 24)), norm(1536, 12)),
            lambda n: nn.Conv1d(n(1536, 12), n(1536, 12), 31, padding=15, groups=n(1536, 12)),
            wide(1536, 512, (12, 8)),
        ),
    ),
    "band_split": call(
        band_split,
        spectrum,
        parts=(
            bands(lambda w: nn.LayerNorm(2 * w)),
            bands(lambda w: nn.Linear(2 * w, 128)),
            bands(lambda w: nn.Linear(128, 4 * w)),
        ),
    ),
    "ending_node_attention": call(
        ending_node_attention,
        (1, (192, 5), (192, 5), PAIR),
        parts=(
            *(norm(*PAIR), wide(128, 384, (8, 48), bias=False), wide(128, 4, (8, 4), bias=False)),
            *(wide(128, 128, (8, 16)), wide(128, 128, (16, 8))),
        ),
    ),
    "conditioned_transition": call(
        conditioned_transition,
        *(((2, 1), (1024, 5), W), ((2, 1), (1024, 5), (384, 8))),
        parts=(
            *(wide(384, 768, (8, 16)), wide(384, 768, (8, 16), bias=False), wide(768, 3072, (16, 32), bias=False)),
            *(wide(1536, 768, (16, 16), bias=False), wide(384, 768, (8, 16))),
        ),
    ),
    "gps_layer": call(
        gps_layer,
        *(((4096, 9), (128, 8)), lambda n: torch.randint(0, n(4096, 9), (2, n(32768, 20))), ((32768, 20), (128, 8))),
        parts=(
            lambda n: nn.Sequential(wide(128, 256, (8, 12))(n), nn.ReLU(), wide(256, 128, (12, 8))(n)),
            *(wide(128, 384, (8, 24)), wide(128, 128, (8, 8)), norm(128, 8)),
            lambda n: nn.Sequential(wide(128, 256, (8, 12))(n), nn.ReLU(), wide(256, 128, (12, 8))(n)),
        ),
    ),
    "vector_attention": call(
        vector_attention,
        *(((16384, 9), (64, 6)), ((16384, 9), 3), below((16384, 9), (16384, 9), (16, 4))),
        parts=(
            wide(64, 192, (6, 18)),
            lambda n: nn.Sequential(nn.Linear(3, 3), nn.ReLU(), wide(3, 64, (3, 6))(n)),
            lambda n: nn.Sequential(wide(64, 64, (6, 6))(n), nn.ReLU(), wide(64, 64, (6, 6))(n)),
        ),
    ),
    "integrated_encoding": call(
        integrated_encoding,
        *(((4096, 3), (64, 5), 3), ((4096, 3), (64, 5), 3)),
        parts=(
            lambda n: nn.Sequential(
                *(nn.Linear(72, n(128, 8)), nn.ReLU(), nn.Linear(n(128, 8), n(128, 8)), nn.ReLU(), nn.Linear(n(128, 8), 4))
            ),
        ),
    ),
}
