"""The default model: time of a generated kernel from what each block does (:mod:`cost_model.work`) and some constants of the
device.

    time = launch + base + (waits + norm(norm(waves · turns, others), L2 and device memory)) · spills · cuts

*Turns* are what a block does in turn with its loads, one trip after the other, and *waits* the loads that nothing hides.
*Waves* is how often an SM starts over, which occupancy decides. *Others* is how long the other blocks of the SM hold what a
block needs: of R blocks, (R - 1) / R of the SM's roof, the largest of what each of its resources needs for all its blocks: tensor
cores with the instructions that load by pointers, special functions, arithmetic, shared memory, the path into an SM. So a block
alone takes its turns, as in the bounds of closed queueing networks (Zahorjan et al., 1982); it never takes less than the roof.
A norm lies between the larger of two (nothing in each other's way) and their sum. Everything is an array over a batch of
candidates; :func:`terms` keeps each part visible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import replace

import numpy as np

from cost_model import groups
from cost_model.constants import Constants
from cost_model.constants import constants_of
from cost_model.dots import WGMMA
from cost_model.execution import places_of_one
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import schedule_features
from cost_model.features import some
from cost_model.resources import Resources
from cost_model.resources import resources
from cost_model.work import Work
from cost_model.work import work
from fuser.device import Device
from fuser.errors import UnsupportedError
from fuser.ir.mugraph import BlockGraph
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.schedule import KernelSchedule

DROWNED = 2.0
"""Times as long for each set of registers that a thread wants beyond two: with four a kernel took 4.6 times its estimate."""
SPILL_RAMP = 40.0
"""Registers beyond those of a thread that are one step of what spills cost; products by warp groups take up to :data:`STEPS`."""
CROWD, CROWD_RAMP = 1.5, 100.0
"""Of products on fragments: so many times the registers of a thread can be wanted for whole operands and results before they are
spilled, and how many more are one step."""
PARTED = 1.35
"""So many times the registers of a thread can be wanted where threads split fragments of float32: with 1.3 times attention took
an H200 as long as was predicted, with 1.6 times 2.7 times as long, with 1.9 times 2.6, with 2.8 times nine."""
STEPS = 8.0
"""Most steps. Of kernels whose threads wanted two to three times their registers an H100 took 6 times as long (the median),
beyond that 11 times."""
ROOF = 8.0
"""Exponent that joins resources: all but the largest."""
BESIDE, MEMORY = 2.2, 2.1
"""Exponents that join a pipeline's loads with the products of their block, and what SMs do with L2 and device memory."""
BEHIND = 0.5
"""Of its waits what a kernel without products has left that starts early: what the one in front has written lies in L2."""
SENT = 0.2
"""Part of a wait that a store by a descriptor takes."""
SHUFFLE = 15.0
"""Cycles of a warp for an exchange between lanes in sums that are not along a row, as those over parts of split sums: of kernels
that add 16 parts half of the instructions are such exchanges."""
FEW_WARPS, ENOUGH_WARPS = 0.25, 16
"""How arithmetic of a block without products follows its warps up to so many: each hides what another waits for."""
ISSUED = 2048.0
"""Bytes a clock that the four schedulers of an SM move by an instruction of 16 bytes a thread each."""
ENOUGH, QUEUE = 2.5, 0.1
"""Bytes under way, as a multiple of bandwidth times latency, beyond which memory gets slower, and what each doubling costs:
products of few rows were fastest with 3 or 4 stages where 5 fit."""
ALONE = 2.0
"""Warps that keep an SM's paths to memory busy: products of few rows took 0.9 times as long with 2 warps as with 4."""
THIN = 0.3
"""What a further part of a line costs L2 that another row of an operand brings, of products on fragments, by pointers or by
descriptors: each is a request of its own. Of 241 pairs of schedules on an H200 those of 16 columns were priced 14 % too low
without it, those of 64 and more 1 % too high. Products by warp groups do not show it."""
VECTORS, EACH_VECTOR = 0.9, 0.8e-9
"""Part of memory's rate at which a library multiplies by vectors, and seconds for each of a batch; 34 took 0.6 to 2 × it."""
SIDES, SPLITS, DEPTH = (64, 128, 256), (1, 2, 4), 64
"""Rows and columns, parts of the sum, and depth of the tiles of a library's matmul."""
EXACT = 1.2
"""Times its peak that a library takes for products of float32 without tensor cores: 1.09 to 1.46 in 20 modules on an H200, most
for those of few tiles."""
WARM, OTHERS = 0.7, 0.6
"""Among the kernels of a model, but those that memory alone keeps waiting and those with products on fragments, whose warps load
what they multiply: of the time from a pipeline's request to its data what is left where these lie in L2, and of that of
arithmetic, which other blocks' loads stand beside. Of 245 schedules of products of four networks on an H200
(experiments/results/h200-chains), each timed within its network, errors are 0.45 µs instead of 0.63: so a plan says what it will
take. The first choices lose 0.17 µs, 0.13 by the prices of kernels by themselves: so these choose."""
WARM_PART = 4
"""What a kernel reads is in L2 where it fills one part in so many: the one in front leaves it there, or brings it."""
UNTRIED = 1.1
"""Times the estimate of the same schedule in Triton that a kernel by cp.async and mma from Gluon (``backend=gluon_mma``) is taken
to need: no GPU of sm_80 has run one, so that measuring alone may choose it. On an H200 the one that was compared took 1.14 times
as long (experiments/results/h200-packed), where Triton's had wgmma."""
GATHER = 1.8e-6
"""Seconds of an exchange in clusters whose warps would fill the device once: a cluster starts when there is room for all of its
blocks, and each waits for the last. Of 560 such schedules of softmax, norms and sums on an H200 estimates are off by 14 % with
it, by 22 % without."""
LONELY = 0.7
"""Of the time in which an SM's share of the memory loads a block what passes besides from wave to wave where blocks of clusters
have an SM each to themselves: none loads while these exchange what they fold and the next cluster waits for room."""
OF_AN_SM = 0.635
"""Of an SM's registers those that the model counts at most for a block that leaves room for another one: it counts too many."""
ALTERNATING = 1.5
"""Warps of an SM whose loops load and compute in turn beyond which that costs nothing: what memory and arithmetic have in common
is so much less hidden. A loss of logarithms took an H200 154 µs with 31 warps on an SM, 142 with 62 (250 schedules of five sums,
whose first choices then took 1.03 times the best, not 1.10)."""
TRIP = 0.04e-6
"""Seconds of an SM for a product in a loop that folds what it multiplies, as softmaxes of attention do: each trip waits for it,
exchanges rows between lanes and rescales what has been summed, and an SM full of blocks hides nothing of that. Of 1,039 such
schedules of attention in Triton on an H200, tiles of 32 and 48 keys were priced 10 and 12 % too low without it, those of 128 9 %
too high; of 56 attentions with schedules in both languages first choices take 1.025 times the fastest, not 1.034."""
TIE = 1e-4
"""Relative weight of what decides between candidates of equal time: fewer registers and bytes of shared memory."""


