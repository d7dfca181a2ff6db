"""Ctrl-C and SIGTERM at any moment of any verb, and readers that go away: one line, the exit code, no child left.

``python -m tests.test_interrupts N [VERB…]`` interrupts N times at moments spread over each command's time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from search.measure.records import Records
from tests.paths import RELAY

MUFUSER = (sys.executable, "-m", "fuser")
COMMANDS: dict[str, tuple[str, ...]] = {
    "devices": (*MUFUSER, "devices", "h200"),
    "space": (*MUFUSER, "space", "--gemm-chain", "1024", "1024", "512", "512"),
    "explain": (*MUFUSER, "explain", "mcfuser/S2"),
    "tune": (*MUFUSER, "tune", "mcfuser/G1", "mcfuser/G2", "mcfuser/S1", "-o", "{out}"),
    "tune-measured": (*MUFUSER, "tune", "mcfuser/G1", "mcfuser/G4", "--effort", "full:60", "--simulate", "1", "--records",
                      "{out}/records.sqlite", "--json"),
    "superoptimize": (*MUFUSER, "superoptimize", "mirage/mlp", "mirage/rmsnorm", "--budget", "20", "--save", "{out}"),
    "verify": (*MUFUSER, "verify", "mcfuser/G1", "{graph}", "--rounds", "30"),
    "show": (*MUFUSER, "show", "{graph}"),
    "optimize": (*MUFUSER, "optimize", f"{RELAY}/encoder_onnx.json", "--params", f"{RELAY}/encoder_onnx.params", "-o", "{out}"),
    "bench-dry": (*MUFUSER, "bench", "mcfuser", "--dry-run"),
    "bench-cpu": (*MUFUSER, "bench", "mcfuser", "--case", "G1", "--on", "cpu", "--peers", "none", "-o", "{out}", "--top", "1",
                  "--best", "0"),
    "demo": (sys.executable, "-m", "experiments.demo", "bert-base", "--layers", "1", "-o", "{out}"),
    "mutants": (sys.executable, "-m", "experiments.mirage.mutants", "--mutants", "50", "--out", "{out}/m.json"),
}  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """``left``: processes of its session that are still there."""

    code: int
    stdout: str
    stderr: str
    left: tuple[int, ...]
    signalled: bool


def interrupted(
    command: tuple[str, ...],
    after: float | Callable[[int], bool],
    group: bool,
    number: int = signal.SIGINT,
    graph: str = "",
    out: str = "",
) -> Ended:
    """Start a command in a session of its own and send a signal ``after`` seconds, or when that is so of it, to its group or to
    it alone."""
    args = [a.format(out=out, graph=graph) for a in command]
    env = os.environ | {"PYTHONPATH": os.getcwd(), "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        child = subprocess.Popen(args, stdout=stdout, stderr=stderr, start_new_session=True, env=env)
        if signalled := not _ends(child, after):
            (os.killpg if group else os.kill)(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(30)
        left = session(child.pid)
        for _ in range(20):
            if not left:
                break
            time.sleep(0.1)
            left = session(child.pid)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        code = child.wait()
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read())
    return Ended(code, texts[0], texts[1], left, signalled)


def _ends(child: subprocess.Popen[bytes], after: float | Callable[[int], bool]) -> bool:
    """Whether it ends before some seconds have passed, or something is so of it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        while callable(after) and child.poll() is None and not after(child.pid):
            time.sleep(0.05)
        child.wait(0 if callable(after) else after)
    return child.poll() is not None


def session(leader: int) -> tuple[int, ...]:
    """Processes (no zombies) of a session."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_bytes().rsplit(b")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if int(fields[3]) == leader and fields[0] != b"Z":
            found.append(int(name))
    return tuple(found)


def fault(end: Ended, wanted: int = 130) -> str:
    """What is wrong with how a command ended; empty where nothing is."""
    lines = end.stderr.splitlines()
    if not end.signalled or end.code in (0, 4, 5):
        return end.stderr[-1500:] if "Traceback" in end.stderr else "processes left" * bool(end.left)
    ours = [line for line in lines if 'File "' in line and 'File "<frozen' not in line]
    if (end.code == -signal.SIGINT and not ours) or end.code == -signal.SIGTERM or "import_site" in end.stderr:
        return "python"  # the interpreter itself was starting: nothing of ours had run
    said = [i for i, line in enumerate(lines) if line.startswith(("interrupted", "terminated"))]
    if end.left:
        return f"processes left: {end.left}"
    if end.code != wanted:
        return f"exit code {end.code}: {end.stderr[-1500:]}"
    if len(said) != 1:
        return f"not one line: {end.stderr[-1500:]}"
    if "Traceback" in end.stderr or "Warning" in end.stderr or "Exception" in end.stderr:
        return f"noise: {end.stderr[-1500:]}"
    return ""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    return good_graph(tmp_path_factory.mktemp("graph"))


def good_graph(folder: Path) -> str:
    from fuser.superopt.structures import structures
    from fuser.workloads import workload

    path = folder / "graph.json"
    path.write_text(json.dumps(structures(workload("mcfuser/G1"))[0].to_json()))
    return str(path)


@pytest.mark.parametrize(
    ("name", "after", "group", "number"),
    [
        ("space", 0.5, False, signal.SIGINT),
        ("tune", 4.0, True, signal.SIGINT),
        ("superoptimize", 2.5, True, signal.SIGINT),
        ("tune", 3.0, False, signal.SIGTERM),
    ],
)
def test_a_signal_ends_a_command_in_one_line(
    name: str, after: float, group: bool, number: int, graph: str, tmp_path: Path
) -> None:
    end = interrupted(COMMANDS[name], after, group, number, graph, str(tmp_path))
    assert fault(end, 130 if number == signal.SIGINT else 143) in ("", "python")


THREAD = """
import os, signal, sys, threading, time
from fuser.interrupts import as_process

