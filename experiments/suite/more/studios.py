"""Blocks of networks of images, films, sounds, graphs and catalogues that stand in no other room."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.arenas import one
from experiments.suite.more.arenas import part
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.users import call

# -- images and volumes ---------------------------------------------------------------------------------------------------------


class MobileVit(nn.Module):
    """Pixels at the same place of all patches attend to each other; then beside what came in."""

    def __init__(self, c: int, d: int) -> None:
        super().__init__()
        self.local, self.up = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.Conv2d(c, d, 1, bias=False)
        self.norm, self.layer = nn.BatchNorm2d(c), nn.TransformerEncoderLayer(d, 4, 2 * d, 0.0, functional.silu, batch_first=True)
        self.back, self.fuse = nn.Conv2d(d, c, 1, bias=False), nn.Conv2d(2 * c, c, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(functional.silu(self.norm(self.local(x))))
        b, d, h, w = y.shape
        y = y.view(b, d, h // 2, 2, w // 2, 2).permute(0, 3, 5, 2, 4, 1).reshape(4 * b, -1, d)
        y = self.layer(y).view(b, 2, 2, h // 2, w // 2, d).permute(0, 5, 3, 1, 4, 2).reshape(b, d, h, w)
        return functional.silu(self.fuse(torch.cat([x, functional.silu(self.back(y))], 1)))


def mixed_feed_forward(norm, up, depth, down, x: Tensor, h: int) -> Tensor:
    """SegFormer: tokens become an image between the two products."""
    y = up(norm(x))
    y = depth(y.mT.unflatten(-1, (h, -1))).flatten(2).mT
    return x + down(functional.gelu(y))


class MaskDecoder(nn.Module):
    """SAM: an image four times as large, and a vector for each mask by a small network of its own."""

    def __init__(self, c: int, masks: int) -> None:
        super().__init__()
        self.up_1, self.up_2 = nn.ConvTranspose2d(c, c // 4, 2, 2), nn.ConvTranspose2d(c // 4, c // 8, 2, 2)
        self.norm = nn.LayerNorm(c // 4)
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(c, c), nn.ReLU(), nn.Linear(c, c), nn.ReLU(), nn.Linear(c, c // 8)) for _ in range(masks)
        )

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        y = self.norm(self.up_1(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y = functional.gelu(self.up_2(functional.gelu(y)))
        vectors = torch.stack([f(tokens[:, i]) for i, f in enumerate(self.nets)], 1)
        return (vectors @ y.flatten(2)).unflatten(-1, y.shape[2:])


class FactoredResidual(nn.Module):
    """ERFNet: three by one and one by three, the second pair dilated."""

    def __init__(self, c: int, dilation: int) -> None:
        super().__init__()
        d = dilation
        self.body = nn.Sequential(
            *(nn.Conv2d(c, c, (3, 1), padding=(1, 0)), nn.ReLU(), nn.Conv2d(c, c, (1, 3), padding=(0, 1))),
            *(nn.BatchNorm2d(c, eps=1e-3), nn.ReLU(), nn.Conv2d(c, c, (3, 1), padding=(d, 0), dilation=(d, 1)), nn.ReLU()),
            *(nn.Conv2d(c, c, (1, 3), padding=(0, d), dilation=(1, d)), nn.BatchNorm2d(c, eps=1e-3), nn.Dropout2d(0.3)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + x)


def medical_stage(n) -> nn.Module:
    """nnU-Net: two convolutions of a volume, instance norms with weights, leaky."""
    layers = []
    for i, o, stride in ((n(32, 4), n(64, 6), 2), (n(64, 6), n(64, 6), 1)):
        layers += [nn.Conv3d(i, o, 3, stride, 1), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01, inplace=True)]
    return nn.Sequential(*layers)


# -- sounds ---------------------------------------------------------------------------------------------------------------------


class SqueezedScales(nn.Module):
    """ECAPA: eighths of the channels one after the other, then squeeze and excitation."""

    def __init__(self, c: int, dilation: int) -> None:
        super().__init__()
        w = c // 8
        self.first, self.last = (nn.Sequential(nn.Conv1d(c, c, 1), nn.ReLU(), nn.BatchNorm1d(c)) for _ in range(2))
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Conv1d(w, w, 3, padding=dilation, dilation=dilation), nn.ReLU(), nn.BatchNorm1d(w)) for _ in range(7)
        )
        self.down, self.up = nn.Conv1d(c, w, 1), nn.Conv1d(w, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = self.first(x).chunk(8, 1)
        done, y = [first], 0.0
        for p, f in zip(rest, self.parts, strict=True):
            y = f(p + y)
            done.append(y)
        h = self.last(torch.cat(done, 1))
        return x + h * torch.sigmoid(self.up(functional.relu(self.down(h.mean(2, keepdim=True)))))


class ReceptiveFusion(nn.Module):
    """HiFi-GAN: frames become eight times as many, three residual branches are averaged."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(2 * c, c, 16, 8, 4)
        self.branches = nn.ModuleList(
            nn.ModuleList(nn.Conv1d(c, c, k, padding=d * (k - 1) // 2, dilation=d) for d in (1, 3, 5)) for k in (3, 7, 11)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(functional.leaky_relu(x, 0.1))
        total = torch.zeros_like(x)
        for branch in self.branches:
            y = x
            for conv in branch:
                y = y + conv(functional.leaky_relu(y, 0.1))
            total = total + y
        return total / 3


def complex_convolution(real, imag, norm_r, norm_i, slope, x: Tensor) -> Tensor:
    """DCCRN: real and imaginary halves of the channels, two kernels, norms of each."""
    a, b = x.chunk(2, 1)
    return slope(torch.cat([norm_r(real(a) - imag(b)), norm_i(imag(a) + real(b))], 1))


def demucs_encoder(conv, gate, x: Tensor) -> Tensor:
    return functional.glu(gate(functional.relu(conv(x))), 1)


def length_regulated(x: Tensor, log_duration: Tensor, pitch: Tensor, table: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """FastSpeech 2: a bucket of each word's pitch is added; each word is repeated as long as it lasts."""
    many = torch.clamp(torch.round(torch.exp(log_duration.float()) - 1), min=0, max=7)
    edges = torch.linspace(-2.5, 2.5, table.shape[0] - 1, device=x.device)
    y = x + table[torch.bucketize(pitch.float(), edges)]
    ends = torch.cumsum(many, 1).contiguous()
    at = torch.arange(most, device=x.device, dtype=ends.dtype).expand(len(x), -1).contiguous()
    index = torch.searchsorted(ends, at, right=True).clamp(max=x.shape[1] - 1)
    mask = at < ends[:, -1:]
    return y.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1])) * mask.unsqueeze(-1), mask


# -- graphs and catalogues -------------------------------------------------------------------------------------------------------


def normalised_edges(f, x: Tensor, edges: Tensor) -> Tensor:
    """A graph convolution with loops added and degrees counted."""
    n = len(x)
    loops = torch.arange(n, device=x.device)
    source, target = torch.cat([edges[0], loops]), torch.cat([edges[1], loops])
    degree = torch.zeros(n, device=x.device, dtype=x.dtype).index_add(0, target, torch.ones_like(target, dtype=x.dtype))
    w = degree.rsqrt()
    y = f(x)
    return functional.relu(torch.zeros_like(y).index_add(0, target, y[source] * (w[source] * w[target]).unsqueeze(-1)))


def light_graph(users, items, who: Tensor, what: Tensor, weight: Tensor, asked: Tensor) -> Tensor:
    """LightGCN: three steps between users and items without products; the mean of all; scores of some users."""
    u, i = users.weight, items.weight
    us, it, w = [u], [i], torch.sigmoid(weight).unsqueeze(-1)
    for _ in range(3):
        u, i = torch.zeros_like(u).index_add(0, who, i[what] * w), torch.zeros_like(i).index_add(0, what, u[who] * w)
        us.append(u)
        it.append(i)
    return torch.stack(us, 1).mean(1)[asked] @ torch.stack(it, 1).mean(1).T


def fields_attend(table, qkv, out, ids: Tensor) -> Tensor:
    """AutoInt: fields of a row attend to each other, with a residual; one score."""
    x = table(ids)
    q, k, v, r = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in qkv(x).chunk(4, -1))
    y = torch.softmax(q @ k.mT, -1) @ v
    return torch.sigmoid(out(functional.relu(y + r).transpose(1, 2).flatten(1))).squeeze(-1)


