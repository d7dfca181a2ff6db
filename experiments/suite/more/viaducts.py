"""Blocks and heads of model families that no other file has, as their public sources write them."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import further
from experiments.suite.more.arenas import part
from experiments.suite.more.belfries import conv_bn
from experiments.suite.more.gables import joined
from experiments.suite.more.gables import split
from experiments.suite.more.operators import below
from experiments.suite.users import call


def just(make, *given, **more):
    """A layer; the small form divides what is above fifteen by sixteen, and takes the second of a pair."""
    return part(make, *((g, g // 16) if isinstance(g, int) and g > 15 else g for g in given), **more)


def each(make, *all_given, **more):
    """Layers of one kind."""
    return lambda n: nn.ModuleList(just(make, *(g if isinstance(g, tuple) else (g,)), **more)(n) for g in all_given)


def lines(w: int):
    """A transformer layer's four."""
    return each(nn.Linear, (w, 3 * w), (w, w), (w, 4 * w), (4 * w, w))


def layer(four, heads: int, x: Tensor, causal: bool = False) -> Tensor:
    """A layer with norms in front that have no weights."""
    q, k, v = (split(t, heads) for t in four[0](functional.layer_norm(x, x.shape[-1:])).chunk(3, -1))
    x = x + four[1](joined(functional.scaled_dot_product_attention(q, k, v, is_causal=causal)))
    return x + four[3](functional.gelu(four[2](functional.layer_norm(x, x.shape[-1:]))))


def larger(x: Tensor, like: Tensor) -> Tensor:
    return functional.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=False)


# -- images ---------------------------------------------------------------------------------------------------------------------


def gated_by_places(norms, all_lines, x: Tensor) -> Tensor:
    """gMLP: half of the channels, normed and mixed along tokens, gates the other half."""
    one, two, mix = all_lines
    u, v = functional.gelu(one(norms[0](x))).chunk(2, -1)
    return x + two(u * mix(norms[1](v).transpose(-1, -2)).transpose(-1, -2))


def clips_by_depth(convs, norms, x: Tensor) -> Tensor:
    """X3D: wider clips, a kernel in space and time for each channel, squeeze and excitation before swish."""
    y = norms[1](convs[1](functional.relu(norms[0](convs[0](x)))))
    y = y * torch.sigmoid(convs[4](functional.relu(convs[3](functional.adaptive_avg_pool3d(y, 1)))))
    return functional.relu(x + norms[2](convs[2](functional.silu(y))))


def levels_of_anchors(towers, heads, anchors: Tensor, *levels: Tensor) -> tuple[Tensor, Tensor]:
    """RetinaNet: towers that five levels share, nine anchors a pixel; the best hundred scores, boxes from deltas."""
    found = []
    for tower, head in zip(towers, heads, strict=True):
        maps = [head(tower(x)) for x in levels]
        found.append(torch.cat([y.unflatten(1, (9, -1)).permute(0, 3, 4, 1, 2).flatten(1, 3) for y in maps], 1))
    size, d = anchors[:, 2:].float().abs() * 64 + 8, found[1].float()
    middle = anchors[:, :2].float() * 99 + d[..., :2] * size
    half = size * torch.exp(d[..., 2:].clamp(max=math.log(1000.0 / 16))) / 2
    return found[0].float().sigmoid().flatten(1).topk(100)[0], torch.cat([middle - half, middle + half], -1).clamp(0, 640)


def pyramid_then_pooled(convs, head, *levels: Tensor) -> Tensor:
    """UPerNet: pools of the smallest map, sums down a pyramid, all levels at one size beside each other, classes."""
    top = levels[-1]
    pooled = [larger(m(functional.adaptive_avg_pool2d(top, s)), top) for m, s in zip(convs, (1, 2, 3, 6), strict=False)]
    ys = [*(side(x) for side, x in zip(convs[6:9], levels, strict=False)), convs[4](torch.cat([top, *pooled], 1))]
    for i in range(len(ys) - 1, 0, -1):
        ys[i - 1] = ys[i - 1] + larger(ys[i], ys[i - 1])
    ys = [*(out(y) for out, y in zip(convs[9:], ys, strict=False)), ys[-1]]
    return head(convs[5](torch.cat([larger(y, ys[0]) for y in ys], 1)))


