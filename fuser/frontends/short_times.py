"""Fourier transforms of short times (``torch.stft``, ``torch.istft``) as their parts: frames, a window, a transform of each, and
sums of those that overlap. What is in front of the transform, and behind it, is computed with its neighbours."""

from __future__ import annotations

from math import gcd
from typing import Any

OVERLAPS = 16
"""Most pieces of a frame: they are joined, and added, one by one."""


def _windowed(n: int, hop: Any, length: Any, window: Any) -> tuple[int, Any] | None:
    """The distance of frames and their window, in the midst of zeros where it is shorter; None for what is left to torch: frames
    of too many pieces that others begin or end with."""
    import torch

    hop, length = n // 4 if hop is None else hop, n if length is None else length
    if hop < 1 or n // gcd(n, hop) > OVERLAPS or (length != n if window is None else window.is_complex()):
        return None
    if window is not None and length != n:
        window = torch.nn.functional.pad(window, ((n - length) // 2, n - length - (n - length) // 2))
    return hop, window


def stft(  # noqa: PLR0913 - torch's own
    x: Any, n_fft: int, hop_length: Any = None, win_length: Any = None, window: Any = None, normalized: bool = False,
    onesided: Any = None, return_complex: Any = None, align_to_window: Any = None,
) -> Any:  # fmt: skip
    """Frames side by side, times their window, and a transform of each."""
    import torch

    known = _windowed(n_fft, hop_length, win_length, window)
    if known is None or x.is_complex() or not (return_complex and onesided in (None, True)) or align_to_window:
        return NotImplemented
    hop, window = known
    step, count = gcd(n_fft, hop), 1 + (x.shape[-1] - n_fft) // hop
    pieces, apart = n_fft // step, hop // step
    steps = x[..., : (count - 1) * hop + n_fft].unflatten(-1, (-1, step))
    frames = torch.cat([steps[..., i : i + (count - 1) * apart + 1 : apart, :] for i in range(pieces)], -1)
    frames = frames if window is None else frames * window
    return torch.ops.aten._fft_r2c(frames, [frames.dim() - 1], int(normalized), True).transpose(-1, -2)


def istft(  # noqa: PLR0913 - torch's own
    x: Any, n_fft: int, hop_length: Any = None, win_length: Any = None, window: Any = None, center: bool = True,
    normalized: bool = False, onesided: Any = None, length: Any = None, return_complex: bool = False,
) -> Any:  # fmt: skip
    """A transform of each frame, times its window, and sums of those that overlap, over the sums of squared windows."""
    import torch

    known = _windowed(n_fft, hop_length, win_length, window)
    whole = not (x.shape[-2] != n_fft if onesided is None else onesided)
    if known is None or return_complex or whole:
        return NotImplemented
    hop, window = known
    frames = torch.ops.aten._fft_c2r(x.transpose(-1, -2), [x.dim() - 1], 1 if normalized else 2, n_fft)
    window = torch.ones(n_fft, dtype=frames.dtype, device=frames.device) if window is None else window
    found = _overlapped(frames * window, hop) / _overlapped((window * window).expand(frames.shape[-2:]), hop)
    first = n_fft // 2 if center else 0
    last = first + length if length is not None else found.shape[-1] - (n_fft // 2 if center else 0)
    more = last - found.shape[-1]
    return found[..., first:last] if more <= 0 else torch.nn.functional.pad(found[..., first:], (0, more))


def _overlapped(frames: Any, hop: int) -> Any:
    """Sums of frames, each ``hop`` behind the one before. Every ``apart``-th piece of them is added to the same ones."""
    import torch
    from torch.nn.functional import pad

    count, n = frames.shape[-2:]
    step = gcd(n, hop)
    apart = hop // step
    pieces = frames.unflatten(-1, (n // step, step))
    most = -(-n // hop)
    found = []
    for first in range(apart):
        mine = pieces[..., first::apart, :]
        found.append(sum(pad(mine[..., i, :], (0, 0, i, most - 1 - i)) for i in range(mine.shape[-2])))
    return torch.stack(found, -2).flatten(-3)[..., : (count - 1) * hop + n]


LEAST = 1e-11
"""Sums of squared windows below which ``torch.istft`` refuses to divide."""


def divides(args: dict[str, Any], window: Any) -> bool:
    """Whether torch would take the window of an ``istft``; False where its values are not known."""
    n, x = args["n_fft"], args["self"].meta["val"]
    known = _windowed(n, args["hop_length"], args["win_length"], window)
    if known is None or (window is None and args["window"] is not None):
        return False
    import torch

    hop, window = known
    window = torch.ones(n) if window is None else window.detach().float()
    sums = _overlapped((window * window).expand(x.shape[-1], n), hop)
    first = n // 2 if args["center"] else 0
    last = first + args["length"] if args["length"] is not None else sums.shape[-1] - first
    return bool(sums[first:last].abs().min() >= LEAST)
