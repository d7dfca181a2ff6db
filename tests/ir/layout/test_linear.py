"""Named layouts as bases: equal to Triton's own, and to shape:stride."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from fuser.errors import ProgramError
from fuser.errors import UnsupportedError
from fuser.ir.layout.accesses import shared_access
from fuser.ir.layout.algebra import Layout
from fuser.ir.layout.algebra import Swizzle
from fuser.ir.layout.algebra import rows
from fuser.ir.layout.bits import image
from fuser.ir.layout.bits import inverse
from fuser.ir.layout.linear import bases_of
from fuser.ir.layout.linear import bits_of
from fuser.ir.layout.linear import fragment
from fuser.ir.layout.linear import layout_of
from fuser.ir.layout.linear import offsets_of
from fuser.ir.layout.linear import packed
from fuser.ir.layout.linear import to_memory
from fuser.ir.layout.named import Bases
from fuser.ir.layout.named import Blocked
from fuser.ir.layout.named import DotOperand
from fuser.ir.layout.named import Mma
from fuser.ir.layout.named import MmaShared
from fuser.ir.layout.named import Registers
from fuser.ir.layout.named import Shared
from fuser.ir.layout.named import Slice
from fuser.ir.layout.named import Swizzled
from fuser.ir.layout.named import read_gluon


def drawn_registers(r: random.Random) -> Registers:
    warps = r.choice([(4, 1), (2, 2), (1, 4), (8, 1), (4, 2)])
    t = r.randrange(6)
    mma = (
        Mma(2, warps, (16, 8)) if r.random() < 0.5 else Mma(3, r.choice([(4, 1), (8, 1), (4, 2)]), (16, 8 << r.randrange(6), 16))
    )
    kinds = [
        Blocked((1 << r.randrange(3), 1 << r.randrange(4)), (1 << t, 32 >> t), warps, r.choice([(1, 0), (0, 1)])),
        mma,
        DotOperand(r.randrange(2) if mma.version == 2 else 0, mma, 1 << r.randrange(3)),
        Slice(r.randrange(2), mma),
    ]
    return r.choice(kinds)


def drawn_shape(r: random.Random, of: Registers | Shared) -> tuple[int, ...]:
    shape = (8 << r.randrange(5), 16 << r.randrange(4))
    return shape[:1] if isinstance(of, Slice) else shape


def drawn_shared(r: random.Random, shape: tuple[int, ...], bits: int) -> Shared:
    if r.random() < 0.5:
        turned = r.random() < 0.3
        return MmaShared(r.choice([x for x in (0, 32, 64, 128) if x <= shape[not turned] * bits // 8]), bits, 2, turned)
    # Triton counts conflicts of exchanges within a word only roughly
    vec = (32 // bits) << r.randrange(3)
    return Swizzled(vec, 1 << r.randrange(3), 1 << r.randrange(5), r.choice([(1, 0), (0, 1)]))


class Gluon:
    """Triton's own layouts, without a GPU."""

    def __init__(self) -> None:
        pytest.importorskip("triton")
        from triton._C.libtriton import gluon_ir
        from triton._C.libtriton import ir
        from triton.experimental.gluon import language

        self.gl, self.context = language, ir.context()
        ir.load_dialects(self.context)
        self.builder = gluon_ir.GluonOpBuilder(self.context)

    def made(self, layout: Registers | Shared):
        return eval(layout.gluon, {"gl": self.gl})

    def bases(self, layout: Registers, shape: tuple[int, ...]) -> Bases:
        found = self.builder.to_linear_layout(self.made(layout)._to_ir(self.builder), list(shape))
        read = read_gluon(found)
        assert isinstance(read, Bases)
        return read

    def conflicts(self, registers: Registers, shared: Shared, shape: tuple[int, ...], bits: int) -> int:
        theirs = (self.made(x)._to_ir(self.builder) for x in (registers, shared))
        return self.builder.get_shared_bank_conflicts(*theirs, list(shape), bits)


@pytest.fixture(scope="module")
def gluon() -> Iterator[Gluon]:
    yield Gluon()


