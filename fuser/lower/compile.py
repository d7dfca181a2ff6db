"""Compile generated Triton to PTX and cubin for any architecture, with no GPU present."""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import io
import json
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import replace
from functools import cache
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.errors import NoValidKernelError
from fuser.errors import OutOfResourcesError
from fuser.errors import said
from fuser.ir.mugraph import KernelGraph
from fuser.ir.rows import in_rows
from fuser.ir.schedule import Schedule
from fuser.lower import kept_kernels
from fuser.lower.assembler import choose as choose_assembler
from fuser.lower.assembler import compiler
from fuser.lower.assembler import short_key
from fuser.lower.cluster_code import in_clusters
from fuser.lower.cubin import resources
from fuser.lower.descriptors import Descriptor
from fuser.lower.descriptors import passed
from fuser.lower.descriptors import with_metadata
from fuser.lower.forms import form
from fuser.lower.forms import triton_module
from fuser.lower.interpreter import host_arguments
from fuser.lower.interpreter import prepare
from fuser.lower.interpreter import run
from fuser.lower.kernel_source import KernelSource
from fuser.lower.pieces import GROUPS_ARCH
from fuser.lower.quiet import quiet
from fuser.lower.remarks import check_groups
from fuser.lower.remarks import logged
from fuser.lower.triton_source import generate_graph
from fuser.outputs import make_folder
from fuser.outputs import write_file

POINTER = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "bool": "*i1", "int32": "*i32", "int64": "*i64",
           "float64": "*fp64", "int8": "*i8", "uint8": "*u8", "int16": "*i16"}  # fmt: skip


