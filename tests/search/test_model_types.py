"""Every type of model that transformers has, made small: as one program it gives what the model gives. Types that cannot be made
so small, or whose arguments are not known here, are left out."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils import _pytree as pytree  # noqa: E402

from fuser.errors import ProgramError  # noqa: E402
from fuser.errors import RandomError  # noqa: E402
from fuser.frontends.torch_export import from_torch  # noqa: E402
from fuser.runtime.torch_program import run_program  # noqa: E402
from search.calling import returned  # noqa: E402
from search.compile import _examples  # noqa: E402

PARTS = 24
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "image_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers", "num_key_value_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "n_positions"), 128),
    **dict.fromkeys(("max_position_embeddings",), 128), "vocab_size": 1000, "use_cache": False, "head_dim": 16, "d_kv": 16,
    "moe_intermediate_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def shrink(config: Any) -> None:
    for name, value in list(vars(config).items()):
        if hasattr(value, "model_type"):
            shrink(value)
        elif isinstance(value, int) and name in SMALL and (isinstance(value, bool) or value > SMALL[name]):
            setattr(config, name, SMALL[name])
    if isinstance(layers := getattr(config, "layer_types", None), list):
        config.layer_types = layers[:2]


def arguments(module: Any) -> dict[str, Any]:
    """Tokens, the last of the second row masked, or an image."""
    takes, given = inspect.signature(module.forward).parameters, {}
    if "input_ids" in takes:
        given["input_ids"] = torch.randint(3, 900, (2, 17))
        if "attention_mask" in takes:
            given["attention_mask"] = (torch.arange(17) < torch.tensor([[17], [12]])).long()
    if "decoder_input_ids" in takes:
        given["decoder_input_ids"] = torch.randint(3, 900, (2, 9))
    if "pixel_values" in takes and "input_ids" not in takes:
        given["pixel_values"] = torch.randn(2, getattr(module.config, "num_channels", 3), 64, 64)
    return given or dict(module.dummy_inputs)


def made(transformers: Any, name: str) -> tuple[Any, dict[str, Any], Any] | None:
    """The model, arguments, and what it returns."""
    try:
        config = transformers.AutoConfig.for_model(name)
        shrink(config)
        module = transformers.AutoModel.from_config(config).eval().float()
        given = arguments(module)
        return module, given, module(**given)
    except Exception:  # noqa: BLE001 - whatever each of them needs
        return None


def differs(module: Any, given: dict[str, Any], wanted: Any) -> str:
    """What is wrong about the program of a model; nothing where it has none: control flow that depends on values, say."""
    try:
        known = from_torch(module, (), example_kwargs=given)
    except (ProgramError, RandomError):
        return ""
    assert known.called is not None
    values = dict(zip(known.inputs, _examples(module, known, (), given), strict=True))
    values |= {n: torch.from_numpy(x).to(getattr(torch, known.program[n].dtype)) for n, x in known.params.items()}
    try:
        found = returned(known.called, run_program(known.program, values), ((), given), values)
        for ours, theirs in zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True):
            if isinstance(theirs, torch.Tensor):
                largest = theirs.double().abs().max().item() if theirs.numel() else 0.0
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * max(largest, 1.0), equal_nan=True)
    except Exception as error:  # noqa: BLE001 - the other models are looked at too
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
@torch.no_grad()
def test_models_are_programs(part: int) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    names = sorted(transformers.models.auto.modeling_auto.MODEL_MAPPING_NAMES)[part::PARTS]
    models = {name: model for name in names if (model := made(transformers, name)) is not None}
    assert models
    wrong = {name: said for name, model in models.items() if (said := differs(*model))}
    assert not wrong
