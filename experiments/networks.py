"""Whole networks as plain torch modules in their published sizes, with random weights: what ``bench models`` runs.

Each takes what stands behind its embeddings, so that a forward pass is kernels alone. Attention is
``scaled_dot_product_attention``, or written out (``explicit``) for the eager peer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

explicit = False
"""Whether attention is written out as products and a softmax."""


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """Attention of [batch, heads, rows, size]; several query heads may share a key head."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (x[:, :, None].expand(-1, -1, groups, -1, -1).reshape(q.shape[0], q.shape[1], *x.shape[2:]) for x in (k, v))
    if not explicit:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~keep, float("-inf"))
    return torch.softmax(scores, -1) @ v


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(attend(q, k, v, self.causal).transpose(1, 2).reshape(b, n, width))


class Separate(nn.Module):
    """Attention with a product each for queries, keys and values, as BERT has them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        q, k, v = (f(x).view(b, n, self.heads, width // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.out(attend(q, k, v).transpose(1, 2).reshape(b, n, width))


def mlp(width: int, inner: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


class PostNorm(nn.Module):
    """A layer of BERT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.mlp = Separate(width, heads), mlp(width, 4 * width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x + self.attention(x))
        return self.second(x + self.mlp(x))


class PreNorm(nn.Module):
    """A layer of GPT-2 (causal) or ViT."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(width, heads, causal), mlp(width, 4 * width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Mixer(nn.Module):
    """A block of MLP-Mixer: tokens, then channels."""

    def __init__(self, tokens: int, width: int, inner_tokens: int, inner: int) -> None:
        super().__init__()
        self.tokens, self.channels = mlp(tokens, inner_tokens), mlp(width, inner)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.second(x))


class Llama(nn.Module):
    """A layer of LLaMA: RMS norms, rotary embedding, grouped keys, gated MLP. With ``keys`` it decodes: a new row, a cache."""

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, heads: int, groups: int, inner: int, rows: int, keys: int = 0) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        kv = groups * self.size
        self.q, self.k, self.v = (nn.Linear(width, n, bias=False) for n in (width, kv, kv))
        self.out, self.down = nn.Linear(width, width, bias=False), nn.Linear(inner, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        angles = torch.arange(keys, keys + rows)[:, None] * 10000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos())
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin())

    def turned(self, x: Tensor) -> Tensor:
        low, high = x.chunk(2, -1)
        return x * self.cos + torch.cat((-high, low), -1) * self.sin

    def forward(self, x: Tensor, *cache: Tensor) -> Tensor:
        b, n, width = x.shape
        h = self.first(x)
        q, k, v = (f(h).view(b, n, -1, self.size).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.turned(q), self.turned(k)
        if cache:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        x = x + self.out(attend(q, k, v, causal=not cache).transpose(1, 2).reshape(b, n, width))
        h = self.second(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """Layers of LLaMA that take a cache of keys and values each."""

    def __init__(self, layers: int, *sizes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Llama(*sizes) for _ in range(layers))

    def forward(self, x: Tensor, *caches: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x, *caches[2 * i : 2 * i + 2])
        return x


class Image(nn.Module):
    """ViT-B/16 or Mixer-B/16 from its patches on."""

    def __init__(self, tokens: int, blocks: nn.Module) -> None:
        super().__init__()
        self.patches, self.place, self.blocks = nn.Linear(768, 768), nn.Parameter(torch.randn(tokens, 768)), blocks
        self.norm = nn.LayerNorm(768)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.blocks(self.patches(x) + self.place))


@dataclass(frozen=True)
class Network:
    """``layers`` are those that it was published with; ``build`` makes it with another number of them."""

    title: str
    layers: int
    build: Callable[[int, int], tuple[nn.Module, tuple[tuple[int, ...], ...]]]

    def make(self, batch: int, layers: int | None = None) -> tuple[nn.Module, tuple[tuple[int, ...], ...]]:
        """The module in fp32 on the CPU, and the shapes of its inputs."""
        return self.build(batch, self.layers if layers is None else layers)


def _bert(width: int, heads: int) -> Callable[[int, int], tuple[nn.Module, Any]]:
    return lambda b, layers: (nn.Sequential(*(PostNorm(width, heads) for _ in range(layers))), ((b, 512, width),))


def _gpt2(b: int, layers: int) -> tuple[nn.Module, Any]:
    return nn.Sequential(*(PreNorm(768, 12, True) for _ in range(layers)), nn.LayerNorm(768)), ((b, 128, 768),)


def _vit(b: int, layers: int) -> tuple[nn.Module, Any]:
    return Image(197, nn.Sequential(*(PreNorm(768, 12, False) for _ in range(layers)))), ((b, 197, 768),)


def _mixer(b: int, layers: int) -> tuple[nn.Module, Any]:
    return Image(196, nn.Sequential(*(Mixer(196, 768, 384, 3072) for _ in range(layers)))), ((b, 196, 768),)


def _llama(b: int, layers: int) -> tuple[nn.Module, Any]:
    return Decoder(layers, 2048, 32, 8, 8192, 128), ((b, 128, 2048),)


def _decode(b: int, layers: int) -> tuple[nn.Module, Any]:
    return Decoder(layers, 2048, 32, 8, 8192, 1, 4096), ((b, 1, 2048), *((b, 8, 4096, 64),) * (2 * layers))


NETWORKS = {
    "bert-small": Network("BERT small, 512 tokens", 4, _bert(512, 8)),
    "bert-base": Network("BERT base, 512 tokens", 12, _bert(768, 12)),
    "bert-large": Network("BERT large, 512 tokens", 24, _bert(1024, 16)),
    "gpt2": Network("GPT-2, 128 tokens", 12, _gpt2),
    "vit-b": Network("ViT-B/16", 12, _vit),
    "mixer-b": Network("MLP-Mixer-B/16", 12, _mixer),
    "llama-prefill": Network("LLaMA of 4 layers, 128 tokens", 4, _llama),
    "llama-decode": Network("LLaMA of 4 layers, one token, 4096 keys", 4, _decode),
}
