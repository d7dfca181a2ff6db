"""What a path may lead to that is no regular file of text: every reader says so at once."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import RELAY
from tests.test_damaged_files import graphs
from tests.test_damaged_files import run

GOOD = (RELAY / "old_0_8.json").read_bytes()
MODEL = str(RELAY / "encoder_onnx.json")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


def sparse_behind_a_brace(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b'{"nodes": [')
        file.truncate(1 << 30)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path)


MAKERS = {
    "fifo": fifo,
    "folder": lambda path: path.mkdir(),
    "dev_zero": zeros,
    "dev_null": lambda path: path.symlink_to("/dev/null"),
    "loop": loop,
    "missing": lambda path: None,
    "sparse": sparse,
    "sparse_behind_a_brace": sparse_behind_a_brace,
    "empty": lambda path: path.write_bytes(b""),
    "gzip": lambda path: path.write_bytes(gzip.compress(GOOD)),
    "utf_16": lambda path: path.write_bytes(GOOD.decode().encode("utf-16")),
    "utf_32": lambda path: path.write_bytes(GOOD.decode().encode("utf-32")),
    "null": lambda path: path.write_bytes(b"null"),
    "number": lambda path: path.write_bytes(b"1"),
    "twice": lambda path: path.write_bytes(b'{"root": 1, "root": 2, "nodes": []}'),
    "sqlite": lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(100)),
    "proc_mem": lambda path: path.symlink_to("/proc/self/mem"),
}
COMMANDS = {
    "model": ("m.json", ["optimize", "{}", "--no-library", "-o", "{out}"], (3,)),
    "params": ("m.params", ["optimize", MODEL, "--params", "{}", "--no-library", "-o", "{out}"], (3,)),
    "mugraph": ("g.json", ["show", "{}"], (3,)),
    "program": ("p.json", ["verify", "{}", "{good}"], (3,)),
    "device_json": ("d.json", ["explain", "mcfuser/G1", "--target", "{}"], (2,)),
    "device": ("d.toml", ["explain", "mcfuser/G1", "--target", "{}"], (2,)),
    "result": ("r.json", ["bench", "--table", "{}"], (3,)),
    "rows": ("r.jsonl", ["bench", "mcfuser", "--case", "G1", "--schedules", "{}", "--dry-run", "--random", "0"], (2, 3)),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_reader_refuses_it(command: str, tmp_path: Path) -> None:
    import json

    name, args, codes = COMMANDS[command]
    (tmp_path / "good.json").write_text(json.dumps(graphs()[0]))
    for kind, make in MAKERS.items():
        if command == "rows" and kind in ("empty", "sqlite"):
            continue  # no rows, and a last line that was cut off
        folder = tmp_path / kind
        folder.mkdir()
        make(folder / name)
        marks = {"{}": folder / name, "{out}": tmp_path / "out", "{good}": tmp_path / "good.json"}
        code, _, err = run([str(marks.get(a, a)) for a in args])
        assert (kind, code in codes) == (kind, True), f"{kind}: {code} {err}"
        assert err.count("error: ") == 1


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    import json

    path = tmp_path / "g.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(graphs()[0]).encode())
    assert run(["show", str(path)])[0] == 0


def test_names_of_a_model_do_not_reach_the_terminal(tmp_path: Path) -> None:
    import json

    graph = json.loads(json.dumps(graphs()[0]).replace('"A"', '"A\\u001b[31m\\u202e\\n"'))
    path = tmp_path / "g.json"
    path.write_text(json.dumps(graph))
    for form in ("text", "threads", "mermaid", "dot"):
        code, out, err = run(["show", str(path), "--as", form])
        assert code in (0, 2, 3)
        assert not {"\x1b", "\u202e"} & set(out + err)
    code, out, _ = run(["show", str(path), "--json"])
    assert "\x1b" not in out
    assert code or "A\x1b[31m\u202e\n" in json.loads(out)["graph"]["inputs"]


@pytest.mark.skipif(not Path("/proc/self").exists() or os.geteuid() != 0, reason="needs a file system that root cannot write")
def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    for place in ("/proc/self/none", "/sys/kernel/none"):
        code, _, err = run(["superoptimize", "mirage/mlp", "--save", place])
        assert (code, err.count("error: cannot write")) == (2, 1)


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    command = (
        f"mount -t tmpfs -o size=8k none {tmp_path} && {sys.executable} -m fuser superoptimize mirage/mlp --budget 10 "
        f"--processes 1 --most 8 --save {tmp_path}"
    )
    done = subprocess.run(["unshare", "-rm", "bash", "-c", command], capture_output=True, text=True, timeout=100, check=False)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("no file systems can be mounted here")
    assert done.returncode == 6, done.stderr
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
