"""The table of atomic specifications, against the fragment formulas of the PTX ISA, and against each other."""

from __future__ import annotations

import pytest

from fuser.device import load_device
from fuser.errors import UnsupportedError
from fuser.ir.layout.linear import bases_of
from fuser.ir.layout.linear import fragment
from fuser.ir.layout.named import DotOperand
from fuser.ir.layout.named import Mma
from fuser.ir.specs import ATOMS
from fuser.ir.specs import atom
from fuser.ir.specs import atoms
from fuser.ir.specs import clocks

HALF = "mma.m16n8k16"
TF32 = "mma.m16n8k8.tf32"


def volta(t: int, high: int, i: int) -> tuple[int, int]:
    return (t & 1) + (i & 2) + high, (i & 4) + (t & 2) + (i & 1)


# PTX ISA, "Matrix fragments": row and column of register i of thread t (g = t // 4, q = t % 4)
FIGURES = {
    (HALF, 0): lambda t, i: (t // 4 + 8 * (i // 2 % 2), 2 * (t % 4) + i % 2 + 8 * (i // 4)),
    (HALF, 1): lambda t, i: (2 * (t % 4) + i % 2 + 8 * (i // 2), t // 4),
    (HALF, 2): lambda t, i: (t // 4 + 8 * (i // 2), 2 * (t % 4) + i % 2),
    (TF32, 0): lambda t, i: (t // 4 + 8 * (i % 2), t % 4 + 4 * (i // 2)),
    (TF32, 1): lambda t, i: (t % 4 + 4 * i, t // 4),
    (TF32, 2): lambda t, i: (t // 4 + 8 * (i // 2), 2 * (t % 4) + i % 2),
    ("mma.m8n8k4", 0): lambda t, i: (t, i),
    ("mma.m8n8k4", 1): lambda t, i: (i, t),
    ("mma.m8n8k4", 2): lambda t, i: volta(t % 4, 4 * (t // 4), i),
    ("wgmma.m64n64k16.rs", 0): lambda t, i: (
        16 * (t // 32) + t % 32 // 4 + 8 * (i // 2 % 2),
        2 * (t % 4) + i % 2 + 8 * (i // 4),
    ),
    ("wgmma.m64n64k16.ss", 2): lambda t, i: (
        16 * (t // 32) + t % 32 // 4 + 8 * (i // 2 % 2),
        2 * (t % 4) + i % 2 + 8 * (i // 4),
    ),
}


@pytest.mark.parametrize("name, operand", FIGURES)
def test_fragments_are_those_of_the_isa(name, operand):
    entry = ATOMS[name]
    piece = (*entry.inputs, *entry.outputs)[operand]
    assert piece.places is not None
    threads, registers = piece.places.dims
    assert threads.size == entry.threads.size and threads.size * registers.size == piece.size
    for t in range(threads.size):
        for i in range(registers.size):
            row, column = FIGURES[name, operand](t, i)
            assert piece.places(t, i) == row * piece.tile[1] + column, (t, i)


def test_every_fragment_holds_every_element_once():
    for a in ATOMS.values():
        for piece in (*a.inputs, *a.outputs):
            if piece.places is not None and a.kind in ("MatMul", "Move") and piece.size <= 2048:
                assert sorted(piece.places.offsets()) == list(range(piece.size)), a.name


@pytest.mark.parametrize(
    "name, operand, layout, shape",
    [
        (HALF, 0, DotOperand(0, Mma(2, (1, 1), (16, 8)), 2), (16, 16)),
        (HALF, 1, DotOperand(1, Mma(2, (1, 1), (16, 8)), 2), (16, 8)),
        (TF32, 0, DotOperand(0, Mma(2, (1, 1), (16, 8)), 1), (16, 8)),
        (TF32, 1, DotOperand(1, Mma(2, (1, 1), (16, 8)), 1), (8, 8)),
        ("wgmma.m64n128k16.ss", 2, Mma(3, (4, 1), (16, 128, 16)), (64, 128)),
        ("wgmma.m64n64k16.rs", 0, DotOperand(0, Mma(3, (4, 1), (16, 64, 16)), 2), (64, 16)),
    ],
)
def test_fragments_are_the_layouts_that_triton_has(name, operand, layout, shape):
    piece = (*ATOMS[name].inputs, *ATOMS[name].outputs)[operand]
    assert piece.places is not None
    assert list(piece.places.offsets()) == list(fragment(bases_of(layout, shape)).offsets())


def test_ldmatrix_makes_operands_of_mma():
    """Graphene, figure 1: rows of shared memory become what the product reads, and transposed rows its right operand."""
    for move, operand in (("ldmatrix.x4", 0), ("ldmatrix.x2.trans", 1)):
        made, read = ATOMS[move].outputs[0].places, ATOMS[HALF].inputs[operand].places
        assert made and read and list(made.offsets()) == list(read.offsets())
    assert ATOMS["stmatrix.x4"].inputs[0] == ATOMS["ldmatrix.x4"].outputs[0]


@pytest.mark.parametrize(
    "kind, arch, dtype, has, lacks",
    [
        ("MatMul", 70, "float16", "mma.m8n8k4", "mma.m16n8k16"),
        ("MatMul", 80, "bfloat16", "mma.m16n8k16", "mma.m8n8k4"),
        ("MatMul", 90, "float16", "wgmma.m64n256k16.ss", "mma.m8n8k4"),
        ("MatMul", 100, "float16", "mma.m16n8k16", "wgmma.m64n256k16.ss"),
        ("Move", 80, "float16", "cp.async.16", "tma.load.2d"),
        ("Move", 90, "float16", "stmatrix.x4", ""),
    ],
)
def test_architectures_have_their_own(kind, arch, dtype, has, lacks):
    names = {a.name for a in atoms(kind, arch, dtype)}
    assert has in names and lacks not in names
    if lacks:
        with pytest.raises(UnsupportedError, match=f"sm_{arch} has no {lacks}"):
            atom(lacks, arch)


def test_costs_follow_the_device():
    h200, a100 = load_device("h200"), load_device("a100")
    assert clocks(ATOMS["wgmma.m64n256k16.ss"], h200) == pytest.approx(128, rel=0.2)  # the clock is not that of the data sheet
    assert clocks(ATOMS[HALF], a100) == pytest.approx(2, rel=0.05)  # 2048 FLOP a clock of each SM
    assert clocks(ATOMS["ldmatrix.x4"], h200) == 4
    assert clocks(ATOMS["ld.shared.v4.u32"], h200) * 32 == 4
    assert clocks(ATOMS["special"], h200) * 32 == 2
