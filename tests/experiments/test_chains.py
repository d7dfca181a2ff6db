"""Networks as chains of kernels: roles, what is tried in them, and the descent with timings that are made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from experiments import chains
from experiments.chains import main
from experiments.chains import slim
from experiments.chains import summary
from experiments.chains import written
from experiments.roles import Row
from experiments.roles import Timing
from experiments.roles import descend
from experiments.roles import exchanged
from experiments.roles import launches
from experiments.roles import roles
from experiments.roles import shapes
from fuser.device import load_device
from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import NoValidKernelError
from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.options import HOIST
from fuser.lower.options import PDL
from fuser.lower.options import TMA
from fuser.lower.triton_source import generate_graph
from search.cover.stitch import renamed
from tests.builders import schedule
from tests.experiments.rows import RESULTS

H200 = load_device("h200")


def block(program: TensorProgram, name: str, **tensors: str) -> BlockGraph:
    """The program as one kernel over tensors of other names."""
    made = renamed(fuse(program).blocks[0], tensors, name)
    assert isinstance(made, BlockGraph)
    return made


@cache
def network(layers: int = 3) -> Candidate:
    """A product with a bias and a norm in every layer, and a product at the end."""
    b = Builder("layer")
    product = b.build(Y=b.input("X", (256, 256)) @ b.input("W", (256, 256)) + b.input("bias", (256,)))
    n = Builder("norm")
    norm = n.build(Z=n.rms_norm(n.input("Y", (256, 256)), n.input("G", (256,))))
    last = Builder("last")
    end = last.build(Y=last.input("X", (256, 256)) @ last.input("W", (256, 64)))
    kernels: list[BlockGraph] = []
    schedules: list[KernelSchedule] = []
    for i in range(layers):
        kernels.append(block(product, f"matmul_add_{2 * i}_0", X=f"x{i}", W=f"w{i}", bias=f"bias{i}", Y=f"y{i}"))
        kernels.append(block(norm, f"rms_norm_{2 * i + 1}", Y=f"y{i}", G=f"g{i}", Z=f"x{i + 1}"))
        schedules += [schedule("k", m=64, n=64, k=64), schedule("", m=4)]
    kernels.append(block(end, f"matmul_{2 * layers}", X=f"x{layers}", W="w", Y="out"))
    schedules.append(schedule("k", m=64, n=64, k=64))
    inner = {t for k in kernels for t in k.outputs}
    inputs = tuple(dict.fromkeys(t for k in kernels for t in k.inputs if t not in inner))
    started = (schedules[0], *(PDL.set(s, "early") for s in schedules[1:]))
    return Candidate(KernelGraph("net", inputs, tuple(kernels), ("out",)).validate(), Schedule(started))


class Made:
    """Timings that a function of the schedules makes up; those for which it raises fail."""

    def __init__(self, us: Callable[[Schedule], float]) -> None:
        self.us, self.prepared, self.timed = us, 0, list[Candidate]()

    def ahead(self, several: Sequence[Candidate]) -> None:
        self.prepared += len(several)

    def time(self, base: Candidate, other: Candidate) -> Timing:
        self.timed.append(other)
        return Timing(self.us(other.schedule), self.us(base.schedule), 1e-4)


def always() -> bool:
    return True


def test_roles_are_kernels_that_differ_in_names_alone() -> None:
    found = {r.title: r.places for r in roles(network(), H200)}
    assert found == {"matmul_add#0": (0, 2, 4), "rms_norm#1": (1, 3, 5)}  # the last product stands alone
    other = network().schedule.kernels
    changed = Schedule((*other[:4], schedule("k", m=128, n=64, k=64), *other[5:]))
    assert {r.places for r in roles(Candidate(network().graph, changed), H200)} == {(0, 2), (1, 3, 5)}


def test_the_dearest_role_comes_first() -> None:
    base = network()
    slow = Schedule(tuple(schedule("", m=256) if i % 2 else s for i, s in enumerate(base.schedule.kernels)))
    found = Candidate(base.graph, slow)
    assert [r.title for r in roles(found, H200)] == ["rms_norm#1", "matmul_add#0"]
    assert [r.title for r in roles(base, H200)] == ["matmul_add#0", "rms_norm#1"]


def test_an_alternative_is_put_in_all_places_of_a_role() -> None:
    base = network()
    (role,) = [r for r in roles(base, H200) if r.title == "matmul_add#0"]
    tried = dict(shapes(base, role))
    plain = exchanged(base, role, tried["m128 n128 k64 s3 w4"], H200).schedule.kernels
    tma = exchanged(base, role, tried["m128 n128 k64 s3 w4 tma"], H200).schedule.kernels
    for i, (old, new, moved) in enumerate(zip(base.schedule.kernels, plain, tma, strict=True)):
        if i not in role.places:
            assert old == new == moved
            continue
        assert (new.tile, new.num_stages, new.num_warps) == ({"m": 128, "n": 128, "k": 64}, 3, 4)
        assert set(TMA.named(moved)) == {f"x{i // 2}", f"w{i // 2}"}  # each kernel's own operands
        assert PDL.of(new) == PDL.of(old)
    again = exchanged(Candidate(base.graph, Schedule(tma)), role, tried["m64 n64 k64 s4 w4"], H200).schedule.kernels
    assert not any(map(TMA.named, again))  # of other tiles' descriptors none is left


def test_tiles_are_no_larger_than_the_axis_and_only_of_axes_that_are_divided() -> None:
    base = network()
    (role,) = [r for r in roles(base, H200) if r.title == "rms_norm#1"]
    found = [exchanged(base, role, edits, H200).schedule.kernels[1] for _, edits in shapes(base, role)]
    assert {s.tile["m"] for s in found} == {1, 2, 4}
    assert all(s.tile.get("n", 256) == 256 for s in found)  # it is summed over, without a loop
    assert {s.num_warps for s in found} == {1, 2, 4, 8}


def test_a_first_kernel_has_nobody_to_wait_for() -> None:
    base = network()
    (role,) = [r for r in roles(base, H200) if 0 in r.places]
    for label, edits in launches():
        kernels = exchanged(base, role, edits, H200).schedule.kernels
        assert not PDL.of(kernels[0])
        assert PDL.of(kernels[2]) == ("" if "none" in label else label.split()[0].removeprefix("pdl="))
        assert {HOIST.of(kernels[i]) for i in role.places} == {"hoist" in label}


def test_everything_that_is_tried_can_be_generated() -> None:
    base = network()
    for role in roles(base, H200):
        for label, edits in list(shapes(base, role))[::8]:
            try:
                made = exchanged(base, role, edits, H200)
            except FuserError as error:
                pytest.fail(f"{label}: {error}")
            assert len(generate_graph(made.graph, made.schedule)) == len(base.blocks)


def test_the_descent_keeps_what_is_fastest() -> None:
    base = network()

    def us(s: Schedule) -> float:
        """Large tiles, late starts behind norms and single warps are fast; each for itself."""
        large = sum(8192 / (k.tile["m"] * k.tile["n"]) for k in s.kernels[:6:2])
        late = sum(PDL.of(k) != "late" for k in s.kernels[1:6:2])
        return 100 + large + late + sum(k.num_warps for k in s.kernels[1:6:2])

    bench = Made(us)
    steps = list(descend(base, H200, bench, always))
    assert [role.title for role, *_ in steps] == ["all", "matmul_add#0", "rms_norm#1"]
    best = steps[-1][1]
    assert {(k.tile["m"], k.tile["n"]) for k in best.schedule.kernels[:6:2]} == {(128, 256)}
    assert {(PDL.of(k), k.num_warps) for k in best.schedule.kernels[1:6:2]} == {("late", 1)}
    assert us(best.schedule) == min(us(c.schedule) for c in bench.timed)
    rows = [r for *_, found in steps for r in found]
    assert len(rows) == len(bench.timed) == bench.prepared
    assert all(r.count == (7 if r.role == "all" else 3) for r in rows)
    assert not any(r.failed for r in rows)
    row = next(r for r in rows if r.label == "m128 n256 k64 s3 w8")
    before = us(steps[0][1].schedule)
    assert row.us is not None
    assert row.delta_us == pytest.approx((row.us - before) / 3)
    assert row.predicted_us is not None and row.predicted_us > 0


def test_failures_are_rows_and_nothing_that_fails_is_kept() -> None:
    def us(s: Schedule) -> float:
        if s.kernels[0].num_warps == 8:
            raise NoValidKernelError("another result than the first chain's")
        if s.kernels[0].num_stages == 6:
            raise RuntimeError("out of memory\nmore")
        return 100.0 - s.kernels[0].num_stages

    steps = list(descend(network(), H200, Made(us), always))
    rows = [r for role, _, found in steps for r in found if role.title == "matmul_add#0"]
    failed = {r.failed for r in rows if r.failed}
    assert failed == {"NoValidKernelError: another result than the first chain's", "RuntimeError: out of memory"}
    assert all((r.us is None) == bool(r.failed) for r in rows)
    first = steps[-1][1].schedule.kernels[0]
    assert (first.num_warps, first.num_stages) == (4, 4)


def test_a_lost_gpu_ends_the_descent() -> None:
    def us(s: Schedule) -> float:
        raise EnvironmentError_("the GPU cannot be used any more")

    with pytest.raises(EnvironmentError_, match="any more"):
        list(descend(network(), H200, Made(us), always))


def test_no_chain_begins_after_the_time_is_up() -> None:
    bench = Made(lambda s: 100.0)
    steps = list(descend(network(), H200, bench, lambda: len(bench.timed) < 9))
    assert len(bench.timed) == 9 == sum(len(found) for *_, found in steps)
    assert [role.title for role, *_ in steps] == ["all", "matmul_add#0"]


def rows() -> list[dict[str, Any]]:
    made = [
        Row("a#0", 4, "m64", "s", 98.0, -0.5, 1.23456e-4, 7.00049),
        Row("a#0", 4, "m32", "s", 102.0, 0.5, 0.0, 6.0),
        Row("a#0", 4, "m16", "s", failed="NoValidKernelError: too much"),
        Row("a#0", 4, "early", "s", 96.0, -0.5, 0.0, 6.0),
        Row("b#1", 2, "m8", failed="UsageError: no"),
    ]
    return [slim(r) for r in made]


def test_rows_have_what_is_known_of_them() -> None:
    first, second, failed, *_ = rows()
    assert first == {
        "role": "a#0", "count": 4, "label": "m64", "schedule": "s",
        "us": 98.0, "delta_us": -0.5, "error": 1.23e-4, "predicted_us": 7.0,
    }  # fmt: skip
    assert second["error"] == 0.0
    assert "us" not in failed and failed["failed"] == "NoValidKernelError: too much"


def test_the_summary_has_the_fastest_of_each_role() -> None:
    assert summary(rows()) == [("a#0", 4, 3, 1, "early", "96.0", "-1.00"), ("b#1", 2, 0, 1, "-", "-", "-")]


def test_documents_have_a_line_for_each_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {
        "network": "gpt2", "layers": 6, "environment": {"device": "NVIDIA H200"}, "method": "",
        "first_us": 100.0, "best_us": 96.0, "rows": rows(), "schedules": [["a_0", "s"]],
    }  # fmt: skip
    text = written(document)
    assert json.loads(text) == document
    assert sum('"role"' in line for line in text.splitlines()) == len(rows())
    (tmp_path / "x.json").write_text(text)
    assert main(["--table", str(tmp_path / "x.json")]) == 0
    said = capsys.readouterr().out
    assert "gpt2 on NVIDIA H200, 6 layers" in said and "100.0 at first, 96.0 at last" in said


@pytest.mark.parametrize("name", sorted(p.stem for p in (RESULTS / "h200-chains").glob("*.json")))
def test_the_results_are_whole(name: str) -> None:
    found = json.loads((RESULTS / "h200-chains" / f"{name}.json").read_text())
    assert found["network"] == name.removesuffix("-tiles")
    assert found["environment"]["device"] == H200.title
    timed = [r for r in found["rows"] if "us" in r]
    assert all(r["error"] < chains.LIMIT for r in timed)
    assert all("failed" in r for r in found["rows"] if r not in timed)
    assert found["best_us"] == pytest.approx(min(r["us"] for r in timed))
    assert found["best_us"] < found["first_us"]


@pytest.mark.parametrize("args", [[], ["gpt2"], ["gpt2", "-o", "x", "--layers", "0"], ["gpt2", "-o", "x", "--budget", "nan"]])
def test_wrong_arguments(args: list[str]) -> None:
    with pytest.raises(UsageError):
        main(args)


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(EnvironmentError_, match="needs a GPU") as error:
        main(["gpt2", "-o", str(tmp_path / "x" / "out.json")])
    assert "--table" in error.value.hint
    assert not list(tmp_path.iterdir())


def test_networks_may_have_fewer_layers() -> None:
    pytest.importorskip("torch")
    from experiments.networks import NETWORKS

    module, sizes = NETWORKS["bert-small"].make(1, 2)
    whole, _ = NETWORKS["bert-small"].make(1)
    assert (len(list(module.children())), len(list(whole.children())), sizes) == (2, 4, ((1, 512, 512),))
