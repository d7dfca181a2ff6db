"""Work on foreign modules inside TVM, in a process of its own.

TVM trusts the graphs that it is given: a wrong one can end the process that it runs in, or keep it busy for ever. So a model is
loaded, typed, built and compared by a child with a limit of time, and whatever happens to it there is one error that says what it
was doing.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Literal
from typing import Protocol

import numpy as np

from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.files import printable
from fuser.ir.added import packed
from fuser.ir.added import unpack
from fuser.ir.ops import Array
from fuser.outputs import replace_by
from search.regions import Left
from tvm_bridge.flavour import require_relay
from tvm_bridge.result import Comparison
from tvm_bridge.result import FusedRegion
from tvm_bridge.result import Optimized
from tvm_bridge.to_program.relay_import import arrays_of
from tvm_bridge.to_program.relay_import import module_text

if TYPE_CHECKING:
    from tvm_bridge.back.relay import LoadedModel

Executor = Literal["graph", "vm"]
Stage = Callable[[str], Any]

CHILD = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from tvm_bridge.apart import serve; serve(sys.argv[2])"

DOING = {
    "start": "it started",
    "load": "it loaded {}",
    "build": "it built {}",
    "compare": "it ran {}",
    "export": "it wrote the library of {}",
}
"""What the child says that it does."""

START_SECONDS, SECONDS_A_CALL = 300.0, 2.0
"""The limit of time, where the user sets none: importing TVM, and every call of the model (all of BERT-base takes a minute)."""


@dataclass(frozen=True)
class Job:
    """A model to be built; ``name`` is what its user calls it. ``result`` comes without the values of parameters, which are in
    the file ``params``. Without a result the model is only typed."""

    name: str
    model: str
    params: str | None
    result: Optimized | None = None
    compare: bool = False
    executor: Executor = "graph"

    def do(self, folder: Path, stage: Stage) -> Any:
        """The model built, compared and exported (by the child)."""
        return _do(self, folder, stage)


class Work(Protocol):
    """What a child does; ``name`` is what the user calls it. ``do`` leaves files in the folder, says at which stage of
    :data:`DOING` it is, and returns what can be pickled."""

    @property
    def name(self) -> str: ...

    def do(self, folder: Path, stage: Stage) -> Any: ...


def seconds_for(job: Job) -> float:
    """How long a job may take."""
    calls = len(job.result.imported.model.graph.nodes) if job.result else 0
    return START_SECONDS + SECONDS_A_CALL * calls


@dataclass(frozen=True)
class _Answer:
    """What the build changed of a result, and the kind of device that the library runs on."""

    regions: tuple[FusedRegion, ...]
    left: tuple[Left, ...]
    after_us: float
    notes: tuple[str, ...]
    comparison: Comparison | None
    device: str


# -- the child ----------------------------------------------------------------------------------------------------------------


def serve(folder: str) -> None:
    """The child: does ``folder/job`` and leaves ``folder/answer``."""
    _settle()
    added, work = pickle.loads(Path(folder, "job").read_bytes())
    unpack(added)
    job: Work = pickle.loads(work)
    answer: Any
    try:
        answer = job.do(Path(folder), lambda stage: Path(folder, "stage").write_text(stage))
    except FuserError as error:
        answer = error
    except MemoryError:
        answer = EnvironmentError_(f"there is not enough memory to build {job.name}", "give it a machine with more memory")
    except Exception as error:  # noqa: BLE001  TVM raises many classes; all of them mean that it cannot do this
        answer = _failed(job.name, error)
    Path(folder, "answer").write_bytes(pickle.dumps(answer))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what TVM does at its end may fail, and nobody waits for it


def _settle() -> None:
    """Nothing of the child outlives its parent or gets in its way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the child
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # of all processes this one may go first
    with suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _failed(name: str, error: Exception) -> FuserError:
    lines = str(error).strip().splitlines() or [""]
    return UnsupportedError(
        f"TVM cannot build {name}: {type(error).__name__}: {printable(lines[-1], 400)}",
        "give --no-library or --runtime torch (build=False) to have the kernels alone",
    )


def _do(job: Job, folder: Path, stage: Stage) -> Any:
    stage("load")
    require_relay()
    from tvm_bridge.back import live
    from tvm_bridge.back.relay import BuiltModel

    mod, arrays = live.load(job.model, job.params, job.name)
    if job.result is None:
        return module_text(mod)
    stage("build")
    result = live.build(_with_params(job.result, arrays_of(arrays) or {}), mod, arrays)
    built = result.built
    assert isinstance(built, BuiltModel)
    if job.compare:
        stage("compare")
        result = replace(result, comparison=live.compare(result, mod, arrays, np.random.default_rng(result.seed)))
    stage("export")
    notes = result.notes
    try:
        built.export(folder / f"{job.executor}.so", job.executor)
    except EnvironmentError_ as error:
        notes = (*notes, f"the library was not exported: {error.message}")
    import tvm

    (folder / "carved.json").write_text(tvm.ir.save_json(built.module))
    regions = tuple(replace(r, weights={}) for r in result.regions)
    return _Answer(regions, result.left, result.after_us, notes, result.comparison, str(built.target.kind.name))


def _with_params(result: Optimized, params: Mapping[str, Array]) -> Optimized:
    imported = result.imported
    original = replace(imported, model=replace(imported.model, params=params, inlined=""), params={})
    return replace(result, file=replace(result.file, imported=replace(result.file.imported, params={}), original=original))


