"""Operators one by one at sizes that stand in no table, and short chains of them in orders that nobody fuses by hand."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import last
from experiments.suite.users import sizes
from experiments.suite.users import turned
from experiments.suite.users import whole

# -- one operator ---------------------------------------------------------------------------------------------------------------


def volume(*shape):
    """Five axes, the channels last."""
    return lambda n: floats(n, *shape).contiguous(memory_format=torch.channels_last_3d)


def every_third(*shape):
    """Columns of a wider matrix."""
    return lambda n: floats(n, *shape)[..., ::3]


def below(most, *shape):
    """Whole numbers below one that depends on the size."""
    return lambda n: torch.randint(0, n(*most), sizes(n, shape))


def rising(*shape):
    return lambda n: floats(n, *shape).abs().cumsum(-1)


def with_gaps(*shape):
    """Some entries are no numbers."""

    def make(n):
        x = floats(n, *shape)
        return torch.where(x > 1.2, torch.nan, x)

    return make


def gap_statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.nansum(x, 0), torch.nanmean(x, -1, keepdim=True), (~x.isnan()).sum(-1)


def gradients_of_a_grid(x: Tensor) -> Tensor:
    """Central differences both ways, and how long they are."""
    v, u = torch.gradient(x, spacing=0.5, dim=(1, 2))
    return torch.hypot(u, v)


def normal_tails(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p = torch.special.ndtr(x)
    return p, torch.special.log_ndtr(x), torch.special.ndtri(p.clamp(1e-3, 1 - 1e-3))


def bessel(x: Tensor) -> Tensor:
    return torch.special.bessel_j0(x) + torch.special.i0e(x) - torch.special.i1e(x) * torch.sinc(x)


def signs_and_powers(x: Tensor, y: Tensor) -> Tensor:
    return torch.copysign(torch.hypot(x, y), torch.atan2(y, x)) + torch.ldexp(x, torch.floor(y)) - torch.heaviside(x, y)


def put_rows(x: Tensor, at: Tensor, rows: Tensor) -> Tensor:
    return x.index_copy(0, at, rows).index_fill(1, at[:5] % x.shape[1], -1.0)


def largest_by_segment(x: Tensor, at: Tensor) -> Tensor:
    """Segments that nothing falls into keep zero."""
    out = x.new_zeros(x.shape[0] // 4, x.shape[1])
    return out.scatter_reduce(0, at[:, None].expand_as(x) % len(out), x, "amax", include_self=False)


def divisors(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    g = torch.gcd(a + 1, b + 1)
    return g, torch.div((a + 1) * (b + 1), g, rounding_mode="floor")


def to_waves_and_back(window: Tensor, x: Tensor) -> Tensor:
    z = torch.stft(x, 64, 16, window=window, return_complex=True)
    return torch.istft(z * (z.abs() > 1.0), 64, 16, window=window, length=x.shape[-1])


def as_a_circulant(kernel: Tensor, x: Tensor) -> Tensor:
    """A product with a circulant matrix, by transforms of lengths that are no powers of two."""
    return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(kernel), n=x.shape[-1])


# -- chains ---------------------------------------------------------------------------------------------------------------------


def pool_norm_linear(norm, line, x: Tensor) -> Tensor:
    """Pixels lie with their channels; a maximum of four, a norm, a product, an activation."""
    y = functional.max_pool2d(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
    return functional.gelu(line(norm(y)))


def product_less_diagonal(x: Tensor, y: Tensor) -> Tensor:
    s = torch.bmm(x, y.mT) / 8
    d = s.diagonal(dim1=-2, dim2=-1)
    return (torch.logsumexp(s, -1) + torch.logsumexp(s, -2) - 2 * d).mean(-1)


def sorted_features(up, down, weight: Tensor, x: Tensor) -> Tensor:
    """Each feature sorted over a set, then weights by rank."""
    y = torch.sort(up(x).relu(), dim=1, descending=True).values
    return down((y * weight).sum(1))


def strongest_keys_only(q: Tensor, k: Tensor, v: Tensor, most: int) -> Tensor:
    s = q @ k.mT * q.shape[-1] ** -0.5
    least = s.topk(most, dim=-1).values[..., -1:]
    return s.masked_fill(s < least, -torch.inf).softmax(-1) @ v


def product_sum_product(a, b, x: Tensor) -> Tensor:
    """Running sums over time between two products."""
    return b(torch.tanh(torch.cumsum(a(x), dim=1) / x.shape[1] ** 0.5))


def depth_from_steps(up, x: Tensor) -> Tensor:
    """Positive steps summed over channels: each channel lies behind the one before it."""
    return functional.softplus(up(x)).cumsum(1).reciprocal()


def squared_then_normed(a, b, x: Tensor) -> Tensor:
    return b(functional.normalize(a(x).relu().square(), dim=-1)) * math.sqrt(x.shape[-1])


def words_around(table, out, ids: Tensor, target: Tensor) -> Tensor:
    """CBOW: a mean of neighbours, all words' logits, one loss."""
    return functional.cross_entropy(out(table(ids).mean(1)), target)


