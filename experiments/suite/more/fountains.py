"""What a stranger would try: chains behind products, statistics of rows, solvers, signals, pictures, heads, experts, few bits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.aqueducts import octets
from experiments.suite.more.aqueducts import positive
from experiments.suite.more.arenas import part
from experiments.suite.more.arenas import weights
from experiments.suite.more.gables import joined
from experiments.suite.more.operators import below
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import whole


def fanned(*shapes):
    """Weights that keep the size of what they multiply."""
    return lambda n: nn.ParameterList(nn.Parameter(w * w.shape[-2] ** -0.5) for w in (floats(n, *s) for s in shapes))


def surprise_of_wide_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Entropy, its variance, and the margin between the two likeliest, of vocabularies."""
    logp = torch.log_softmax(x, 1)
    p = logp.exp()
    entropy = -(p * logp).sum(1, keepdim=True)
    best = torch.topk(p, 2, dim=1).values
    return entropy, (p * (logp + entropy).square()).sum(1), best[:, 0] - best[:, 1]


def scores_so_far(x: Tensor) -> Tensor:
    """Each time's score by the mean and deviation of all times until then."""
    many = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype).view(-1, 1)
    mean = x.cumsum(1) / many
    var = x.square().cumsum(1) / many - mean.square()
    return ((x - mean) / torch.sqrt(var.clamp(min=0.0) + 0.1)).clamp(-4, 4)