def shared_memory(f: Features, device: Device) -> Counts:
    """Bytes of shared memory a block as Triton allocates them (:mod:`cost_model.resources`)."""
    return resources(f, device).shared


def registers(f: Features, device: Device) -> Counts:
    """32-bit registers that a thread wants; more than the device has are spilled."""
    return resources(f, device).registers


def _join(p: float, *parts: Counts) -> Counts:
    return sum(x**p for x in parts) ** (1 / p)


def clusters(w: Work, device: Device, waves: Counts) -> Counts:
    """Seconds of what blocks of clusters exchange, and of what nothing else hides where each has an SM to itself."""
    alone = (w.resident == 1) & (32 * w.warps * w.registers > OF_AN_SM * device.registers_per_sm) & (w.gathered > 0)
    loading = w.loaded * device.sm_count / device.memory_bandwidth
    return GATHER * w.gathered + LONELY * alone * (waves - 1.0) * loading


def spilled(w: Work, device: Device, c: Constants) -> Counts:
    """How many times as long a kernel takes for what its threads spill."""
    most = device.registers_per_thread
    over, parted = (w.registers - most) / SPILL_RAMP, (w.parted - PARTED * most) / SPILL_RAMP
    crowded = np.clip((w.crowd - CROWD * most) / CROWD_RAMP, 0.0, STEPS)
    others = np.where(w.crowd > 0, crowded, np.clip(over, 0.0, 1.0))
    found = np.where(w.wgmma > w.mma, c.spill_groups * np.clip(over, 0.0, STEPS), c.spill * others)
    drowned = DROWNED * np.maximum(w.registers / most - 2.0, 0.0)
    return 1.0 + found + c.spill_groups * np.clip(parted, 0.0, STEPS) + drowned