def gated_convolution(conv, x: Tensor) -> Tensor:
    """Of FConvS2S: half of the channels gate the others, half of the variance is kept."""
    y = functional.glu(conv(functional.pad(x, (4, 0))), dim=1)
    return (x + y) * math.sqrt(0.5)


def maxout(a, b, x: Tensor) -> Tensor:
    y = a(x).unflatten(-1, (-1, 4)).amax(-1)
    return b(y).unflatten(-1, (-1, 2)).amax(-1).log_softmax(-1)


def mutual_matches(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """LoFTR: softmax both ways, and which pairs choose each other."""
    s = torch.einsum("blc,bsc->bls", x, y) / (0.1 * x.shape[-1])
    p = s.softmax(1) * s.softmax(2)
    mine = (p == p.amax(2, keepdim=True)) & (p == p.amax(1, keepdim=True)) & (p > 1e-3)
    return p, mine


def three_into_two(norm, left, right, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    h = norm(a + 0.5 * b + c.unsqueeze(1))
    return left(h).sigmoid() * a, functional.relu6(right(h))


def stretched_product(x: Tensor, y: Tensor) -> Tensor:
    """Each matrix moved to between nought and one, then contrasted."""
    s = x @ y
    low, high = s.amin((-2, -1), keepdim=True), s.amax((-2, -1), keepdim=True)
    return ((s - low) / (high - low + 1e-5)).pow(0.45)


def capped_loss(head, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits with a cap; their loss, what keeps the normaliser small, and the entropy."""
    y = 30 * torch.tanh(head(x) / 30)
    z = y.logsumexp(-1)
    entropy = z - (y.softmax(-1) * y).sum(-1)
    return (z - y.gather(-1, target[:, None])[:, 0]).mean(), 1e-3 * z.square().mean(), entropy


def norm_then_stride(norm, conv, x: Tensor) -> Tensor:
    """Between the stages of ConvNeXt, on pixels whose channels lie together."""
    return conv(norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


def angular_margin(weight: Tensor, x: Tensor, target: Tensor) -> Tensor:
    """CosFace with a scale that is learned as a logarithm."""
    c = functional.linear(functional.normalize(x), functional.normalize(weight))
    c = c - 0.35 * functional.one_hot(target, c.shape[-1])
    return functional.cross_entropy(c * 20, target, reduction="none")


def all_before(layers, x: Tensor) -> Tensor:
    """Every layer sees the input and all results before it."""
    for layer, act in zip(layers, (torch.tanh, functional.elu, functional.softsign, torch.sin), strict=True):
        x = torch.cat([x, act(layer(x))], dim=-1)
    return x.sum(-1)


def growing(n) -> nn.Module:
    w = n(128, 8)
    return nn.ModuleList(nn.Linear(w * (i + 1), w) for i in range(4))


def norm_of_a_product_by_columns(a, x: Tensor) -> Tensor:
    """Over the batch, without a running mean."""
    y = a(x)
    return torch.erf((y - y.mean(0)) * torch.rsqrt(y.var(0) + 1e-5))


def spread_of_a_volume(conv, x: Tensor) -> Tensor:
    y = conv(x)
    return torch.logsumexp(y, dim=1).square().mean((1, 2, 3)) + y.std((1, 2, 3, 4))


def rows_or_columns(weight: Tensor, x: Tensor) -> Tensor:
    """One matrix used both ways round: an encoder with tied weights."""
    return functional.mse_loss(torch.sigmoid(x @ weight.mT) @ weight, x, reduction="none").mean(-1)


def mean_of_a_time_series(depth, point, x: Tensor) -> Tensor:
    """Time comes last in the result, though it came in the middle."""
    y = functional.silu(depth(x.transpose(1, 2)))
    return point(y).mean(-1) + y.amax(-1)


def reduced_by_groups(conv, norm, x: Tensor) -> Tensor:
    """A convolution, a norm of groups, the largest pixel of each channel, softmax of what the groups have."""
    y = norm(conv(x)).amax((2, 3))
    return y.unflatten(1, (4, -1)).softmax(1).flatten(1)


def wide(i: int, o: int, small: tuple[int, int], **more):
    return lambda n: nn.Linear(n(i, small[0]), n(o, small[1]), **more)


def conv(i, o, k, **more):
    return lambda n: nn.Conv2d(n(*i), n(*o), k, **more)


CASES: dict[str, Case] = {
    "linear_of_primes": call(lambda f, x: f(x), ((997, 7), (1021, 13)), parts=(wide(1021, 509, (13, 11)),)),
    "linear_of_every_third": call(
        lambda f, x: f(x), every_third((2048, 5), (2304, 24)), parts=(wide(768, 321, (8, 9), bias=False),)
    ),
    "one_softmax": call(lambda x: torch.softmax(x, -1), (1, (1000003, 37))),
    "norm_of_three_rows": call(lambda x: functional.layer_norm(x, x.shape[-1:]), (3, (1048577, 33))),
    "group_norm_of_five_axes": call(
        lambda f, x: f(x), volume((2, 1), (48, 8), (17, 3), 24, 24), parts=(lambda n: nn.GroupNorm(4, n(48, 8)),)
    ),
    "batch_norm_of_five_axes": call(
        lambda f, x: functional.leaky_relu(f(x)),
        volume((2, 1), (32, 4), (16, 3), (56, 6), (56, 5)),
        parts=(lambda n: nn.BatchNorm3d(n(32, 4)),),
    ),
    "dilated_pool_3d": call(
        lambda x: functional.max_pool3d(x, 3, stride=2, padding=1, dilation=2, ceil_mode=True),
        volume((2, 1), (32, 3), (19, 9), (45, 9), (45, 10)),
    ),
    "pool_by_other_divisors": call(
        lambda x: (
            functional.avg_pool2d(x, (3, 5), (2, 3), (1, 2), count_include_pad=False),
            functional.avg_pool2d(x, 4, 3, divisor_override=7),
        ),
        last((8, 1), (96, 5), (57, 9), (83, 11)),
    ),
    "conv_of_seven": call(
        lambda f, x: f(x),
        ((16, 1), 7, (37, 9), (203, 12)),
        parts=(lambda n: nn.Conv2d(7, 21, (5, 2), groups=7, padding="same", dilation=(1, 3)),),
    ),
    "conv_transpose_of_groups": call(
        lambda f, x: f(x).relu(),
        last((8, 1), (64, 4), (29, 4), (31, 5)),
        parts=(
            lambda n: nn.ConvTranspose2d(n(64, 4), n(32, 6), 4, stride=3, padding=2, output_padding=(1, 2), groups=2, dilation=2),
        ),
    ),
    "sampled_volume": call(
        lambda x, g: functional.grid_sample(x, g.tanh(), padding_mode="border", align_corners=True),
        ((2, 1), (16, 2), (24, 3), (40, 4), (40, 5)),
        ((2, 1), (24, 3), (32, 3), (32, 2), 3),
    ),
    "smaller_without_aliases": call(
        lambda x: functional.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True), ((8, 1), 3, (446, 12), (334, 10))
    ),
    "to_an_odd_size": call(
        lambda x: functional.interpolate(x, size=(x.shape[2] + 13, x.shape[3] - 3), mode="nearest-exact"),
        last((8, 1), (32, 3), (100, 7), (132, 9)),
    ),
    "by_area": call(lambda x: functional.interpolate(x, size=(7, 5), mode="area"), ((16, 1), (128, 3), (61, 15), (45, 12))),
    "larger_volume": call(
        lambda x: functional.interpolate(x, scale_factor=(1, 2, 2), mode="trilinear"), ((2, 1), (32, 2), (9, 3), (48, 4), (48, 5))
    ),
    "renormed_columns": call(lambda x: torch.renorm(x, 2, 1, 3.0), ((4096, 9), (1000, 7))),
    "distances_by_steps": call(lambda x, y: torch.cdist(x, y, p=1.0), ((2, 1), (777, 5), (48, 4)), ((2, 1), (500, 6), (48, 4))),
    "smallest_so_far": call(lambda x: torch.cummin(x, 1), ((64, 2), (500, 9), (64, 3))),
    "min_and_max_of_rows": call(lambda x: tuple(torch.aminmax(x, dim=-1)), turned((30011, 11), (300, 7))),
    "gap_statistics": call(gap_statistics, with_gaps((5000, 9), (1111, 8))),
    "deviation_of_the_outer_axes": call(
        lambda x: torch.std_mean(x, dim=(0, 2, 4), keepdim=True), ((8, 2), (19, 3), (32, 4), (32, 5), (17, 2))
    ),
    "gradients_of_a_grid": call(gradients_of_a_grid, ((16, 2), (513, 9), (511, 8))),
    "areas_below": call(
        lambda t, y: (torch.trapezoid(y, t), torch.cumulative_trapezoid(y, t)),
        rising((1024, 4), (2047, 9)),
        ((1024, 4), (2047, 9)),
    ),
    "normal_tails": call(normal_tails, ((1000, 5), (1001, 7))),
    "bessel": call(bessel, ((2000, 5), (1501, 9))),
    "signs_and_powers": call(signs_and_powers, ((3001, 5), (999, 7)), ((3001, 5), (999, 7))),
    "put_rows": call(put_rows, ((5000, 12), (700, 9)), lambda n: torch.randperm(n(5000, 12))[: n(901, 6)], ((901, 6), (700, 9))),
    "largest_by_segment": call(largest_by_segment, ((20000, 20), (96, 5)), whole(9999, (20000, 20))),
    "known_words": call(
        lambda ids, known: torch.isin(ids, known).sum(-1), whole(30000, (64, 3), (2048, 8)), whole(30000, (50, 4))
    ),
    "weighted_bags": call(
        lambda bag, ids, weight: bag(ids, per_sample_weights=weight),
        below((50021, 9), (2048, 5), (30, 4)),
        ((2048, 5), (30, 4)),
        parts=(lambda n: nn.EmbeddingBag(n(50021, 9), n(96, 6), mode="sum", padding_idx=3),),
    ),
    "divisors": call(divisors, whole(900, (700, 5), (701, 6)), whole(900, (701, 6))),
    "to_waves_and_back": call(to_waves_and_back, lambda n: torch.hann_window(64), ((16, 2), (48000, 400))),
    "as_a_circulant": call(as_a_circulant, ((1001, 15),), ((512, 3), (1001, 15))),
    "correlation_of_rows": call(lambda x: torch.corrcoef(x) - torch.cov(x) / x.shape[-1], ((350, 6), (5003, 17))),
    "pool_norm_linear": call(
        pool_norm_linear, ((8, 1), (64, 6), (64, 8), (96, 8)), parts=(lambda n: nn.LayerNorm(n(96, 8)), wide(96, 192, (8, 12)))
    ),
    "product_less_diagonal": call(product_less_diagonal, *(((16, 2), (256, 5), (64, 8)),) * 2),
    "sorted_features": call(
        sorted_features, ((64, 9), (128, 5)), ((64, 2), (64, 9), (32, 4)), parts=(wide(32, 128, (4, 5)), wide(128, 40, (5, 3)))
    ),
    "strongest_keys_only": call(strongest_keys_only, *(((4, 1), (8, 2), (256, 9), (64, 8)),) * 3, 5),
    "product_sum_product": call(
        product_sum_product, ((16, 2), (333, 7), (256, 8)), parts=(wide(256, 384, (8, 12)), wide(384, 128, (12, 5)))
    ),
    "depth_from_steps": call(
        depth_from_steps,
        last((4, 1), (128, 6), (40, 4), (52, 5)),
        parts=(lambda n: nn.ConvTranspose2d(n(128, 6), n(48, 5), 4, stride=2, padding=1),),
    ),
    "squared_then_normed": call(
        squared_then_normed, ((4096, 6), (384, 8)), parts=(wide(384, 1536, (8, 16)), wide(1536, 384, (16, 8)))
    ),
    "words_around": call(
        words_around,
        below((20011, 11), (2048, 4), (10, 3)),
        below((20011, 11), (2048, 4)),
        parts=(lambda n: nn.Embedding(n(20011, 11), n(256, 8)), wide(256, 20011, (8, 11), bias=False)),
    ),
    "gated_convolution": call(
        gated_convolution, ((16, 2), (256, 6), (500, 9)), parts=(lambda n: nn.Conv1d(n(256, 6), n(512, 12), 5),)
    ),
    "maxout": call(maxout, ((4096, 5), (320, 8)), parts=(wide(320, 1024, (8, 24)), wide(256, 20, (6, 10)))),
    "mutual_matches": call(mutual_matches, ((4, 1), (1200, 7), (256, 8)), ((4, 1), (1100, 6), (256, 8))),
    "three_into_two": call(
        three_into_two,
        *(((8, 2), (300, 5), (320, 8)),) * 2,
        ((8, 2), (320, 8)),
        parts=(lambda n: nn.LayerNorm(n(320, 8)), wide(320, 320, (8, 8)), wide(320, 77, (8, 3))),
    ),
    "stretched_product": call(stretched_product, ((64, 2), (200, 5), (64, 8)), ((64, 2), (64, 8), (200, 6))),
    "capped_loss": call(
        capped_loss, ((1024, 5), (512, 8)), below((32003, 11), (1024, 5)), parts=(wide(512, 32003, (8, 11), bias=False),)
    ),
    "norm_then_stride": call(
        norm_then_stride,
        last((16, 1), (96, 8), (56, 6), (56, 6)),
        parts=(lambda n: nn.LayerNorm(n(96, 8)), conv((96, 8), (192, 12), 2, stride=2)),
    ),
    "angular_margin": call(angular_margin, ((5003, 9), (256, 8)), ((512, 5), (256, 8)), below((5003, 9), (512, 5))),
    "all_before": call(all_before, ((8192, 5), (128, 8)), parts=(growing,)),
    "norm_of_a_product_by_columns": call(
        norm_of_a_product_by_columns, ((2048, 7), (400, 8)), parts=(wide(400, 600, (8, 9), bias=False),)
    ),
    "spread_of_a_volume": call(
        spread_of_a_volume, volume((4, 1), 3, (16, 4), (64, 6), (64, 6)), parts=(lambda n: nn.Conv3d(3, n(24, 4), 3),)
    ),
    "rows_or_columns": call(rows_or_columns, ((64, 4), (784, 12)), ((4096, 5), (784, 12))),
    "mean_of_a_time_series": call(
        mean_of_a_time_series,
        ((32, 2), (400, 9), (192, 8)),
        parts=(
            lambda n: nn.Conv1d(n(192, 8), n(192, 8), 7, padding=3, groups=n(192, 8)),
            lambda n: nn.Conv1d(n(192, 8), n(192, 8), 1),
        ),
    ),
    "reduced_by_groups": call(
        reduced_by_groups,
        last((16, 1), (64, 6), (32, 5), (32, 6)),
        parts=(conv((64, 6), (128, 8), 3), lambda n: nn.GroupNorm(4, n(128, 8))),
    ),
}
