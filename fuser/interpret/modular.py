"""Exact arithmetic modulo primes below 2³¹ on numpy arrays: products fit in int64, matrix products in float64 limbs."""

from __future__ import annotations

import math

import numpy as np

from fuser.ir.ops import Array

PRIMES: tuple[tuple[int, int], ...] = (
    (2147024879, 1073512439),
    (2145341519, 1072670759),
    (2144751839, 1072375919),
    (2144380559, 1072190279),
)
"""Pairs (p, q), p = 2q + 1 < 2³¹, in which 2, 3, 5, 7, 11 and 13 are squares: 1/√80 has an exact value in both fields."""

_LIMB = 16
_CHUNK = 1 << 18  # contracted elements whose limb products sum below 2⁵³: (2¹⁷)² · 2¹⁸ = 2⁵²


def modular_matmul(a: Array, b: Array, m: int) -> Array:
    """Exact a @ b mod m for residues below 2³¹, by three float64 products of 16-bit limbs (Karatsuba)."""
    if a.shape[-1] > _CHUNK:
        total = modular_matmul(a[..., :_CHUNK], b[..., :_CHUNK, :], m) + modular_matmul(a[..., _CHUNK:], b[..., _CHUNK:, :], m)
        return total % m
    low = (1 << _LIMB) - 1
    a1, a0 = (a >> _LIMB).astype(np.float64), (a & low).astype(np.float64)
    b1, b0 = (b >> _LIMB).astype(np.float64), (b & low).astype(np.float64)
    high, bottom = np.matmul(a1, b1), np.matmul(a0, b0)
    middle = (np.matmul(a1 + a0, b1 + b0) - high - bottom).astype(np.int64) % m
    result = ((high.astype(np.int64) % m) << _LIMB) + middle
    return (((result % m) << _LIMB) + bottom.astype(np.int64)) % m


def modular_power(base: Array, exponent: int, m: int) -> Array:
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base % m
        base = base * base % m
        exponent >>= 1
    return result


def modular_inverse(x: Array, m: int) -> Array:
    """Inverses mod a prime of an array without zeros: a tree of products, so three multiplications an element."""
    levels = [x.reshape(-1)]
    while levels[-1].size > 64:
        y = levels[-1]
        if y.size % 2:
            y = levels[-1] = np.append(y, 1)
        levels.append(y[0::2] * y[1::2] % m)
    inverse = modular_power(levels.pop(), m - 2, m)
    while levels:
        y = levels.pop()
        below = np.empty_like(y)
        inverse = inverse[: y.size // 2]
        below[0::2] = inverse * y[1::2] % m
        below[1::2] = inverse * y[0::2] % m
        inverse = below
    return inverse[: x.size].reshape(x.shape)


def power_tables(base: int, m: int) -> tuple[Array, Array]:
    """Powers base^j and base^(j·2¹⁵) for j below 2¹⁶: any power below 2³¹ is one product of two look-ups."""
    tables: list[Array] = []
    for step in (base, pow(base, 1 << 15, m)):
        table = np.ones(1, np.int64)
        while table.size < 1 << 16:
            table = np.concatenate([table, table * pow(step, table.size, m) % m])
        tables.append(table)
    return tables[0], tables[1]


def modular_root(a: int, m: int, n: int = 2) -> int | None:
    """The n-th root of a that is a square itself, modulo a prime m ≡ 3 mod 4, if there is one. Such roots multiply, and roots of
    them are roots of a."""
    squares = (m - 1) // 2  # how many there are besides zero: an odd number
    if squares % 2 == 0 or math.gcd(n, squares) != 1 or pow(a, squares, m) != 1:
        return None
    return pow(a, pow(n, -1, squares), m)


def plus(x: Array, n: np.uint64) -> Array:
    """A sum that wraps, of which NumPy warns where an array has no axes."""
    with np.errstate(over="ignore"):
        return x + n


def mix(x: Array) -> Array:
    """A bijection of 64 bits whose output looks random (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):  # as in plus
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def prime_factors(n: int) -> list[int]:
    found, d = [], 2
    while d * d <= n:
        while n % d == 0:
            found.append(d)
            n //= d
        d += 1
    return [*found, n] if n > 1 else found
