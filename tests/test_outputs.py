"""Files that we write: whole or not at all."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuser import kept
from fuser import outputs
from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import UsageError
from fuser.outputs import locked
from fuser.outputs import make_folder
from fuser.outputs import replace_by
from fuser.outputs import replacing
from fuser.outputs import write_file


@pytest.fixture
def nearly_full() -> Iterator[None]:
    """No file of this process grows beyond 4 KB."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_file_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_file(path, "one é \ud800")
    assert path.read_text() == "one é \\ud800"
    path.chmod(0o600)
    write_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    link = tmp_path / "link"
    link.symlink_to(path)
    write_file(link, "three")
    assert link.is_symlink()
    assert path.read_text() == "three"
    assert {p.name for p in tmp_path.iterdir()} == {"a.txt", "link"}


def test_what_can_be_found_again_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(outputs.os, "fsync", synced.append)
    kept.write(tmp_path / "found.json", [1, 2])
    assert kept.read(tmp_path / "found.json") == [[1, 2]]
    assert not synced
    write_file(tmp_path / "mine.txt", "made")
    assert len(synced) == 1


@pytest.mark.usefixtures("nearly_full")
def test_a_full_disk_costs_nothing_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_file(path, "old")
    with pytest.raises(EnvironmentError_, match=r"a\.txt") as found:
        write_file(path, "x" * 10_000)
    assert found.value.exit_code == 6
    with pytest.raises(EnvironmentError_):
        replace_by(path, lambda p: p.write_bytes(b"x" * 10_000))
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ZeroDivisionError])
def test_what_ends_early_leaves_the_old_file(tmp_path: Path, kind: type[BaseException]) -> None:
    path = tmp_path / "a.txt"
    write_file(path, "old")
    with pytest.raises(kind), replacing(path) as file:
        file.write(b"half")
        raise kind
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    bad = ["folder", "loop", "none/a", "file/a", "x" * 300, "nul\0"]
    for name in bad:
        with pytest.raises(FuserError) as found:
            write_file(tmp_path / name, "text")
        assert isinstance(found.value, UsageError), name
    for name in ("file", "file/a", "loop"):
        with pytest.raises(UsageError, match=name):
            make_folder(tmp_path / name)
    with pytest.raises(EnvironmentError_, match="full"):
        write_file("/dev/full", "text")
    write_file("/dev/null", "text")
    assert Path("/dev/null").is_char_device()
    assert (tmp_path / "file").read_text() == "here"


def test_a_lock_of_a_folder_keeps_others_waiting(tmp_path: Path) -> None:
    code = "import sys; from fuser.outputs import locked\nwith locked(sys.argv[1]): print('in', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        order: list[str] = []

        def enter() -> None:
            with locked(tmp_path):
                order.append("second")

        waiting = threading.Thread(target=enter)
        waiting.start()
        waiting.join(0.1)
        order.append("first")
        other.communicate(b"")
        waiting.join(5)
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


def test_no_reader_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_file(path, "0" * 200_000)
    writer = threading.Thread(target=lambda: [write_file(path, str(i % 10) * 200_000) for i in range(50)])
    writer.start()
    seen = set()
    while writer.is_alive():
        text = path.read_text()
        seen.add((len(text), len(set(text))))
    assert seen <= {(200_000, 1)}
