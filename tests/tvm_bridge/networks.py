"""Small networks with random weights, built from their configurations: what the importers and the partitioner must stand."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

HIDDEN, HEADS, INNER = 64, 4, 128
LAYERS = 2
Make = Callable[[int], tuple[nn.Module, tuple[torch.Tensor, ...]]]
"""From a sequence length to a module that takes and gives tensors, and example inputs."""


class First(nn.Module):
    """Gives the first output of a call: tracing needs tensors, not dictionaries."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.module: nn.Module = module
        self.call = call

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        out = self.call(self.module, *x)
        return out if isinstance(out, torch.Tensor) else out[0]


def _tokens(length: int) -> torch.Tensor:
    return torch.randint(0, 2, (1, length))


def _hidden(length: int, hidden: int = HIDDEN) -> torch.Tensor:
    return torch.randn(1, length, hidden)


def _transformer(make: Callable[[Any], nn.Module], call: Callable[..., Any] | None = None) -> Make:
    """A model of ``transformers`` over token ids, with a mask of ones: TVM lacks what finds packed sequences without one."""

    def build(length: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        import transformers

        plain = lambda m, x: m(x, attention_mask=torch.ones_like(x), return_dict=False)  # noqa: E731
        return First(make(transformers), call or plain), (_tokens(length),)

    return build


def _bert(attention: str) -> Make:
    def config(t: Any) -> Any:
        return t.BertModel(
            t.BertConfig(
                num_hidden_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, intermediate_size=INNER, vocab_size=100,
                attn_implementation=attention,
            ),
            add_pooling_layer=False,
        )  # fmt: skip

    return _transformer(config)


def _bert_padded(attention: str) -> Make:
    """BERT whose mask is an input."""

    def build(length: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        net, (x,) = _bert(attention)(length)
        assert isinstance(net, First)
        mask = torch.ones_like(x)
        mask[:, length - length // 3 :] = 0
        call = lambda m, x, mask: m(x, attention_mask=mask, return_dict=False)  # noqa: E731
        return First(net.module, call), (x, mask)

    return build


def _gpt2(attention: str) -> Make:
    return _transformer(
        lambda t: t.GPT2Model(
            t.GPT2Config(
                n_layer=LAYERS, n_embd=HIDDEN, n_head=HEADS, n_inner=INNER, vocab_size=100, n_positions=256, use_cache=False,
                attn_implementation=attention,
            )
        )
    )  # fmt: skip


def _llama(attention: str) -> Make:
    return _transformer(
        lambda t: t.LlamaModel(
            t.LlamaConfig(
                num_hidden_layers=LAYERS, hidden_size=HIDDEN, intermediate_size=INNER, num_attention_heads=HEADS,
                num_key_value_heads=2, vocab_size=100, use_cache=False, attn_implementation=attention,
            )
        )
    )  # fmt: skip


def _distilbert(attention: str) -> Make:
    return _transformer(
        lambda t: t.DistilBertModel(
            t.DistilBertConfig(
                n_layers=LAYERS, dim=HIDDEN, n_heads=HEADS, hidden_dim=INNER, vocab_size=100, attn_implementation=attention
            )
        )
    )


def _vit(length: int, kind: str = "ViT") -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """An image of ``length`` − 1 patches (at least one)."""
    import transformers as t

    count = max(length - (1 if kind == "ViT" else 2), 1)
    rows = max(r for r in range(1, int(count**0.5) + 1) if count % r == 0)
    size = (4 * rows, 4 * (count // rows))
    config = getattr(t, f"{kind}Config")(
        num_hidden_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, intermediate_size=INNER, image_size=size,
        patch_size=4, attn_implementation="eager", return_dict=False,
    )  # fmt: skip
    net = getattr(t, f"{kind}Model")(config, add_pooling_layer=False)
    return First(net, lambda m, x: m(x)), (torch.randn(1, 3, *size),)


def _t5(length: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    import transformers as t

    config = t.T5Config(
        d_model=HIDDEN, d_kv=16, d_ff=INNER, num_layers=LAYERS, num_heads=HEADS, vocab_size=100,
        is_encoder_decoder=False, use_cache=False,
    )  # fmt: skip
    return _transformer(lambda t: t.T5EncoderModel(config))(length)


def _roberta(t: Any) -> nn.Module:
    config = t.RobertaConfig(
        num_hidden_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, intermediate_size=INNER, vocab_size=100,
        max_position_embeddings=260, attn_implementation="sdpa",
    )  # fmt: skip
    return t.RobertaModel(config, add_pooling_layer=False)


def _albert(t: Any) -> nn.Module:
    config = t.AlbertConfig(
        num_hidden_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, intermediate_size=INNER, vocab_size=100,
        embedding_size=32, attn_implementation="eager",
    )  # fmt: skip
    return t.AlbertModel(config, add_pooling_layer=False)


def _electra(t: Any) -> nn.Module:
    return t.ElectraModel(
        t.ElectraConfig(
            num_hidden_layers=LAYERS, hidden_size=HIDDEN, embedding_size=32, num_attention_heads=HEADS,
            intermediate_size=INNER, vocab_size=100, attn_implementation="sdpa",
        )
    )  # fmt: skip


def _opt(t: Any) -> nn.Module:
    return t.OPTModel(
        t.OPTConfig(
            num_hidden_layers=LAYERS, hidden_size=HIDDEN, ffn_dim=INNER, num_attention_heads=HEADS, vocab_size=100,
            word_embed_proj_dim=HIDDEN, max_position_embeddings=256, use_cache=False, attn_implementation="eager",
        )
    )  # fmt: skip


def _neox(t: Any) -> nn.Module:
    return t.GPTNeoXModel(
        t.GPTNeoXConfig(
            num_hidden_layers=LAYERS, hidden_size=HIDDEN, intermediate_size=INNER, num_attention_heads=HEADS, vocab_size=100,
            use_cache=False, attn_implementation="eager",
        )
    )  # fmt: skip


def _mistral(t: Any) -> nn.Module:
    return t.MistralModel(
        t.MistralConfig(
            num_hidden_layers=LAYERS, hidden_size=HIDDEN, intermediate_size=INNER, num_attention_heads=HEADS,
            num_key_value_heads=2, vocab_size=100, use_cache=False, sliding_window=None, attn_implementation="sdpa",
        )
    )  # fmt: skip


def _qwen(t: Any) -> nn.Module:
    return t.Qwen2Model(
        t.Qwen2Config(
            num_hidden_layers=LAYERS, hidden_size=HIDDEN, intermediate_size=INNER, num_attention_heads=HEADS,
            num_key_value_heads=1, vocab_size=100, use_cache=False, attn_implementation="eager",
        )
    )  # fmt: skip


def _bart(length: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    def make(t: Any) -> nn.Module:
        config = t.BartConfig(
            encoder_layers=2, decoder_layers=2, d_model=HIDDEN, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS,
            encoder_ffn_dim=INNER, decoder_ffn_dim=INNER, vocab_size=100, max_position_embeddings=256,
            attn_implementation="eager",
        )  # fmt: skip
        return t.BartModel(config).encoder

    return _transformer(make)(length)


def _whisper(length: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    import transformers as t

    options: Any = {"attn_implementation": "eager"}
    config: Any = t.WhisperConfig(
        encoder_layers=2, decoder_layers=2, d_model=HIDDEN, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS,
        encoder_ffn_dim=INNER, decoder_ffn_dim=INNER, vocab_size=100, num_mel_bins=8, max_source_positions=length,
        **options, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    net = t.WhisperModel(config).encoder
    return First(net, lambda m, x: m(x, return_dict=False)), (torch.randn(1, 8, 2 * length),)


def _mixtral(length: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Experts(), (_hidden(length),)


class Attention(nn.Module):
    """Attention by hand over a mask of keys that are no padding; ``y`` gives keys and values."""

    def __init__(self, hidden: int = HIDDEN, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden) for _ in range(4))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(y)), self.split(self.v(y))
        scores = q @ k.transpose(-1, -2) / (q.shape[-1] ** 0.5)
        if keep is not None:
            scores = scores.masked_fill(keep[:, None, None, :] == 0, -1e9)
        o = torch.softmax(scores, -1) @ v
        return self.o(o.transpose(1, 2).reshape(x.shape))


class Decoder(nn.Module):
    """Self attention with a padding mask, cross attention to a memory, and an MLP, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = (nn.ModuleList(Attention() for _ in range(2)) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, INNER), nn.ReLU(), nn.Linear(INNER, HIDDEN))

    def forward(self, x: torch.Tensor, memory: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        for i in range(2):
            y = self.norms[2 * i](x)
            x = x + self.own[i](y, y, keep)
            x = x + self.cross[i](self.norms[2 * i + 1](x), memory)
            x = x + self.mlp(x)
        return x


def _decoder(length: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    keep = torch.ones(1, length, dtype=torch.int64)
    keep[:, length - length // 3 :] = 0
    return Decoder(), (_hidden(length), _hidden(2 * length + 1), keep)


class Experts(nn.Module):
    """A mixture of three gated MLPs behind attention, every expert computed, the two best weighted."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.gate = nn.Linear(HIDDEN, 3)
        self.up, self.side, self.down = (
            nn.ModuleList(nn.Linear(a, b, bias=False) for _ in range(3))
            for a, b in ((HIDDEN, INNER), (HIDDEN, INNER), (INNER, HIDDEN))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x, x)
        weights = torch.softmax(self.gate(x), -1)
        best, _ = torch.topk(weights, 2, -1)
        weights = torch.where(weights >= best[..., 1:], weights, torch.zeros_like(weights))
        for i in range(3):
            y = self.down[i](nn.functional.silu(self.up[i](x)) * self.side[i](x))
            x = x + y * weights[..., i : i + 1]
        return x


class Mixer(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.tokens = nn.ModuleList(nn.Sequential(nn.Linear(length, 32), nn.GELU(), nn.Linear(32, length)) for _ in range(2))
        self.channels = nn.ModuleList(
            nn.Sequential(nn.Linear(HIDDEN, INNER), nn.GELU(), nn.Linear(INNER, HIDDEN)) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(2):
            x = x + self.tokens[i](self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + self.channels[i](self.norms[2 * i + 1](x))
        return x


def _mixer(length: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Mixer(length), (_hidden(length),)


def _torch_encoder(length: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """torch's own encoder layers, with the slow path that tracing records."""
    layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, INNER, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (_hidden(length),)


class Shared(nn.Module):
    """Two attentions over the same keys, values and scaled scores: what regions share."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(2))
        self.k, self.v = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.bias = nn.Parameter(torch.randn(HIDDEN))

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        k, v = self.k(x) * self.bias, torch.tanh(self.v(x))
        mask = (1.0 - keep.to(x.dtype))[:, None, :] * -10000.0
        first = torch.softmax(self.q[0](x) @ k.transpose(-1, -2) * 0.125 + mask, -1) @ v
        second = torch.softmax(self.q[1](first) @ k.transpose(-1, -2) * 0.125 + mask, -1) @ v
        return first + second


def _shared(length: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    keep = torch.ones(1, length, dtype=torch.int64)
    keep[:, length - length // 3 :] = 0
    return Shared(), (_hidden(length), keep)


NETWORKS: dict[str, Make] = {
    "bert-eager": _bert("eager"),
    "bert-sdpa": _bert("sdpa"),
    "gpt2": _gpt2("eager"),
    "vit": _vit,
    "llama": _llama("eager"),
    "distilbert": _distilbert("eager"),
    "bert-padded": _bert_padded("eager"),
    "bert-sdpa-padded": _bert_padded("sdpa"),
    "gpt2-sdpa": _gpt2("sdpa"),
    "llama-sdpa": _llama("sdpa"),
    "distilbert-sdpa": _distilbert("sdpa"),
    "deit": lambda length: _vit(length, "DeiT"),
    "t5-encoder": _t5,
    "roberta": _transformer(_roberta),
    "albert": _transformer(_albert),
    "electra": _transformer(_electra),
    "opt": _transformer(_opt),
    "gpt-neox": _transformer(_neox),
    "mistral": _transformer(_mistral),
    "qwen2": _transformer(_qwen),
    "bart-encoder": _bart,
    "whisper-encoder": _whisper,
    "experts": _mixtral,
    "decoder": _decoder,
    "mixer": _mixer,
    "torch-encoder": _torch_encoder,
    "shared-keys": _shared,
}


def network(name: str, length: int, seed: int = 0) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The module in inference mode with random weights, and its inputs."""
    torch.manual_seed(seed)
    net, inputs = NETWORKS[name](length)
    with torch.no_grad():
        for p in net.parameters():  # biases of zero and gains of one would hide a wrong order of operations
            if p.dim() == 1:
                p.add_(0.1 * torch.randn_like(p))
    return net.eval(), inputs


def traced(net: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.jit.trace(net, inputs, strict=False, check_trace=False)
