"""Networks of the ``transformers`` package with random weights, as Relay's own PyTorch frontend gives them.

Model hubs are not needed: every network is built from its configuration.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TOPHUB_LOCATION", "NONE")

from fuser.errors import EnvironmentError_
from fuser.errors import UsageError


@dataclass(frozen=True)
class Network:
    """``make(layers)`` gives a torch module and an example input; ``layers`` is the published number."""

    title: str
    layers: int
    make: Callable[[int], tuple[Any, Any]]


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise EnvironmentError_("the transformers package is not installed", "pip install 'mufuser[models]'") from error
    return transformers


def _first(module: Any, call: Callable[[Any, Any], Any]) -> Any:
    """A module that returns the first output of a call: tracing needs tensors, not dictionaries."""
    import torch

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Any) -> Any:
            out = call(self.module, x)
            return out if isinstance(out, torch.Tensor) else out[0]

    return First().eval()


def _bert(hidden: int, heads: int, sequence: int = 512) -> Callable[[int], tuple[Any, Any]]:
    def make(layers: int) -> tuple[Any, Any]:
        import torch

        t = _transformers()
        config = t.BertConfig(
            num_hidden_layers=layers,
            hidden_size=hidden,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            attn_implementation="eager",
            return_dict=False,
        )
        encoder = t.BertModel(config, add_pooling_layer=False).encoder
        return _first(encoder, lambda m, x: m(x)), torch.randn(1, sequence, hidden)

    return make


def _language_model(make: Callable[[Any, int], Any], length: int = 128) -> Callable[[int], tuple[Any, Any]]:
    """A model over token ids; the mask is given, since finding packed sequences needs operators that TVM's frontend lacks."""

    def build(layers: int) -> tuple[Any, Any]:
        import torch

        model = make(_transformers(), layers)
        call = lambda m, x: m(x, attention_mask=torch.ones_like(x), return_dict=False)  # noqa: E731
        return _first(model, call), torch.randint(0, 1000, (1, length))

    return build


def _gpt2(t: Any, layers: int) -> Any:
    return t.GPT2Model(t.GPT2Config(n_layer=layers, attn_implementation="eager", use_cache=False))


def _distilbert(t: Any, layers: int) -> Any:
    return t.DistilBertModel(t.DistilBertConfig(n_layers=layers, attn_implementation="eager"))


def _llama(t: Any, layers: int) -> Any:
    config = t.LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=512,
        intermediate_size=1376,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=1000,
        attn_implementation="eager",
        use_cache=False,
    )
    return t.LlamaModel(config)


def _vit(layers: int) -> tuple[Any, Any]:
    import torch

    t = _transformers()
    config = t.ViTConfig(num_hidden_layers=layers, attn_implementation="eager", return_dict=False)
    return _first(t.ViTModel(config, add_pooling_layer=False), lambda m, x: m(x)), torch.randn(1, 3, 224, 224)


NETWORKS: dict[str, Network] = {
    "bert-small": Network("BERT small encoder", 4, _bert(512, 8)),
    "bert-base": Network("BERT base encoder", 12, _bert(768, 12)),
    "bert-large": Network("BERT large encoder", 24, _bert(1024, 16)),
    "gpt2": Network("GPT-2", 12, _language_model(_gpt2)),
    "vit-base": Network("ViT base", 12, _vit),
    "distilbert": Network("DistilBERT", 6, _language_model(_distilbert)),
    "llama-tiny": Network("a small LLaMA with grouped queries", 4, _language_model(_llama)),
}


def relay_module(name: str, layers: int | None = None, seed: int = 0) -> tuple[Any, dict[str, Any]]:
    """The Relay module and the parameters of a network with random weights."""
    if name not in NETWORKS:
        raise UsageError(f"there is no network {name!r}", f"known: {', '.join(NETWORKS)}")
    try:
        import torch
        from tvm import relay
    except ImportError as error:
        raise EnvironmentError_(f"{error.name} is not installed", "pip install 'mufuser[relay,torch,models]'") from error
    network = NETWORKS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        module, x = network.make(network.layers if layers is None else layers)
        with torch.no_grad():
            traced = torch.jit.trace(module, x, strict=False)
        mod, params = relay.frontend.from_pytorch(traced, [("x", tuple(x.shape))])
    return mod, dict(params)


def save(mod: Any, params: dict[str, Any], folder: Path, name: str) -> tuple[Path, Path]:
    """Write ``name.json`` and ``name.params``, as ``mufuser optimize`` reads them."""
    import tvm

    folder.mkdir(parents=True, exist_ok=True)
    model, weights = folder / f"{name}.json", folder / f"{name}.params"
    model.write_text(tvm.ir.save_json(mod))
    weights.write_bytes(tvm.runtime.save_param_dict(params))
    return model, weights
