"""Without weights: colours and edges, spectra, statistics, geometry, scores of predictions, steps of decoders and of averages."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.operators import below
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import whole

# -- images ---------------------------------------------------------------------------------------------------------------------


def lab_color(x: Tensor) -> Tensor:
    """sRGB to CIE Lab."""
    c = torch.sigmoid(x)
    c = torch.where(c > 0.04045, ((c + 0.055) / 1.055).clamp(min=1e-6) ** 2.4, c / 12.92)
    m = c.new_tensor([[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]])
    t = torch.einsum("ij,bjhw->bihw", m, c) / c.new_tensor([0.950456, 1.0, 1.088754]).view(1, 3, 1, 1)
    f = torch.where(t > 0.008856, t.clamp(min=1e-6).pow(1 / 3), 7.787 * t + 16 / 116)
    return torch.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)


def gaussian(x: Tensor, size: int, sigma: float) -> Tensor:
    """A separable blur with reflected edges."""
    t = torch.arange(size, device=x.device, dtype=x.dtype) - size // 2
    k = torch.exp(-t.square() / (2 * sigma * sigma))
    k, c = k / k.sum(), x.shape[1]
    y = functional.pad(x, (size // 2,) * 4, mode="reflect")
    y = functional.conv2d(y, k.view(1, 1, 1, -1).expand(c, -1, -1, -1), groups=c)
    return functional.conv2d(y, k.view(1, 1, -1, 1).expand(c, -1, -1, -1), groups=c)


def unsharp_mask(x: Tensor) -> Tensor:
    y = torch.sigmoid(x)
    detail = y - gaussian(y, 9, 1.5)
    return torch.clamp(y + 1.2 * torch.where(detail.abs() > 0.02, detail, torch.zeros_like(detail)), 0, 1)


def canny_edges(x: Tensor) -> Tensor:
    """Gradients, only the strongest across an edge, two thresholds, weak ones beside strong ones."""
    g = gaussian(x, 5, 1.4)
    k = g.new_tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
    u, v = functional.conv2d(functional.pad(g, (1,) * 4, mode="replicate"), torch.stack([k, k.T])[:, None]).unbind(1)
    size = torch.sqrt(u * u + v * v + 1e-8)
    way = torch.round(torch.atan2(v, u) * (4 / math.pi)).long() % 4
    p = functional.pad(size, (1, 1, 1, 1))
    h, w = size.shape[1:]
    sides = [
        (p[:, 1 + a : 1 + a + h, 1 + b : 1 + b + w], p[:, 1 - a : 1 - a + h, 1 - b : 1 - b + w])
        for a, b in ((0, 1), (1, 1), (1, 0), (1, -1))
    ]
    best = torch.stack([(size >= a) & (size >= b) for a, b in sides]).gather(0, way.unsqueeze(0)).squeeze(0)
    thin = torch.where(best, size, torch.zeros_like(size))
    strong, weak = thin > 2.0, thin > 1.0
    near = functional.max_pool2d(strong.float().unsqueeze(1), 3, 1, 1).squeeze(1) > 0
    return (strong | (weak & near)).to(x.dtype)


def histogram_equalised(x: Tensor) -> Tensor:
    """Bytes; each image's own table by adding ones and a running sum."""
    flat = x.flatten(2).long()
    counts = torch.zeros(*x.shape[:2], 256, device=x.device).scatter_add_(2, flat, torch.ones_like(flat, dtype=torch.float32))
    total = counts.cumsum(-1)
    low = torch.where(counts > 0, total, total[..., -1:]).amin(-1, keepdim=True)
    table = torch.round((total - low) / (total[..., -1:] - low).clamp(min=1) * 255).clamp(0, 255)
    return table.gather(2, flat).view_as(x).to(torch.uint8)


def color_jitter(x: Tensor, factor: Tensor) -> Tensor:
    """Brightness, contrast and saturation, each image by factors of its own, then normalised."""
    b, c, s = (0.2 * factor.tanh() + 1).view(3, -1, 1, 1, 1).unbind(0)
    weights = x.new_tensor([0.2989, 0.587, 0.114]).view(1, 3, 1, 1)
    y = (torch.sigmoid(x) * b).clamp(0, 1)
    y = (c * y + (1 - c) * (y * weights).sum(1, keepdim=True).mean((2, 3), keepdim=True)).clamp(0, 1)
    y = (s * y + (1 - s) * (y * weights).sum(1, keepdim=True)).clamp(0, 1)
    return (y - 0.45) / 0.225


