"""What options of the lowering change of the counts of a block: who computes addresses, how many programs there are, and which of
those that run at the same time read the same bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import StmtFeatures
from fuser.device import Device
from fuser.ir.mugraph import Stmt
from fuser.lower.options import CLUSTER
from fuser.lower.options import FLATTEN
from fuser.lower.options import LAZY
from fuser.lower.options import PERSISTENT
from fuser.lower.options import TMA
from fuser.lower.options import Option
from fuser.lower.tiles import LAZY_REGISTERS

VECTOR = 16
"""Bytes that one instruction of a thread moves at most."""
EXCHANGE = 4
"""What an exchange between the blocks of a cluster takes, in exchanges between the warps of a block."""


def setting(f: Features, option: Option[Any], tensor: str = "") -> NDArray[Any]:
    """The value of an option for each candidate; its default (or nothing, as 0) where it is left out."""
    key = option.key(tensor)
    if key not in f.settings:
        f.settings[key] = found = _setting(f, f.options.get(key), option.default or 0).view()
        found.flags.writeable = False
    return f.settings[key]


def _setting(f: Features, value: Any, default: Any) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value if value.dtype != object else np.array([default if v is None else v for v in value.tolist()])
    return np.full(len(f), default if value is None else value)


def is_set(f: Features, option: Option[Any], tensor: str = "") -> NDArray[np.bool_]:
    """Whether candidates have a switch."""
    if option.key(tensor) not in f.options:
        return np.zeros(len(f), np.bool_)
    return setting(f, option, tensor).astype(np.bool_, copy=False)


def described(f: Features, stmt: Stmt) -> NDArray[np.bool_]:
    """Whether a tensor descriptor moves a load or store."""
    return is_set(f, TMA, stmt.at.source)


def instructions(amount: Counts, run: Counts) -> Counts:
    """What threads issue to move an amount of bytes in runs of so many side by side, as bytes of the widest instructions."""
    return amount * VECTOR / np.minimum(run, VECTOR)


def programs(f: Features) -> Counts:
    """Programs of the grid: one for each place, fewer of a persistent kernel."""
    if PERSISTENT.key() not in f.options:
        return f.blocks
    asked = setting(f, PERSISTENT).astype(float)
    return np.where(asked > 0, np.minimum(asked, f.blocks), f.blocks)


def places_of_one(blocks: Counts, programs: Counts, sm_count: int) -> Counts:
    """Most places of the grid that programs of one SM compute: the first ones have one more where these do not come out even."""
    return np.floor(blocks / programs) * np.ceil(programs / sm_count) + np.ceil(np.fmod(blocks, programs) / sm_count)


def persistent(f: Features) -> NDArray[np.bool_]:
    """Whether a kernel loops over places of the grid, one at least."""
    return is_set(f, PERSISTENT)


def flattened(f: Features) -> NDArray[np.bool_]:
    """Whether the pipeline of a persistent kernel goes on from place to place."""
    return is_set(f, FLATTEN) & (programs(f) < f.blocks)


def readers(f: Features, stmt: Stmt, together: Counts) -> Counts:
    """How many of the programs that run ``together`` read the same bytes of a load. The last axis of the grid varies fastest."""
    split = dict(f.block.splits)
    mine = {split.get(a, a) for a in stmt.axes}
    left, different = np.minimum(together, f.blocks), np.ones(len(f))
    for axis in reversed([a for a in f.grid if a not in split]):
        here = np.minimum(left, f.grid[axis])
        if axis in mine:
            different = different * here
        left = np.ceil(left / f.grid[axis])
    return np.maximum(np.minimum(together, f.blocks) / different, 1.0)


def in_clusters(f: Features, device: Device) -> dict[str, Counts]:
    """Of kernels whose blocks share out an axis: how they exchange what each folds of it (:class:`cost_model.work.Work`)."""
    axis = f.options.get(CLUSTER.key())
    shared, held = sum(axis in s.reduce for s in f.block.computes if axis), device.sm_count * device.max_warps_per_sm
    return {"passes": np.full(len(f), float(EXCHANGE * shared)), "gathered": shared * f.blocks * f.warps / held} if shared else {}


def at_once(f: Features, resident: Counts, device: Device) -> Counts:
    """Programs that run at the same time."""
    return np.minimum(resident * device.sm_count, programs(f))


def outside(f: Features, s: StmtFeatures) -> tuple[str, ...]:
    """The loops around the one that accumulates a value."""
    owner = dict(f.tree.owner).get(s.stmt.value)
    return s.loops[: s.loops.index(owner)] if owner in s.loops else s.loops


def kept(f: Features, s: StmtFeatures, lanes: Counts) -> NDArray[np.bool_]:
    """Whether a sum of so many lanes stays apart by lane until its loop ends (:meth:`fuser.lower.tiles.Tiles.kept`)."""
    owner = dict(f.tree.owner).get(s.stmt.value)
    running = any(s.stmt.value in x.running for x in f.block.computes)
    if not s.stmt.sums or s.stmt.rescale or running or owner not in s.loops or owner in f.tree.arrays:
        return np.zeros(len(f), np.bool_)
    small = lanes <= LAZY_REGISTERS * 32 * f.warps
    if LAZY.key() not in f.options:
        return small
    asked = f.options[LAZY.key()]
    if not isinstance(asked, np.ndarray):
        return small if asked is None else np.full(len(f), asked)
    return np.array([x if mine is None else mine for mine, x in zip(asked, small, strict=True)])
