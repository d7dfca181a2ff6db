"""Solvers, optimizers, filters, formats of numbers, and what scripts do with indices."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Keywords
from experiments.suite.case import scaled
from experiments.suite.users import call

ROWS, WIDE = (1024, 12), (512, 16)


# -- solvers and optimizers -----------------------------------------------------------------------------------------------------


def conjugate_gradients(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    a = a @ a.T / a.shape[0] + torch.eye(len(a), dtype=a.dtype, device=a.device)
    x = torch.zeros_like(b)
    r = p = b
    rs = (r * r).sum(0)
    for _ in range(4):
        ap = a @ p
        step = rs / (p * ap).sum(0)
        x, r = x + step * p, r - step * ap
        new = (r * r).sum(0)
        p, rs = r + new / rs * p, new
    return x, rs.sqrt()


def newton_schulz(g: Tensor, momentum: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A step of Muon."""
    momentum = momentum.lerp(g, 0.05)
    x = g.lerp(momentum, 0.95)
    x = x / (x.norm() + 1e-7)
    for _ in range(3):
        y = x @ x.mT
        x = 3.4445 * x + (-4.7750 * y + 2.0315 * y @ y) @ x
    return w * 0.99 - 0.02 * max(1, x.size(0) / x.size(1)) ** 0.5 * x, momentum


class Optimizer(nn.Module):
    """A step of LAMB on the module's own weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width))

    @torch.no_grad()
    def forward(self, g: Tensor, m: Tensor, v: Tensor, *, lr: float = 1e-2, step: int = 7) -> tuple[Tensor, Tensor, Tensor]:
        w = self.weight
        m = m.mul(0.9).add_(g, alpha=0.1)
        v = v.abs().mul_(0.999).addcmul_(g, g, value=1e-3)
        update = (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt().add(1e-3)) + 0.01 * w
        w_norm, u_norm = w.norm(p=2), update.norm(p=2)
        trust = torch.where(w_norm > 0, torch.where(u_norm > 0, w_norm / u_norm, 1.0), 1.0)
        return w - lr * trust * update, m, v


def gram_schmidt(x: Tensor) -> Tensor:
    found = []
    for i in range(6):
        v = x[..., i]
        for u in found:
            v = v - (u * v).sum(-1, keepdim=True) * u
        found.append(functional.normalize(v, dim=-1))
    return torch.stack(found, dim=-1)


def cholesky_by_hand(x: Tensor) -> Tensor:
    a = x @ x.mT + 4 * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    low = torch.zeros_like(a)
    for i in range(4):
        for j in range(i + 1):
            s = (low[:, i, :j] * low[:, j, :j]).sum(-1)
            low[:, i, j] = (a[:, i, i] - s).sqrt() if i == j else (a[:, i, j] - s) / low[:, j, j]
    return low


def pressure(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A fluid's step: divergence, some rounds of Jacobi, and its gradient taken off."""
    div = 0.5 * (u[:, 1:-1, 2:] - u[:, 1:-1, :-2] + v[:, 2:, 1:-1] - v[:, :-2, 1:-1])
    p = torch.zeros_like(u)
    for _ in range(3):
        inner = (p[:, 1:-1, 2:] + p[:, 1:-1, :-2] + p[:, 2:, 1:-1] + p[:, :-2, 1:-1] - div) / 4
        p = functional.pad(inner, (1, 1, 1, 1))
    u, v = u.clone(), v.clone()
    u[:, 1:-1, 1:-1] -= 0.5 * (p[:, 1:-1, 2:] - p[:, 1:-1, :-2])
    v[:, 1:-1, 1:-1] -= 0.5 * (p[:, 2:, 1:-1] - p[:, :-2, 1:-1])
    return u, v


def lattice(f: Tensor) -> Tensor:
    """Lattice Boltzmann's collision and streaming on nine directions."""
    cx, cy = [0, 1, 0, -1, 0, 1, -1, -1, 1], [0, 0, 1, 0, -1, 1, 1, -1, -1]
    w = torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4, dtype=f.dtype, device=f.device).view(9, 1, 1)
    f = f.abs() + 0.1
    rho = f.sum(0)
    c = torch.tensor([cx, cy], dtype=f.dtype, device=f.device)
    u = torch.einsum("di,ixy->dxy", c, f) / rho
    cu = torch.einsum("di,dxy->ixy", c, u)
    f = f - 0.6 * (f - w * rho * (1 + 3 * cu + 4.5 * cu**2 - 1.5 * (u**2).sum(0)))
    return torch.stack([torch.roll(f[i], shifts=(cx[i], cy[i]), dims=(0, 1)) for i in range(9)])