@dataclass(frozen=True)
class KernelArg:
    """A pointer argument of a kernel: the device tensor it points to, row-major."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class KernelArtifact:
    """A compiled kernel.

    ``name`` is the PTX entry; ``args`` are its pointers in order (two scratch pointers that are always NULL follow). ``grid``
    counts blocks, ``num_warps`` warps a block; ``shared_bytes`` is dynamic shared memory a block; ``registers`` are 32-bit
    registers a thread and ``spills`` bytes of local memory a thread, -1 where the assembler did not say. ``descriptors``
    stand for tensors in the place of pointers; a launcher that knows pointers alone cannot start such a kernel.
    """

    name: str
    source: KernelSource
    ptx: str
    cubin: bytes
    arch: int
    num_warps: int
    shared_bytes: int
    registers: int = -1
    spills: int = -1
    compiler: str = ""
    descriptors: tuple[Descriptor, ...] = ()

    @cached_property
    def args(self) -> tuple[KernelArg, ...]:
        s = self.source
        return tuple(KernelArg(n, d, shape) for n, d, shape in zip(s.args, s.dtypes, s.shapes, strict=True))

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.source.grid, 1, 1

    @cached_property
    def passed(self) -> list[tuple[int, Descriptor | None]]:
        """What it is given for its ``args``."""
        return passed(self.source.args, self.descriptors)

    @cached_property
    def parameters(self) -> int:
        """Of the entry, those of its tensors; hidden ones follow."""
        return sum(d.parameters if d else 1 for _, d in self.passed)

    def over(self, source: KernelSource) -> KernelArtifact:
        """The same kernel over the tensors of an equal source."""
        new = dict(zip(self.source.args, source.args, strict=True))
        return replace(
            self,
            source=replace(source, name=self.source.name, text=self.source.text),
            descriptors=tuple(replace(d, tensor=new[d.tensor]) for d in self.descriptors),
        )

    def manifest(self) -> dict[str, Any]:
        """Everything but the texts, for reports."""
        return {
            "name": self.name,
            "arch": self.arch,
            "args": [asdict(a) for a in self.args],
            "outputs": self.source.outputs,
            "grid": self.grid,
            "num_warps": self.num_warps,
            "num_stages": self.source.num_stages,
            "shared_bytes": self.shared_bytes,
            "registers": self.registers,
            "spills": self.spills,
            "compiler": self.compiler,
            "pdl": self.source.pdl,
            "descriptors": [asdict(d) for d in self.descriptors],
        }


def cache_dir(kind: str = "kernels") -> Path:
    """Folder of generated sources (Triton reads a kernel's source from its file), or of another kind of what is kept."""
    if chosen := os.environ.get("MUFUSER_CACHE"):
        return Path(os.path.expanduser(chosen)) / kind  # what sets it may be no shell
    from platformdirs import user_cache_path

    return user_cache_path("mufuser") / kind


def load_source(source: KernelSource, folder: Path | None = None) -> ModuleType:
    """Write the source to a file named by its hash and import it, in the form that :func:`fuser.lower.forms.form` says. Where the
    cache folder cannot be written, the file is a temporary one."""
    digest = hashlib.sha256(source.text.encode()).hexdigest()[:20]
    path = (folder or cache_dir()) / f"{source.name}_{digest}.py"
    try:
        _keep(path, source.text)
    except OSError as error:
        try:
            path = Path(_spare()) / path.name
            _keep(path, source.text)
        except OSError:
            raise EnvironmentError_(
                f"the source of a kernel cannot be written to {path.parent}: {error.strerror or said(error)}",
                "free some space, or set MUFUSER_CACHE to a folder that can be written",
            ) from error
    name = f"mufuser_kernels.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    if triton_module().knobs.runtime.interpret:
        prepare(module)
    return module


def _keep(path: Path, text: str) -> None:
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@cache
def _spare() -> str:
    """A folder of this process."""
    folder = tempfile.mkdtemp(prefix="mufuser-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def compile_kernel(source: KernelSource, arch: int, folder: Path | None = None) -> KernelArtifact:
    """Compile for ``arch`` (80, 86, 90, 100: the compute capability without its point); what was compiled before is in the cache
    folder.

    Raises :class:`NoValidKernelError` with the compiler's message where Triton refuses the kernel, as its subclass
    :class:`OutOfResourcesError` where a block would need too much, as :class:`fuser.errors.DiedError` where its process dies.
    """
    if (known := kept_kernel(source, arch)) is not None:
        return known
    from fuser.lower.attempts import attempt  # what was compiled needs no processes
    from fuser.lower.attempts import unwritten

    path = kept_kernels.place(cache_dir("compiled"), source, arch)
    try:
        made = attempt(path, source.name, _compiled, source, arch, folder)
    except OSError as error:
        raise unwritten(source.name, path.parent.parent, error) from error
    kept_kernels.write(path, {f.name: getattr(made, f.name) for f in fields(made) if f.name not in ("source", "arch")})
    return made


def kept_kernel(source: KernelSource, arch: int) -> KernelArtifact | None:
    """What was compiled before."""
    with suppress(TypeError):  # fields of another version
        if values := kept_kernels.read(kept_kernels.place(cache_dir("compiled"), source, arch)):
            return KernelArtifact(source=source, arch=arch, **values)
    return None


def _compiled(source: KernelSource, arch: int, folder: Path | None) -> KernelArtifact:
    triton = triton_module()
    choose_assembler()
    from triton.backends.compiler import GPUTarget
    from triton.runtime.errors import OutOfResources

    if arch < 80:
        raise EnvironmentError_(f"Triton has no code generator for sm_{arch}", "choose a device of sm_80 or newer")
    if arch < source.capability:
        raise NoValidKernelError(
            f"the options of {source.name} need sm_{source.capability} or newer, not sm_{arch}",
            "leave the option out of its schedule",
        )
    if source.backend == "gluon" and arch != GROUPS_ARCH:
        raise NoValidKernelError(
            f"{source.name} multiplies by warp groups, which sm_{GROUPS_ARCH} alone has, not sm_{arch}", "leave out backend=gluon"
        )
    with form(interpreted=False):
        fn = getattr(load_source(source, folder), source.name)
        types = [_type(d, source.dtypes[i], source.backend) for i, d in source.passed]
        signature = dict(zip(fn.arg_names, [*types, *("i32" for _ in source.sizes)], strict=True))
        # without the divisibility hint loads are narrow and cp.async vanishes
        attrs = {(i,): [["tt.divisibility", 16]] for i, (_, d) in enumerate(source.passed) if d is None}
        options = {"num_warps": source.num_warps, "num_stages": source.num_stages, "enable_fp_fusion": True}
        options |= dict(source.parameters)
        printed: list[str] = []
        log = io.StringIO()
        try:
            with quiet(printed), logged(log, source.backend == "gluon"), short_key():
                kernel = triton.compile(
                    _ast_source(source)(fn, signature=signature, constexprs={}, attrs=attrs),
                    target=GPUTarget("cuda", arch, 32),
                    options=options,
                )
        except OSError:  # of the machine, not of the kernel
            raise
        except Exception as error:  # Triton raises many classes; all of them mean that this candidate is not valid
            refused = OutOfResourcesError if isinstance(error, OutOfResources) else NoValidKernelError
            what = "; ".join([f"{type(error).__name__}: {said(error)}", *printed[:1]])[:400]
            raise refused(f"Triton cannot compile {source.name} for sm_{arch}: {what}") from error
    meta = kernel.metadata
    if meta.num_ctas != 1 or meta.global_scratch_size or meta.profile_scratch_size:
        raise NoValidKernelError(f"{source.name} needs scratch memory or clusters, which an embedded kernel cannot have")
    if source.specialize and meta.num_warps == source.num_warps:
        raise NoValidKernelError(
            f"Triton gives the {source.num_warps} warps of {source.name} the same work on sm_{arch}",
            "leave out specialize",
        )
    if source.backend == "gluon":
        check_groups(source, kernel, log.getvalue())
    ptx, cubin = in_clusters(source, kernel.asm["ptx"], arch) if source.cluster > 1 else (kernel.asm["ptx"], kernel.asm["cubin"])
    return KernelArtifact(
        kernel.metadata.name,
        source,
        ptx,
        cubin,
        arch,
        meta.num_warps,
        max(meta.shared, source.room),
        *resources(cubin),
        compiler=compiler(),
        descriptors=_encoded(source, fn.arg_names, kernel) if source.descriptors else (),
    )


def _encoded(source: KernelSource, names: Sequence[str], kernel: Any) -> tuple[Descriptor, ...]:
    mine = [n for n, (_, d) in zip(names, source.passed, strict=False) if d]
    return with_metadata(source.descriptors, kernel.metadata.tensordesc_meta, kernel.asm["ttgir"], mine)


def _ast_source(source: KernelSource) -> Any:
    """The compiler's form of a source, by its language."""
    if source.gluon:
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource
    from triton.compiler import ASTSource

    return ASTSource


def _type(descriptor: Descriptor | None, dtype: str, backend: str = "triton") -> str:
    """Triton's name of the type of an argument."""
    if descriptor is None:
        return POINTER[dtype]
    layout = ""
    if backend == "gluon":
        from triton.experimental.gluon.language import NVMMASharedLayout

        bytes_ = (0, 32, 64, 128)[descriptor.swizzle]
        layout = f",{NVMMASharedLayout(bytes_, 8 * descriptor.itemsize, len(descriptor.box))!r}"
    return f"tensordesc<{POINTER[dtype][1:]}[{', '.join(map(str, descriptor.box))}]{layout}>"


def compile_graph(graph: KernelGraph, schedule: Schedule, arch: int, folder: Path | None = None) -> tuple[KernelArtifact, ...]:
    """Artifacts of the graph-defined kernels of a µGraph, in launch order."""
    return tuple(compile_kernel(source, arch, folder) for source in generate_graph(graph, schedule))


def compile_sources(
    sources: Sequence[KernelSource], arch: int, executor: Executor | None = None, known: dict[str, KernelArtifact] | None = None
) -> tuple[KernelArtifact, ...]:
    """Artifacts of many kernels, in order. Those that differ in names alone, as in the layers of a model, are compiled once, and
    those that are ``known`` (:func:`by_content`) not at all; what is compiled joins them."""
    texts = [neutral(s) for s in sources]
    made = {} if known is None else known
    first = {text: s for text, s in reversed(list(zip(texts, sources, strict=True))) if text not in made}
    made |= {t: a for t, s in first.items() if (a := kept_kernel(s, arch)) is not None}  # before processes are started
    left = {t: s for t, s in first.items() if t not in made}
    run = executor.map if executor else map
    made |= zip(left, run(compile_kernel, left.values(), [arch] * len(left)), strict=True)
    return tuple(made[t].over(s) for t, s in zip(texts, sources, strict=True))


def by_content(artifacts: Iterable[KernelArtifact]) -> dict[str, KernelArtifact]:
    """Compiled kernels by what makes them equal."""
    return {neutral(a.source): a for a in artifacts}


def neutral_text(text: str, name: str) -> str:
    """The text of a kernel without its comments and name, and the names of its arguments and of buffers for what they get."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    head = next((line for line in lines if line.startswith(f"def {name}(")), "")
    arguments = head.removesuffix("):").partition("(")[2].split(", ")
    names = {name: "kernel"} | {a: f"argument_{i}" for i, a in enumerate(arguments)}
    names |= {f"{a.removesuffix('_desc')}_out_bufs": f"argument_{i}_bufs" for i, a in enumerate(arguments) if a.endswith("_desc")}
    return re.sub(r"[A-Za-z_]\w*", lambda m: names.get(m[0], m[0]), "\n".join(lines))


def neutral(source: KernelSource) -> str:
    """The source without what differs between equal kernels, and with how it is launched."""
    body = neutral_text(source.text, source.name)
    boxes = [replace(d, tensor=str(source.args.index(d.tensor))) for d in source.descriptors]
    launch = (
        source.num_warps,
        source.num_stages,
        source.pdl,
        source.specialize,
        source.parameters,
        source.room,
        source.cluster,
    )
    return repr((body, source.dtypes, source.shapes, launch, boxes))


def intermediates(graph: KernelGraph, artifacts: tuple[KernelArtifact, ...]) -> dict[str, KernelArg]:
    """Device tensors that one kernel writes for a later one, with dtype and shape."""
    names = set(graph.intermediates)
    return {arg.name: arg for a in artifacts for arg in a.args if arg.name in names}


def save_artifact(artifact: KernelArtifact, folder: Path, stem: str) -> dict[str, Any]:
    """Write ``stem.py``, ``.ptx``, ``.cubin`` and ``.json`` into a folder; returns the manifest with the file names."""
    make_folder(folder)
    write_file(folder / f"{stem}.py", artifact.source.text)
    write_file(folder / f"{stem}.ptx", artifact.ptx)
    write_file(folder / f"{stem}.cubin", artifact.cubin)
    manifest = artifact.manifest() | {"files": [f"{stem}.py", f"{stem}.ptx", f"{stem}.cubin"]}
    write_file(folder / f"{stem}.json", json.dumps(manifest, indent=1) + "\n")
    return manifest


def interpret_source(source: KernelSource, inputs: dict[str, Any], poison: float = math.nan) -> dict[str, Any]:
    """Run a kernel in Triton's interpreter on CPU torch tensors.

    ``inputs`` are numpy arrays; returns the outputs as float32 numpy arrays. Outputs are filled with ``poison`` first. A kernel
    in Gluon runs in our emulator.
    """
    if source.gluon:
        from fuser.lower.emulator.language import emulate

        return emulate(source, inputs, poison)
    import torch

    tensors = []
    for name, dtype, shape in zip(source.args, source.dtypes, source.shapes, strict=True):
        if name in source.outputs:
            tensors.append(torch.full(shape, poison, dtype=getattr(torch, dtype)))
        else:
            value = torch.tensor(in_rows(inputs[name], shape))
            tensors.append(value.to(getattr(torch, dtype)).reshape(shape).contiguous())
    with form(interpreted=True):
        run(source, getattr(load_source(source), source.name), host_arguments(source, tensors))
    return {n: t.float().numpy() for n, t in zip(source.args, tensors, strict=True) if n in source.outputs}