def kernels_of_instances(shared: Tensor, made: Tensor, centres: Tensor) -> Tensor:
    """CondInst: each instance's three small convolutions, in one grouped call, on shared maps and its own coordinates."""
    (c, h, w), n = shared.shape[1:], len(made)
    y, x = torch.meshgrid(*(torch.arange(m, device=made.device, dtype=made.dtype) * 8 + 4 for m in (h, w)), indexing="ij")
    near = (centres[:, :, None, None] * 99 - torch.stack([x, y])) / 128
    y = torch.cat([near, shared.expand(n, -1, -1, -1)], 1).reshape(1, -1, h, w)
    a, b, d, e, f, g = made.split([c * (c + 2), c * c, c, c, c, 1], 1)
    y = functional.relu(functional.conv2d(y, a.reshape(n * c, c + 2, 1, 1), d.reshape(-1), groups=n))
    y = functional.relu(functional.conv2d(y, b.reshape(n * c, c, 1, 1), e.reshape(-1), groups=n))
    y = functional.conv2d(y, f.reshape(n, c, 1, 1), g.reshape(-1), groups=n)
    return functional.interpolate(y.sigmoid(), scale_factor=2, mode="bilinear", align_corners=True).squeeze(0)


def fourier_units(convs, norms, near: Tensor, far: Tensor) -> tuple[Tensor, Tensor]:
    """LaMa: local channels beside ones that are convolved among waves, each moves the other."""
    y = functional.relu(norms[0](convs[0](far)))
    f = torch.view_as_real(torch.fft.rfftn(y, dim=(-2, -1), norm="ortho")).permute(0, 1, 4, 2, 3).flatten(1, 2)
    f = functional.relu(norms[1](convs[1](f.contiguous()))).unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2).contiguous()
    y = convs[2](y + torch.fft.irfftn(torch.view_as_complex(f), s=y.shape[-2:], dim=(-2, -1), norm="ortho"))
    a = functional.relu(norms[2](convs[3](near) + convs[4](far)))
    return near + a, far + functional.relu(norms[3](convs[5](near) + y))


def conditioned_norms(norms, gains, biases, convs, x: Tensor, given: Tensor) -> Tensor:
    """BigGAN: batch norms whose gains and biases follow from class and noise, pixels doubled between."""
    y = x
    for i, (norm, gain, bias) in enumerate(zip(norms, gains, biases, strict=True)):
        y = functional.relu(norm(y) * (1 + gain(given)).view(len(x), -1, 1, 1) + bias(given).view(len(x), -1, 1, 1))
        y = convs[i](y if i else functional.interpolate(y, scale_factor=2))
    return y + convs[2](functional.interpolate(x, scale_factor=2))


def selected_large_kernels(convs, x: Tensor) -> Tensor:
    """LSKNet: two depthwise kernels, the second far apart; means and maxima of channels choose between them at each pixel."""
    y = functional.gelu(convs[0](x))
    a = convs[1](y)
    a, b = convs[3](a), convs[4](convs[2](a))
    both = torch.cat([a, b], 1)
    s = convs[5](torch.cat([both.mean(1, keepdim=True), both.max(1, keepdim=True)[0]], 1)).sigmoid()
    return x + convs[7](y * convs[6](a * s[:, :1] + b * s[:, 1:]))


def contextual_keys(convs, second, x: Tensor) -> Tensor:
    """CoTNet: keys by a grouped kernel say with their queries how much each value counts; static and dynamic context."""
    k, v = convs[0](x), convs[1](x).flatten(2)
    s = second(convs[2](torch.cat([k, x], 1))).unflatten(1, (x.shape[1], 9)).mean(2).flatten(2)
    return k + (torch.softmax(s, -1) * v).view_as(x)