def lorenz_curves(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Incomes in order: shares of all so far, Gini's and Atkinson's indices."""
    y, n = torch.sort(x, dim=1).values, x.shape[1]
    share = torch.cumsum(y, 1) / y.sum(1, keepdim=True)
    gini = (n + 1 - 2 * share.sum(1)) / n
    return share[:, :: max(n // 20, 1)], gini, 1.0 - torch.exp(torch.log(y).mean(1)) / y.mean(1)


def mutual_information(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two pictures' joint histogram by triangular windows, a product of both; entropies, the normalised information."""
    bins = torch.arange(24, device=a.device, dtype=a.dtype)
    a, b = (torch.relu(1.0 - (23 * torch.sigmoid(t).unsqueeze(2) - bins).abs()) for t in (a, b))
    p = a.mT @ b / a.shape[1]
    both, one, two = (-(t * torch.log(t + 1e-7)).flatten(1).sum(1) for t in (p, p.sum(1), p.sum(2)))
    return p, (one + two) / both


def fuzzy_centres(x: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fuzzy c-means, three rounds: memberships by inverse squared distances, centres weighed by their squares."""
    u = w = d = torch.zeros_like(x[:, :1])
    for _ in range(3):
        u = 1.0 / (d := (x.square().sum(1, keepdim=True) - 2 * x @ c.T + c.square().sum(1)).clamp(min=1e-2))
        u = u / u.sum(1, keepdim=True)
        w = u * u
        c = w.T @ x / w.sum(0).unsqueeze(1)
    return c, u, (w * d).sum()


def lanczos(a: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Eight steps, each made orthogonal to all before; the three diagonals of the small matrix and the basis."""
    a = (a + a.T) * (2 * len(a)) ** -0.5
    basis, alphas, betas = [v / v.norm()], [], []
    for _ in range(8):
        y = a @ basis[-1]
        alphas.append(basis[-1] @ y)
        q = torch.stack(basis)
        y = y - q.T @ (q @ y)
        betas.append(y.norm())
        basis.append(y / betas[-1])
    off = torch.stack(betas[:-1])
    return torch.diag(torch.stack(alphas)) + torch.diag(off, 1) + torch.diag(off, -1), torch.stack(basis)


def bernoulli_mixture(x: Tensor, means: Tensor, prior: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A step of expectation and maximisation for pictures of bits."""
    x, p = x.to(means.dtype), torch.sigmoid(means)
    logit = x @ torch.log(p / (1 - p)).T + torch.log1p(-p).sum(1) + torch.log_softmax(prior, 0)
    r = torch.softmax(0.1 * logit, 1)
    many = r.sum(0)
    return (r.T @ x + 1.0) / (many.unsqueeze(1) + 2.0), torch.log(many / len(x)), torch.logsumexp(logit, 1).mean()


def longest_runs(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How long numbers stay above a level: up to each place, at longest, and how often it begins."""
    up, at = x > -0.5, torch.arange(x.shape[1], device=x.device)
    run = at - torch.cummax(torch.where(up, -1, at), 1).values
    starts = (up[:, 1:] & ~up[:, :-1]).sum(1)
    return torch.log1p(run.to(x.dtype)), run.amax(1), starts


def regrets_matched(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Many matrix games at once: both sides play by their regrets, twelve rounds; mean play, and what can be won from it."""

    def play(r: Tensor) -> Tensor:
        r = torch.relu(r) + 1e-3
        return r / r.sum(1, keepdim=True)

    r, s = torch.zeros_like(a[:, :, 0]), torch.zeros_like(a[:, 0])
    x_all, y_all = r, s
    for t in range(1, 13):
        x, y = play(r), play(s)
        u, v = torch.bmm(a, y.unsqueeze(2)).squeeze(2), -torch.bmm(x.unsqueeze(1), a).squeeze(1)
        r, s = r + u - (x * u).sum(1, keepdim=True), s + v - (y * v).sum(1, keepdim=True)
        x_all, y_all = x_all + t * x, y_all + t * y
    x, y = (p / p.sum(1, keepdim=True) for p in (x_all, y_all))
    return x, y, (a @ y.unsqueeze(2)).amax((1, 2)) - (x.unsqueeze(1) @ a).amin((1, 2))


def reweighted_logistic(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Two of Newton's steps of a logistic regression with a ridge; its deviance."""
    w, y = 0.1 * w, y.to(x.dtype)
    for _ in range(2):
        p = torch.sigmoid(x @ w)
        h = x.T @ ((p * (1 - p)).unsqueeze(1) * x) + torch.eye(len(w), dtype=x.dtype, device=x.device)
        w = w - torch.cholesky_solve((x.T @ (p - y) + w).unsqueeze(1), torch.linalg.cholesky(h)).squeeze(1)
    return w, 2 * functional.binary_cross_entropy_with_logits(x @ w, y)


def kronecker_factored_step(w: Tensor, slope: Tensor, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """K-FAC: second moments of inputs and slopes, damped in balance, solved on both sides, a step of bounded length."""
    a, g = a.T @ a / len(a), g.T @ g / len(g)
    tilt = torch.sqrt((a.trace() / len(a)) / (g.trace() / len(g)))
    a, g = a + 0.3 * tilt * torch.eye(len(a)).to(a), g + 0.3 / tilt * torch.eye(len(g)).to(g)
    step = torch.cholesky_solve(slope, torch.linalg.cholesky(g))
    step = torch.cholesky_solve(step.T, torch.linalg.cholesky(a)).T
    size = torch.clamp(torch.sqrt(1e-2 / ((step * slope).sum().abs() + 1e-9)), max=1.0)
    return w - size * step, size


def shallow_water(h: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Lax and Friedrichs' steps for a basin without edges: depth and momenta, three times."""
    h, u, v = 1.0 + 0.1 * torch.tanh(h), 0.1 * u, 0.1 * v

    def step(x: Tensor, f: Tensor, g: Tensor) -> Tensor:
        mean = 0.25 * (x.roll(1, -1) + x.roll(-1, -1) + x.roll(1, -2) + x.roll(-1, -2))
        return mean - 0.1 * (f.roll(-1, -1) - f.roll(1, -1) + g.roll(-1, -2) - g.roll(1, -2))

    for _ in range(3):
        p, uv = 0.5 * h * h, u * v / h
        h, u, v = step(h, u, v), step(u, u * u / h + p, uv), step(v, uv, v * v / h + p)
    return h, u, v


def deblurred(x: Tensor, kernel: Tensor) -> Tensor:
    """Richardson and Lucy's four rounds with a kernel for each channel."""
    k = torch.softmax(kernel.flatten(1), 1).view_as(kernel).unsqueeze(1)
    y, turned, pad = torch.full_like(x, 0.5), k.flip((2, 3)), k.shape[-1] // 2
    for _ in range(4):
        share = x / (functional.conv2d(y, k, padding=pad, groups=len(k)) + 1e-2)
        y = (y * functional.conv2d(share, turned, padding=pad, groups=len(k))).clamp(1e-3, 10.0)
    return y


def harmonic_and_percussive(x: Tensor) -> tuple[Tensor, Tensor]:
    """A spectrogram parted by medians along time and along frequency, as soft masks."""
    long = functional.pad(x, (8, 8), mode="reflect").unfold(2, 17, 1).median(-1).values.square()
    high = functional.pad(x, (0, 0, 8, 8), mode="reflect").unfold(1, 17, 1).median(-1).values.square()
    mask = long / (long + high + 1e-6)
    return x * mask, x * (1 - mask)


def range_and_doppler(re: Tensor, im: Tensor) -> tuple[Tensor, Tensor]:
    """A radar's map: windows, transforms both ways, power in decibels; what stands out of its surroundings."""
    w = torch.outer(*(torch.hann_window(t, dtype=re.dtype, device=re.device) for t in re.shape[1:]))
    power = torch.fft.fftshift(torch.fft.fft2(torch.complex(re * w, im * w)), dim=1).abs().square()
    wide, near = (functional.avg_pool2d(power, k, 1, k // 2) * k * k for k in (17, 5))
    return 10 * torch.log10(power + 1e-3), power > 6.0 * (wide - near) / (17 * 17 - 25)


def mean_field(x: Tensor, colours: Tensor, given: Tensor) -> Tensor:
    """A dense random field: kernels of places and colours of all pairs, five rounds of messages and a class matrix."""
    h, w = x.shape[2:]
    at = torch.cartesian_prod(*(torch.arange(t, device=x.device, dtype=x.dtype) for t in (h, w)))
    d, c = torch.cdist(at, at).square(), torch.cdist(colours.flatten(2).mT, colours.flatten(2).mT).square()
    k = torch.exp(-d / 50 - c / 2) + 0.5 * torch.exp(-d / 8)
    k = k / k.sum(2, keepdim=True)
    u = x.flatten(2).mT
    q = torch.softmax(u, 2)
    for _ in range(5):
        q = torch.softmax(u + 3.0 * k @ q @ (given + given.T).tanh(), 2)
    return q.mT.view_as(x)


def capped_window_with_sinks(given, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Grouped heads with bounded scores, a window behind each query, and a learned sink beside what it sees."""
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    t = torch.arange(q.shape[2], device=q.device)
    d = t[:, None] - t
    s = 30.0 * torch.tanh(q @ k.mT * (q.shape[3] ** -0.5 / 30.0))
    s = s.masked_fill((d < 0) | (d >= 200), -torch.inf)
    s = torch.cat([s, given[0].view(1, -1, 1, 1).expand(*s.shape[:3], 1)], 3)
    return joined(torch.softmax(s, 3, dtype=torch.float32)[..., :-1].to(v.dtype) @ v)


def experts_by_cosines(down, given, x: Tensor) -> Tensor:
    """X-MoE: cosines in a narrow space choose two experts; all are computed, gated, and summed by weight."""
    score = functional.normalize(down(x), dim=1) @ functional.normalize(given[0], dim=1).T / 0.07
    p, at = torch.topk(torch.softmax(score.float(), 1), 2, dim=1)
    gate = torch.zeros_like(score).scatter(1, at, (p / p.sum(1, keepdim=True)).to(x.dtype))
    y = functional.silu(torch.einsum("td,edf->etf", x, given[1])) * torch.einsum("td,edf->etf", x, given[2])
    return torch.einsum("etd,te->td", y @ given[3], gate)


def sixteen_values_in_blocks(x: Tensor, codes: Tensor, scale: Tensor, whole_scale: Tensor) -> Tensor:
    """NVFP4: two codes to a byte, a scale for sixteen weights, one for all; then a product."""
    half = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=x.dtype, device=x.device)
    w = torch.cat([half, -half])[torch.stack([codes & 15, codes >> 4], 2).flatten(1).int()]
    w = w.unflatten(1, (-1, 16)) * (scale.unsqueeze(2) * whole_scale)
    return functional.linear(x, w.flatten(1).to(x.dtype))


def three_words_ahead(lines, given, x: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Heads for the next three words: a residue and an RMS norm each, one vocabulary, losses and squared log-sums."""
    losses, b = [], words.shape[1] - 2
    for i, line in enumerate(lines):
        h = x[:, :b] + functional.silu(line(x[:, :b]))
        z = (functional.rms_norm(h, h.shape[2:]) @ given[0]).flatten(0, 1).float()
        loss = functional.cross_entropy(z, words[:, i : i + b].flatten(), label_smoothing=0.1)
        losses.append(loss + 1e-4 * torch.logsumexp(z, 1).square().mean())
    return sum(w * t for w, t in zip((1.0, 0.3, 0.1), losses, strict=True)), torch.stack(losses)


def three_nearest_carried_up(fine: Tensor, coarse: Tensor, y: Tensor) -> Tensor:
    """PointNet++ upwards: each point takes the three nearest coarse ones' features by inverse distances."""
    d, at = torch.topk(torch.cdist(fine.float(), coarse.float()), 3, dim=2, largest=False)
    w = functional.normalize(1.0 / (d + 1e-2), p=1.0, dim=2).unsqueeze(3).to(y.dtype)
    return (y[torch.arange(len(y), device=y.device).view(-1, 1, 1), at] * w).sum(2)


def levels_weighed_by_place(down, vote, fine: Tensor, middle: Tensor, coarse: Tensor) -> Tensor:
    """ASFF: three levels of a pyramid at the middle one's size, a softmax at each pixel weighs them."""
    levels = down(fine), middle, functional.interpolate(coarse, middle.shape[2:], mode="nearest")
    w = torch.softmax(vote(torch.cat(levels, 1)), 1)
    return functional.silu(sum(t * w[:, i : i + 1] for i, t in enumerate(levels)))


def tail_free(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Words in order of chance are cut where the second differences' sum reaches 0.95; what is left, renormed."""
    p = torch.softmax(logits / 0.8, 1)
    sorted_p, at = torch.sort(p, dim=1, descending=True)
    bend = sorted_p.diff(dim=1).diff(dim=1).abs()
    bend = torch.cumsum(bend / bend.sum(1, keepdim=True), 1)
    keep = functional.pad(bend < 0.95, (1, 1), value=False) | (torch.arange(p.shape[1], device=p.device) == 0)
    kept = torch.zeros_like(p).scatter(1, at, sorted_p * keep)
    return kept / kept.sum(1, keepdim=True), keep.sum(1)


def blocks_kept_or_not(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Causal attention where each head's table says which blocks of queries see which blocks of keys, their own always."""
    n = keep.shape[-1]
    keep = (keep == 0) | torch.eye(n, dtype=torch.bool, device=q.device)
    size = q.shape[2] // n
    seen = keep.repeat_interleave(size, 1).repeat_interleave(size, 2)
    seen = seen & torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).tril()
    return joined(functional.scaled_dot_product_attention(q, k, v, attn_mask=seen))


FLOAT32: dict[str, Case] = {
    "gemm_norm_symlog_unit": call(
        lambda f, norm, x: functional.normalize(torch.sign(y := norm(f(x))) * torch.log1p(y.abs()), dim=1),
        ((1024, 9), (768, 10)),
        parts=(part(nn.Linear, (768, 10), (1000, 7)), part(nn.LayerNorm, (1000, 7))),
    ),
    "bmm_shares_of_rows_then_columns_norm": call(
        lambda x, w: functional.layer_norm((y := torch.softmax(x @ w.mT * 0.1, 2)) / y.mean(1, keepdim=True), w.shape[1:2]),
        *(((24, 2), (300, 6), (96, 5)), ((24, 2), (517, 7), (96, 5))),
    ),
    "gemm_softplus_rms_pool_less_most": call(
        lambda f, norm, x: (y := functional.avg_pool1d(norm(functional.softplus(f(x))), 5, 3, 2)) - y.amax(1, keepdim=True),
        ((512, 4), (1200, 9)),
        parts=(part(nn.Linear, (1200, 9), (1777, 17)), part(nn.RMSNorm, (1777, 17))),
    ),
    "conv_pools_of_both_kinds_gate_rows": call(
        lambda conv, x: (functional.max_pool2d(y := conv(x), 3, 2, 1) * torch.sigmoid(functional.avg_pool2d(y, 3, 2, 1))).sum(3),
        ((32, 2), (48, 3), (65, 9), (128, 11)),
        parts=(part(nn.Conv2d, (48, 3), (80, 4), (3, 5), padding=(1, 2)),),
    ),
    "conv_shares_among_groups_hardswish": call(
        lambda conv, x: functional.hardswish((torch.softmax(y := conv(x).unflatten(1, (4, -1)), 1) * y).sum(1) - 0.1),
        ((16, 2), (128, 3), (56, 6), (56, 7)),
        parts=(part(nn.Conv2d, (128, 3), (256, 8), 3),),
    ),
    "up3_softsign_depth_deviations_pool": call(
        lambda up, x: functional.max_pool2d(torch.log(functional.softsign(up(x)).std(2) + 1e-2), 3, 2),
        ((8, 2), (24, 3), (12, 4), (24, 4), (28, 5)),
        parts=(lambda n: nn.ConvTranspose3d(n(24, 3), n(16, 2), (3, 5, 5), (1, 2, 2), (1, 2, 2)),),
    ),
    "shares_of_outer_axes": call(
        lambda x: (p := torch.exp(x - torch.logsumexp(x, (0, 2), keepdim=True)), torch.special.entr(p).sum((0, 2))),
        ((48, 3), (256, 4), (40, 5), (130, 6)),
    ),
    "energy_of_two_samples": call(
        lambda x, y, d=torch.cdist: 2 * d(x, y, p=1.0).mean() - d(x, x, p=1.0).mean() - d(y, y, p=1.0).mean(),
        *(((1500, 20), (20, 4)), ((1111, 15), (20, 4))),
    ),
    "conv_relu6_group_means_shares": call(
        lambda conv, norm, x: torch.softmax(norm(functional.relu6(conv(x))).amax((2, 3)), 1),
        ((16, 2), (64, 4), (112, 9), (96, 8)),
        parts=(part(nn.Conv2d, (64, 4), (192, 6), 3, 2, 1), part(nn.GroupNorm, (16, 2), (192, 6))),
    ),
    "up_elu_instance_pool_bias_tanh": call(
        lambda up, norm, given, x: torch.tanh(functional.avg_pool2d(norm(functional.elu(up(x))), 3, 2) + given[0]),
        ((16, 2), (96, 4), (32, 4), (45, 5)),
        parts=(
            *(part(nn.ConvTranspose2d, (96, 4), (64, 3), 3, 3, 1, 1), part(nn.InstanceNorm2d, (64, 3), affine=True)),
            weights(((64, 3), 1, 1)),
        ),
    ),
    "surprise_of_wide_rows": call(surprise_of_wide_rows, ((64, 3), (128256, 50))),
    "scores_so_far": call(scores_so_far, ((128, 2), (2000, 20), (250, 5))),
    "lorenz_curves": call(lorenz_curves, positive((512, 4), (4000, 33))),
    "mutual_information": call(mutual_information, ((32, 2), (20000, 50)), ((32, 2), (20000, 50))),
    "fuzzy_centres": call(fuzzy_centres, ((30000, 50), (24, 5)), ((64, 4), (24, 5))),
    "lanczos": call(lanczos, ((4096, 40), (4096, 40)), ((4096, 40),)),
    "bernoulli_mixture": call(bernoulli_mixture, whole(2, (8192, 40), (784, 30)), ((40, 5), (784, 30)), ((40, 5),)),
    "tail_free": call(tail_free, ((64, 3), (32000, 99))),
    "longest_runs": call(longest_runs, ((512, 4), (10000, 60))),
    "regrets_matched": call(regrets_matched, ((1024, 3), (48, 5), (40, 4))),
    "reweighted_logistic": call(reweighted_logistic, ((16384, 60), (96, 5)), whole(2, (16384, 60)), ((96, 5),)),
    "kronecker_factored_step": call(
        *(kronecker_factored_step, ((384, 5), (777, 7)), ((384, 5), (777, 7)), ((2048, 30), (777, 7)), ((2048, 30), (384, 5)))
    ),
    "shallow_water": call(shallow_water, *(((8, 2), (512, 7), (600, 9)),) * 3),
    "deblurred": call(deblurred, positive((8, 2), 3, (384, 12), (509, 13)), (3, 9, 9)),
    "harmonic_and_percussive": call(harmonic_and_percussive, positive((4, 2), (513, 20), (300, 15))),
    "range_and_doppler": call(range_and_doppler, *(((24, 2), (128, 20), (500, 30)),) * 2),
    "mean_field": call(mean_field, *(((8, 2), c, (32, 5), (40, 6)) for c in ((21, 4), 3)), ((21, 4), (21, 4))),
}
HEADS = ((2, 1), (16, 4), (1000, 9), (128, 8))
GROUPS = ((2, 1), (4, 2), (1000, 9), (128, 8))
BLOCKS = ((4, 2), (8, 2), (1024, 16), (64, 8))
HALVES: dict[str, Case] = {
    "baddbmm_quick_gelu_unit_columns": call(
        lambda b, x, w: functional.normalize((y := torch.baddbmm(b, x, w, beta=0.5, alpha=0.1)) * torch.sigmoid(1.7 * y), dim=1),
        *(((32, 2), 1, (640, 7)), ((32, 2), (250, 5), (512, 6)), ((32, 2), (512, 6), (640, 7))),
    ),
    "gemm_groups_off_mean_gated_squares": call(
        lambda f, norm, x: ((y := norm(f(x).unflatten(1, (-1, 32)))).square() * y.abs().mean(2, keepdim=True).sigmoid()).mean(1),
        ((777, 5), (1024, 9)),
        parts=(part(nn.Linear, (1024, 9), (4096, 96)), part(nn.LayerNorm, 32, bias=False)),
    ),
    "grouped_conv_shuffled_prelu_lengths": call(
        lambda f, act, x: torch.sqrt(functional.avg_pool2d(act(functional.channel_shuffle(f(x), 8)).square(), 2) + 1e-4),
        ((32, 2), (256, 8), (57, 8), (56, 7)),
        parts=(part(nn.Conv2d, (256, 8), (320, 16), 3, groups=8), part(nn.PReLU, (320, 16))),
    ),
    "conv3_unit_channels_mish_pool": call(
        lambda conv, x: functional.mish(functional.normalize(conv(x), dim=1) * 8).mean((3, 4)),
        ((8, 2), (16, 3), (16, 4), (60, 6), (64, 5)),
        parts=(part(nn.Conv3d, (16, 3), (48, 5), 3, padding=1),),
    ),
    "up_dilated_squares_batch_norm_sums_of_columns": call(
        lambda up, norm, x: norm(functional.relu(up(x)).square()).sum(2).softmax(1),
        ((16, 2), (128, 4), (30, 5), (37, 4)),
        parts=(lambda n: nn.ConvTranspose2d(n(128, 4), n(96, 3), 3, 2, 1, dilation=2), part(nn.BatchNorm2d, (96, 3))),
    ),
    "three_nearest_carried_up": call(
        three_nearest_carried_up, ((8, 2), (4096, 20), 3), ((8, 2), (512, 9), 3), ((8, 2), (512, 9), (256, 5))
    ),
    "levels_weighed_by_place": call(
        levels_weighed_by_place,
        *(((8, 2), (256, 4), *s) for s in (((80, 8), (80, 12)), ((40, 4), (40, 6)), ((20, 2), (20, 3)))),
        parts=(part(nn.Conv2d, (256, 4), (256, 4), 3, 2, 1), part(nn.Conv2d, (768, 12), 3, 1)),
    ),
    "gemm_gelu_norm_clamp_moments_of_rows": call(
        lambda f, norm, x: torch.var_mean(norm(functional.gelu(f(x), approximate="tanh")).clamp(-0.5, 2.0), 1),
        ((1000, 5), (4096, 9)),
        parts=(part(nn.Linear, (4096, 9), (2048, 12)), part(nn.LayerNorm, (2048, 12))),
    ),
    "conv_dilated_leaky_norm_shuffle_clamp": call(
        lambda conv, norm, x: functional.pixel_shuffle(norm(functional.leaky_relu(conv(x), 0.1)), 2).clamp(-0.5, 1.5),
        ((16, 2), (64, 3), (64, 9), (80, 8)),
        parts=(part(nn.Conv2d, (64, 3), (256, 8), 3, padding=2, dilation=2), part(nn.BatchNorm2d, (256, 8))),
    ),
    "up1_glu_norm_log_softmax": call(
        lambda up, norm, x: torch.log_softmax(norm(functional.glu(up(x), dim=1).mT), 2),
        ((16, 2), (256, 4), (700, 9)),
        parts=(part(nn.ConvTranspose1d, (256, 4), (256, 8), 8, 4, 2), part(nn.LayerNorm, (128, 4))),
    ),
    "capped_window_with_sinks": call(capped_window_with_sinks, HEADS, GROUPS, GROUPS, parts=(weights(((16, 4),)),)),
    "experts_by_cosines": call(
        *(experts_by_cosines, ((2000, 9), (512, 12))),
        parts=(
            part(nn.Linear, (512, 12), (64, 4), bias=False),
            fanned(((16, 4), (64, 4)), *(((16, 4), (512, 12), (1024, 16)),) * 2, ((16, 4), (1024, 16), (512, 12))),
        ),
    ),
    "sixteen_values_in_blocks": call(
        *(sixteen_values_in_blocks, ((33, 3), (4096, 64)), octets((6144, 10), (2048, 32))),
        *(positive((6144, 10), (256, 4)), positive(1)),
    ),
    "three_words_ahead": call(
        *(three_words_ahead, ((4, 2), (256, 7), (768, 12)), below((32000, 30), (4, 2), (256, 7))),
        parts=(lambda n: nn.ModuleList(nn.Linear(n(768, 12), n(768, 12)) for _ in range(3)), fanned(((768, 12), (32000, 30)))),
    ),
    "blocks_kept_or_not": call(blocks_kept_or_not, BLOCKS, BLOCKS, BLOCKS, whole(3, (8, 2), (16, 4), (16, 4))),
}
CASES: dict[str, Case] = {**FLOAT32, **HALVES}
"""In float32, and in either of the formats of two bytes."""
