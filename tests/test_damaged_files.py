"""No file ends a verb in a traceback, a hang, or much memory: thousands of ways to damage good files of every kind.

``MUFUSER_DAMAGED`` says how many of each kind; ``python -m tests.test_damaged_files N`` prints what they ended in.
"""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuser.cli import main
from fuser.errors import FuserError
from fuser.superopt.structures import structures
from fuser.workloads import workload
from tests.damage import damaged_bytes
from tests.damage import damaged_toml
from tests.damage import damaged_value
from tests.damage import json_text
from tests.frontends import mirage_files
from tests.paths import RELAY
from tvm_bridge.to_program.relay_import import read_model
from tvm_bridge.to_program.relay_import import to_program

COUNT = int(os.environ.get("MUFUSER_DAMAGED", "10"))
SECONDS = 10
CODES = (0, 2, 3, 4, 5, 6)
Make = Callable[[np.random.Generator], bytes]
Rng = np.random.Generator


class HangError(BaseException):
    """No end within :data:`SECONDS`; nothing catches it."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    def alarm(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, alarm)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(args: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(args)
    return code, out.getvalue(), err.getvalue()


def judged(args: list[str]) -> str:
    """Empty where a command ended as it should, otherwise what is wrong."""
    try:
        with bounded():
            code, out, err = run(args)
    except HangError:
        return f"hang: {' '.join(args[:1])}\n{traceback.format_exc()}"
    except BaseException:  # noqa: BLE001 - whatever comes out is what is looked for
        return traceback.format_exc()
    lines = err.splitlines()
    odd = [c for c in out + err if c in "\x1b\x07\x9b\x7f\u202e" or "\ud800" <= c <= "\udfff"]
    if code not in CODES:
        return f"exit code {code}"
    if "Traceback" in err or odd:
        return f"stderr: {err[-300:]!r} {odd[:3]}"
    if code in (2, 3, 4) and not any(line.startswith("error: ") for line in lines):
        return f"exit code {code} without a reason: {err!r}"
    if any(len(line) > 2000 for line in lines):
        return f"a line of {max(map(len, lines))} characters"
    return ""


# -- good files, and how they are damaged ---------------------------------------------------------------------------------------


@lru_cache
def graphs() -> tuple[dict[str, Any], ...]:
    found = []
    for name in ("mcfuser/G1", "mcfuser/S1", "mirage/rmsnorm", "mirage/gqa-spec"):
        found += [g.to_json() for g in structures(workload(name))[:3]]
    return tuple(found)


@lru_cache
def relay_file(name: str) -> Any:
    return json.loads((RELAY / name).read_text())


def _pick(rng: Rng, options: Any) -> Any:
    return options[int(rng.integers(len(options)))]


def _json(rng: Rng, good: Any) -> bytes:
    if rng.integers(5):
        return json_text(damaged_value(rng, good)).encode("utf-8", "surrogatepass")
    return damaged_bytes(rng, json.dumps(good).encode())


def relay(rng: Rng) -> bytes:
    return _json(rng, relay_file(_pick(rng, ["encoder_torch.json", "encoder_onnx.json", "old_0_6.json", "old_0_8.json"])))


def params(rng: Rng) -> bytes:
    good = (RELAY / "encoder_onnx.params").read_bytes()
    if rng.integers(2):
        return damaged_bytes(rng, good)
    data = bytearray(good)  # the header and the names, where every byte counts
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(0, 600))
        data[at : at + 8] = int(_pick(rng, [0, 1, 2**31, 2**40, 2**63, 2**64 - 1, 255])).to_bytes(8, "little")
    return bytes(data)


def mugraph(rng: Rng) -> bytes:
    return _json(rng, _pick(rng, graphs()))


def program(rng: Rng) -> bytes:
    return _json(
        rng, workload(_pick(rng, ["mcfuser/G1", "mcfuser/S1", "mirage/rmsnorm", "mirage/lora", "mirage/qknorm"])).to_json()
    )


def mirage(rng: Rng) -> bytes:
    makers = (mirage_files.rms_norm, mirage_files.lora, mirage_files.attention, mirage_files.wrong_qk_norm)
    return _json(rng, _pick(rng, makers)())


def device(rng: Rng) -> bytes:
    good = (resources.files("fuser") / "devices" / _pick(rng, ["a100.toml", "h200.toml", "v100.toml"])).read_text()
    return damaged_toml(rng, good).encode() if rng.integers(6) else damaged_bytes(rng, good.encode())


def result(rng: Rng) -> bytes:
    path = Path("experiments/results/h200-graphene/bench.json")
    return _json(rng, json.loads(path.read_text()))


def rows(rng: Rng) -> bytes:
    packed = Path("experiments/raw/h200-bench-mcfuser.jsonl.xz").read_bytes()
    if rng.integers(8) == 0:
        return damaged_bytes(rng, packed)
    lines = lzma.decompress(packed).decode().splitlines()[:40]
    if rng.integers(4) == 0:
        return damaged_bytes(rng, "\n".join(lines).encode())
    at = int(rng.integers(len(lines)))
    lines[at] = json_text(damaged_value(rng, json.loads(lines[at])))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


Judge = Callable[[Path], str]


def cli(*args: str) -> Judge:
    return lambda path: judged([a.replace("{}", str(path)).replace("{dir}", str(path.parent)) for a in args])


def imported(path: Path, given: Path | None = None) -> str:
    """The model as a program, which is all that ``optimize`` does with the file itself."""
    try:
        with bounded():
            read_and_lower(path, given)
    except FuserError as error:
        return "" if error.exit_code in (3, 4) else f"exit code {error.exit_code}: {error.message}"
    except HangError:
        return f"hang\n{traceback.format_exc()}"
    except BaseException:  # noqa: BLE001
        return traceback.format_exc()
    return ""


def read_and_lower(path: Path, given: Path | None) -> None:
    to_program(read_model(path, given))


def beside(path: Path) -> Path:
    """A good µGraph of mcfuser/G1 in the same folder."""
    good = path.parent / "good.json"
    if not good.exists():
        good.write_text(json.dumps(graphs()[0]))
    return good


FORMS = [cli("show", "{}", "--as", form) for form in ("text", "threads", "mermaid", "dot")]
KINDS: dict[str, tuple[Make, str, list[Judge]]] = {
    "relay": (relay, "m.json", [imported]),
    "params": (params, "m.params", [lambda path: imported(RELAY / "encoder_onnx.json", path)]),
    "mugraph": (mugraph, "g.json", [cli("show", "{}", "--json"), *FORMS, cli("verify", "mcfuser/G1", "{}", "--rounds", "1")]),
    "program": (program, "p.json", [lambda path: judged(["verify", str(path), str(beside(path)), "--rounds", "1"])]),
    "mirage": (mirage, "x.json", [cli("show", "{}"), cli("verify", "mirage/rmsnorm", "{}", "--rounds", "1")]),
    "device": (
        device,
        "d.toml",
        [cli("devices", "{}", "--json"), cli("devices", "{}"), cli("explain", "mcfuser/G1", "--target", "{}")],
    ),
    "result": (result, "r.json", [cli("bench", "--table", "{}"), cli("bench", "--table", "{}", "--json")]),
    "rows": (rows, "r.jsonl", [cli("bench", "mcfuser", "--case", "G1", "--schedules", "{}", "--dry-run", "--random", "0")]),
}


def judge(kind: str, number: int, folder: Path) -> str:
    """What is wrong with the end of case ``number`` of a kind; empty where nothing is."""
    make, name, judges = KINDS[kind]
    path = folder / name
    path.write_bytes(make(np.random.default_rng((sorted(KINDS).index(kind), number))))
    for one in judges:
        if why := one(path):
            return why
    return ""


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_end_in_a_result_or_an_error(kind: str, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bad = {n: why for n in range(COUNT) if (why := judge(kind, n, tmp_path))}
    assert not bad, f"{len(bad)} of {COUNT}, the first: {next(iter(bad.items()))}"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 << 20, "more than 2 GiB"


def campaign(count: int, kinds: list[str]) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    total, bad = 0, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds or list(KINDS):
            start, slowest = time.perf_counter(), 0.0
            for n in range(count):
                began = time.perf_counter()
                why = judge(kind, n, Path(folder))
                slowest = max(slowest, time.perf_counter() - began)
                total += 1
                if why:
                    last = why.strip().splitlines()
                    bad[kind] += 1
                    print(f"--- {kind} {n}: " + " | ".join(line.strip() for line in last[-7:])[-900:])
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            seconds = time.perf_counter() - start
            print(f"{kind}: {count} files, {bad[kind]} bad, slowest {slowest:.1f} s, {seconds:.0f} s, {memory} MiB", flush=True)
    print(f"{total} damaged files, {bad.total()} bad")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(campaign(int(sys.argv[1]), sys.argv[2:]))
