"""The shell: verbs as data, errors as documents, exit codes."""

from __future__ import annotations

import errno
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import typer

from fuser import cli
from fuser.cli import VERBS
from fuser.cli import Verb
from fuser.cli import main
from fuser.console import bytes_text
from fuser.console import print_json
from fuser.console import progress
from fuser.console import rate_text
from fuser.console import time_text
from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.errors import NothingSupportedError
from fuser.errors import NoValidKernelError
from fuser.lower.attempts import unwritten
from fuser.lower.compile import cache_dir


def greet(name: str, json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Say a name."""
    print(f"{name} {json}")


def interrupted() -> None:
    raise KeyboardInterrupt


def aborted() -> None:
    raise typer.Abort


def with_code() -> int:
    return 5


def unreadable() -> None:
    raise ModelFileError("model.json ends early", "copy it again")


def unsupported() -> None:
    raise NothingSupportedError("no region")


def no_kernel(json: Annotated[bool, typer.Option("--json")] = False) -> None:
    raise NoValidKernelError("all candidates failed")


def needs_tvm() -> None:
    raise ModuleNotFoundError("No module named 'tvm.relay'", name="tvm.relay")


def a_bug() -> None:
    raise ModuleNotFoundError("No module named 'frobnicate'", name="frobnicate")


def a_renamed_function() -> None:
    raise ImportError("cannot import name 'x' from 'fuser.ir'", name="fuser.ir")


def lacks_a_library() -> None:
    raise ImportError("libcudart.so.12: cannot open shared object file", name="torch._C")


def verbs(*functions: object) -> dict[str, Verb]:
    names = [f.__name__ for f in functions]  # type: ignore[attr-defined]
    return {n: Verb(f"{__name__}:{n}", n) for n in names}


def test_a_verb_gets_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["greet", "you", "--json"], verbs(greet)) == 0
    assert capsys.readouterr().out == "you True\n"


@pytest.mark.parametrize(
    ("function", "code"), [(interrupted, 130), (aborted, 130), (with_code, 5), (unreadable, 3), (unsupported, 4), (needs_tvm, 6)]
)
def test_exit_codes(function: object, code: int) -> None:
    table = verbs(function)
    assert main(list(table), table) == code
    assert code in dict(cli.EXIT_CODES)


def test_every_error_of_the_catalogue_has_a_documented_exit_code() -> None:
    def subclasses(kind: type[FuserError]) -> set[type[FuserError]]:
        return {kind}.union(*(subclasses(k) for k in kind.__subclasses__()))

    assert {k.exit_code for k in subclasses(FuserError)} <= set(dict(cli.EXIT_CODES))


def test_error_and_hint_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    main(["unreadable"], verbs(unreadable))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "error: model.json ends early\nhint: copy it again\n"


def test_json_errors_are_documents(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no_kernel", "--json"], verbs(no_kernel)) == 5
    document = json.loads(capsys.readouterr().out)
    assert document == {"error": {"code": "no-valid-kernel", "message": "all candidates failed", "hint": ""}}


def test_wrong_option_is_a_usage_error_in_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["greet", "you", "--json", "--bogus"], verbs(greet)) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out)["error"]["code"] == "usage"
    assert "--bogus" in printed.err and "mufuser greet --help" in printed.err


@pytest.mark.parametrize(("words", "part"), [(["", "--json"], "an argument"), (["you", "--json="], "the value of --json")])
def test_what_is_empty_is_refused(words: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A variable that is not set would be this folder, say."""
    assert main(["greet", *words], verbs(greet)) == 2
    assert f"error: {part} is empty" in capsys.readouterr().err


def test_missing_package_names_the_extra(capsys: pytest.CaptureFixture[str]) -> None:
    main(["needs_tvm"], verbs(needs_tvm))
    assert "mufuser[relay]" in capsys.readouterr().err


def test_a_bug_stays_a_traceback() -> None:
    with pytest.raises(ModuleNotFoundError, match="frobnicate"):
        main(["a_bug"], verbs(a_bug))
    with pytest.raises(ImportError, match="cannot import name"):
        main(["a_renamed_function"], verbs(a_renamed_function))


def test_a_package_that_cannot_be_loaded_is_said_to_be_that(capsys: pytest.CaptureFixture[str]) -> None:
    """As torch is where a library of CUDA is missing, or memory."""
    assert main(["lacks_a_library"], verbs(lacks_a_library)) == 6
    assert "mufuser lacks_a_library needs cannot be loaded: libcudart.so.12: cannot open" in capsys.readouterr().err


def test_unknown_verb_has_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimise"]) == 2
    assert "did you mean optimize?" in capsys.readouterr().err


def test_overview_lists_every_verb_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in VERBS)
    assert max(map(len, text.splitlines())) <= 80
    assert main([]) == 2


@pytest.mark.parametrize("name", sorted(VERBS))
def test_every_verb_has_a_function_with_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.load(VERBS[name]).__doc__
    assert main([name, "--help"]) == 0
    assert name in capsys.readouterr().out


def test_module_and_version() -> None:
    done = subprocess.run([sys.executable, "-m", "fuser", "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("mufuser ")


def test_documents_are_strict_json(capsys: pytest.CaptureFixture[str]) -> None:
    value = {
        "nan": math.nan,
        "inf": [np.float32("inf")],
        "n": np.int64(3),
        "a": np.eye(2),
        "p": Path("a/b"),
        "s": {"y", "x"},
        "v": VERBS["space"],
    }
    print_json(value)
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "nan": None,
        "inf": [None],
        "n": 3,
        "a": [[1, 0], [0, 1]],
        "p": "a/b",
        "s": ["x", "y"],
        "v": {"target": "search.commands:space", "help": VERBS["space"].help},
    }


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (time_text(12.34e-6), "12.3 µs"),
        (time_text(1.25), "1.25 s"),
        (time_text(5e-10), "0.5 ns"),
        (bytes_text(166912), "163 KiB"),
        (bytes_text(12), "12 B"),
        (rate_text(4.8e12, "B/s"), "4.8 TB/s"),
        (rate_text(989.4e12, "FLOP/s"), "989.4 TFLOP/s"),
    ],
)
def test_units(found: str, text: str) -> None:
    assert found == text


def test_progress_in_a_log_is_short_and_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("compile", total=200) as step:
        for i in range(200):
            step(f"kernel [{i}]")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 10
    assert printed.err.endswith("compile: 200/200 kernel [199]\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("args", [["devices"], ["devices", "--json"], ["--help"]])
def test_an_output_that_takes_nothing_is_said(args: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "fuser", *args], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 6
    assert "error: the output cannot be written: No space left on device" in done.stderr


def test_a_cache_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path / "file" / "cache"))
    assert main(["records", "list"]) == 6
    said = " ".join(capsys.readouterr().err.split())
    assert f"{tmp_path}/file/cache" in said and "set MUFUSER_CACHE" in said
    place = tmp_path / "file" / "triton"
    error = unwritten("kernel", tmp_path / "cache", NotADirectoryError(errno.ENOTDIR, "Not a directory", str(place)))
    assert error.message == f"kernel cannot be compiled: {place}: Not a directory"
    assert f"MUFUSER_CACHE (now {tmp_path}/cache)" in error.hint
    assert "free some space" in unwritten("kernel", tmp_path, OSError(errno.ENOSPC, "No space left on device")).hint


def test_a_cache_folder_may_begin_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What sets the variable may be no shell: a folder of this name was made where the command ran."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MUFUSER_CACHE", "~/cache")
    assert cache_dir("records") == tmp_path / "cache" / "records"
