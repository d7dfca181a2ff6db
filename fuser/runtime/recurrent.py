"""Weights of recurrent networks as cuDNN wants them: one behind the other in one piece of memory. Else torch puts them there at
every call, by a copy for each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel

MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""Torch's operators, and cuDNN's numbers for them."""
GATES = {"lstm": 4, "gru": 3}


def network(callee: str) -> str:
    """Which recurrent network an operator of torch is: ``lstm`` of ``aten.lstm.input``; empty of others."""
    name = callee.partition(".")[2].partition(".")[0]
    return name if name in MODES else ""


def in_one_piece(graph: KernelGraph, constants: Mapping[str, Any]) -> dict[str, Any]:
    """The constants, with the weights of every recurrent network that nothing else reads in one piece of memory."""
    reads = Counter(name for names in {k.inputs for k in graph.kernels} for name in names)
    found = dict(constants)
    for kernel in graph.kernels:
        if not isinstance(kernel, LibraryKernel) or kernel.op != "opaque":
            continue
        attrs = dict(kernel.attrs)
        if not (name := network(str(attrs["callee"]))):
            continue
        (args, _), mine = json.loads(str(attrs["detail"])), kernel.args
        names = [mine[w["tensor"]] for w in args[2]] if str(attrs["callee"]).endswith(".input") else []
        if names and all(n in constants and reads[n] == 1 and found[n] is constants[n] for n in names):
            found |= dict(zip(names, _flat(name, [constants[n] for n in names], args[3:]), strict=True))
    return found


def _flat(name: str, weights: list[Any], options: list[Any]) -> list[Any]:
    import torch

    flatten = torch._cudnn_rnn_flatten_weight  # pyright: ignore[reportPrivateImportUsage]
    _, layers, _, _, two_ways, batch_first = options  # with biases, layers, dropout, training, two ways, batch first
    if weights[0].device.type != "cuda" or not torch.backends.cudnn.is_acceptable(weights[0]):
        return weights
    each = len(weights) // (layers * (1 + two_ways))
    projected = weights[each - 1].shape[0] if each % 2 else 0
    sizes = weights[0].shape[1], MODES[name], weights[0].shape[0] // GATES.get(name, 1), projected
    laid = [w.clone() for w in weights]
    with torch.no_grad():
        flatten(laid, each, *sizes, layers, batch_first, bool(two_ways))
    return laid