# -- the parent ---------------------------------------------------------------------------------------------------------------


def run(job: Work, folder: Path, seconds: float) -> Any:
    """The child's answer to a job; raises what stands in its way."""
    for name in ("answer", "stage"):
        (folder / name).unlink(missing_ok=True)
    (folder / "job").write_bytes(pickle.dumps((packed(), pickle.dumps(job))))
    command = [sys.executable, "-c", CHILD, json.dumps([p or os.getcwd() for p in sys.path]), str(folder)]
    environment = {"TOPHUB_LOCATION": "NONE"} | os.environ
    with (folder / "log").open("wb") as log:
        # a session of its own: Ctrl-C is for us alone, and what the child starts ends with it
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise EnvironmentError_(
                f"TVM did not finish within {seconds:.0f} s: {_doing(job, folder)}",
                "give it more time (--timeout), or leave TVM out (--no-library, --runtime torch)",
            ) from None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    try:
        answer = pickle.loads((folder / "answer").read_bytes()) if code == 0 else None
    except (OSError, EOFError, pickle.UnpicklingError):
        answer = None
    if answer is None:
        raise _death(job, folder, code)
    if isinstance(answer, FuserError):
        raise answer
    return answer


def _doing(job: Work, folder: Path) -> str:
    try:
        stage = (folder / "stage").read_text()
    except OSError:
        stage = "start"
    return "while " + DOING.get(stage, DOING["start"]).format(job.name)


def _death(job: Work, folder: Path, code: int) -> FuserError:
    doing = _doing(job, folder)
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"exit code {code}"
    if name == "SIGKILL":
        return EnvironmentError_(
            f"the process that runs TVM was killed {doing}: there was probably not enough memory",
            "give it a machine with more memory, or leave TVM out (--no-library, --runtime torch)",
        )
    hint = "save the model again with the TVM that is installed, or leave TVM out (--no-library, --runtime torch)"
    if "it loaded" in doing:
        return ModelFileError(f"TVM crashed ({name}) {doing}", hint)
    last = (folder / "log").read_text(errors="replace").strip().splitlines()[-1:]
    if "it started" in doing:
        return EnvironmentError_(f"TVM does not start ({name}): {printable(''.join(last), 300)}", "install it again")
    return UnsupportedError(f"TVM crashed ({name}) {doing}", hint)


class Folder:
    """A folder for one job and what comes of it; it goes with the last user of this object."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="mufuser-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True)
class Library:
    """A model built in a process of its own. What ran there once is loaded and runs in this process."""

    job: Job = field(repr=False)
    seconds: float
    device: str
    folder: Folder = field(repr=False)

    def _path(self, executor: Executor) -> Path:
        path = Path(self.folder.path, f"{executor}.so")
        if not path.exists():
            run(replace(self.job, executor=executor, compare=False), self.folder.path, self.seconds)
        if not path.exists():
            raise EnvironmentError_("the library was not exported", "install gcc or clang, or set CXX")
        return path

    def _load(self, executor: Executor) -> LoadedModel:
        from tvm_bridge.back.relay import load

        return load(self._path(executor), self.device)

    @cached_property
    def loaded(self) -> LoadedModel:
        """The model on the graph executor of this process."""
        return self._load("graph")

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Run on the graph executor: outputs in order, for ``inputs`` by name."""
        return self.loaded.run(inputs)

    def vm(self) -> LoadedModel:
        """The same model compiled for Relay's virtual machine."""
        return self._machine

    @cached_property
    def _machine(self) -> LoadedModel:
        return self._load("vm")

    @cached_property
    def module(self) -> Any:
        """The carved Relay module."""
        import tvm

        return tvm.ir.load_json(Path(self.folder.path, "carved.json").read_text())

    def export(self, path: str | Path, executor: Executor = "graph") -> Path:
        """Write a shared library that :func:`tvm_bridge.back.relay.load` reads, in any process."""
        path = Path(path)
        if path.suffix != ".so":
            raise UsageError(f"a library ends in .so, not {path.name!r}")
        library = self._path(executor)
        replace_by(path, lambda partial: shutil.copyfile(library, partial))
        return path


def build(job: Job, folder: Folder, seconds: float | None = None) -> Optimized:
    """What :func:`tvm_bridge.back.live.build` and ``compare`` make of ``job.result``; with a :class:`Library` if it could be
    linked.

    ``seconds`` limits the time. Raises the child's own errors; :class:`ModelFileError` where TVM crashes on the file,
    :class:`UnsupportedError` where it does so later, :class:`EnvironmentError_` where time or memory run out.
    """
    result = job.result
    assert result is not None
    slim = replace(job, result=replace(_with_params(result, {}), built=None, made=None, trial=None))
    limit = seconds_for(job) if seconds is None else seconds
    done: _Answer = run(slim, folder.path, limit)
    library = Library(slim, limit, done.device, folder) if Path(folder.path, "graph.so").exists() else None
    weights = {r.name: r.weights for r in result.regions}
    return replace(
        result,
        regions=tuple(replace(r, weights=weights[r.name]) for r in done.regions),
        left=done.left,
        after_us=done.after_us,
        notes=done.notes,
        comparison=done.comparison,
        built=library,
    )


def infer_types(name: str, model: Path, seconds: float = START_SECONDS) -> str:
    """The text of a module in which every expression has a type, from one that may have none."""
    folder = Folder()
    return run(Job(name, str(model), None), folder.path, seconds)
