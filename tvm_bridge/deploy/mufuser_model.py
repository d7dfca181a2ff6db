"""Loads and calls model.so. Needs the files of its folder (or an installed TVM 0.27), Python's standard library, and on the
machine an NVIDIA driver.

    model = Model("FOLDER")
    (y,) = model(x)        # tensors on the GPU: of torch, cupy, ... (anything with DLPack), or of model.tensor
"""

import ctypes
import importlib.util
import json
import math
import struct
import sys
from pathlib import Path

FORMATS, CUDA, CPU, POOLED = (1, 2), 2, 1, 2
EXISTS, CAPABILITY = 0, 4  # numbers of TVM's device attributes
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8, "bool": 1}


class ModelError(RuntimeError):
    """What keeps a model from being loaded or called, and the way out."""


def runtime(folder):
    """tvm_ffi with TVM's runtime loaded, of the folder's files if it has them."""
    folder = Path(folder)
    if (folder / "python").is_dir() and importlib.util.find_spec("tvm_ffi") is None:
        sys.path.insert(0, str(folder / "python"))
    try:
        import tvm_ffi
    except ImportError as error:
        here = ".".join(map(str, sys.version_info[:2]))
        raise ModelError(f"tvm_ffi cannot be imported by Python {here} ({error}); package the model with that Python") from error
    if tvm_ffi.get_global_func("ffi.Module.load_from_bytes.cuda", allow_missing=True) is None:
        libraries = folder / "lib"
        if not libraries.is_dir():
            found = importlib.util.find_spec("tvm")
            if found is None or not found.submodule_search_locations:
                raise ModelError(f"{folder} has no folder lib, and TVM is not installed; package the model again")
            libraries = Path(found.submodule_search_locations[0]) / "lib"
        for path in sorted(libraries.glob("libcudart.so*")):
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        for name in ("libtvm_runtime.so", "libtvm_runtime_cuda.so"):
            if not (libraries / name).exists():
                raise ModelError(f"there is no {libraries / name}; package the model again")
            try:
                ctypes.CDLL(str(libraries / name), ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise ModelError(f"{name} cannot be loaded: {error}; install the NVIDIA driver, and CUDA's runtime") from error
    return tvm_ffi


class Model:
    """A library with its weights on a GPU. ``about`` says what it is: inputs, outputs, architecture, versions."""

    def __init__(self, path, device=0):
        path = Path(path)
        folder, file = (path, path / "model.so") if path.is_dir() else (path.parent, path)
        if not file.exists():
            raise ModelError(f"there is no library {file}")
        _check_whole(file)
        self.ffi = ffi = runtime(folder)
        try:
            executable = ffi.load_module(str(file))["vm_load_executable"]
            self.about = _about(executable())
        except Exception as error:
            raise ModelError(f"{file} is no library of mufuser, or was made for another TVM: {_last(error)}") from error
        if self.about["format"] not in FORMATS:
            raise ModelError(
                f"{file} has format {self.about['format']}, which this loader does not know: package the model again"
            )
        if _series(ffi.__version__) != _series(self.about["tvm_ffi"]):
            raise ModelError(f"{file} was made for tvm_ffi {self.about['tvm_ffi']}, here is {ffi.__version__}: use that version")
        self.device = ffi.device("cuda", device)
        self._check_gpu(file, device)
        self.machine = executable()
        self.machine["vm_initialization"](CUDA, device, POOLED, CPU, 0, POOLED)
        self.main = self.machine["main"]
        self.weights = self._weights(file) if self.about["weights"]["where"] == "beside" else ()

    def _check_gpu(self, file, device):
        attribute = self.ffi.get_global_func("runtime.GetDeviceAttr")
        if not attribute(CUDA, device, EXISTS):
            raise ModelError(f"there is no GPU number {device} here, or no driver for it")
        capability = attribute(CUDA, device, CAPABILITY).replace(".", "")
        arch = self.about["arch"]
        if int(capability) != arch:
            raise ModelError(f"{file} was compiled for sm_{arch}, this GPU is sm_{capability}: optimize it for this")

    def _weights(self, file):
        file = file.with_suffix(".params")
        if not file.exists():
            raise ModelError(f"the weights of the model are missing: there is no {file}")
        try:
            found = self.ffi.get_global_func("runtime.LoadParamsFromFile")(str(file))
        except Exception as error:
            raise ModelError(f"{file} is no file of weights: {_last(error)}") from error
        wanted = self.about["weights"]["tensors"]
        for spec in wanted:
            have = found.get(spec["name"])
            if have is None or list(have.shape) != spec["shape"] or str(have.dtype) != spec["dtype"]:
                raise ModelError(f"{file} belongs to another model: {spec['name']} {spec['shape']} is not in it")
        return self.ffi.convert(tuple(self._copied(found[s["name"]]) for s in wanted))

    def _copied(self, tensor):
        made = self.empty(tuple(tensor.shape), str(tensor.dtype))
        self.ffi.get_global_func("runtime.TVMTensorCopyFromTo")(tensor, made)
        return made

    def empty(self, shape, dtype):
        """A tensor on the GPU, not initialised."""
        new = self.ffi.get_global_func("runtime.TVMTensorAllocWithScope")
        return new(self.ffi.Shape(shape), self.ffi.dtype(dtype), self.device, None)

    def at(self, specs, sizes=None):
        """Inputs or outputs of ``about`` with numbers for their open ``sizes``, by default the largest."""
        sizes = sizes or {name: limits["buckets"][-1] for name, limits in self.about.get("sizes", {}).items()}
        return [spec | {"shape": [_extent(e, sizes) for e in spec["shape"]]} for spec in specs]

    def sizes(self, given):
        """The open sizes that inputs have."""
        found = {}
        for spec, x in zip(self.about["inputs"], given, strict=True):
            found |= {e: n for e, n in zip(spec["shape"], x.shape, strict=False) if isinstance(e, str)}
        for name, limits in self.about.get("sizes", {}).items():
            least, most = limits["least"], limits["buckets"][-1]
            if not least <= found.get(name, 0) <= most:
                raise ModelError(f"{name} must be {least} to {most}, got {found.get(name, 'no such dimension')}")
        return found

    def tensor(self, spec, data):
        """A tensor on the GPU of ``data``, bytes in row-major order; ``spec`` is one of ``at(about["inputs"])``."""
        size = math.prod(spec["shape"]) * BYTES[spec["dtype"]]
        if len(data) != size:
            raise ModelError(f"{spec['name']} has {size} bytes, got {len(data)}")
        made = self.empty(tuple(spec["shape"]), spec["dtype"])
        room = ctypes.create_string_buffer(bytes(data), size)
        self.ffi.get_global_func("runtime.TVMTensorCopyFromBytes")(made, ctypes.c_void_p(ctypes.addressof(room)), size)
        return made

    def data(self, tensor):
        """The bytes of a tensor."""
        room = ctypes.create_string_buffer(math.prod(tensor.shape) * BYTES[str(tensor.dtype)])
        self.ffi.get_global_func("runtime.TVMTensorCopyToBytes")(tensor, ctypes.c_void_p(ctypes.addressof(room)), len(room))
        return room.raw

    def __call__(self, *inputs):
        """The outputs, a tuple of tensors on the GPU; the work is queued on TVM's current stream."""
        wanted = self.about["inputs"]
        if len(inputs) != len(wanted):
            raise ModelError(f"the model takes {len(wanted)} inputs ({', '.join(s['name'] for s in wanted)}), got {len(inputs)}")
        given = [x if isinstance(x, self.ffi.Tensor) else self.ffi.from_dlpack(x) for x in inputs]
        for spec, x in zip(self.at(wanted, self.sizes(given)), given, strict=True):
            if list(x.shape) != spec["shape"] or str(x.dtype) != spec["dtype"]:
                got = f"{list(x.shape)} {x.dtype}"
                raise ModelError(f"{spec['name']} must be {spec['shape']} {spec['dtype']}, got {got}")
        try:
            found = self.main(*given, *((self.weights,) if self.weights else ()))
        except Exception as error:
            raise ModelError(f"the model does not run here: {_last(error)}") from error
        return tuple(found) if len(self.about["outputs"]) > 1 else (found,)


def _extent(extent, sizes):
    """A number of a shape: ``8*seq`` is 8 times a size."""
    if not isinstance(extent, str):
        return extent
    return math.prod(sizes[part] if part in sizes else int(part) for part in extent.split("*"))


def _check_whole(file):
    """The system ends a process that loads a library of which the end is missing."""
    with file.open("rb") as stream:
        head = stream.read(64)
    if len(head) < 64 or head[:5] != b"\x7fELF\x02":
        raise ModelError(f"{file} is no library")
    sections, size, count = *struct.unpack_from("<Q", head, 0x28), *struct.unpack_from("<HH", head, 0x3A)
    if file.stat().st_size < sections + size * count:
        raise ModelError(f"{file} is cut off: copy it again")


def _series(version):
    return version.split(".")[:2]


def _about(machine):
    """What the library says of itself; that needs no GPU."""
    machine["vm_initialization"](CPU, 0, POOLED)
    return json.loads(machine["about"]())


def _last(error):
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1][:300]