def times(w: Work, device: Device, c: Constants, chained: bool = False, walk: Counts | float = 0.0) -> dict[str, Counts]:
    """Every part of the estimate in seconds, for candidates whose work is counted; ``chained``: among the kernels of a model;
    ``walk``: seconds that a warp needs for its products at a place as they are compiled, where that is known."""
    among = chained & (w.streams == 0) & (w.mma <= w.wgmma)
    beside = np.where(among, OTHERS, 1.0)
    sm, clock = device.sm_count, device.clock
    mma = c.fragment_cost if device.arch >= WGMMA else c.group_cost
    tensor = c.group_cost * w.wgmma + mma * w.mma + c.flat_cost * w.flat
    special = c.special_cost * w.special
    arithmetic = beside * c.arithmetic_cost * w.arithmetic
    folding = TRIP * np.where(w.wgmma > w.mma, np.minimum(w.dots, 2.0 * w.folds), 0.0)
    issue = c.issue_cost * w.issued / (ISSUED * clock)
    shared = device.smem_bandwidth_per_sm * clock
    move = c.move_cost * w.fragments / shared
    traffic = w.loaded + w.stored + np.where(w.mma > w.wgmma, THIN, 0.0) * w.thin

    # a persistent program computes several places
    programs = np.ceil(w.programs / sm)
    each = places_of_one(w.blocks, w.programs, sm)
    resident = np.minimum(w.resident, programs)
    waves = np.ceil(each / resident)
    # a quarter of the SM's units serves each fourth warp; the paths to memory serve all of them
    alone, moving = np.maximum(4.0 / w.warps, 1.0), np.maximum(ALONE / w.warps, 1.0)
    plain = w.wgmma + w.mma + w.flat == 0
    alone = alone * np.where(plain, (np.clip(w.warps, 4, ENOUGH_WARPS) / 4) ** -FEW_WARPS, 1.0)
    shared_out = each * np.maximum(4.0 / (w.warps * resident), 1.0)

    steps = SHUFFLE / clock * w.shuffles
    steps = steps + w.trips * c.trip + w.dots * c.contraction + w.folds * c.fold + w.passes * c.exchange + w.streamed * c.streamed
    busy = steps + alone * (c.group_cost * w.exposed + arithmetic) + moving * (issue + move)
    busy = busy + w.bare / (c.sm_bandwidth * clock)
    fetch = w.fetched * c.fetch * np.where(among & (WARM_PART * w.memory <= device.l2_bytes), WARM, 1.0)
    waits = w.waits * c.wait + w.rewaits * c.rewait + w.unbuffered * c.fetch + w.boxes * c.descriptor
    behind = plain & (w.dependent > 0)
    waits = waits * np.where(behind, BEHIND, 1.0) + c.wait * SENT * w.sent
    # parts of lines that the kernel in front has just written are waited for once more
    waits = waits + c.wait * behind * np.minimum(w.thin / np.maximum(w.loaded, 1.0), 1.0)
    # rows of weights that no loop reads are under way before the kernel waits for the one in front
    waits = np.where(chained & (w.flat > 0) & (w.trips == 0) & (w.programs == w.blocks), 0.0, waits)
    products = _join(ROOF, tensor - c.flat_cost * w.flat, c.operand_cost * w.operands / shared)
    inside = busy + _join(BESIDE, fetch, alone * np.maximum(products - c.group_cost * w.exposed, 0.0) + c.flat_cost * w.flat)
    inside = np.maximum(inside, walk)
    # a pipeline that goes on from place to place waits once
    starts = programs * c.block
    turns = waves * inside * (1.0 + w.longest) + (waves - 1.0) * np.where(w.flattened > 0, 0.0, waits) + starts

    into_sm = each * w.entered / (c.sm_bandwidth * clock)
    l2 = w.blocks * (traffic - c.merged * w.common) / (device.l2_bandwidth * c.l2_rate)
    # by Little's law memory works at its bandwidth with so many bytes under way; far more stand in each other's way
    enough = ENOUGH * device.memory_bandwidth * c.fetch
    ahead = np.minimum(w.programs, w.resident * sm) * w.ahead * np.minimum(w.memory / np.maximum(w.blocks * w.loaded, 1.0), 1.0)
    under_way = np.log2(np.maximum(ahead / enough, 1.0))
    dram = w.memory / (device.memory_bandwidth * c.memory_rate) * (1.0 + QUEUE * np.minimum(under_way, 3.0))
    # what feeds them limits tensor cores too; threads that load by pointers do not start products meanwhile
    products = _join(ROOF, shared_out * tensor, each * c.operand_cost * w.operands / shared)
    computing = shared_out * (arithmetic + folding)
    units = (products + shared_out * issue, shared_out * special, computing, shared_out * move)
    on_sm, outside = _join(ROOF, *units, into_sm) * (1.0 + w.busiest), _join(ROOF, l2, dram)
    roof = _join(ROOF, on_sm, outside)
    blocked = np.maximum(_join(c.norm, turns, on_sm * (resident - 1.0) / resident), on_sm)
    spills = spilled(w, device, c)
    cuts = 1.0 + c.slivers * w.slivers + c.pieces * w.pieces + c.parts * w.parts
    # what one block does in turn, others of its SM hide where memory is all that they wait for
    alternating = ALTERNATING * w.in_turn / (w.warps * resident) * np.minimum(on_sm, outside)
    whole = np.where(w.streams > 0, _join(ROOF, turns, roof) + alternating, _join(MEMORY, blocked, outside))
    body = clusters(w, device, waves) + (waits + whole) * spills * cuts
    launch, base = np.full(len(w), device.launch_latency), c.base - c.overlap * w.dependent
    return {
        "seconds": launch + base + body,
        "launch": launch,
        "base": base,
        "chain": waits + inside,
        "waits": waits,
        "fetch": fetch,
        "busy": busy,
        "starts": starts,
        "turns": turns,
        "roof": roof,
        "tensor": products,
        "issue": shared_out * issue,
        "special": shared_out * special,
        "arithmetic": computing,
        "move": shared_out * move,
        "device_memory": dram,
        "l2": l2,
        "into_sm": into_sm,
        "spills": spills,
        "cuts": cuts,
        "waves": waves,
    }