def automaton(see, a, b, x: Tensor) -> Tensor:
    """A neural cellular automaton; cells live beside those that live."""
    alive = functional.max_pool2d(x[:, 3:4], 3, stride=1, padding=1) > 0.2
    y = x + b(functional.relu(a(see(x))))
    return y * (alive & (functional.max_pool2d(y[:, 3:4], 3, 1, 1) > 0.2)).to(y.dtype)


def escape_times(x: Tensor, y: Tensor) -> Tensor:
    zx, zy, count = torch.zeros_like(x), torch.zeros_like(y), torch.zeros_like(x, dtype=torch.int32)
    for _ in range(8):
        zx, zy = zx * zx - zy * zy + x, 2 * zx * zy + y
        zx, zy = zx.clamp(-4, 4), zy.clamp(-4, 4)
        count += (zx * zx + zy * zy < 4).int()
    return count


def option_price(s: Tensor, k: Tensor, t: Tensor, v: Tensor) -> dict[str, Tensor]:
    s, k, t, v = (z.exp() for z in (s, k, t, v))
    d1 = (torch.log(s / k) + (0.02 + 0.5 * v * v) * t) / (v * t.sqrt())
    d2 = d1 - v * t.sqrt()
    n1, n2 = (0.5 * (1 + torch.erf(d / math.sqrt(2))) for d in (d1, d2))
    call_price = s * n1 - k * torch.exp(-0.02 * t) * n2
    return {"call": call_price, "put": call_price - s + k * torch.exp(-0.02 * t), "vega": s * t.sqrt() * torch.exp(-d1 * d1 / 2)}


def paths(noise: Tensor) -> tuple[Tensor, Tensor]:
    s = torch.exp(((0.02 - 0.5 * 0.04) / 64 + 0.2 / 8 * noise).cumsum(dim=1))
    gain = torch.relu(s.mean(dim=1) - 1.0)
    return gain.mean(), torch.where(s.amin(dim=1) < 0.9, 0.0, gain).std() / len(s) ** 0.5