def test_bases_are_tritons(gluon):
    r = random.Random(0)
    for _ in range(300):
        layout = drawn_registers(r)
        shape = drawn_shape(r, layout)
        assert bases_of(layout, shape) == gluon.bases(layout, shape), (layout, shape)


def test_conflicts_are_those_that_triton_counts(gluon):
    r = random.Random(1)
    for _ in range(300):
        layout = drawn_registers(r)
        if isinstance(layout, Slice):
            continue
        shape, bits = drawn_shape(r, layout), r.choice([16, 32])
        shared = drawn_shared(r, shape, bits)
        found = shared_access(bases_of(layout, shape), shared, bits // 8)
        assert found.conflicts == gluon.conflicts(layout, shared, shape, bits), (layout, shared, shape, bits)


def test_values_and_gluons_classes_are_each_others(gluon):
    r = random.Random(2)
    for _ in range(50):
        for layout in (drawn_registers(r), drawn_shared(r, (64, 64), 16)):
            assert read_gluon(gluon.made(layout)) == layout
    with pytest.raises(UnsupportedError, match="cluster"):
        read_gluon(gluon.gl.BlockedLayout([1, 1], [32, 1], [4, 1], [1, 0], [[1, 0]]))
    with pytest.raises(UnsupportedError, match="AutoLayout"):
        read_gluon(gluon.gl.AutoLayout())


def test_a_buffer_for_wgmma_is_shape_and_stride_with_a_swizzle():
    shape = (64, 128)
    bits = inverse(packed(offsets_of(MmaShared(128, 16), shape), shape))
    found = layout_of((*bits[7:], *bits[:7]))  # rows first
    assert str(found) == "[(64,64,2):(64,1,4096)^xor(3,3,3)]"  # two boxes of 128 bytes
    assert bits_of(found) == (*bits[7:], *bits[:7])
    plain = Layout((64, 64), (64, 1), 0, Swizzle(3, 3, 3))
    assert all(plain(i, j) == image(bits, i << 7 | j) for i in range(64) for j in range(64))


def test_the_fragments_of_the_instruction_set():
    """PTX ISA, m16n8k16: the row and column of each register of each lane."""
    mma = Mma(2, (1, 1), (16, 8))
    for layout, shape, place in (
        (mma, (16, 8), lambda lane, i: (lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2)),
        (DotOperand(0, mma, 2), (16, 16), lambda lane, i: (lane // 4 + 8 * (i // 2 % 2), lane % 4 * 2 + i % 2 + 8 * (i // 4))),
        (DotOperand(1, mma, 2), (16, 8), lambda lane, i: (lane % 4 * 2 + i % 2 + 8 * (i // 2), lane // 4)),
    ):
        found = fragment(bases_of(layout, shape))
        count = found[1].size
        expected = [[rows(shape)(*place(lane, i)) for i in range(count)] for lane in range(32)]
        assert [[found(lane, i) for i in range(count)] for lane in range(32)] == expected


def test_the_accumulators_of_wgmma():
    """PTX ISA, wgmma m64nNk16: rows by warp and lane, columns by register."""
    found = fragment(bases_of(Mma(3, (4, 1), (16, 32, 16)), (64, 32)))
    for thread in (0, 5, 31, 32, 127):
        for i in range(16):
            row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2 % 2)
            assert found(thread, i) == rows((64, 32))(row, thread % 4 * 2 + i % 2 + 8 * (i // 4))


def test_where_a_group_reads():
    registers = bases_of(Blocked((1, 8), (8, 4), (4, 1), (1, 0)), (32, 32))
    register, lane, warp = to_memory(registers, offsets_of(MmaShared(0, 16), (32, 32)))
    assert (register, lane, warp) == ((1, 2, 4), (8, 16, 32, 64, 128), (256, 512))


def test_what_is_not_linear_says_so():
    with pytest.raises(ProgramError, match="no power of two"):
        bases_of(Mma(2, (4, 1), (16, 8)), (48, 64))
    with pytest.raises(ProgramError, match="not linear"):
        bits_of(Layout((4, 4), (1, 3)))
    with pytest.raises(ProgramError, match="no inverse"):
        inverse([1, 2, 3])
