"""Writes the fixtures of this folder again: ``python tests/data/relay/make_fixtures.py``, with TVM 0.19, PyTorch and ONNX.

One tiny encoder layer (sequence 8, hidden 16, two heads) as TVM's importers give it, its parameters, an input and the output of
TVM's graph executor. The JSON is compacted and loses the type definitions that PyTorch's importer adds; nothing else is changed.
The files old_*.json are written by hand: the same two operators in the spellings of TVM 0.6 and 0.8.
"""

from __future__ import annotations

import io
import json
import math
import os
from pathlib import Path
from typing import Any

os.environ["TOPHUB_LOCATION"] = "NONE"

import numpy as np
import onnx
import torch
import tvm
from torch import nn
from tvm import relay
from tvm.contrib import graph_executor

HERE = Path(__file__).parent


class Encoder(nn.Module):
    def __init__(self, hidden: int = 16, heads: int = 2, inner: int = 32) -> None:
        super().__init__()
        self.heads, self.size = heads, hidden // heads
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def split(self, t: torch.Tensor) -> torch.Tensor:
        return t.view(t.shape[0], t.shape[1], self.heads, self.size).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        a = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(self.size), -1)
        y = self.first(x + self.o((a @ v).transpose(1, 2).reshape(x.shape)))
        return self.second(y + self.down(nn.functional.gelu(self.up(y))))


def compact(text: str) -> str:
    """The same graph without the definitions of types, and without indentation."""
    data = json.loads(text)
    nodes = data["nodes"]
    root = nodes[data["root"]]["attrs"]
    for key in ("type_definitions", "global_type_var_map_", "source_map"):
        root[key] = "0"
    keep, stack = {0}, [data["root"]]
    while stack:
        i = stack.pop()
        if i in keep:
            continue
        keep.add(i)
        stack += nodes[i].get("data", [])
        stack += [int(v) for v in nodes[i].get("attrs", {}).values() if v.isdigit() and int(v) < len(nodes)]
    # indices stay as they are, so that scalars and references need no telling apart
    data["nodes"] = [n if i in keep else {"type_key": ""} for i, n in enumerate(nodes[: max(keep) + 1])]
    return json.dumps(data, separators=(",", ":"))


def save(name: str, mod: tvm.IRModule, params: dict, x: np.ndarray) -> None:
    mod = relay.transform.InferType()(mod)
    (HERE / f"{name}.json").write_text(compact(tvm.ir.save_json(mod)))
    (HERE / f"{name}.params").write_bytes(tvm.runtime.save_param_dict(params))
    with tvm.transform.PassContext(opt_level=0):
        lib = relay.build(mod, "llvm", params=params)
    run = graph_executor.GraphModule(lib["default"](tvm.cpu()))
    run.set_input("x", x)
    run.run()
    np.savez(HERE / f"{name}.npz", x=x, y=run.get_output(0).numpy())


def main() -> None:
    torch.manual_seed(0)
    net, x = Encoder().eval(), torch.randn(1, 8, 16)
    mod, params = relay.frontend.from_pytorch(torch.jit.trace(net, x), [("x", (1, 8, 16))])
    save("encoder_torch", mod, params, x.numpy())
    file: Any = io.BytesIO()
    torch.onnx.export(net, (x,), file, input_names=["x"], opset_version=17, dynamo=False)
    mod, params = relay.frontend.from_onnx(onnx.load_from_string(file.getvalue()), {"x": (1, 8, 16)}, freeze_params=False)
    save("encoder_onnx", mod, params, x.numpy())


if __name__ == "__main__":
    main()
