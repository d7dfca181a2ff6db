"""Devices that nobody has: settings, files, and that nothing of theirs is taken for what a real one measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cost_model.constants import constants_of
from fuser.cli import main
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import UsageError
from fuser.workloads import workload
from search.ranked import INSTANT
from search.tune import tune_fast
from search.tuner.judges import open_judge
from search.tuner.memory import GENERATED
from search.tuner.memory import PACKAGED
from search.tuner.memory import Memory
from search.where import where_to_run
from tests.builders import chain

H200 = load_device("h200")


def ratio(device: Device, name: str) -> float:
    return getattr(device, name) / getattr(H200, name)


@pytest.mark.parametrize(
    ("setting", "ratios"),
    [
        ("smem=2x", {"smem_per_block": 2, "smem_per_sm": 2, "smem_reserved_per_block": 1}),
        ("smem_per_sm=1.5x", {"smem_per_block": 1, "smem_per_sm": 1.5}),
        ("dram_rate=7.2TB/s", {"memory_bandwidth": 1.5, "copy_bandwidth": 1.5, "l2_bandwidth": 1}),
        ("sms=264", {"sm_count": 2, "tensor_fp16": 2, "fp32_flops": 2, "clock": 1}),
        ("sm_count=2×", {"sm_count": 2, "tensor_fp16": 1}),
        ("clock=990MHz", {"clock": 0.5, "fp32_flops": 1}),
        ("l2=120MiB", {"l2_bytes": 2}),
        ("launch_latency=2.5us", {"launch_latency": 2}),
        ("tensor=.5x", {"tensor_fp16": 0.5, "tensor_tf32": 0.5, "fp32_flops": 1}),
    ],
)
def test_a_setting_changes_what_goes_together(setting: str, ratios: dict[str, float]) -> None:
    made = load_device("h200", [setting])
    assert {n: ratio(made, n) for n in ratios} == pytest.approx(ratios)
    assert made.hypothetical == (setting,) and setting in made.title and "hypothetical" in made.title
    assert load_device(made.name) == made == load_device(f"h200 {setting}")


def test_settings_act_one_after_the_other() -> None:
    made = load_device("h200 sms=2x", ["sm_clock=1.5x", "l2_rate=0.75", "wait=2x"])
    assert ratio(made, "tensor_fp16") == pytest.approx(3.0)
    mine, real = constants_of(made), constants_of(H200)
    assert (mine.l2_rate, mine.wait / real.wait, mine.base) == (0.75, 2.0, real.base)
    assert mine.trip == pytest.approx(real.trip / 1.5), "cycles follow the clock"
    assert load_device(made.name) == made


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("smm=2x", "did you mean smem"),
        ("bandwidth=2x", "did you mean"),
        ("smem", "no setting"),
        ("smem=", "no value"),
        ("smem=fast", "no value"),
        ("smem=2xx", "no unit"),
        ("smem=2TB/s", "no unit"),
        ("sm_count=1kSM", "no unit"),
        ("smem=nan", "no value"),
        ("smem=-1x", "impossible"),
        ("smem=0x", "impossible"),
        ("smem=1e999", "impossible"),
        ("smem=0", "must be positive"),
        ("sm_count=1e30", "would be 1e+30"),
        ("clock=1e-300", "would be 1e-300"),
        ("norm=1e300", "would be 1e+300"),
        ("sm_count=10.5", "whole"),
        ("smem_per_block=1MiB", "above smem_per_sm"),
        ("memory_rate=1.2", "at most 1"),
        ("norm=0", "above 0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(setting: str, part: str) -> None:
    with pytest.raises(UsageError) as e:
        load_device("h200", [setting])
    assert part in str(e.value) and setting.partition("=")[0] in str(e.value)
    if "did you mean" in part:
        assert "memory_bandwidth" in e.value.hint and "l2_rate" in e.value.hint
    with pytest.raises(UsageError, match="whole") as e:
        load_device("h200", ["sms=0.5"])
    assert e.value.hint == "sms=1"
    with pytest.raises(UsageError, match="twice"):
        load_device("h200", ["smem=2x", "smem=3x"])


def test_the_model_follows() -> None:
    program = chain(262144, 64, 64, 64)
    plain, fast = (tune_fast(program, load_device("h200", s)).winner.us for s in ([], ["sms=2x", "dram_rate=2x"]))
    assert 0.4 * plain < fast < 0.9 * plain


@pytest.mark.parametrize("settings", [["overlap=1ms"], ["launch_latency=0"]])
def test_no_more_of_a_start_is_hidden_than_there_is(settings: list[str]) -> None:
    """Estimates were negative, and the best of them was none."""
    device = load_device("h200", settings)
    constants = constants_of(device)
    assert constants.overlap == device.launch_latency + constants.base
    assert tune_fast(chain(1024, 64, 64, 64), device).winner.us > 0
    assert constants_of(load_device("h200")).overlap == dict(load_device("h200").constants)["overlap"]


def test_json_files(tmp_path: Path) -> None:
    path = tmp_path / "moon.json"

    def read(value: object) -> Device:
        path.write_text(json.dumps(value))
        return load_device(str(path))

    moon = read({"base": "a100", "name": "moon", "title": "Moon GPU", "set": {"smem": "2x", "sms": 216}})
    assert (moon.name, moon.title, moon.sm_count, moon.arch) == ("moon", "Moon GPU, hypothetical", 216, 80)
    assert load_device(str(path), ["sms=0.5x"]).sm_count == 108
    whole = {"schema": 1, "name": "x", "title": "X", "arch": 90}
    numbers = {k: {"value": getattr(H200, k), "unit": u, "source": "mine"} for k, u in units().items()}
    assert read(whole | {"numbers": numbers}).hypothetical == ()
    assert read(whole | {"numbers": numbers, "hypothetical": True}).hypothetical
    other = numbers | {"sm_count": numbers["sm_count"] | {"value": 264}}
    assert "sm_count than h200" in read(whole | {"title": "NVIDIA H200", "numbers": other}).hypothetical[0]
    for bad in ([], {"base": 3}, {"base": "h200"}, {"base": "h200", "set": {"smem": [2]}}, {"base": "h200", "sett": {}},
                {"base": str(path), "set": {"smem": "2x"}}, {"base": "h200", "set": {"smm": "2x"}}, {}):  # fmt: skip
        with pytest.raises(UsageError):
            read(bad)
    with pytest.raises(UsageError, match="base is a file"):
        read({"base": str(path), "set": {"smem": "2x"}})
    path.write_text('{"base": "h200", "set": {"smem": "2x"')
    with pytest.raises(UsageError, match="not valid JSON"):
        load_device(str(path))


def units() -> dict[str, str]:
    from fuser.device import OPTIONAL
    from fuser.device import REQUIRED

    return REQUIRED | OPTIONAL


def test_nothing_is_measured_and_no_record_is_taken() -> None:
    program = workload("mcfuser/S2")
    memory = Memory(None, (PACKAGED,))
    assert memory.find(program, H200, GENERATED, INSTANT)
    twice, thrice = load_device("h200 smem=2x"), load_device("h200 smem=3x")
    assert memory.find(program, twice, GENERATED, INSTANT) is None
    simulated = Memory(None, (), "1")
    assert len({m.device_name(d) for d in (H200, twice, thrice) for m in (memory, simulated)}) == 6
    with pytest.raises(UsageError, match="there is no NVIDIA H200, hypothetical"), open_judge(twice, memory, "quick"):
        pass
    with open_judge(twice, simulated, "quick"):
        pass
    assert where_to_run(None, twice, "p")[0] is None
    with pytest.raises(UsageError, match="cannot run"):
        where_to_run("cuda", twice, "p")


def test_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "mcfuser/S1", "--set", "dram_rate=1.5x", "--set", "smem=2x"]) == 0
    out, err = capsys.readouterr()
    assert "hypothetical: dram_rate=1.5x, smem=2x" in " ".join(out.split())
    assert "nobody has the NVIDIA H200" in err
    assert main(["devices", "h200", "--set", "smem=2x", "--json"]) == 0
    device = json.loads(capsys.readouterr().out)["devices"][0]
    assert device["numbers"]["smem_per_block"]["value"] == 2 * H200.smem_per_block
    assert device["hypothetical"] == ["smem=2x"]
    assert main(["devices", "--set", "smem=2x"]) == 2
