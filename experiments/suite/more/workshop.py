"""Series, images from noise, sound and films, few bits, steps of optimisers, scores, and what comes before networks."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from experiments.suite.case import Case
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import whole

# -- series ---------------------------------------------------------------------------------------------------------------------


def auto_correlation(q: Tensor, k: Tensor, v: Tensor, most: int) -> Tensor:
    """Autoformer: values rolled by the delays at which queries and keys agree most."""
    r = torch.fft.irfft(torch.fft.rfft(q.float(), dim=1) * torch.fft.rfft(k.float(), dim=1).conj(), n=q.shape[1], dim=1)
    w, delay = r.mean((2, 3)).topk(most, dim=-1)
    at = (torch.arange(q.shape[1], device=q.device)[:, None] + delay[:, None]) % q.shape[1]
    rolled = v.unsqueeze(2).expand(-1, -1, most, -1, -1).gather(1, at[..., None, None].expand(-1, -1, -1, *v.shape[2:]))
    return torch.einsum("bd,btdhc->bthc", w.softmax(-1).to(v.dtype), rolled)


def folded_periods(convs, x: Tensor, *periods: int) -> Tensor:
    """TimesNet: a series as images of several periods, mixed by how strong each is."""
    strong = torch.fft.rfft(x.float(), dim=1).abs().mean(-1)
    out = []
    for p in periods:
        y = functional.pad(x, (0, 0, 0, -x.shape[1] % p)).unflatten(1, (-1, p)).permute(0, 3, 1, 2)
        out.append(convs(y).permute(0, 2, 3, 1).flatten(1, 2)[:, : x.shape[1]])
    w = torch.stack([strong[:, x.shape[1] // p] for p in periods], -1).softmax(-1).to(x.dtype)
    return x + (torch.stack(out, -1) * w[:, None, None]).sum(-1)


class Variates(nn.Module):
    """iTransformer: a token is the whole series of one variable."""

    def __init__(self, length: int, width: int, ahead: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(length, width), nn.Linear(width, ahead)
        self.layer = nn.TransformerEncoderLayer(width, 4, width * 2, batch_first=True)

    def forward(self, x: Tensor, marks: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        std = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)
        y = self.layer(self.embed(torch.cat([(x - mean) / std, marks], -1).mT))
        return self.head(y)[:, : x.shape[2]].mT * std + mean


def pooled_forecasts(stacks, x: Tensor) -> Tensor:
    """N-HiTS: each stack pools what is left, and its few coefficients are interpolated."""
    ahead = torch.zeros_like(x[:, : x.shape[1] // 2])
    for pool, stack in zip((8, 4, 1), stacks, strict=True):
        y = stack(functional.max_pool1d(x.unsqueeze(1), pool, ceil_mode=True).squeeze(1))
        back, front = y.unsqueeze(1).chunk(2, -1)
        x = x - functional.interpolate(back, size=x.shape[1], mode="linear").squeeze(1)
        ahead = ahead + functional.interpolate(front, size=ahead.shape[1], mode="nearest").squeeze(1)
    return ahead


def mixed_in_time(norm, time, up, down, x: Tensor) -> Tensor:
    """TSMixer: over time, then over variables; normed over both."""
    y = x + time(norm(x).mT).relu().mT
    return y + down(up(functional.layer_norm(y, y.shape[1:])).relu())


def sparse_queries(q: Tensor, k: Tensor, v: Tensor, at: Tensor, most: int) -> Tensor:
    """Informer: only queries that stand out attend; others take the mean."""
    few = torch.einsum("bhqd,bhsd->bhqs", q, k[:, :, at])
    best = (few.amax(-1) - few.mean(-1)).topk(most, dim=-1).indices[..., None].expand(-1, -1, -1, q.shape[-1])
    y = (q.gather(2, best) @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
    return v.mean(2, keepdim=True).expand_as(v).scatter(2, best, y)


# -- images from noise, sound and films -----------------------------------------------------------------------------------------


class Joint(nn.Module):
    """MMDiT: text and image have weights of their own, and attend together; six modulations each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        two = range(2)
        self.mods = nn.ModuleList(nn.Linear(width, 6 * width) for _ in two)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in two)
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in two)
        self.up, self.down = (nn.ModuleList(nn.Linear(a * width, b * width) for _ in two) for a, b in ((1, 4), (4, 1)))
        self.norms = nn.ModuleList(nn.RMSNorm(width // 4) for _ in range(4))

    def forward(self, image: Tensor, text: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        mods = [m(functional.silu(c)).unsqueeze(1).chunk(6, -1) for m in self.mods]
        flat = [functional.layer_norm(x, x.shape[-1:]) * (1 + m[1]) + m[0] for x, m in zip((image, text), mods, strict=True)]
        qkv = [f(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4) for f, x in zip(self.qkv, flat, strict=True)]
        q = torch.cat([self.norms[0](qkv[0][0]), self.norms[1](qkv[1][0])], 2)
        k = torch.cat([self.norms[2](qkv[0][1]), self.norms[3](qkv[1][1])], 2)
        y = functional.scaled_dot_product_attention(q, k, torch.cat([qkv[0][2], qkv[1][2]], 2)).transpose(1, 2).flatten(2)
        done = []
        for i, (x, part) in enumerate(zip((image, text), y.split([image.shape[1], text.shape[1]], 1), strict=True)):
            _, _, gate, shift, scale, last = mods[i]
            x = x + gate * self.out[i](part)
            h = functional.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift
            done.append(x + last * self.down[i](functional.gelu(self.up[i](h), approximate="tanh")))
        return tuple(done)


def guided_solver_step(x: Tensor, both: Tensor, before: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """Guidance, its deviation put back, then a second-order step of DPM-Solver++."""
    off, on = both.chunk(2)
    y = off + 7.5 * (on - off)
    axes = (1, 2, 3)
    y = 0.7 * y * on.std(axes, keepdim=True) / y.std(axes, keepdim=True) + 0.3 * y
    s, t, u = sigma.abs().add(0.1).cumsum(0).flip(0).unbind()
    x0 = x - t * y
    h, last = torch.log(t / u), torch.log(s / t)
    d = x0 + (x0 - before) * (h / last / 2)
    return (u / t) * x - torch.expm1(-h) * d, x0


def weight_normed_units(n) -> nn.Module:
    """A residual unit of an audio codec, with dilation, then half of the frames."""
    w = n(64, 4)
    return nn.ModuleList(
        (
            weight_norm(nn.Conv1d(w, w // 2, 3, dilation=3)),
            weight_norm(nn.Conv1d(w // 2, w, 1)),
            weight_norm(nn.Conv1d(w, 2 * w, 4, stride=2)),
        )
    )


def codec_unit(layers, x: Tensor) -> Tensor:
    a, b, c = layers
    y = x + b(functional.elu(a(functional.pad(functional.elu(x), (6, 0), mode="reflect"))))
    return c(functional.pad(functional.elu(y), (2, 0), mode="reflect"))


def signs_as_codes(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Lookup-free quantisation: codes by signs, and two entropies of soft ones."""
    q = torch.where(x > 0, 1.0, -1.0).to(x.dtype)
    index = ((x > 0).long() << torch.arange(x.shape[-1], device=x.device)).sum(-1)
    p = torch.sigmoid(4 * x)
    each = functional.binary_cross_entropy(p, p, reduction="none").sum(-1).mean()
    mean = p.flatten(0, -2).mean(0)
    return x + (q - x).detach(), index, each - functional.binary_cross_entropy(mean, mean, reduction="sum")


def lapped(window: Tensor, x: Tensor) -> Tensor:
    """MDCT: frames that overlap by half, a window, a product with cosines."""
    n = window.shape[0] // 2
    frames = functional.pad(x, (n, n)).unfold(-1, 2 * n, n) * torch.sin(window.abs())
    k = torch.arange(n, device=x.device, dtype=x.dtype)
    t = torch.arange(2 * n, device=x.device, dtype=x.dtype)
    return frames @ torch.cos(math.pi / n * (t[:, None] + 0.5 + n / 2) * (k + 0.5)) * math.sqrt(2 / n)


def space_then_time(space, time, norm, x: Tensor) -> Tensor:
    """R(2+1)D with a quarter of the channels shifted in time before."""
    a, b, rest = x.split([x.shape[1] // 8, x.shape[1] // 8, x.shape[1] - x.shape[1] // 8 * 2], 1)
    y = torch.cat([functional.pad(a[:, :, 1:], (0, 0, 0, 0, 0, 1)), functional.pad(b[:, :, :-1], (0, 0, 0, 0, 1, 0)), rest], 1)
    return x + norm(time(space(y).relu()))


def tubes(embed, qkv, place: Tensor, x: Tensor) -> Tensor:
    """ViViT: tubes as tokens, attention within a frame, then through time."""
    y = embed(x).permute(0, 2, 3, 4, 1).flatten(2, 3) + place
    for _ in range(2):
        q, k, v = qkv(y).unflatten(-1, (3, 4, -1)).permute(3, 0, 1, 4, 2, 5)
        y = (y + functional.scaled_dot_product_attention(q, k, v).transpose(2, 3).flatten(3)).transpose(1, 2)
    return y.mean((1, 2))


def kernel_of_states(log_dt: Tensor, a: Tensor, c: Tensor, d: Tensor, x: Tensor) -> Tensor:
    """S4D: a diagonal system's long kernel, applied by transforms."""
    dt = log_dt.float().exp().unsqueeze(-1) * 0.01
    pole = torch.complex(-torch.exp(a[..., 0].float()), 3 * a[..., 1].float())
    power = (dt * pole).unsqueeze(-1) * torch.arange(x.shape[-1], device=x.device)
    c = torch.view_as_complex(c.float()) * (torch.exp(dt * pole) - 1) / pole
    k = 2 * torch.einsum("hn,hnl->hl", c, torch.exp(power)).real
    y = torch.fft.irfft(torch.fft.rfft(x.float(), 2 * x.shape[-1]) * torch.fft.rfft(k, 2 * x.shape[-1]))[..., : x.shape[-1]]
    return functional.gelu(y.to(x.dtype) + d.unsqueeze(-1) * x)


# -- numbers of few bits --------------------------------------------------------------------------------------------------------


def normal_floats(codes: Tensor, scales: Tensor, offset: Tensor, x: Tensor) -> Tensor:
    """QLoRA: codes of four bits, a table, scales that are bytes themselves."""
    table = torch.linspace(-1.5, 1.5, 16, device=x.device, dtype=x.dtype)
    w = table[torch.stack([codes >> 4, codes & 15], -1).flatten(1).long()]
    scale = scales.to(x.dtype) / 127 + offset.abs()
    return functional.linear(x, (w.unflatten(1, (scale.shape[1], -1)) * scale.unsqueeze(-1)).flatten(1))


def learned_steps(step: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    """LSQ: weights by their channel's step, inputs by one of all."""
    s = step.abs() * 0.05 + 0.01
    w = torch.round((weight / s[1:, None]).clamp(-8, 7)) * s[1:, None]
    return functional.conv2d(torch.round((x / s[0]).clamp(0, 15)) * s[0], w.unflatten(1, (-1, 3, 3)), padding=1)


def smoothed_bytes(weight: Tensor, x: Tensor) -> Tensor:
    """SmoothQuant: difficulty moved to weights, then bytes on both sides, a product of whole numbers."""
    s = (x.abs().amax(0).sqrt() / weight.abs().amax(0).sqrt().clamp(min=1e-2)).clamp(min=1e-2)
    a, b = x / s, weight * s
    sa, sb = (t.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 127 for t in (a, b))
    return torch.round(a / sa) @ torch.round(b / sb).mT * sa * sb.mT


# -- steps of optimisers --------------------------------------------------------------------------------------------------------


def adam_of_many(weights, gradients, first, second) -> tuple[list[Tensor], ...]:
    """AdamW on a list of tensors of any shape, after all gradients were clipped together."""
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
    g = torch._foreach_mul(gradients, (1.0 / (norm + 1e-6)).clamp(max=1.0))
    m = [torch.lerp(a, b, 0.1) for a, b in zip(first, g, strict=True)]
    v = [0.999 * a.abs() + 0.001 * b * b for a, b in zip(second, g, strict=True)]
    w = [0.999 * p - 1e-2 * (a / 0.1) / ((b / 0.001).sqrt() + 1e-4) for p, a, b in zip(weights, m, v, strict=True)]
    return w, m, v


def some_tensors(n) -> list[Tensor]:
    return [floats(n, *s) for s in (((512, 6), (768, 5)), ((768, 5),), ((64, 3), (32, 2), 3, 3), ((1000, 7), (511, 4)))]


def lion(w: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    return w * (1 - 1e-3) - 1e-2 * torch.sign(0.9 * m + 0.1 * g), torch.lerp(g, m, 0.99)


def shampoo(w: Tensor, g: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Inverse fourth roots on both sides, and the step as long as the gradient."""

    def root(x: Tensor, y: Tensor) -> Tensor:
        value, vector = torch.linalg.eigh(
            (x @ x.mT / len(x) + y / y.shape[-1]).float() + 0.1 * torch.eye(len(x), device=x.device)
        )
        return (vector * value.clamp(min=1e-3).pow(-0.25) @ vector.mT).to(x.dtype)

    step = root(left, g @ g.mT) @ g @ root(right, g.mT @ g)
    return w - 0.1 * step * g.norm() / (step.norm() + 1e-6)


def adafactor(w: Tensor, g: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Second moments as a product of a row and a column; the step is clipped and scaled by the weight."""
    s = g * g + 1e-4
    r, c = 0.9 * rows.abs() + 0.1 * s.mean(1), 0.9 * columns.abs() + 0.1 * s.mean(0)
    u = g * torch.outer((r / r.mean()).rsqrt(), c.rsqrt())
    u = u / (u.square().mean().sqrt() / 1.0).clamp(min=1.0)
    return w - 0.01 * w.square().mean().sqrt().clamp(min=1e-3) * u, r, c


# -- scores, and what comes before a network ------------------------------------------------------------------------------------


def area_under_curve(score: Tensor, label: Tensor) -> Tensor:
    """AUROC of each class by ranks."""
    rank = torch.argsort(torch.argsort(score, 0), 0).to(torch.float64) + 1
    y = (label > 0).double()
    many = y.sum(0)
    return ((rank * y).sum(0) - many * (many + 1) / 2) / (many * (len(y) - many)).clamp(min=1)


def mean_overlap(logits: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix of confusion by adding ones, and overlaps of classes."""
    c, found = logits.shape[1], logits.argmax(1)
    flat = (label * c + found).flatten()
    m = torch.zeros(c * c, device=label.device).scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.float32)).view(c, c)
    hit = m.diagonal()
    return m, hit / (m.sum(0) + m.sum(1) - hit).clamp(min=1)


def discounted_gain(score: Tensor, gain: Tensor, most: int) -> Tensor:
    """NDCG at k."""
    discount = torch.log2(torch.arange(2, most + 2, device=score.device).to(score.dtype)).reciprocal()
    got = gain.gather(1, score.topk(most, dim=1).indices)
    best = gain.sort(1, descending=True).values[:, :most]
    return ((torch.exp2(got) - 1) * discount).sum(1) / ((torch.exp2(best) - 1) * discount).sum(1).clamp(min=1e-3)


def letterboxed(x: Tensor, side: int) -> Tensor:
    """Bytes with channels last to normalised floats, in a grey square."""
    y = x.permute(0, 3, 1, 2).float() / 255
    high, wide = round(y.shape[2] * side / max(y.shape[2:])), round(y.shape[3] * side / max(y.shape[2:]))
    y = functional.interpolate(y, (high, wide), mode="bilinear", align_corners=False)
    top, left = (side - high) // 2, (side - wide) // 2
    y = functional.pad(y, (left, side - wide - left, top, side - high - top), value=114 / 255)
    mean, std = (torch.tensor(t, device=x.device).view(3, 1, 1) for t in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return ((y - mean) / std).contiguous(memory_format=torch.channels_last)


def cut_and_mixed(x: Tensor, label: Tensor, box: Tensor) -> tuple[Tensor, Tensor]:
    """CutMix with the batch's other end; labels by area, smoothed."""
    h, w = torch.arange(x.shape[2], device=x.device), torch.arange(x.shape[3], device=x.device)
    (y0, y1), (x0, x1) = box.sort(-1).values.unbind(0)
    inside = ((h >= y0) & (h < y1))[:, None] & ((w >= x0) & (w < x1))
    hot = functional.one_hot(label, 10) * 0.9 + 0.01
    share = 1 - inside.float().mean()
    return torch.where(inside, x.flip(0), x), share * hot + (1 - share) * hot.flip(0)


def resampled_sound(x: Tensor) -> Tensor:
    """From 44.1 kHz to 16 kHz in small: a filter for each of the phases, one convolution with a stride."""
    t = torch.arange(-22, 23, device=x.device, dtype=x.dtype) / 11 - torch.arange(4, device=x.device, dtype=x.dtype)[:, None] / 4
    kernel = torch.sinc(t.clamp(-6, 6)) * torch.cos(t.clamp(-6, 6) * math.pi / 12).square() * 4 / 11
    y = functional.conv1d(functional.pad(x, (22, 33)).unsqueeze(1), kernel.unsqueeze(1), stride=11)
    return y.mT.flatten(1)[:, : math.ceil(4 * x.shape[-1] / 11)]


SERIES, WEIGHT = ((32, 2), (96, 12), (64, 8)), ((1024, 6), (768, 5))
W, H = (768, 16), (256, 4)

CASES: dict[str, Case] = {
    "auto_correlation": call(auto_correlation, *(((16, 2), (192, 12), 8, (64, 3)),) * 3, 5),
    "folded_periods": call(
        folded_periods,
        SERIES,
        *(24, 12, 7),
        parts=(lambda n: nn.Sequential(nn.Conv2d(n(64, 8), n(64, 8), 3, padding=1), nn.GELU()),),
    ),
    "variates": call(
        lambda m, *x: m(*x),
        ((32, 2), (96, 9), (321, 5)),
        ((32, 2), (96, 9), 4),
        parts=(lambda n: Variates(n(96, 9), n(256, 8), n(96, 6)),),
    ),
    "pooled_forecasts": call(
        pooled_forecasts,
        ((1024, 3), (720, 32)),
        parts=(
            lambda n: nn.ModuleList(
                nn.Sequential(wide(720 // p, 256, (32 // p, 6))(n), nn.ReLU(), wide(256, 24, (6, 6))(n)) for p in (8, 4, 1)
            ),
        ),
    ),
    "mixed_in_time": call(
        mixed_in_time,
        ((64, 2), (336, 9), (21, 5)),
        parts=(lambda n: nn.LayerNorm((n(336, 9), n(21, 5))), wide(336, 336, (9, 9)), wide(21, 64, (5, 7)), wide(64, 21, (7, 5))),
    ),
    "sparse_queries": call(sparse_queries, *(((8, 1), 8, (512, 9), (64, 4)),) * 3, below((512, 9), (35, 4)), 5),
    "joint": call(
        lambda m, *x: m(*x), ((2, 1), (1024, 6), W), ((2, 1), (154, 3), W), ((2, 1), W), parts=(lambda n: Joint(n(*W)),)
    ),
    "guided_solver_step": call(
        guided_solver_step, ((4, 1), 4, (128, 6), (96, 8)), ((8, 2), 4, (128, 6), (96, 8)), ((4, 1), 4, (128, 6), (96, 8)), (3,)
    ),
    "codec_unit": call(codec_unit, ((8, 2), (64, 4), (8000, 18)), parts=(weight_normed_units,)),
    "signs_as_codes": call(signs_as_codes, ((16, 2), (1024, 7), (18, 5))),
    "lapped": call(lapped, ((512, 8),), ((16, 2), (65536, 32))),
    "space_then_time": call(
        space_then_time,
        ((2, 1), (64, 8), (16, 3), (56, 4), (56, 5)),
        parts=(
            lambda n: nn.Conv3d(n(64, 8), n(144, 9), (1, 3, 3), padding=(0, 1, 1), bias=False),
            lambda n: nn.Conv3d(n(144, 9), n(64, 8), (3, 1, 1), padding=(1, 0, 0), bias=False),
            lambda n: nn.BatchNorm3d(n(64, 8)),
        ),
    ),
    "tubes": call(
        tubes,
        ((196, 4), (192, 8)),
        ((2, 1), 3, (16, 4), (224, 8), (224, 8)),
        parts=(lambda n: nn.Conv3d(3, n(192, 8), k := (2, n(16, 4), n(16, 4)), stride=k), wide(192, 576, (8, 24))),
    ),
    "kernel_of_states": call(kernel_of_states, (H,), (H, (32, 3), 2), (H, (32, 3), 2), (H,), ((8, 2), H, (1024, 12))),
    "normal_floats": call(
        normal_floats,
        lambda n: torch.randint(0, 256, (n(1024, 6), n(512, 8)), dtype=torch.uint8),
        lambda n: torch.randint(-128, 128, (n(1024, 6), n(16, 2)), dtype=torch.int8),
        (1,),
        ((64, 3), (1024, 16)),
    ),
    "learned_steps": call(learned_steps, ((65, 6),), ((64, 5), (576, 27)), ((16, 1), (64, 3), (32, 6), (32, 6))),
    "smoothed_bytes": call(smoothed_bytes, ((1024, 6), (768, 8)), ((2048, 5), (768, 8))),
    "adam_of_many": call(adam_of_many, *(some_tensors,) * 4),
    "lion": call(lion, *(WEIGHT,) * 3),
    "shampoo": call(shampoo, *(((256, 6), (192, 5)),) * 2, ((256, 6), (256, 6)), ((192, 5), (192, 5))),
    "adafactor": call(adafactor, WEIGHT, WEIGHT, WEIGHT[:1], WEIGHT[1:]),
    "area_under_curve": call(area_under_curve, *(((10000, 11), (32, 3)),) * 2),
    "mean_overlap": call(mean_overlap, ((4, 1), 19, (256, 6), (320, 5)), whole(19, (4, 1), (256, 6), (320, 5))),
    "discounted_gain": call(
        discounted_gain, ((2048, 3), (200, 9)), lambda n: torch.randint(0, 5, (n(2048, 3), n(200, 9))).float(), 5
    ),
    "letterboxed": call(
        lambda x: letterboxed(x, 320 if x.shape[1] > 20 else 12),
        lambda n: torch.randint(0, 256, (n(32, 2), n(375, 9), n(500, 15), 3), dtype=torch.uint8),
    ),
    "cut_and_mixed": call(cut_and_mixed, ((64, 3), 3, (160, 8), (160, 9)), whole(10, (64, 3)), below((160, 8), 2, 2)),
    "resampled_sound": call(resampled_sound, ((16, 2), (44100, 150))),
}
