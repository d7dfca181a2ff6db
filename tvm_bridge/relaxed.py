"""A whole model as one library that TVM 0.27 runs: made in a process of its own, kept in a folder until it is exported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

from fuser.errors import UsageError
from fuser.ir.ops import Array
from fuser.outputs import replace_by
from fuser.outputs import write_file
from search.buckets.bucketed import Bucket
from search.compiled import CompiledProgram
from tvm_bridge.apart import START_SECONDS
from tvm_bridge.apart import Folder
from tvm_bridge.apart import Stage
from tvm_bridge.apart import run
from tvm_bridge.back.bucket_recipe import BucketRecipe
from tvm_bridge.back.bucket_recipe import recipe_of_buckets
from tvm_bridge.back.recipe import Recipe
from tvm_bridge.back.recipe import recipe_of
from tvm_bridge.back.relax_launch import Code
from tvm_bridge.flavour import require_relax

INSIDE, BESIDE = "inside", "beside"
ABOUT = "model.json"
"""The file beside a library that says what it is, as its function ``about`` does."""
SECONDS_A_STEP = 1.0


@dataclass(frozen=True)
class RelaxJob:
    """A recipe to be compiled, with the values of its weights."""

    name: str
    recipe: Recipe | BucketRecipe = field(repr=False)
    values: Mapping[str, Array] = field(repr=False)
    weights: str
    code: Code
    graphs: bool

    def do(self, folder: Path, stage: Stage) -> Any:
        """Leaves ``model.so`` and, with weights beside it, ``model.params``."""
        require_relax()
        from tvm_bridge.back.relax import write_library

        stage("build")
        return write_library(self.recipe, self.values, folder / "model.so", self.weights, self.code, self.graphs)


@dataclass(frozen=True)
class RelaxLibrary:
    """A library for TVM's virtual machine. ``weights``: constants of it (``inside``), or a file ``.params`` ``beside`` it.
    ``about`` says what it is: inputs, outputs, weights, architecture, versions."""

    name: str
    about: Mapping[str, Any] = field(repr=False)
    weights: str
    folder: Folder = field(repr=False)

    @property
    def files(self) -> tuple[Path, ...]:
        made = Path(self.folder.path, "model.so")
        return (made, made.with_suffix(".params")) if self.weights == BESIDE else (made,)

    def export(self, path: str | Path) -> Path:
        """Write the library; under the same name with ``.params`` its weights, where they are beside it, and with ``.json`` what
        it is."""
        path = Path(path)
        if path.suffix != ".so":
            raise UsageError(f"a library ends in .so, not {path.name!r}")
        for file in self.files:
            replace_by(path.with_suffix(file.suffix), lambda partial, file=file: shutil.copyfile(file, partial))
        write_file(path.with_suffix(".json"), json.dumps(self.about, indent=1) + "\n")
        return path


def check_weights(weights: str) -> None:
    """Raises :class:`UsageError` for what is no place of a library's weights."""
    if weights not in (INSIDE, BESIDE):
        raise UsageError(f"weights are not {weights!r}", "inside or beside the library")


def relax_library(
    made: CompiledProgram | Sequence[Bucket],
    name: str,
    *,
    weights: str = INSIDE,
    code: Code = "cubin",
    graphs: bool = True,
    dependent: bool = True,
    seconds: float | None = None,
) -> RelaxLibrary:
    """The kernels of a program, or of its buckets, as a library of TVM 0.27, compiled here, for the program's target.

    ``weights`` lie ``inside`` of it or ``beside`` it; ``code`` is what is embedded, cubins or PTX (which a newer driver can
    compile for a newer GPU); ``graphs``: TVM captures what can be captured in CUDA graphs; ``dependent``: kernels may start
    while those in front of them drain, as in our own runtime. TVM works in a process of its own, for ``seconds`` at most.

    Raises :class:`fuser.errors.EnvironmentError_` where TVM 0.27 or a C compiler is missing, and
    :class:`fuser.errors.UnsupportedError` where an operator is left that neither of us has a kernel for.
    """
    check_weights(weights)
    require_relax()
    if isinstance(made, CompiledProgram):
        recipe = recipe_of(made, dependent)
        values = {n: made.params[n] for n in recipe.weights}
    else:
        recipe, values = recipe_of_buckets(made, dependent)
    folder = Folder()
    job = RelaxJob(name, recipe, values, weights, code, graphs)
    limit = START_SECONDS + SECONDS_A_STEP * len(recipe.steps) if seconds is None else seconds
    about: dict[str, Any] = run(job, folder.path, limit)
    return RelaxLibrary(name, about, about["weights"]["where"], folder)