def elastic_warp(x: Tensor, noise: Tensor) -> Tensor:
    """Smoothed noise moves pixels."""
    h, w = x.shape[2:]
    d = gaussian(noise, 7, 2.0) * 4 / noise.new_tensor([w, h]).view(1, 2, 1, 1)
    ys, xs = torch.meshgrid(
        torch.linspace(-1, 1, h, device=x.device, dtype=x.dtype),
        torch.linspace(-1, 1, w, device=x.device, dtype=x.dtype),
        indexing="ij",
    )
    grid = torch.stack([xs, ys], -1) + d.permute(0, 2, 3, 1)
    return functional.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=True)


def gradient_similarity(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """GMSD, and the ratio of signal to noise."""
    k = a.new_tensor([[1.0, 0.0, -1.0]] * 3)[None, None] / 3

    def size(x: Tensor) -> Tensor:
        y = functional.avg_pool2d(x.mean(1, keepdim=True), 2)
        return torch.sqrt(functional.conv2d(y, k, padding=1) ** 2 + functional.conv2d(y, k.mT, padding=1) ** 2 + 1e-8)

    p, q = size(a), size(b)
    score = (2 * p * q + 0.0026) / (p * p + q * q + 0.0026)
    return score.std((1, 2, 3)), 10 * torch.log10(1 / (a - b).square().mean((1, 2, 3)))


# -- signals and statistics -----------------------------------------------------------------------------------------------------


def welch_density(x: Tensor, n: int) -> Tensor:
    """Welch: overlapping frames without their mean, a window, the mean of squares, in decibels."""
    frames = x.unfold(-1, n, n // 2)
    w = torch.hann_window(n, device=x.device, dtype=x.dtype)
    z = torch.fft.rfft((frames - frames.mean(-1, keepdim=True)) * w)
    p = z.abs().square().mean(-2) / (w.square().sum() * 16000)
    return 10 * torch.log10(torch.cat([p[..., :1], 2 * p[..., 1:-1], p[..., -1:]], -1) + 1e-10)


def chroma_features(x: Tensor, n: int) -> Tensor:
    """Energies of twelve notes: soft bins of octaves over a spectrum, each frame over its largest."""
    window = torch.hann_window(n, device=x.device, dtype=x.dtype)
    z = torch.stft(x, n, n // 4, window=window, return_complex=True).abs().square()
    f = torch.arange(1, n // 2 + 1, device=x.device) * (22050 / n)
    note = (12 * torch.log2(f / 440.0))[None] - torch.arange(12, device=x.device)[:, None]
    w = torch.exp(-0.5 * (torch.remainder(note + 6, 12) - 6).square()) * torch.exp(-0.5 * (torch.log2(f / 500) / 2).square())
    c = torch.matmul((w / w.norm(dim=0, keepdim=True).clamp(min=1e-3)).to(x.dtype), z[..., 1:, :])
    return c / c.amax(-2, keepdim=True).clamp(min=1e-6)


def mahalanobis_scores(train: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    mean = train.mean(0)
    d = train - mean
    cov = d.T @ d / (len(train) - 1) + 0.1 * torch.eye(d.shape[1], device=x.device, dtype=x.dtype)
    l = torch.linalg.cholesky(cov)
    score = torch.linalg.solve_triangular(l, (x - mean).T, upper=False).square().sum(0)
    return score, -0.5 * (score + 2 * l.diagonal().log().sum() + d.shape[1] * math.log(2 * math.pi))


def kernel_density(train: Tensor, x: Tensor, log_width: Tensor) -> Tensor:
    h = torch.exp(0.1 * log_width)
    s = -0.5 * ((x / h).square().sum(-1)[:, None] + (train / h).square().sum(-1)[None] - 2 * (x / h) @ (train / h).T)
    return torch.logsumexp(s, 1) - math.log(len(train)) - h.log().sum() - 0.5 * x.shape[1] * math.log(2 * math.pi)


def rank_correlation(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Spearman's and Pearson's of each column."""

    def pearson(a: Tensor, b: Tensor) -> Tensor:
        a, b = a - a.mean(0), b - b.mean(0)
        return (a * b).sum(0) / (a.norm(dim=0) * b.norm(dim=0) + 1e-8)

    return pearson(*(t.argsort(0).argsort(0).to(x.dtype) for t in (x, y))), pearson(x, y)


def regression_report(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    e = x - y
    rest, total = e.square().sum(0), (y - y.mean(0)).square().sum(0)
    return {
        "mae": e.abs().mean(0),
        "rmse": e.square().mean(0).sqrt(),
        "smape": (2 * e.abs() / (x.abs() + y.abs() + 1e-3)).mean(0),
        "r2": 1 - rest / total,
        "explained": 1 - e.var(0) / y.var(0),
        "largest": e.abs().amax(0),
    }


def retrieval_report(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Pairs lie on the diagonal: recalls and reciprocal ranks both ways."""
    s = functional.normalize(a, dim=-1) @ functional.normalize(b, dim=-1).T
    own, out = s.diagonal(), []
    for rank in ((s > own[:, None]).sum(1), (s > own[None]).sum(0)):
        out += [torch.stack([(rank < k).float().mean() for k in (1, 5, 10)]), (1.0 / (rank + 1)).mean()]
    return tuple(out)


# -- geometry -------------------------------------------------------------------------------------------------------------------


def quaternion_slerp(a: Tensor, b: Tensor, t: Tensor) -> Tensor:
    """Turned from one to the other along the short way, for all times; as matrices."""
    a, b = functional.normalize(a, dim=-1), functional.normalize(b, dim=-1)
    dot = (a * b).sum(-1, keepdim=True)
    b, dot = torch.where(dot < 0, -b, b), dot.abs().clamp(max=0.9995)
    angle, s = torch.acos(dot), torch.sigmoid(t)[:, None]
    q = (torch.sin((1 - s) * angle[:, None]) * a[:, None] + torch.sin(s * angle[:, None]) * b[:, None]) / torch.sin(angle)[
        :, None
    ]
    w, x, y, z = functional.normalize(q, dim=-1).unbind(-1)
    rows = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), 2 * (x * y + w * z), 1 - 2 * (x * x + z * z)]
    rows += [2 * (y * z - w * x), 2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def rays_and_boxes(origin: Tensor, way: Tensor, low: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Slabs: where each ray enters which box first."""
    inverse = 1.0 / torch.where(way.abs() < 1e-4, torch.full_like(way, 1e-4), way)
    a = (low[None] - origin[:, None]) * inverse[:, None]
    b = (low[None] + size.abs()[None] + 0.1 - origin[:, None]) * inverse[:, None]
    enter, leave = torch.minimum(a, b).amax(-1), torch.maximum(a, b).amin(-1)
    t = torch.where((leave >= enter) & (leave > 0), enter.clamp(min=0), torch.full_like(enter, 1e4))
    return t.amin(1), (t < 1e4).sum(1)


def rays_and_triangles(origin: Tensor, way: Tensor, corners: Tensor) -> Tensor:
    """Möller and Trumbore: depth of the first triangle that is hit."""
    a, u, v = corners[:, 0], corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    d = functional.normalize(way, dim=-1)[:, None]
    p = torch.linalg.cross(d, v[None])
    det = (u * p).sum(-1)
    inverse = 1 / torch.where(det.abs() < 1e-5, torch.ones_like(det), det)
    s = origin[:, None] - a
    q = torch.linalg.cross(s, u[None])
    x, y, t = (s * p).sum(-1) * inverse, (d * q).sum(-1) * inverse, (v * q).sum(-1) * inverse
    hit = (det.abs() >= 1e-5) & (x >= 0) & (y >= 0) & (x + y <= 1) & (t > 0)
    return torch.where(hit, t, torch.full_like(t, 1e3)).amin(1)


def point_to_plane(p: Tensor, q: Tensor, normals: Tensor) -> tuple[Tensor, Tensor]:
    """A step of ICP: normal equations of small turns and shifts, and points that are moved."""
    n = functional.normalize(normals, dim=-1)
    j = torch.cat([torch.linalg.cross(p, n), n], -1)
    r = ((q - p) * n).sum(-1)
    w = 1 / (1 + r.square())
    h = torch.einsum("bni,bn,bnj->bij", j, w, j) + 1e-2 * torch.eye(6, device=p.device, dtype=p.dtype)
    x = torch.linalg.solve(h, torch.einsum("bni,bn->bi", j, w * r))
    return x, p + torch.linalg.cross(x[:, None, :3].expand_as(p), p) + x[:, None, 3:]


def hausdorff_distances(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    d = torch.cdist(a, b)
    one, two = d.amin(2), d.amin(1)
    return torch.maximum(one.amax(1), two.amax(1)), 0.5 * (one.mean(1) + two.mean(1))


# -- decoders and averages ------------------------------------------------------------------------------------------------------


def edit_distances(a: Tensor, b: Tensor) -> Tensor:
    """Levenshtein for a batch: rows one after the other, insertions by a running minimum."""
    at = torch.arange(b.shape[1] + 1, device=a.device)
    row = at.expand(len(a), -1)
    for i in range(a.shape[1]):
        step = torch.minimum(row[:, 1:] + 1, row[:, :-1] + (a[:, i, None] != b).long())
        step = functional.pad(step, (1, 0), value=i + 1)
        row = torch.cummin(step - at, 1).values + at
    return row[:, -1]


def beam_step(scores: Tensor, logits: Tensor, done: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
    """Beams that are done only add padding; the best of all go on, with what they said."""
    k, v = logits.shape[1:]
    p = torch.log_softmax(logits.float(), -1)
    only = torch.full((v,), float("-inf"), device=p.device).index_fill(0, torch.zeros(1, dtype=torch.long, device=p.device), 0.0)
    total = scores.unsqueeze(-1) + torch.where(done.unsqueeze(-1), only, p)
    best, at = total.flatten(1).topk(k, dim=1)
    beam, word = torch.div(at, v, rounding_mode="floor"), at % v
    said = torch.cat([tokens.gather(1, beam.unsqueeze(-1).expand(-1, -1, tokens.shape[-1])), word.unsqueeze(-1)], -1)
    return best, said, done.gather(1, beam) | (word == 1), best / ((5.0 + tokens.shape[-1] + 1) / 6.0) ** 0.6


def averaged_weights(average: list[Tensor], weights: list[Tensor], count: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """A running mean, and an exponential one that starts fast."""
    decay = torch.minimum((1 + count) / (10 + count), torch.full_like(count, 0.999))
    mean = [a + (w - a) / (count + 1) for a, w in zip(average, weights, strict=True)]
    return mean, [torch.lerp(w, a, decay.to(a.dtype)) for a, w in zip(average, weights, strict=True)]


def weights_of_a_model(n) -> list[Tensor]:
    return [floats(n, *s) for s in (((4096, 6), (1024, 5)), ((1024, 5), (4096, 6)), ((4096, 6),), ((256, 3), (256, 2), 3, 3))]


def pixels(n) -> Tensor:
    return torch.randint(0, 256, (n(32, 2), 3, n(256, 8), n(256, 9)), dtype=torch.uint8)


PHOTOS, RAYS, TABLE = ((32, 2), 3, (256, 16), (256, 17)), ((16384, 7), 3), ((16384, 17), (64, 5))
CASES: dict[str, Case] = {
    "lab_color": call(lab_color, PHOTOS),
    "unsharp_mask": call(unsharp_mask, PHOTOS),
    "canny_edges": call(canny_edges, ((32, 2), 1, (512, 16), (512, 17))),
    "histogram_equalised": call(histogram_equalised, pixels),
    "color_jitter": call(color_jitter, PHOTOS, (3, PHOTOS[0])),
    "elastic_warp": call(elastic_warp, PHOTOS, (PHOTOS[0], 2, *PHOTOS[2:])),
    "gradient_similarity": call(gradient_similarity, PHOTOS, PHOTOS),
    "welch_density": call(lambda x: welch_density(x, 1024 if x.shape[1] > 9999 else 16), ((64, 2), (160000, 80))),
    "chroma_features": call(lambda x: chroma_features(x, 2048 if x.shape[1] > 9999 else 16), ((32, 2), (220500, 80))),
    "mahalanobis_scores": call(mahalanobis_scores, ((32768, 20), (256, 6)), ((32768, 9), (256, 6))),
    "kernel_density": call(kernel_density, ((8192, 15), (32, 4)), ((8192, 9), (32, 4)), ((32, 4),)),
    "rank_correlation": call(rank_correlation, TABLE, TABLE),
    "regression_report": call(regression_report, ((65536, 19), (256, 6)), ((65536, 19), (256, 6))),
    "retrieval_report": call(retrieval_report, ((5000, 9), (512, 7)), ((5000, 9), (512, 7))),
    "quaternion_slerp": call(quaternion_slerp, ((65536, 7), 4), ((65536, 7), 4), ((30, 3),)),
    "rays_and_boxes": call(rays_and_boxes, RAYS, RAYS, ((512, 5), 3), ((512, 5), 3)),
    "rays_and_triangles": call(rays_and_triangles, RAYS, RAYS, ((512, 5), 3, 3)),
    "point_to_plane": call(point_to_plane, *(((16, 2), (32768, 9), 3),) * 3),
    "hausdorff_distances": call(hausdorff_distances, ((8, 2), (4096, 9), 3), ((8, 2), (4096, 7), 3)),
    "edit_distances": call(edit_distances, whole(30, (1024, 3), (48, 4)), whole(30, (1024, 3), (64, 6))),
    "beam_step": call(
        beam_step,
        *(((64, 2), (5, 2)), ((64, 2), (5, 2), (32000, 17))),
        *(lambda n: torch.randint(0, 2, (n(64, 2), n(5, 2))).bool(), below((32000, 17), (64, 2), (5, 2), (20, 3))),
    ),
    "averaged_weights": call(averaged_weights, weights_of_a_model, weights_of_a_model, lambda n: torch.full((), 37.0)),
}