def terms(f: Features, device: Device, constants: Constants | None = None) -> dict[str, Counts]:
    """Every part of the estimate for each candidate: times in seconds, and the counts that they come from."""
    w, found = _estimated(f, device, constants)
    found["blocks"], found["resident"] = w.blocks, np.minimum(w.resident, np.ceil(w.programs / device.sm_count))
    found["occupancy"], found["shared_bytes"], found["registers"] = w.resident, w.shared, w.registers
    found["l2_bytes"], found["memory_bytes"] = w.blocks * (w.loaded + w.stored), w.memory
    return found


def _estimated(
    f: Features, device: Device, constants: Constants | None = None, chained: bool = False, known: Resources | None = None
) -> tuple[Work, dict[str, Counts]]:
    """Counts and times of each candidate, of those by warp groups as :mod:`cost_model.groups` has them."""
    w, c = work(f, device, known), constants or constants_of(device)
    mine = groups.by_groups(f)
    if not mine.any():
        found = times(w, device, c, chained)
        return w, found | {"seconds": found["seconds"] * np.where(groups.by_groups(f, "gluon_mma"), UNTRIED, 1.0)}
    own = groups.priced(f, w, device, c)
    held = {n: np.where(mine, own.pop(n), getattr(w, n)) for n in ("resident", "registers", "shared")}
    found = times(w, device, c, chained) if not mine.all() else own
    return replace(w, **held), {n: np.where(mine, own[n], x) for n, x in found.items()} | {"barriers": own["barriers"] * mine}


def seconds(f: Features, device: Device, constants: Constants | None = None, chained: bool = False) -> Counts:
    """Estimated time of each candidate of a group; infinite where it cannot run (shared memory beyond the device's limit)."""
    r, out = resources(f, device), np.full(len(f), np.inf)
    fits = groups.by_groups(f) | (r.shared <= device.smem_per_block)
    if not fits.any():
        return out
    if not fits.all():
        f, r = some(f, fits), some(r, fits)
    out[fits] = _seconds(f, r, device, constants, chained)
    return out


def _seconds(f: Features, r: Resources, device: Device, constants: Constants | None, chained: bool) -> Counts:
    w, found = _estimated(f, device, constants, chained, r)
    total = found["seconds"]
    thrift = w.shared / device.smem_per_sm + w.registers / device.registers_per_thread + f.warps / device.max_warps_per_sm
    return np.where(w.shared > device.smem_per_block, np.inf, total * (1.0 + TIE * thrift))


def chained(f: Features, device: Device) -> Counts:
    """As :func:`seconds`, among the kernels of a model."""
    return seconds(f, device, chained=True)


def estimate(block: BlockGraph, schedule: KernelSchedule, device: Device) -> dict[str, float]:
    """All terms for one schedule."""
    return {k: float(v[0]) for k, v in terms(schedule_features(block, schedule), device).items()}


# -- what no generated kernel does --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """A batched matmul (batch, m, k) × (batch, k, n)."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


Shape = tuple[int, ...]


def matmul_product(a: Shape, b: Shape, out: Shape, dtype: str) -> Product:
    """Of a matmul of these shapes."""
    *batch, m, n = out
    if math.prod(b[:-2]) == 1:  # the batch is further rows
        batch, m = [], math.prod((*batch, m))
    return Product(math.prod(batch), m, n, a[-1], dtype)


