"""What kernels of a model do for their neighbours: weights for the next one, starts, room."""

from __future__ import annotations

from fuser.ir.builder import Builder
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.compile import compile_kernel
from fuser.lower.compile import neutral
from fuser.lower.options import AHEAD
from fuser.lower.options import PDL
from fuser.lower.options import PERSISTENT
from fuser.lower.options import ROOM
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import structures
from tests.interpreted import checked


def two() -> tuple[TensorProgram, KernelGraph, list[KernelSchedule]]:
    """Two products, a kernel each, in tiles of 32: 6 programs and 4."""
    b = Builder("two")
    x = b.op("relu", b.input("X", (64, 64)) @ b.input("W", (64, 96)))
    program = b.build(Y=x @ b.input("V", (96, 64)))
    graph = next(g for g in structures(program) if len(g.blocks) == 2 and not any(k.splits for k in g.blocks))
    tiles = [tuple(sorted((a.name, 32) for a in block.axes)) for block in graph.blocks]
    orders = [TilingExpr(block.reduced) for block in graph.blocks]
    return program, graph, [KernelSchedule(t, o) for t, o in zip(tiles, orders, strict=True)]


def test_the_kernel_in_front_brings_weights_in_equal_runs() -> None:
    program, graph, (first, second) = two()
    schedule = Schedule((first, AHEAD.set(second, True, "V")))
    front, behind = generate_graph(graph, schedule)
    assert front.args[-1] == "V" and front.shapes[-1] == (96, 64) and front.grid == 6
    body = front.text.rpartition("@triton.jit")[2]
    assert "bring_l2(V_ptr, 2048, 10240, 128)" in body  # 12,288 bytes by six programs; the last begins where 2,048 are left
    assert body.index("for t_i_") < body.index("bring_l2") < body.index("tl.store")
    assert "bring_l2" not in behind.text
    assert checked(program, graph, schedule).passed


def test_a_persistent_kernel_brings_them_once() -> None:
    _, graph, (first, second) = two()
    front, _ = generate_graph(graph, Schedule((PERSISTENT.set(first, 2), AHEAD.set(second, True, "V"))))
    body = front.text.rpartition("@triton.jit")[2]
    assert "bring_l2(V_ptr, 6144, 6144, 128)" in body and body.index("bring_l2") < body.index("for pid")


def test_nothing_that_a_kernel_writes_is_brought() -> None:
    _, graph, (first, second) = two()
    made = graph.blocks[0].outputs[0]
    plain, *_ = generate_graph(graph, Schedule((first, second)))
    front, *_ = generate_graph(graph, Schedule((first, AHEAD.set(second, True, made))))
    assert front.args == plain.args and "bring_l2" not in front.text


def test_the_next_kernel_may_start_when_the_main_loop_has_ended() -> None:
    program, graph, (first, second) = two()
    schedule = Schedule((first, PDL.set(second, "loop")))
    body = generate_graph(graph, schedule)[0].text.rpartition("@triton.jit")[2]
    assert (
        body.index("tl.dot")
        < body.index("gdc_launch_dependents()")
        < body.index("tl.maximum" if "tl.maximum" in body else "tl.store")
    )
    assert checked(program, graph, schedule).passed


def test_blocks_ask_for_room() -> None:
    _, graph, (first, second) = two()
    plain, roomy = (generate_graph(graph, Schedule((first, s)))[1] for s in (second, ROOM.set(second, 65536)))
    assert neutral(plain) != neutral(roomy)  # they are no equal kernels
    assert compile_kernel(plain, 90).shared_bytes < 65536 == compile_kernel(roomy, 90).shared_bytes