def channels_as_tokens(places, four, x: Tensor, heads: int = 6) -> Tensor:
    """DaViT: places by depthwise kernels, channels of a head attend to each other, a feed-forward."""
    y = (x + places[0](x)).flatten(2).transpose(1, 2)
    q, k, v = four[0](functional.layer_norm(y, y.shape[-1:])).unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    s = ((q * q.shape[2] ** -0.5).transpose(-1, -2) @ k).softmax(-1)
    x = (y + four[1](joined((s @ v.transpose(-1, -2)).transpose(-1, -2)))).transpose(1, 2).reshape(x.shape)
    y = (x + places[1](x)).flatten(2).transpose(1, 2)
    return (y + four[3](functional.gelu(four[2](functional.layer_norm(y, y.shape[-1:]))))).transpose(1, 2).reshape(x.shape)


def carriers_of_windows(among, within, x: Tensor, carriers: Tensor) -> tuple[Tensor, Tensor]:
    """FasterViT: four carrier tokens of each window see those of all windows, then what is in their own."""
    b, n, c = carriers.shape
    carriers = layer(among, 8, carriers).view(-1, n * b // len(x), c)
    y = layer(within, 8, torch.cat([carriers, x], 1))
    return y[:, carriers.shape[1] :], y[:, : carriers.shape[1]].reshape(b, n, c)


def polarised_both_ways(convs, norm, x: Tensor) -> Tensor:
    """Polarised attention: pixels vote which channels count, channels which pixels; gates of both, added."""
    asked = torch.softmax(convs[1](x).flatten(2), -1)
    said = convs[2]((convs[0](x).flatten(2) @ asked.transpose(1, 2)).unsqueeze(-1)).flatten(1)
    gate = torch.sigmoid(norm(said))[:, :, None, None]
    asked = torch.softmax(convs[3](x).mean((2, 3)), 1).unsqueeze(1)
    return x * gate + x * torch.sigmoid(asked @ convs[4](x).flatten(2)).view(len(x), 1, *x.shape[2:])


# -- words, sounds, molecules, tables, losses -----------------------------------------------------------------------------------


def crossed_and_gated(all_lines, x: Tensor, text: Tensor, heads: int = 10) -> Tensor:
    """SDXL: pixels see each other, then 77 words of another width, then a gated feed-forward."""
    own, ask, kv, *outs, up, down = all_lines
    y = functional.layer_norm(x, x.shape[-1:])
    for i, (q, k, v) in enumerate((own(y).chunk(3, -1), (None, *kv(text).chunk(2, -1)))):
        q = ask(functional.layer_norm(x, x.shape[-1:])) if i else q
        x = x + outs[i](joined(functional.scaled_dot_product_attention(*(split(t, heads) for t in (q, k, v)))))
    y, gate = up(functional.layer_norm(x, x.shape[-1:])).chunk(2, -1)
    return x + down(y * functional.gelu(gate))


def patches_of_bytes(tables, coarse, down, fine, ids: Tensor, size: int = 8) -> Tensor:
    """MegaByte: eight bytes are a patch of a causal layer; within each, a narrow layer goes byte by byte."""
    y = functional.pad(tables[0](ids).unflatten(1, (-1, size)).flatten(2), (0, 0, 1, -1))
    y = down(layer(coarse, 8, y, True).unflatten(2, (size, -1))).flatten(0, 1)
    z = functional.pad(tables[1](ids).unflatten(1, (-1, size)).flatten(0, 1), (0, 0, 1, -1))
    y = functional.linear(layer(fine, 4, y + z, True), tables[1].weight).float().log_softmax(-1).unflatten(0, (len(ids), -1))
    return y.flatten(1, 2).gather(2, ids.unsqueeze(2)).squeeze(2)


def blocks_of_lengths(table, score, ids: Tensor) -> Tensor:
    """Charformer: blocks of one to four characters are scored, scores agree by attention, a mixture, every fourth kept."""
    x = table(ids)
    y = torch.stack([x.unflatten(1, (-1, s)).mean(2).repeat_interleave(s, 1) for s in (1, 2, 3, 4)], 2)
    p = torch.softmax(score(y).squeeze(-1), -1)
    p = torch.softmax(p @ p.transpose(1, 2), -1) @ p
    return (y * p.unsqueeze(-1)).sum(2).unflatten(1, (-1, 4)).mean(2)


def bloom_layer(norms, four, x: Tensor, heads: int = 16) -> Tensor:
    """BLOOM: queries, keys and values laced by head, slopes in baddbmm, softmax in float32, GELU by tanh written out."""
    b, t, _ = x.shape
    q, k, v = (f.transpose(1, 2).flatten(0, 1) for f in four[0](norms[0](x)).view(b, t, heads, 3, -1).unbind(3))
    slopes = 2.0 ** (-8.0 / heads * torch.arange(1, heads + 1, device=x.device, dtype=torch.float32))
    alibi = (slopes[:, None] * torch.arange(t, device=x.device)).to(x.dtype).repeat(b, 1).unsqueeze(1)
    s = alibi.baddbmm(q, k.transpose(1, 2), beta=1.0, alpha=q.shape[-1] ** -0.5).view(b, heads, t, t)
    s = s.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), torch.finfo(s.dtype).min)
    p = functional.softmax(s, -1, dtype=torch.float32).to(x.dtype).flatten(0, 1)
    x = x + four[1](joined(torch.bmm(p, v).view(b, heads, t, -1)))
    y = four[2](norms[1](x))
    return x + four[3](y * 0.5 * (1.0 + torch.tanh(0.79788456 * y * (1 + 0.044715 * y * y))))