def command():
    gone = threading.Event()

    def waits():
        gone.wait()
        raise RuntimeError("its children are gone")

    thread = threading.Thread(target=waits)
    thread.start()
    try:
        if sys.argv[1:]:
            os.kill(os.getpid(), signal.SIGINT)
        return 0
    finally:
        gone.set()
        thread.join()

sys.exit(as_process(command))
"""


def test_what_a_signal_breaks_in_a_thread_is_not_said() -> None:
    """A pool's thread, say, whose processes are gone. Without a signal it is."""
    args = (sys.executable, "-c", THREAD)
    end = subprocess.run((*args, "signal"), check=False, capture_output=True, text=True)
    assert (end.returncode, end.stderr) == (130, "interrupted\n")
    assert "its children are gone" in subprocess.run(args, check=False, capture_output=True, text=True).stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "group", "number"), [(0.5, True, 2), (4.0, True, 2), (8.0, False, 2), (14.0, True, 2), (14.0, False, 15)]
)
def test_a_search_that_is_stopped_keeps_what_it_has(seconds: float, group: bool, number: int, tmp_path: Path) -> None:
    """Stopped after seconds of processor time, however busy the machine is."""
    command = tuple(a.replace("full:60", "full:600") for a in COMMANDS["tune-measured"])
    end = interrupted(command, partial(busy, seconds), group, number, out=str(tmp_path))
    assert fault(end, 130 if number == signal.SIGINT else 143) in ("", "python")
    if end.stdout:
        document = json.loads(end.stdout)
        assert document["interrupted"]
        assert all(w["measured_us"] > 0 and w["kernels"] for w in document["workloads"])
        with Records(tmp_path / "records.sqlite") as records:
            kept = {w.workload: w for w in records.winners()}
        assert set(kept) == {w["workload"] for w in document["workloads"]}
        assert {w.effort for w in kept.values()} == {""}
    assert end.stdout or seconds < 14


def busy(seconds: float, pid: int) -> bool:
    """Whether a process has used so many seconds of processor time."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") > seconds
    return False


def test_what_killed_children_leave_is_cleaned_up_without_a_word() -> None:
    script = (
        "from multiprocessing.resource_tracker import register; from fuser.interrupts import as_process; "
        "raise SystemExit(as_process(lambda: register('/mufuser-none', 'semaphore') or 0))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("more", ["", " --json"])
def test_a_reader_that_goes_away_ends_a_command_quietly(more: str) -> None:
    command = f"{' '.join(MUFUSER)} devices h200 a100 b200{more} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] in ("0", "141")


def test_a_help_that_nobody_reads_ends_like_all_else() -> None:
    """rich ends the process with 1 there."""
    command = f"{' '.join(MUFUSER)} devices --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_a_full_disk_behind_stdout_is_an_error_of_the_machine() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    for words, code in ((["devices"], 6), (["devices", "--json"], 6), (["devices", "nowhere", "--json"], 2)):
        with open("/dev/full", "w") as full:
            done = subprocess.run([*MUFUSER, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        assert done.returncode == code
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr


def test_an_error_that_cannot_be_said_keeps_its_code() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run([*MUFUSER, "devices", "nowhere"], stderr=full, timeout=60, check=False)
    assert done.returncode == 2


def test_closed_streams_are_no_error() -> None:
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        done = subprocess.run(
            ["bash", "-c", f"{' '.join(MUFUSER)} devices {closed}"], capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0


def campaign(count: int, names: list[str]) -> int:
    bad, total, python, done = Counter[str](), 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        graph = good_graph(Path(folder))
        for name in names or list(COMMANDS):
            start = time.perf_counter()
            whole = interrupted(COMMANDS[name], 150, False, signal.SIGINT, graph, f"{folder}/out-{name}")
            length = time.perf_counter() - start
            print(
                f"{name}: {length:.1f} s, exit code {whole.code} {whole.stderr[-200:] if whole.code not in (0, 4, 5) else ''}",
                flush=True,
            )
            for i in range(count):
                after = 0.05 + (length - 0.05) * i / count
                end = interrupted(COMMANDS[name], after, bool(i % 2), signal.SIGINT, graph, f"{folder}/out-{name}")
                why = fault(end)
                total += end.signalled
                python += why == "python"
                done += end.signalled and end.code in (0, 4, 5)
                if why not in ("", "python"):
                    bad[name] += 1
                    print(f"--- {name} after {after:.2f} s{' (group)' * (i % 2)}: {why}", flush=True)
    print(f"{total} interruptions, {bad.total()} bad; {python} while Python itself was starting, {done} at the very end")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(campaign(int(sys.argv[1]), sys.argv[2:]))
