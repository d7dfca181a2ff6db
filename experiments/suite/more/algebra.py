"""Factorisations, spectra, special functions and whole numbers, each with what a script does before and after."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import scaled
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import whole

# -- factorisations -------------------------------------------------------------------------------------------------------------


def spread(x: Tensor) -> Tensor:
    """A matrix that is safely positive."""
    x = x.float()
    return x @ x.mT / x.shape[-1] + torch.eye(x.shape[-2], device=x.device)


def pseudo_inverse(a: Tensor, b: Tensor) -> Tensor:
    u, s, vh = torch.linalg.svd(a.float(), full_matrices=False)
    small = s < 1e-2 * s.amax(-1, keepdim=True)
    return (vh.mT * torch.where(small, 0.0, 1 / s).unsqueeze(-2)) @ (u.mT @ b.float())


def low_rank_copy(a: Tensor, k: int) -> tuple[Tensor, Tensor]:
    u, s, vh = torch.linalg.svd(a.float(), full_matrices=False)
    return (u[..., :k] * s[..., None, :k]) @ vh[..., :k, :], (s[..., :k].square().sum(-1) / s.square().sum(-1)).sqrt()


def whitened(x: Tensor) -> Tensor:
    """By the inverse root of the covariance, of groups of channels."""
    b, c, h, w = x.shape
    y = x.float().view(b, 4, c // 4, h, w).permute(1, 2, 0, 3, 4).flatten(2)
    y = y - y.mean(-1, keepdim=True)
    cov = y @ y.mT / y.shape[-1] + 1e-3 * torch.eye(c // 4, device=x.device)
    e, v = torch.linalg.eigh(cov)
    y = (v * e.clamp(min=1e-4).rsqrt().unsqueeze(-2)) @ v.mT @ y
    return y.unflatten(-1, (b, h, w)).permute(2, 0, 1, 3, 4).reshape(b, c, h, w).to(x.dtype)


def least_squares(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """By QR, with what a table of results has."""
    x = torch.cat([torch.ones_like(x[..., :1]), x], dim=-1).float()
    q, r = torch.linalg.qr(x)
    beta = torch.linalg.solve_triangular(r, q.mT @ y.float(), upper=True)
    left = y.float() - x @ beta
    free = x.shape[-2] - x.shape[-1]
    inverse = torch.linalg.solve_triangular(r, torch.eye(r.shape[-1], device=r.device), upper=True)
    error = (left.square().sum(-2) / free).unsqueeze(-1).sqrt() * inverse.norm(dim=-1).unsqueeze(-2)
    return {"beta": beta, "t": beta.mT / error, "r2": 1 - left.square().sum(-2) / (y.float().var(-2) * (y.shape[-2] - 1))}


def likelihood(x: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
    """Of Gaussians, by log-determinants and solutions."""
    cov = spread(factor)
    far = (x - mean).float()
    sign, log_det = torch.linalg.slogdet(cov)
    mahalanobis = torch.einsum("nki,kin->nk", far, torch.linalg.solve(cov, far.permute(1, 2, 0)))
    return torch.logsumexp(-0.5 * (mahalanobis + sign * log_det + x.shape[-1] * math.log(2 * math.pi)), dim=-1)


def factored_solution(a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    lu, pivots = torch.linalg.lu_factor(spread(a))
    x = torch.linalg.lu_solve(lu, pivots, b.float())
    return torch.relu(x @ w.float()), lu.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)


class Orthogonal(nn.Module):
    """A turned weight: Cayley's map of blocks, multiplied onto a linear layer."""

    def __init__(self, width: int, block: int) -> None:
        super().__init__()
        self.base, self.r = nn.Linear(width, width), nn.Parameter(torch.randn(width // block, block, block) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        skew = 0.5 * (self.r - self.r.transpose(1, 2)).float()
        eye = torch.eye(skew.shape[-1], device=x.device).expand_as(skew)
        turn = torch.linalg.solve(eye + skew, eye - skew).to(x.dtype)
        y = torch.einsum("...ki,kij->...kj", x.unflatten(-1, (turn.shape[0], -1)), turn).flatten(-2)
        return functional.gelu(self.base(y))


def generator(a: Tensor, x: Tensor) -> Tensor:
    """Rotations by exponentials of skew matrices."""
    turn = torch.linalg.matrix_exp((a - a.mT).float() * 0.2)
    return functional.normalize(torch.einsum("bij,bnj->bni", turn, x.float()), dim=-1).to(x.dtype)


def three_diagonals(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Thomas' algorithm, forward and back."""
    b = b.abs() + a.abs() + c.abs() + 1
    cs, ds, out = [c[:, 0] / b[:, 0]], [d[:, 0] / b[:, 0]], []
    for i in range(1, 12):
        m = b[:, i] - a[:, i] * cs[-1]
        cs.append(c[:, i] / m)
        ds.append((d[:, i] - a[:, i] * ds[-1]) / m)
    x = torch.zeros_like(ds[0])
    for i in reversed(range(12)):
        x = ds[i] - cs[i] * x
        out.insert(0, x)
    return torch.stack(out, dim=1)


def principal_angles(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Similarities of representations: by angles between spaces, and by mean correlations (SVCCA)."""
    qs = [torch.linalg.qr((z - z.mean(0)).float())[0] for z in (x, y)]
    s = torch.linalg.svdvals(qs[0].T @ qs[1]).clamp(max=1 - 1e-6)
    return torch.acos(s).square().sum().sqrt().reshape(1), s.cumsum(0) / torch.arange(1, len(s) + 1, device=s.device)


# -- spectra --------------------------------------------------------------------------------------------------------------------


def low_pass(gain: Tensor, x: Tensor) -> Tensor:
    """Frequencies weighed by how high they are."""
    h, w = x.shape[-2:]
    z = torch.fft.rfft2(x.float(), norm="ortho")
    fy, fx = torch.fft.fftfreq(h, device=x.device), torch.fft.rfftfreq(w, device=x.device)
    far = torch.sqrt(fy[:, None] ** 2 + fx[None, :] ** 2)
    mask = torch.sigmoid((0.2 - far) * 40 + gain.float().view(-1, 1, 1))
    return torch.fft.irfft2(z * mask, s=(h, w), norm="ortho").to(x.dtype)


def phase_correlation(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Where one image lies in another."""
    window = torch.outer(torch.hann_window(x.shape[-2], device=x.device), torch.hann_window(x.shape[-1], device=x.device))
    cross = torch.fft.fft2(x.float() * window) * torch.fft.fft2(y.float() * window).conj()
    r = torch.fft.fftshift(torch.fft.ifft2(cross / (cross.abs() + 1e-3)).real, dim=(-2, -1))
    peak, at = r.flatten(1).max(dim=1)
    return torch.stack((at // x.shape[-1], at % x.shape[-1]), dim=1), peak


def envelope(x: Tensor) -> tuple[Tensor, Tensor]:
    """The analytic signal's size, and its phase's change."""
    n = x.shape[-1]
    h = torch.zeros(n, device=x.device)
    h[0] = h[n // 2] = 1
    h[1 : n // 2] = 2
    z = torch.fft.ifft(torch.fft.fft(x.float()) * h)
    turn = torch.angle(z[..., 1:] * z[..., :-1].conj())
    return z.abs(), turn.cos()


def own_correlation(x: Tensor, v: Tensor, k: int) -> Tensor:
    """Autoformer's: values rolled by the lags that correlate best."""
    n = x.shape[-1]
    z = torch.fft.rfft((x - x.mean(-1, keepdim=True)).float(), n=2 * n)
    r = torch.fft.irfft(z * z.conj(), n=2 * n)[..., :n].mean(1)
    w, lag = r.topk(k, dim=-1)
    at = (torch.arange(n, device=x.device) + lag.unsqueeze(-1)) % n
    rolled = v.unsqueeze(2).expand(-1, -1, k, -1).gather(3, at.unsqueeze(1).expand(-1, v.shape[1], -1, -1))
    return (rolled * w.softmax(-1).to(v.dtype)[:, None, :, None]).sum(2)


def complex_layer(re: Tensor, im: Tensor, bias: Tensor, z: Tensor) -> Tensor:
    """Complex inputs, a complex weight, ReLU of the size."""
    y = z @ torch.complex(re.float(), im.float())
    size = y.abs()
    return y * (functional.relu(size + bias.float()) / (size + 1e-3))


def complex_of(*shape):
    return lambda n: torch.randn([s if isinstance(s, int) else n(*s) for s in shape], dtype=torch.complex64)


# -- special functions ----------------------------------------------------------------------------------------------------------


def counts_with_zeros(mean: Tensor, spare: Tensor, none: Tensor, x: Tensor) -> Tensor:
    """Log-likelihood of a negative binomial that is inflated at zero."""
    mu, theta = functional.softplus(mean.float()) + 1e-3, functional.softplus(spare.float()) + 0.1
    log_both = torch.log(theta + mu)
    case_0 = functional.softplus(-none.float() + theta * (torch.log(theta) - log_both)) - functional.softplus(-none.float())
    some = torch.lgamma(x + theta) - torch.lgamma(theta) - torch.lgamma(x + 1.0)
    case_1 = -none - functional.softplus(-none) + theta * (torch.log(theta) - log_both) + torch.xlogy(x, mu) - x * log_both + some
    return torch.where(x < 0.5, case_0, case_1).sum(-1)


def expected_improvement(mean: Tensor, spread: Tensor, best: float) -> dict[str, Tensor]:
    mean, sigma = mean.float(), functional.softplus(spread.float()) + 0.1
    z = (mean - best) / sigma
    pdf = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    gain = sigma * (pdf + z * torch.special.ndtr(z))
    return {"gain": gain, "log": torch.special.log_ndtr(z), "which": gain.argmax(-1), "tail": torch.special.erfcx(z.abs())}


def von_mises(loc: Tensor, kappa: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    k = functional.softplus(kappa.float())
    log_p = k * (torch.cos(x - loc) - 1) - math.log(2 * math.pi) - torch.log(torch.special.i0e(k))
    return torch.logsumexp(log_p, dim=-1), torch.special.i1e(k) / torch.special.i0e(k)


def gamma_and_friends(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Divergence of gamma distributions, with the trigamma that Newton's steps need."""
    a, b = functional.softplus(a.float()) + 0.5, functional.softplus(b.float()) + 0.5
    kl = (a - b) * torch.digamma(a) - torch.lgamma(a) + torch.lgamma(b) + b * (torch.log(a) - torch.log(b)) + a * (b - a) / a
    newton = a - (torch.log(a) - torch.digamma(a) - 0.3) / (1 / a - torch.polygamma(1, a))
    return kl, newton, torch.special.gammainc(a, b), torch.special.entr(torch.sigmoid(a - b))


def odd_numbers(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """What seldom used functions make of two tensors."""
    mantissa, exponent = torch.frexp(x)
    return {
        "hypot": torch.hypot(x, y) - torch.copysign(x, y),
        "sinc": torch.sinc(x) + torch.heaviside(y, torch.full_like(y[:1], 0.5)),
        "fraction": torch.frac(x * 3) + torch.fmod(y, 0.7) + torch.trunc(y * 4),
        "power": torch.ldexp(mantissa, exponent - 1),
        "angle": torch.deg2rad(torch.rad2deg(torch.atan2(y, x)) % 360.0),
        "inverse": torch.asinh(x) + torch.atanh(torch.tanh(y) * 0.9) + torch.special.logit(torch.sigmoid(x), eps=1e-3),
        "float": torch.float_power(x.abs() + 0.5, 1.5).float() + torch.exp2(y) - torch.expm1(-y.abs()),
    }


# -- whole numbers --------------------------------------------------------------------------------------------------------------


def interleaved_bits(x: Tensor) -> tuple[Tensor, Tensor]:
    """Morton's order of points in three dimensions."""
    y = ((x - x.amin(0)) / (x.amax(0) - x.amin(0)).clamp(min=1e-3) * 1023).long().clamp(0, 1023)
    for shift, mask in ((16, 0x30000FF), (8, 0x300F00F), (4, 0x30C30C3), (2, 0x9249249)):
        y = (y | (y << shift)) & mask
    code = y[:, 0] | (y[:, 1] << 1) | (y[:, 2] << 2)
    return code, code.sort().values


def hashed_words(table: Tensor, words: Tensor) -> Tensor:
    """Pairs of words by a hash, in tables of two seeds."""
    pairs = words[:, :-1] * 31 + words[:, 1:]
    found = []
    for seed in (0x9E3779B1, 0x85EBCA6B):
        h = (pairs * seed) & 0xFFFFFFFF
        h = ((h ^ (h >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
        found.append(table[(h ^ (h >> 12)) % table.shape[0]])
    return functional.normalize(torch.stack(found).sum(0).mean(1), dim=-1)


def counted_bits(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Tanimoto's similarity of fingerprints in words of 32 bits."""

    def count(v: Tensor) -> Tensor:
        v = v - ((v >> 1) & 0x55555555)
        v = (v & 0x33333333) + ((v >> 2) & 0x33333333)
        v = (v + (v >> 4)) & 0x0F0F0F0F
        return ((v * 0x01010101) >> 24 & 0xFF).sum(-1)

    both, any_bit = count(x[:, None] & y[None]), count(x[:, None] | y[None])
    t = both / any_bit.clamp(min=1)
    return t, t.topk(3, dim=1).values


def grey_steps(x: Tensor) -> dict[str, Tensor]:
    q = torch.bucketize(x, torch.linspace(-2, 2, 255, device=x.device, dtype=x.dtype)).to(torch.int32)
    code = q ^ (q >> 1)
    back = code
    for shift in (1, 2, 4):
        back = back ^ (back >> shift)
    parity = torch.stack([(code >> i) & 1 for i in range(8)]).sum(0) % 2
    return {"code": code.to(torch.uint8), "same": back.eq(q).all(), "parity": parity.bool(), "inverse": code.bitwise_not()}


CASES: dict[str, Case] = {
    "pseudo_inverse": call(pseudo_inverse, ((64, 2), (32, 7), (16, 5)), ((64, 2), (32, 7), (24, 3))),
    "low_rank_copy": call(low_rank_copy, ((96, 2), (32, 8), (24, 6)), lambda n: n(8, 2)),
    "whitened_groups": call(whitened, ((16, 2), (64, 16), (28, 5), (28, 6))),
    "least_squares": call(least_squares, ((8, 2), (500, 20), (15, 3)), ((8, 2), (500, 20), (4, 2))),
    "mixture_likelihood": call(likelihood, ((2048, 7), 1, (32, 4)), ((16, 3), (32, 4)), ((16, 3), (32, 4), (40, 6))),
    "factored_solution": call(
        factored_solution, ((64, 2), (48, 6), (64, 9)), ((64, 2), (48, 6), (32, 4)), ((64, 2), (32, 4), (32, 5))
    ),
    "orthogonal_blocks": scaled(lambda n: (Orthogonal(n(768, 16), n(32, 4)), (floats(n, (8, 2), (197, 5), (768, 16)),))),
    "exponential_turns": call(generator, ((256, 3), 4, 4), ((256, 3), (128, 6), 4)),
    "three_diagonals": call(three_diagonals, *(((65536, 7), 12),) * 4),
    "principal_angles": call(principal_angles, ((2048, 20), (24, 6)), ((2048, 20), (16, 5))),
    "low_pass": call(low_pass, ((32, 3),), ((8, 2), (32, 3), (128, 12), (160, 10))),
    "phase_correlation": call(phase_correlation, *(((16, 2), (256, 12), (256, 10)),) * 2),
    "envelope": call(envelope, ((64, 3), (8192, 16))),
    "own_correlation": call(own_correlation, *(((32, 2), (64, 4), (192, 12)),) * 2, 4),
    "complex_layer": call(complex_layer, *(((256, 8), (192, 6)),) * 2, ((192, 6),), complex_of((16, 2), (128, 5), (256, 8))),
    "counts_with_zeros": call(
        counts_with_zeros, *(((512, 3), (2000, 11)),) * 3, lambda n: torch.randint(0, 9, (n(512, 3), n(2000, 11))).float()
    ),
    "expected_improvement": call(expected_improvement, *(((256, 3), (2048, 12)),) * 2, 0.7),
    "von_mises": call(von_mises, ((24, 4),), ((24, 4),), ((8192, 9), 1)),
    "gamma_and_friends": call(gamma_and_friends, *(((1024, 5), (256, 7)),) * 2),
    "odd_numbers": call(odd_numbers, *(((1024, 5), (1024, 9)),) * 2),
    "interleaved_bits": call(interleaved_bits, ((65536, 20), 3)),
    "hashed_words": call(hashed_words, ((20000, 30), (128, 8)), whole(30000, (128, 3), (64, 6))),
    "counted_bits": call(counted_bits, whole(2**31, (512, 5), (32, 3)), whole(2**31, (256, 4), (32, 3))),
    "grey_steps": call(grey_steps, ((2048, 7), (512, 9))),
}