def heard_once(all_lines, x: Tensor, k: Tensor, v: Tensor, hk: Tensor, hv: Tensor):
    """Whisper's decoder, one token: the cache grows, what was heard stays, beams side by side."""
    qkv, ask, *outs, up, down = all_lines
    q, a, b = (split(t, k.shape[1]) for t in qkv(functional.layer_norm(x, x.shape[-1:])).chunk(3, -1))
    k, v = torch.cat([k, a], 2), torch.cat([v, b], 2)
    x = x + outs[0](joined(functional.scaled_dot_product_attention(q, k, v)))
    q = split(ask(functional.layer_norm(x, x.shape[-1:])), k.shape[1])
    x = x + outs[1](joined(functional.scaled_dot_product_attention(q, hk, hv)))
    return x + down(functional.gelu(up(functional.layer_norm(x, x.shape[-1:])))), k, v


def fired_when_full(conv, weigh, x: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """CIF: frames are summed until their weights come to one, then a token fires; a frame may go to two."""
    a = torch.sigmoid(weigh(functional.relu(conv(x.transpose(1, 2)).transpose(1, 2) + x))).squeeze(-1)
    many = a.sum(1, keepdim=True)
    a = a * (most / many)
    end, at = a.cumsum(1).unsqueeze(1), torch.arange(most, device=x.device, dtype=x.dtype)[:, None]
    share = (torch.minimum(end, at + 1) - torch.maximum(end - a.unsqueeze(1), at)).clamp(min=0.0)
    return share @ x, (many - most).abs().mean()


def coupled_voices(pres, ins, voices, outs, posts, x: Tensor, mask: Tensor, voice: Tensor) -> Tensor:
    """VITS: half of the channels moves the other through gated dilated layers that know the speaker, then channels flip."""
    seen = (mask > -1).to(x.dtype).unsqueeze(1)
    for i, (pre, post) in enumerate(zip(pres, posts, strict=True)):
        (a, b), total = x.chunk(2, 1), 0
        h = pre(a) * seen
        for j, c in enumerate(voices[i](voice.unsqueeze(-1)).chunk(3, 1)):
            t, s = (ins[3 * i + j](h) + c).chunk(2, 1)
            more, skip = outs[3 * i + j](torch.tanh(t) * torch.sigmoid(s)).chunk(2, 1)
            h, total = (h + more) * seen, total + skip
        x = torch.flip(torch.cat([a, (b + post(total * seen)) * seen], 1), [1])
    return x


def bonds_both_ways(all_lines, atoms: Tensor, bonds: Tensor, ends: Tensor) -> Tensor:
    """Chemprop: a bond hears from all bonds into its start but its own reverse, three times; atoms read the bonds."""
    (first, again, read), start, end = all_lines, ends.flatten(), ends.flip(1).flatten()
    old = h = functional.relu(first(torch.cat([atoms[start], bonds], 1)))
    none = h.new_zeros(len(atoms), h.shape[1])
    for _ in range(3):
        heard = none.index_add(0, end, h)[start] - h.view(-1, 2, h.shape[1]).flip(1).view_as(h)
        h = functional.relu(old + again(heard))
    return functional.relu(read(torch.cat([atoms, none.index_add(0, end, h)], 1)))


def dense_series(blocks, skip, x: Tensor, known: Tensor) -> Tensor:
    """TiDE: what is known of each time is made narrow, all is flat, two wide blocks, one for each time to come, a skip."""

    def block(i: int, y: Tensor) -> Tensor:
        z = blocks[3 * i + 1](functional.relu(blocks[3 * i](y))) + blocks[3 * i + 2](y)
        return functional.layer_norm(z, z.shape[-1:]) if z.shape[-1] > 1 else z

    few = block(0, known)
    y = block(2, block(1, torch.cat([x, few.flatten(1)], 1))).unflatten(1, (skip.out_features, -1))
    return block(3, torch.cat([y, few[:, x.shape[1] :]], -1)).squeeze(-1) + skip(x)


def hardest_pixels(logits: Tensor, labels: Tensor) -> Tensor:
    """OHEM: the mean loss where the right class is less likely than 0.7, or than in all but an eighth of the pixels."""
    loss = functional.cross_entropy(logits, labels, ignore_index=255, reduction="none").flatten()
    p = torch.softmax(logits, 1).gather(1, labels.clamp(max=logits.shape[1] - 1).unsqueeze(1)).flatten()
    p = p.masked_fill(labels.flatten() == 255, 1.0)
    kept = (p < p.sort()[0][p.numel() // 8].clamp(min=0.7)).to(loss.dtype)
    return (loss * kept).sum() / kept.sum().clamp(min=1.0)


def decoupled_teachers(said: Tensor, taught: Tensor, labels: Tensor) -> Tensor:
    """DKD: a teacher's view of the right class against all others, and of the others by themselves, weighed apart."""
    own = torch.zeros_like(said).scatter_(1, labels.unsqueeze(1), 1)
    ps = [torch.softmax(t / 4, 1) for t in (said, taught)]
    a, b = (torch.stack([(p * own).sum(1), (p * (1 - own)).sum(1)], 1) for p in ps)
    others = functional.log_softmax(said / 4 - 1000.0 * own, 1), functional.softmax(taught / 4 - 1000.0 * own, 1)
    return (functional.kl_div(a.log(), b, reduction="sum") + 8 * functional.kl_div(*others, reduction="sum")) * 16 / len(said)


def attended_pairs(one, two, out, x: Tensor) -> Tensor:
    """AFM: products of all pairs of fields, weighed by a small network, one score."""
    i, j = torch.triu_indices(x.shape[1], x.shape[1], 1, device=x.device).unbind(0)
    y = x[:, i] * x[:, j]
    return out((torch.softmax(two(functional.relu(one(y))), 1) * y).sum(1)).squeeze(-1)


def as_they_came(qkv, tau, delta, x: Tensor, heads: int = 8) -> Tensor:
    """Non-stationary transformer: a normed series attends, its old deviations and means scale and move the scores."""
    mean, std = x.mean(1, keepdim=True), x.var(1, keepdim=True, unbiased=False).add(1e-5).sqrt()
    q, k, v = (split(t, heads) for t in qkv((x - mean) / std).chunk(3, -1))
    scale, more = tau(std).clamp(max=4.0).exp().unsqueeze(1), delta(x.transpose(1, 2)).mean(1)[:, None, None]
    return joined(torch.softmax((q @ k.transpose(-2, -1) * scale + more) * q.shape[-1] ** -0.5, -1) @ v) * std + mean


def fields_then_rows(columns, rows, x: Tensor) -> Tensor:
    """SAINT: fields of a row see each other, then whole rows of a batch do."""
    y = layer(columns, 2, x)
    return layer(rows, 8, y.flatten(1).unsqueeze(0)).view_as(x)


WAVES = (384, 192, 1), (384, 384, 1), (192, 384, 1), (128, 128, 3, 1, 1), (384, 128, 3, 1, 1), (128, 384, 3, 1, 1)
VOICES = (2, (96, 192, 1)), (6, (192, 384, 5, 1, 2)), (2, (256, 1152, 1)), (6, (192, 384, 1)), (2, (192, 96, 1))
SERIES = (8, 64), (64, 4), (8, 4), (3984, 512), (512, 512), (3984, 512), (512, 512), (512, 768), (512, 768)
CLIPS = (48, 108, 1), (108, 108, 3, 1, 1, 1, 108), (108, 48, 1), (108, 8, 1), (8, 108, 1)
LEVELS = ((64, 6), (80, 5)), ((32, 3), (40, 3)), ((16, 2), (20, 2)), ((8, 1), (10, 1)), ((4, 1), (5, 1))
POOLED = *((768, 256, 1),) * 4, (1792, 256, 3), (1024, 256, 3), *((96 << i, 256, 1) for i in range(3)), *((256, 256, 3),) * 3
SELECTED = (
    *((128, 128, 1), (128, 128, 5, 1, 2, 1, 128), (128, 128, 7, 1, 9, 3, 128), (128, 64, 1), (128, 64, 1)),
    *((2, 2, 7, 1, 3), (64, 128, 1), (128, 128, 1)),
)
CROSSED = (640, 1920), (640, 640), (2048, 1280), (640, 640), (640, 640), (640, 5120), (2560, 640)
C, D, E, F, G = (256, 16), (192, 12), (384, 24), (128, 8), (512, 32)
FLOAT32: dict[str, Case] = {
    "kernels_of_instances": call(kernels_of_instances, (1, 8, (100, 6), (136, 7)), ((64, 3), 169), ((64, 3), 2)),
    "fourier_units": call(
        *(fourier_units, ((2, 1), F, (64, 6), (64, 7)), ((2, 1), E, (64, 6), (64, 7))),
        parts=(each(nn.Conv2d, *WAVES, bias=False), each(nn.BatchNorm2d, 192, 384, 128, 384)),
    ),
    "blocks_of_lengths": call(
        blocks_of_lengths, below(C, (16, 2), (1008, 24)), parts=(just(nn.Embedding, 256, 256), just(nn.Linear, 256, 1))
    ),
    "fired_when_full": call(
        *(further(fired_when_full, lambda x: (80 if x[-1].shape[1] > 99 else 3,)), ((16, 2), (511, 9), G)),
        parts=(just(nn.Conv1d, 512, 512, 3, 1, 1), just(nn.Linear, 512, 1)),
    ),
    "coupled_voices": call(
        *(coupled_voices, ((16, 2), D, (400, 9)), ((16, 2), (400, 9)), ((16, 2), C)),
        parts=tuple(each(nn.Conv1d, *(given,) * many) for many, given in VOICES),
    ),
    "bonds_both_ways": call(
        *(bonds_both_ways, ((6000, 7), (133, 8)), ((13000, 8), (14, 1)), below((6000, 7), (6500, 4), 2)),
        parts=(each(nn.Linear, (147, 300), (300, 300), ((433, 26), 300), bias=False),),
    ),
    "dense_series": call(
        *(dense_series, ((512, 3), (720, 45)), ((512, 3), (816, 51), 8)),
        parts=(each(nn.Linear, *SERIES, (12, 64), (64, 1), (12, 1)), just(nn.Linear, 720, 96)),
    ),
    "fields_then_rows": call(fields_then_rows, ((512, 5), 40, (32, 2)), parts=(lines(32), lines(1280))),
    "attended_pairs": call(
        attended_pairs, ((2048, 3), (39, 5), F), parts=(just(nn.Linear, 128, 64), just(nn.Linear, 64, 1), just(nn.Linear, 128, 1))
    ),
    "as_they_came": call(
        *(as_they_came, ((32, 2), (336, 21), G)),
        parts=(just(nn.Linear, 512, 1536), just(nn.Linear, 512, 1), just(nn.Linear, 336, 336)),
    ),
    "hardest_pixels": call(
        *(hardest_pixels, ((4, 1), (19, 5), (512, 9), (513, 8))),
        lambda n: torch.where((t := torch.randint(0, n(21, 6), (n(4, 1), n(512, 9), n(513, 8)))) < n(19, 5), t, 255),
    ),
    "decoupled_teachers": call(decoupled_teachers, *(((8192, 6), (1000, 7)),) * 2, below((1000, 7), (8192, 6))),
}
HALVES: dict[str, Case] = {
    "gated_by_places": call(
        *(gated_by_places, ((64, 2), (196, 12), C)),
        parts=(each(nn.LayerNorm, 256, 768), each(nn.Linear, (256, 1536), (768, 256), (196, 196))),
    ),
    "clips_by_depth": call(
        *(clips_by_depth, ((8, 1), (48, 3), (16, 3), (28, 4), (28, 5))),
        parts=(each(nn.Conv3d, *CLIPS), each(nn.BatchNorm3d, 108, 108, 48)),
    ),
    "levels_of_anchors": call(
        *(levels_of_anchors, ((61380, 405), 4), *(((2, 1), C, a, b) for a, b in LEVELS)),
        parts=(each(conv_bn, (256, 256, 3), (256, 256, 3)), each(nn.Conv2d, (256, (720, 27), 3, 1, 1), (256, (36, 36), 3, 1, 1))),
    ),
    "pyramid_then_pooled": call(
        *(pyramid_then_pooled, *((1, (96 * 2**i, 6 * 2**i), (120 >> i, 8 - 2 * i), (160 >> i, 9 - 2 * i)) for i in range(4))),
        parts=(each(conv_bn, *POOLED), just(nn.Conv2d, 256, 150, 1)),
    ),
    "conditioned_norms": call(
        *(conditioned_norms, ((16, 2), C, (32, 4), (32, 3)), ((16, 2), (148, 9))),
        parts=(
            *(each(nn.BatchNorm2d, 256, 128, affine=False), *(each(nn.Linear, (148, 256), (148, 128), bias=False),) * 2),
            each(nn.Conv2d, (256, 128, 3, 1, 1), (128, 128, 3, 1, 1), (256, 128, 1)),
        ),
    ),
    "selected_large_kernels": call(selected_large_kernels, ((8, 1), F, (64, 6), (64, 7)), parts=(each(nn.Conv2d, *SELECTED),)),
    "contextual_keys": call(
        *(contextual_keys, ((16, 2), C, (28, 5), (28, 4))),
        parts=(each(conv_bn, (256, 256, 3, 1, 4), (256, 256, 1, 1, 1, False), (512, 128, 1)), just(nn.Conv2d, 128, 2304, 1)),
    ),
    "channels_as_tokens": call(
        *(channels_as_tokens, ((8, 2), D, (56, 5), (56, 4))),
        parts=(each(nn.Conv2d, *((192, 192, 3, 1, 1, 1, 192),) * 2), lines(192)),
    ),
    "carriers_of_windows": call(carriers_of_windows, ((256, 4), (49, 3), C), ((16, 2), (64, 4), C), parts=(lines(256),) * 2),
    "polarised_both_ways": call(
        *(polarised_both_ways, ((32, 2), G, (49, 4), (33, 5))),
        parts=(each(nn.Conv2d, (512, 256, 1), (512, 1, 1), (256, 512, 1), *((512, 256, 1),) * 2), just(nn.LayerNorm, 512)),
    ),
    "crossed_and_gated": call(
        crossed_and_gated, ((2, 1), (4096, 9), (640, 40)), ((2, 1), (77, 4), (2048, 128)), parts=(each(nn.Linear, *CROSSED),)
    ),
    "patches_of_bytes": call(
        *(patches_of_bytes, below(C, (8, 2), (1024, 24))),
        parts=(each(nn.Embedding, (256, 96), (256, 256)), lines(768), just(nn.Linear, 96, 256), lines(256)),
    ),
    "bloom_layer": call(bloom_layer, ((2, 1), (777, 6), (1024, 64)), parts=(each(nn.LayerNorm, 1024, 1024), lines(1024))),
    "heard_once": call(
        *(heard_once, ((5, 2), 1, (1280, 80)), *(((5, 2), 20, t, (64, 4)) for t in ((447, 4), (447, 4), (1500, 6), (1500, 6)))),
        parts=(each(nn.Linear, (1280, 3840), *((1280, 1280),) * 3, (1280, 5120), (5120, 1280)),),
    ),
}
CASES: dict[str, Case] = {**FLOAT32, **HALVES}
"""In float32, and in either of the formats of two bytes."""