def posterior(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """A Gaussian process."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * torch.cdist(a, b).square() / 4)

    x, y, z = x.float(), y.float(), z.float()
    low = torch.linalg.cholesky(kernel(x, x) + 0.1 * torch.eye(len(x), device=x.device))
    k = kernel(x, z)
    v = torch.linalg.solve_triangular(low, k, upper=False)
    return k.T @ torch.cholesky_solve(y, low), 1 - (v * v).sum(0)


# -- bases, tables, transforms --------------------------------------------------------------------------------------------------


def chebyshev(weight: Tensor, x: Tensor) -> Tensor:
    x = torch.tanh(x)
    terms = [torch.ones_like(x), x]
    for _ in range(2, weight.shape[-1]):
        terms.append(2 * x * terms[-1] - terms[-2])
    return torch.einsum("bid,iod->bo", torch.stack(terms, dim=-1), weight)


def catmull_rom(knots: Tensor, t: Tensor) -> Tensor:
    n = knots.shape[0]
    t = t.sigmoid() * (n - 3.001)
    i = t.floor().long()
    f = (t - i).unsqueeze(-1)
    p0, p1, p2, p3 = (knots[i + j] for j in range(4))
    return 0.5 * (2 * p1 + (p2 - p0) * f + (2 * p0 - 5 * p1 + 4 * p2 - p3) * f**2 + (3 * p1 - p0 - 3 * p2 + p3) * f**3)


def graded(lut: Tensor, x: Tensor) -> Tensor:
    """Colours by a table in three dimensions."""
    grid = (x.sigmoid() * 2 - 1).permute(0, 2, 3, 1).unsqueeze(1)
    return functional.grid_sample(lut.unsqueeze(0).expand(x.shape[0], -1, -1, -1, -1), grid, align_corners=True).squeeze(2)


def hadamard(x: Tensor, sign: Tensor) -> Tensor:
    n = x.shape[-1]
    y, h = x * sign.sign(), 1
    while h < n:
        y = y.view(*x.shape[:-1], n // (2 * h), 2, h)
        y = torch.stack((y[..., 0, :] + y[..., 1, :], y[..., 0, :] - y[..., 1, :]), dim=-2)
        h *= 2
    return y.reshape(x.shape) / math.sqrt(n)


def fourier_by_products(x: Tensor, kernel: Tensor) -> Tensor:
    n = x.shape[-1]
    at = torch.arange(n, device=x.device)
    angle = (torch.outer(at, at) % n).to(x.dtype) * (2 * math.pi / n)
    c, s = angle.cos(), angle.sin()
    re, im, kr, ki = x @ c, -(x @ s), kernel @ c, -(kernel @ s)
    re, im = re * kr - im * ki, re * ki + im * kr
    return (re @ c - im @ s) / n


def rodrigues(axis: Tensor, points: Tensor) -> Tensor:
    angle = axis.norm(dim=-1, keepdim=True).clamp(min=1e-3)
    x, y, z = (axis / angle).unbind(-1)
    zero = torch.zeros_like(x)
    k = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1).unflatten(-1, (3, 3))
    turn = (
        torch.eye(3, dtype=axis.dtype, device=axis.device) + angle.sin()[..., None] * k + (1 - angle.cos())[..., None] * (k @ k)
    )
    return torch.einsum("bij,bnj->bni", turn, points)


def six_numbers(x: Tensor) -> Tensor:
    a, b = x[..., :3], x[..., 3:]
    one = functional.normalize(a, dim=-1)
    two = functional.normalize(b - (one * b).sum(-1, keepdim=True) * one, dim=-1)
    return torch.stack((one, two, torch.linalg.cross(one, two, dim=-1)), dim=-2)


def skinned(vertices: Tensor, weights: Tensor, bones: Tensor, shape: Tensor, beta: Tensor) -> Tensor:
    """SMPL's: vertices by a basis of shapes, moved by mixed bones."""
    v = vertices + torch.einsum("bl,mkl->bmk", beta, shape)
    moves = torch.matmul(weights.softmax(-1), bones.flatten(2)).view(beta.shape[0], -1, 4, 4)
    homogeneous = torch.cat([v, torch.ones_like(v[..., :1])], dim=2)
    return torch.matmul(moves, homogeneous.unsqueeze(-1))[:, :, :3, 0]


def normals(depth: Tensor, inverse: Tensor) -> Tensor:
    h, w = depth.shape[1:]
    ys, xs = torch.meshgrid(torch.arange(h, device=depth.device), torch.arange(w, device=depth.device), indexing="ij")
    pixels = torch.stack((xs, ys, torch.ones_like(xs)), dim=0).reshape(3, -1).to(depth.dtype) / w
    points = (inverse @ pixels).view(3, h, w)[None] * (depth.abs() + 1).unsqueeze(1)
    dx, dy = points[..., 1:-1, 2:] - points[..., 1:-1, :-2], points[..., 2:, 1:-1] - points[..., :-2, 1:-1]
    return functional.normalize(torch.cross(dx, dy, dim=1), dim=1, eps=1e-3)


CASES: dict[str, Case] = {
    "conjugate_gradients": call(conjugate_gradients, (WIDE, WIDE), (WIDE, (32, 3))),
    "newton_schulz": call(newton_schulz, *((WIDE, ROWS),) * 3),
    "lamb": scaled(
        lambda n: (Optimizer(n(1024, 8)), (*(torch.randn(n(1024, 8), n(1024, 8)) for _ in range(3)), Keywords(lr=3e-3)))
    ),
    "gram_schmidt": call(gram_schmidt, ((4096, 3), (16, 7), 6)),
    "cholesky_by_hand": call(cholesky_by_hand, ((16384, 5), 4, 4)),
    "pressure": call(pressure, *(((8, 2), (256, 9), (256, 9)),) * 2),
    "lattice": call(lattice, (9, (256, 6), (256, 7))),
    "automaton": call(
        automaton,
        ((8, 2), (16, 8), (72, 7), (72, 7)),
        parts=(
            lambda n: nn.Conv2d(n(16, 8), 3 * n(16, 8), 3, padding=1, groups=n(16, 8), bias=False),
            lambda n: nn.Conv2d(3 * n(16, 8), n(128, 16), 1),
            lambda n: nn.Conv2d(n(128, 16), n(16, 8), 1, bias=False),
        ),
    ),
    "escape_times": call(escape_times, *(((1024, 7), (1024, 9)),) * 2),
    "option_price": call(option_price, *(((262144, 40),),) * 4),
    "paths": call(paths, ((16384, 9), (64, 8))),
    "posterior": call(posterior, ((256, 9), 8), ((256, 9), 1), ((1024, 7), 8)),
    "chebyshev": call(chebyshev, ((64, 6), (64, 8), 5), ((4096, 7), (64, 6))),
    "catmull_rom": call(catmull_rom, ((64, 9), (3, 3)), ((262144, 20),)),
    "graded": call(graded, (3, (33, 5), (33, 5), (33, 5)), ((4, 2), 3, (256, 8), (256, 8))),
    "hadamard": call(hadamard, ((4096, 5), (1024, 16)), ((1024, 16),)),
    "fourier_by_products": call(fourier_by_products, ((2048, 6), (256, 16)), ((256, 16),)),
    "rodrigues": call(rodrigues, ((512, 3), 3), ((512, 3), (256, 5), 3)),
    "six_numbers": call(six_numbers, ((65536, 9), 6)),
    "skinned": call(
        skinned, ((6890, 9), 3), ((6890, 9), (24, 4)), ((8, 2), (24, 4), 4, 4), ((6890, 9), 3, (10, 5)), ((8, 2), (10, 5))
    ),
    "normals": call(normals, ((8, 2), (240, 7), (320, 8)), (3, 3)),
}