class ProgressiveExtraction(nn.Module):
    """PLE: experts of each task and shared ones, gates by what each task has seen, for two layers."""

    def __init__(self, i: int, o: int, tasks: int = 2) -> None:
        super().__init__()
        self.tasks = tasks
        self.experts = nn.ModuleList(nn.ModuleList(nn.Linear(w, o) for _ in range(3 * (tasks + 1))) for w in (i, o))
        self.gates = nn.ModuleList(
            nn.ModuleList(nn.Linear(w, 6 if t < tasks else 3 * (tasks + 1)) for t in range(tasks + 1)) for w in (i, o)
        )
        self.towers = nn.ModuleList(nn.Linear(o, 1) for _ in range(tasks))

    def forward(self, x: Tensor) -> Tensor:
        seen = [x] * (self.tasks + 1)
        for experts, gates in zip(self.experts, self.gates, strict=True):
            made = torch.stack([functional.relu(e(seen[i // 3])) for i, e in enumerate(experts)], 1).unflatten(1, (-1, 3))
            now = []
            for t, gate in enumerate(gates):
                given = torch.cat([made[:, t], made[:, -1]], 1) if t < self.tasks else made.flatten(1, 2)
                now.append((torch.softmax(gate(seen[t]), -1).unsqueeze(-1) * given).sum(1))
            seen = now
        return torch.cat([torch.sigmoid(f(y)) for f, y in zip(self.towers, seen[:-1], strict=True)], 1)


C, HIDDEN = (128, 8), (256, 8)
FLOAT32: dict[str, Case] = {
    "mobile_vit": call(one, ((16, 1), (96, 8), (32, 4), (32, 4)), parts=(part(MobileVit, (96, 8), (144, 16)),)),
    "mixed_feed_forward": call(
        lambda a, b, c, d, x: mixed_feed_forward(a, b, c, d, x, 128 if x.shape[1] > 99 else 4),
        ((8, 2), (16384, 24), (64, 8)),
        parts=(
            *(part(nn.LayerNorm, (64, 8)), wide(64, 256, (8, 16))),
            *(lambda n: nn.Conv2d(n(256, 16), n(256, 16), 3, padding=1, groups=n(256, 16)), wide(256, 64, (16, 8))),
        ),
    ),
    "mask_decoder": call(
        lambda m, x, t: m(x, t),
        ((4, 1), (256, 16), (64, 4), (64, 4)),
        ((4, 1), 4, (256, 16)),
        parts=(part(MaskDecoder, (256, 16), 4),),
    ),
    "factored_residual": call(one, ((4, 1), C, (64, 9), (128, 9)), parts=(part(FactoredResidual, C, 2),)),
    "medical_stage": call(one, ((2, 1), (32, 4), (64, 6), (96, 6), (96, 6)), parts=(medical_stage,)),
    "squeezed_scales": call(one, ((32, 2), (1024, 16), (300, 9)), parts=(part(SqueezedScales, (1024, 16), 2),)),
    "receptive_fusion": call(one, ((8, 1), (256, 8), (256, 3)), parts=(part(ReceptiveFusion, (128, 4)),)),
    "complex_convolution": call(
        complex_convolution,
        ((16, 2), (64, 8), (128, 9), (400, 7)),
        parts=(
            *(lambda n: nn.Conv2d(n(32, 4), n(64, 5), (5, 2), (2, 1), (2, 1)),) * 2,
            *(part(nn.BatchNorm2d, (64, 5)), part(nn.BatchNorm2d, (64, 5)), part(nn.PReLU)),
        ),
    ),
    "demucs_encoder": call(
        demucs_encoder,
        ((16, 2), (64, 4), (44100, 40)),
        parts=(part(nn.Conv1d, (64, 4), C, 8, 4), lambda n: nn.Conv1d(n(*C), 2 * n(*C), 1)),
    ),
    "length_regulated": call(
        lambda x, d, p, t: length_regulated(x, d, p, t, 8 * x.shape[1]),
        *(((32, 2), (128, 5), HIDDEN), ((32, 2), (128, 5)), ((32, 2), (128, 5)), ((256, 9), HIDDEN)),
    ),
    "normalised_edges": call(
        normalised_edges,
        *(((169343, 12), C), lambda n: torch.randint(0, n(169343, 12), (2, n(1166243, 30)))),
        parts=(wide(128, 256, (8, 6), bias=False),),
    ),
    "light_graph": call(
        light_graph,
        *(below((29858, 9), (810128, 30)), below((40981, 11), (810128, 30)), ((810128, 30),), below((29858, 9), (512, 4))),
        parts=(part(nn.Embedding, (29858, 9), (64, 5)), part(nn.Embedding, (40981, 11), (64, 5))),
    ),
    "fields_attend": call(
        fields_attend,
        below((1000000, 20), (8192, 5), (39, 4)),
        parts=(part(nn.Embedding, (1000000, 20), 16), part(nn.Linear, 16, 128), lambda n: nn.Linear(32 * n(39, 4), 1)),
    ),
    "progressive_extraction": call(one, ((8192, 6), (499, 12)), parts=(part(ProgressiveExtraction, (499, 12), HIDDEN),)),
}

# -- in half --------------------------------------------------------------------------------------------------------------------


def unpatchified(mod, out, x: Tensor, c: Tensor) -> Tensor:
    """The last layer of a diffusion transformer: steered norm, product, and patches of two become an image."""
    shift, scale = mod(functional.silu(c)).unsqueeze(1).chunk(2, -1)
    y = out(functional.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift)
    h = round(x.shape[1] ** 0.5)
    return torch.einsum("bhwpqc->bchpwq", y.unflatten(1, (h, h)).unflatten(-1, (2, 2, -1))).flatten(4).flatten(2, 3)


class UpStage(nn.Module):
    """The decoder of latents: a residual block with another width, then twice as large and a convolution."""

    def __init__(self, i: int, o: int, groups: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(groups, i, 1e-6), nn.GroupNorm(groups, o, 1e-6)
        self.conv_1, self.conv_2 = nn.Conv2d(i, o, 3, padding=1), nn.Conv2d(o, o, 3, padding=1)
        self.skip, self.up = nn.Conv2d(i, o, 1), nn.Conv2d(o, o, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv_2(functional.silu(self.norm_2(self.conv_1(functional.silu(self.norm_1(x))))))
        return self.up(functional.interpolate(self.skip(x) + y, scale_factor=2.0, mode="nearest"))


def motion_module(norm, before, qkv, out, x: Tensor, frames: int) -> Tensor:
    """AnimateDiff: pixels attend to themselves at other times."""
    b, c, h, w = x.shape
    y = before(norm(x).view(-1, frames, c, h * w).permute(0, 3, 1, 2).flatten(0, 1))
    at = torch.arange(frames, device=x.device)[:, None] * torch.exp(-torch.arange(0, c, 2, device=x.device) * (9.21 / c))
    y = y + torch.stack([torch.sin(at), torch.cos(at)], -1).flatten(1).to(x.dtype)
    q, k, v = qkv(y).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
    y = out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    return x + y.unflatten(0, (-1, h * w)).permute(0, 2, 3, 1).reshape(b, c, h, w)


class LinearDiffusionBlock(nn.Module):
    """Sana: ReLU attention in linear time, then a gated feed-forward with a depthwise convolution."""

    def __init__(self, width: int, head: int, ratio: float = 2.5) -> None:
        super().__init__()
        self.head, h = head, int(width * ratio)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.up, self.down = nn.Conv2d(width, 2 * h, 1), nn.Conv2d(h, width, 1, bias=False)
        self.depth = nn.Conv2d(2 * h, 2 * h, 3, padding=1, groups=2 * h)

    def forward(self, x: Tensor, modulation: Tensor) -> Tensor:
        s1, c1, g1, s2, c2, g2 = modulation.unsqueeze(2).unbind(1)
        y = functional.layer_norm(x, x.shape[-1:]) * (1 + c1) + s1
        q, k, v = self.qkv(y).unflatten(-1, (3, -1, self.head)).permute(2, 0, 3, 4, 1)
        q, k, v = functional.relu(q), functional.relu(k), functional.pad(v.float(), (0, 0, 0, 1), value=1.0)
        y = (v @ k.float().mT) @ q.float()
        y = (y[:, :, :-1] / (y[:, :, -1:] + 1e-8)).to(x.dtype).flatten(1, 2).mT
        x = x + g1 * self.out(y)
        side = round(x.shape[1] ** 0.5)
        y = (functional.layer_norm(x, x.shape[-1:]) * (1 + c2) + s2).mT.unflatten(-1, (side, side))
        a, b = self.depth(functional.silu(self.up(y))).chunk(2, 1)
        return x + g2 * self.down(a * functional.silu(b)).flatten(2).mT


def codebooks_in_and_out(tables, norm, heads, ids: Tensor, state: Tensor) -> Tensor:
    """MusicGen: words of four codebooks are added to one vector; each codebook has a head."""
    x = norm(state + sum(t(ids[:, i]) for i, t in enumerate(tables)))
    return torch.stack([h(x) for h in heads], 1)


def log_spaced_windows(net, qkv, log_scale: Tensor, x: Tensor, side: int) -> Tensor:
    """Swin V2: cosines, a scale for each head, biases by a network on the logarithm of distances."""
    q, k, v = qkv(x).unflatten(-1, (3, log_scale.shape[0], -1)).permute(2, 0, 3, 1, 4)
    a = torch.arange(side, device=x.device)
    grid = torch.stack(torch.meshgrid(a, a, indexing="ij")).flatten(1)
    d = (grid[:, :, None] - grid[:, None]).permute(1, 2, 0).to(x.dtype) * (8 / (side - 1))
    bias = 16 * torch.sigmoid(net(torch.sign(d) * torch.log2(d.abs() + 1) / 3).permute(2, 0, 1))
    s = functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).mT * torch.clamp(log_scale, max=4.6052).exp()
    return (torch.softmax(s + bias, -1) @ v).transpose(1, 2).flatten(2)


def pooled_by_a_probe(attend, norm, mlp, probe: Tensor, x: Tensor) -> Tensor:
    """SigLIP: one learned query pools all tokens."""
    y = attend(probe.expand(len(x), -1, -1), x, x, need_weights=False)[0]
    return (y + mlp(norm(y)))[:, 0]


def class_attention(norm, q, kv, out, gamma: Tensor, token: Tensor, x: Tensor) -> Tensor:
    """CaiT: only the class token asks, tokens and itself answer."""
    u = norm(torch.cat([token.expand(len(x), -1, -1), x], 1))
    k, v = kv(u).unflatten(-1, (2, 8, -1)).permute(2, 0, 3, 1, 4)
    y = functional.scaled_dot_product_attention(q(u[:, :1]).unflatten(-1, (8, -1)).transpose(1, 2), k, v)
    return token + gamma * out(y.transpose(1, 2).flatten(2))


WIDTH, PROBED = (1152, 16), (768, 16)
BFLOAT16: dict[str, Case] = {
    "linear_diffusion_block": call(
        lambda m, x, c: m(x, c),
        *(((4, 1), (1024, 9), (1152, 16)), ((4, 1), 6, (1152, 16))),
        parts=(part(LinearDiffusionBlock, (1152, 16), (32, 8)),),
    ),
    "codebooks_in_and_out": call(
        codebooks_in_and_out,
        *(below((2048, 9), (16, 2), 4, (500, 5)), ((16, 2), (500, 5), (1024, 16))),
        parts=(
            lambda n: nn.ModuleList(nn.Embedding(n(2049, 10), n(1024, 16)) for _ in range(4)),
            part(nn.LayerNorm, (1024, 16)),
            lambda n: nn.ModuleList(nn.Linear(n(1024, 16), n(2048, 9), bias=False) for _ in range(4)),
        ),
    ),
    "log_spaced_windows": call(
        lambda net, qkv, s, x: log_spaced_windows(net, qkv, s, x, round(x.shape[1] ** 0.5)),
        *(((3, 2), 1, 1), ((1024, 3), (64, 9), (96, 16))),
        parts=(
            lambda n: nn.Sequential(nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, n(3, 2), bias=False)),
            wide(96, 288, (16, 48)),
        ),
    ),
    "pooled_by_a_probe": call(
        pooled_by_a_probe,
        *((1, 1, PROBED), ((64, 2), (256, 6), PROBED)),
        parts=(
            lambda n: nn.MultiheadAttention(n(*PROBED), n(12, 2), batch_first=True),
            part(nn.LayerNorm, PROBED),
            lambda n: nn.Sequential(wide(768, 3072, (16, 32))(n), nn.GELU(approximate="tanh"), wide(3072, 768, (32, 16))(n)),
        ),
    ),
    "class_attention": call(
        class_attention,
        *(((384, 16),), (1, 1, (384, 16)), ((64, 2), (196, 6), (384, 16))),
        parts=(*(part(nn.LayerNorm, (384, 16)), wide(384, 384, (16, 16)), wide(384, 768, (16, 32)), wide(384, 384, (16, 16))),),
    ),
}
FLOAT16: dict[str, Case] = {
    "unpatchified": call(
        unpatchified,
        *(((16, 2), (1024, 9), WIDTH), ((16, 2), WIDTH)),
        parts=(wide(1152, 2304, (16, 32)), wide(1152, 32, (16, 32))),
    ),
    "up_stage": call(one, ((1, 1), (512, 8), (128, 5), (128, 5)), parts=(part(UpStage, (512, 8), (256, 8), (32, 4)),)),
    "motion_module": call(
        lambda *m: motion_module(*m, frames=16),
        ((32, 16), (320, 16), (32, 3), (32, 3)),
        parts=(part(nn.GroupNorm, (32, 4), (320, 16)), *(wide(320, o, (16, s)) for o, s in ((320, 16), (960, 48), (320, 16)))),
    ),
}
CASES: dict[str, Case] = {**FLOAT32, **BFLOAT16, **FLOAT16}
"""In the number format that each group is meant for."""