def attention_products(q: Shape, k: Shape, v: Shape, dtype: str) -> tuple[Product, Product]:
    """Of attention over queries, keys and values of these shapes."""
    batch = math.prod(q[:-2])
    return Product(batch, q[-2], k[-2], q[-1], dtype), Product(batch, q[-2], v[-1], k[-2], dtype)


@dataclass(frozen=True)
class LibraryChoice:
    """What the model takes a library's matmul to be: its tile of the output, the parts of its sum, and its time."""

    rows: int
    columns: int
    split: int
    seconds: float


def matmul_choice(
    p: Product, device: Device, constants: Constants | None = None, precision: str = "tf32", chained: bool = False
) -> LibraryChoice:
    """A library matmul: a kernel with the best of its usual tiles, with and without a split of the sum. ``precision`` is that of
    float32; ``chained``: among the kernels of a model."""
    c = constants or constants_of(device)
    rows, columns, split = (x.ravel().astype(float) for x in np.meshgrid(SIDES, SIDES, SPLITS, indexing="ij"))
    seconds = times(_library_work(p, rows, columns, split, device, c.library, precision), device, c, chained)["seconds"]
    # a kernel of its own adds the parts
    seconds = seconds + np.where(split > 1, device.launch_latency + c.base, 0.0)
    best = int(np.argmin(seconds))
    return LibraryChoice(int(rows[best]), int(columns[best]), int(split[best]), float(seconds[best]))


def _library_work(
    p: Product, rows: Counts, columns: Counts, split: Counts, device: Device, slower: float, precision: str
) -> Work:
    """What a block of a library's kernel does: as one of ours with four buffers, loads by descriptors where there are any."""
    item, zero = DTYPE_BYTES[p.dtype], np.zeros(len(rows))
    across = np.ceil(p.n / columns)
    blocks = p.batch * np.ceil(p.m / rows) * across * split
    depth = np.ceil(p.k / split)
    steps = np.ceil(depth / DEPTH)
    together = np.minimum(blocks, device.sm_count)
    left, right = rows * depth * item, columns * depth * item
    slower *= EXACT if p.dtype == "float32" and precision == "ieee" else 1.0
    tensor = slower * 2.0 * rows * columns * depth * device.sm_count / device.matmul_flops(p.dtype, precision)
    grouped = device.arch >= WGMMA
    counts = dict.fromkeys((f.name for f in fields(Work)), zero) | {
        "blocks": blocks,
        "programs": blocks,
        "resident": np.where(rows * columns <= SIDES[0] ** 2, 2.0, 1.0),
        "warps": np.full(len(rows), 8.0),
        "wgmma" if grouped else "mma": tensor,
        "loaded": left + right,
        "entered": left + right,
        "stored": rows * columns * item,
        "common": left * (1.0 - np.ceil(together / across) / together) + right * (1.0 - np.minimum(across, together) / together),
        "issued": zero if grouped else left + right,
        "boxes": zero + grouped,
        "waits": zero + 1.0,
        "fetched": steps / 3.0,
        "trips": steps,
        "dots": steps,
        "passes": zero + 1.0,
        "memory": zero + p.batch * (p.m * p.k + p.k * p.n + p.m * p.n) * item,
    }
    return Work(**counts)


def matmul_seconds(
    p: Product, device: Device, constants: Constants | None = None, precision: str = "tf32", chained: bool = False
) -> float:
    """Time of a library matmul: :func:`matmul_choice`, or what it takes to read a matrix that is multiplied by a vector."""
    by_tiles = matmul_choice(p, device, constants, precision, chained).seconds
    nbytes = p.batch * (p.m * p.k + p.k * p.n + p.m * p.n) * DTYPE_BYTES[p.dtype]
    read = memory_kernel_seconds(nbytes / VECTORS, device, constants) + EACH_VECTOR * p.batch
    return min(by_tiles, read) if min(p.m, p.n) == 1 else by_tiles


def memory_kernel_seconds(nbytes: float, device: Device, constants: Constants | None = None) -> float:
    """A kernel that only moves data: element-wise operators, a softmax or normalization over rows, a copy."""
    c = constants or constants_of(device)
    return device.launch_latency + c.base + c.wait + nbytes / (device.memory_bandwidth * c.memory_rate)


def check_device(device: Device) -> None:
    """Raise where nothing can be generated for a device."""
    if device.no_triton:
        raise UnsupportedError(
            f"no kernels can be generated for {device.title}: {device.no_triton}",
            "choose another target, or ask for estimates alone: mufuser explain, mufuser space",
        )
