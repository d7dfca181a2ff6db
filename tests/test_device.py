"""Devices as data."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import fields
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuser.cli import main
from fuser.device import OPTIONAL
from fuser.device import REQUIRED
from fuser.device import Device
from fuser.device import list_devices
from fuser.device import load_device
from fuser.device import parse_device
from fuser.errors import UnsupportedError
from fuser.errors import UsageError

A100 = (resources.files("fuser") / "devices" / "a100.toml").read_text(encoding="utf-8")
NAMES = ["v100", "a100", "a6000", "rtx3080", "h100", "h200", "b200"]


def test_the_promised_devices_are_there() -> None:
    assert [d.name for d in list_devices()] == NAMES
    assert {f.name for f in fields(Device)} >= REQUIRED.keys() | OPTIONAL.keys()


def test_every_name_is_of_one_device() -> None:
    assert all(load_device(n) is d for d in list_devices() for n in (d.name, d.title, *d.aliases))


@pytest.mark.parametrize("name", NAMES)
def test_numbers_have_sources_and_hang_together(name: str) -> None:
    d = load_device(name)
    assert {k for k, source in d.sources if source.strip()} >= set(REQUIRED)
    # CUDA cores do one multiply-add a clock: 64 a SM on sm_70 and sm_80, 128 after
    cores = 64 if d.arch in (70, 80) else 128
    assert d.fp32_flops == pytest.approx(2 * cores * d.sm_count * d.clock, rel=0.02)
    # dense multiply-adds per clock and SM of the tensor cores, at no more than 10 % below the largest clock
    per_clock = d.tensor_fp16 / (d.sm_count * d.clock)
    assert any(0.9 * n < per_clock < 1.02 * n for n in (512, 1024, 2048, 4096, 8192))
    assert d.max_warps_per_sm * 32 == d.max_threads_per_sm
    assert d.smem_per_block + d.smem_reserved_per_block <= d.smem_per_sm
    assert d.copy_bandwidth < d.memory_bandwidth < d.l2_bandwidth
    assert d.tensor_bf16 in (d.tensor_fp16, None)


def test_published_limits() -> None:
    a100 = load_device("a100")
    assert (a100.sm_count, a100.memory_bandwidth, a100.tensor_fp16, a100.smem_per_block) == (108, 1555e9, 312e12, 166912)
    assert (load_device("rtx3080").smem_per_block, load_device("h200").smem_per_block) == (101376, 232448)
    assert a100.balance() == pytest.approx(312e12 / 1555e9)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H200", "h200"),
        ("nvidia/nvidia-a100", "a100"),
        ("nvidia/geforce-rtx-3080", "rtx3080"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("sm_80", "a100"),
        ("cuda -arch=sm_80", "a100"),
        ("sm_100", "b200"),
        ("sm_70", "v100"),
    ],
)
def test_aliases(text: str, name: str) -> None:
    assert load_device(text).name == name


def test_every_title_and_alias_is_unambiguous() -> None:
    for d in list_devices():
        assert all(load_device(text) == d for text in (d.name, d.title, *d.aliases))


@pytest.mark.parametrize(("text", "part"), [("sm_90", "h100 and h200"), ("cuda -arch=sm_86", "a6000 and rtx3080")])
def test_shared_architecture_is_ambiguous(text: str, part: str) -> None:
    with pytest.raises(UsageError, match=part):
        load_device(text)


@pytest.mark.parametrize("text", ["sm_89", "rtx4090", "", "llvm"])
def test_target_without_a_specification(text: str) -> None:
    with pytest.raises(UsageError, match="no device specification") as e:
        load_device(text)
    assert "a100" in e.value.hint and repr(text) in e.value.message


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        (
            'sm_count = { value = 108, unit = "SM"',
            'sm_count = { value = 108, unit = "GPU"',
            "sm_count is in 'GPU', expected 'SM'",
        ),
        ("sm_count =", "sm_number =", "missing sm_count"),
        ("tensor_tf32 =", "tensor_fp4 =", "unknown tensor_fp4"),
        ("sm_count = { value = 108,", "sm_count = { value = 10.5,", "is whole|has the value 10.5"),
        ("sm_count = { value = 108,", "sm_count = { value = 0,", "sm_count must be positive"),
        ("sm_count = { value = 108,", "sm_count = { value = -1,", "has the value -1"),
        ("clock = { value = 1.41e+09,", 'clock = { value = "fast",', "has the value 'fast'"),
        ("schema = 1", "schema = 2", "schema is 2"),
        ("arch = 80", 'arch = "sm_80"', "arch is missing or is not of type int"),
        ("[numbers]", "[numbers", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_name(old: str, new: str, part: str) -> None:
    assert old in A100
    with pytest.raises(UsageError, match=part) as e:
        parse_device(A100.replace(old, new, 1), "mine.toml")
    assert "mine.toml" in e.value.message


def test_a_number_without_source_is_refused() -> None:
    text = "\n".join(
        line if not line.startswith("sm_count") else 'sm_count = { value = 108, unit = "SM" }' for line in A100.splitlines()
    )
    with pytest.raises(UsageError, match="value, unit and source"):
        parse_device(text)


def test_a_device_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "half.toml"
    path.write_text(A100.replace('name = "a100"', 'name = "half"').replace("value = 108", "value = 54"), encoding="utf-8")
    assert (load_device(str(path)).name, load_device(str(path)).sm_count) == ("half", 54)
    with pytest.raises(UsageError, match="cannot read"):
        load_device(str(tmp_path / "none.toml"))


def test_a_device_file_may_be_json(tmp_path: Path) -> None:
    value = tomllib.loads(A100) | {"calibration": {"gpu": "mine"}}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    found = load_device(str(path))
    assert replace(found, fit=()) == load_device("a100")
    for odd, why in (
        ("[]", "is not an object"),
        ("{", "not valid JSON"),
        (json.dumps(value | {"calibration": 3}), "calibration"),
    ):
        path.write_text(odd, encoding="utf-8")
        with pytest.raises(UsageError, match=why) as e:
            load_device(str(path))
        assert "mine.json" in e.value.message


def test_volta_has_estimates_but_no_compiler() -> None:
    v100 = load_device("v100")
    assert v100.no_triton and not load_device("a100").no_triton
    assert v100.matmul_flops("bfloat16") == v100.fp32_flops


def test_matmul_rates_by_precision() -> None:
    d = load_device("a100")
    assert d.matmul_flops("float32", "ieee") == d.fp32_flops
    assert d.matmul_flops("float32", "tf32x3") == pytest.approx(d.matmul_flops("float32", "tf32") / 3)
    with pytest.raises(UsageError, match="precision"):
        d.matmul_flops("float16", "fp8")
    with pytest.raises(UnsupportedError, match="int32"):
        d.matmul_flops("int32")


def test_occupancy_against_known_cases() -> None:
    d = load_device("a100")
    assert d.blocks_per_sm(128, 32, 0) == 16  # 64 warps
    assert d.blocks_per_sm(32, 32, 0) == 32  # blocks
    assert d.blocks_per_sm(256, 255, 0) == 1  # 256 registers x 32 x 8 warps = 65536
    assert d.blocks_per_sm(128, 64, 81 * 1024) == 2  # 82 KiB each of 164
    assert d.blocks_per_sm(128, 64, 166912) == 1
    assert d.blocks_per_sm(128, 64, 166913) == 0
    assert d.blocks_per_sm(2048, 32, 0) == 0


@given(
    name=st.sampled_from(NAMES),
    threads=st.integers(1, 1024),
    regs=st.integers(1, 255),
    smem=st.integers(0, 232448),
    data=st.data(),
)
def test_occupancy_fits_and_never_grows_with_resources(
    name: str, threads: int, regs: int, smem: int, data: st.DataObject
) -> None:
    more_r, more_s = data.draw(st.integers(0, 64)), data.draw(st.integers(0, 4096))
    d = load_device(name)
    blocks, warps = d.blocks_per_sm(threads, regs, smem), math.ceil(threads / 32)
    assert blocks * warps <= d.max_warps_per_sm and blocks <= d.max_blocks_per_sm
    assert blocks * (smem + d.smem_reserved_per_block) <= d.smem_per_sm
    assert blocks * warps * 32 * regs <= d.registers_per_sm
    assert d.blocks_per_sm(threads, regs + more_r, smem + more_s) <= blocks


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    text = capsys.readouterr().out
    assert all(n in text for n in NAMES) and max(map(len, text.splitlines())) <= 80
    assert main(["devices", "h200", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["devices"][0]["numbers"]["memory_bandwidth"] == {
        "value": 4.8e12,
        "unit": "B/s",
        "source": "H200 data sheet (SXM)",
    }
    assert main(["devices", "h100"]) == 0
    assert all(len(line) < 80 or not line.startswith("  held") for line in capsys.readouterr().out.splitlines())
    assert main(["devices", "h200", "--set", "smem=2x"]) == 0
    assert "measurements on a real one" in capsys.readouterr().out
    assert main(["devices", "v100"]) == 0
    assert "no kernel can be compiled" in capsys.readouterr().out
