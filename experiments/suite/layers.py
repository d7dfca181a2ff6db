"""Single layers: activations, norms, pooling, convolutions, losses, reductions, recurrence, attention."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Fn
from experiments.suite.case import fn
from experiments.suite.case import of
from experiments.suite.case import scaled

WIDE = (2048, 16384)
IMAGES = (16, 64, 128, 128)

ACTIVATIONS = {
    "relu": nn.ReLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.1),
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "selu": nn.SELU,
    "elu": nn.ELU,
    "celu": nn.CELU,
    "hardsigmoid": nn.Hardsigmoid,
    "hardswish": nn.Hardswish,
    "hardtanh": nn.Hardtanh,
    "softplus": nn.Softplus,
    "softsign": nn.Softsign,
    "relu6": nn.ReLU6,
    "mish": nn.Mish,
    "logsigmoid": nn.LogSigmoid,
    "tanhshrink": nn.Tanhshrink,
    "softshrink": nn.Softshrink,
    "hardshrink": nn.Hardshrink,
    "threshold": lambda: nn.Threshold(0.1, 2.0),
    "prelu": nn.PReLU,
    "rrelu": nn.RReLU,
    "glu": nn.GLU,
    "softmax": lambda: nn.Softmax(1),
    "log_softmax": lambda: nn.LogSoftmax(1),
    "softmin": lambda: nn.Softmin(1),
    "dropout": nn.Dropout,
    "identity": nn.Identity,
}

CASES: dict[str, Case] = {f"act_{n}": of(make, WIDE) for n, make in ACTIVATIONS.items()}
CASES["act_new_gelu"] = fn(lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0)))), (2048, 8192))

CASES |= {
    "batch_norm_1d": of(lambda: nn.BatchNorm1d(12), (2048, 12, 512)),
    "batch_norm_2d": scaled(lambda n: (nn.BatchNorm2d(n(64, 4)), (torch.randn(16, n(64, 4), n(128, 5), n(128, 5)),))),
    "instance_norm": scaled(lambda n: (nn.InstanceNorm2d(n(64, 4)), (torch.randn(n(16, 2), n(64, 4), n(128, 5), n(128, 5)),))),
    "group_norm": scaled(lambda n: (nn.GroupNorm(n(8, 2), n(64, 4)), (torch.randn(n(16, 2), n(64, 4), n(128, 5), n(128, 5)),))),
    "layer_norm": scaled(lambda n: (nn.LayerNorm(n(1024, 20)), (torch.randn(n(8192, 6), n(1024, 20)),))),
    "layer_norm_3d": scaled(
        lambda n: (nn.LayerNorm([n(64, 2), n(64, 3), n(64, 4)]), (torch.randn(16, n(64, 2), n(64, 3), n(64, 4)),))
    ),
    "rms_norm": scaled(lambda n: (nn.RMSNorm(n(1024, 20)), (torch.randn(n(8192, 6), n(1024, 20)),))),
    "rms_norm_channels": fn(lambda x: x / torch.sqrt(x.pow(2).mean(1, keepdim=True) + 1e-5), IMAGES),
    "frobenius_norm": fn(lambda x: x / torch.norm(x, p="fro"), IMAGES),
    "l1_norm": fn(lambda x: x / x.abs().sum(1, keepdim=True), (2048, 16384)),
    "l2_norm": fn(lambda x: x / torch.norm(x, p=2, dim=1, keepdim=True), (2048, 16384)),
    "local_response": of(lambda: nn.LocalResponseNorm(3), (8, 32, 64, 64)),
    "max_pool_1d": of(lambda: nn.MaxPool1d(4, 2, 1), (16, 64, 8192)),
    "max_pool_2d": of(lambda: nn.MaxPool2d(3, 2, 1), IMAGES),
    "max_pool_3d": of(lambda: nn.MaxPool3d(2, 2), (4, 32, 32, 64, 64)),
    "avg_pool_1d": of(lambda: nn.AvgPool1d(4, 2), (16, 64, 8192)),
    "avg_pool_2d": of(lambda: nn.AvgPool2d(3, 2, 1), IMAGES),
    "avg_pool_3d": of(lambda: nn.AvgPool3d(2), (4, 32, 32, 64, 64)),
    "adaptive_pool": of(lambda: nn.AdaptiveAvgPool2d(1), IMAGES),
    "adaptive_pool_7": of(lambda: nn.AdaptiveAvgPool2d((3, 5)), (16, 64, 56, 56)),
    "adaptive_max_pool": of(lambda: nn.AdaptiveMaxPool2d(2), (16, 64, 56, 56)),
    "lp_pool": of(lambda: nn.LPPool2d(2, 3), (8, 16, 64, 64)),
}
CASES |= {
    f"{name}_{dim}": fn(run, shape)
    for name, run, dim, shape in (
        ("sum", lambda x: x.sum(1, keepdim=True), 1, (128, 2048, 512)),
        ("mean", lambda x: x.mean(1), 1, (128, 2048, 512)),
        ("max", lambda x: x.max(1).values, 1, (128, 2048, 512)),
        ("min", lambda x: x.min(2)[0], 2, (128, 2048, 512)),
        ("argmax", lambda x: x.argmax(1), 1, (128, 2048, 512)),
        ("argmin", lambda x: x.argmin(-1), 2, (128, 2048, 512)),
        ("prod", lambda x: (1 + 0.01 * x).prod(1), 1, (64, 1024, 128)),
        ("logsumexp", lambda x: x.logsumexp(1), 1, (4096, 4096)),
        ("var", lambda x: x.var(-1), 2, (64, 512, 1024)),
        ("std", lambda x: x.std((2, 3), unbiased=False), 2, (16, 64, 64, 64)),
        ("amax", lambda x: x.amax((1, 2)), 1, (128, 256, 512)),
        ("norm", lambda x: torch.linalg.vector_norm(x, dim=-1), 2, (128, 512, 1024)),
        ("all", lambda x: (x > -9).all(-1), 1, (4096, 4096)),
        ("sum_all", lambda x: x.sum(), 0, (4096, 4096)),
        ("mean_all", lambda x: x.mean(), 0, (4096, 4096)),
    )
}
CASES |= {
    "cumsum": fn(lambda x: x.cumsum(1), (512, 8192)),
    "cumsum_reverse": fn(lambda x: x.flip(1).cumsum(1).flip(1), (512, 8192)),
    "cumsum_exclusive": fn(lambda x: torch.cat((torch.zeros_like(x[:, :1]), x.cumsum(1)[:, :-1]), 1), (512, 8192)),
    "cumprod": fn(lambda x: torch.cumprod(1 + 0.01 * x, 1), (512, 8192)),
    "masked_cumsum": fn(lambda x: (x * (x > 0)).cumsum(1), (512, 8192)),
    "topk": fn(lambda x: torch.topk(x, 4, dim=-1), (512, 1024)),
    "sort": fn(lambda x: torch.sort(x, -1).values, (512, 1024)),
    "where": fn(lambda x, y: torch.where(x > y, x, y * 2), (4096, 4096), (4096, 4096)),
    "clamp": fn(lambda x: x.clamp(-0.5, 0.5) * 3, (4096, 4096)),
    "scale_by_number": fn(lambda x: x * 3.14, (4096, 4096)),
    "add_row": fn(lambda x, y: x + y, (4096, 4096), (4096,)),
    "outer": fn(lambda x, y: x[:, None] * y[None], (4096,), (4096,)),
    "transpose": fn(lambda x: x.t().contiguous(), (4096, 4096)),
    "permute": fn(lambda x: x.permute(0, 2, 3, 1).contiguous(), (16, 64, 112, 112)),
    "concat": fn(lambda x, y: torch.cat((x, y), 1), (2048, 2048), (2048, 2048)),
    "stack": fn(lambda x, y: torch.stack((x, y), 1), (2048, 2048), (2048, 2048)),
    "roll": fn(lambda x: torch.roll(x, (2, 3), (1, 2)), (32, 56, 56, 96)),
    "pad": fn(lambda x: functional.pad(x, (1, 2, 3, 4)), (16, 64, 56, 56)),
    "reflection_pad": of(lambda: nn.ReflectionPad2d(2), (16, 64, 56, 56)),
    "gather": fn(lambda x: torch.gather(x, 1, x.argsort(1)[:, :4]), (1024, 512)),
    "tril": fn(lambda x: x.tril() + x.triu(1) * 2, (4096, 4096)),
    "one_hot": scaled(lambda n: (Fn(lambda x: functional.one_hot(x, 10).float()), (torch.randint(0, 10, (n(8192, 6),)),))),
    "embedding": scaled(
        lambda n: (nn.Embedding(n(30000, 20), n(768, 8)), (torch.randint(0, n(30000, 20), (n(16, 2), n(512, 5))),))
    ),
    "embedding_bag": scaled(lambda n: (nn.EmbeddingBag(n(30000, 20), n(256, 8)), (torch.randint(0, 20, (n(512, 3), n(32, 4))),))),
    "upsample_nearest": of(lambda: nn.Upsample(scale_factor=2), (16, 32, 64, 64)),
    "upsample_bilinear": of(lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (16, 32, 64, 64)),
    "interpolate_bicubic": fn(lambda x: functional.interpolate(x, scale_factor=2.0, mode="bicubic"), (4, 16, 64, 64)),
    "pixel_shuffle": of(lambda: nn.PixelShuffle(2), (16, 64, 64, 64)),
    "pixel_unshuffle": of(lambda: nn.PixelUnshuffle(2), (16, 64, 64, 64)),
    "unfold": of(lambda: nn.Unfold(3, padding=1), (8, 16, 64, 64)),
    "fold": scaled(lambda n: (nn.Fold((n(32, 6), n(32, 6)), 2, stride=2), (torch.randn(n(16, 2), 64, n(256, 9)),))),
    "channel_shuffle": of(lambda: nn.ChannelShuffle(4), (16, 64, 56, 56)),
    "cosine_similarity": of(lambda: nn.CosineSimilarity(-1), (4096, 1024), (4096, 1024)),
    "pairwise_distance": of(nn.PairwiseDistance, (4096, 1024), (4096, 1024)),
    "bilinear": scaled(
        lambda n: (
            nn.Bilinear(n(64, 6), n(64, 5), n(32, 4)),
            (torch.randn(n(256, 7), n(64, 6)), torch.randn(n(256, 7), n(64, 5))),
        )
    ),
    "flatten_linear": scaled(
        lambda n: (
            nn.Sequential(nn.Flatten(), nn.Linear(n(4096, 27), n(256, 5))),
            (torch.randn(n(64, 2), 3 if n(0, 1) else 16, n(16, 3), n(16, 3)),),
        )
    ),
}

CONVOLUTIONS = {
    "conv_1d": (lambda c: nn.Conv1d(c, 2 * c, 3, 2, 4), (16, 64, 4096)),
    "conv_1d_dilated": (lambda c: nn.Conv1d(c, c, 3, stride=2, dilation=4), (16, 64, 4096)),
    "conv_2d": (lambda c: nn.Conv2d(c, 2 * c, 3, padding=1), (16, 64, 56, 56)),
    "conv_2d_stride": (lambda c: nn.Conv2d(c, c, (3, 5), (2, 1), (1, 2), bias=False), (16, 64, 56, 56)),
    "conv_1x1": (lambda c: nn.Conv2d(c, 2 * c, 1), (16, 64, 56, 56)),
    "conv_depthwise": (lambda c: nn.Conv2d(c, c, 3, padding=1, groups=c), (16, 64, 112, 112)),
    "conv_separable": (
        lambda c: nn.Sequential(nn.Conv2d(c, c, 3, padding=1, groups=c, bias=False), nn.Conv2d(c, 2 * c, 1)),
        (16, 64, 56, 56),
    ),
    "conv_3d": (lambda c: nn.Conv3d(c, c, 3), (4, 16, 16, 32, 32)),
    "conv_transpose_1d": (lambda c: nn.ConvTranspose1d(c, c, 3, 2), (16, 64, 1024)),
    "conv_transpose_2d": (lambda c: nn.ConvTranspose2d(c, c // 2, 3, 2, 1, 1), (16, 64, 32, 32)),
    "conv_transpose_3d": (lambda c: nn.ConvTranspose3d(c, c, 3, 2), (4, 16, 8, 16, 16)),
}


def _convolution(make, shape) -> Case:
    def case(little: bool):
        mine = (2, 4, *(min(n, 12) for n in shape[2:])) if little else shape
        return make(mine[1]), (torch.randn(mine),)

    return case


CASES |= {name: _convolution(make, shape) for name, (make, shape) in CONVOLUTIONS.items()}

LOSSES = {
    "mse": nn.MSELoss,
    "l1": nn.L1Loss,
    "smooth_l1": nn.SmoothL1Loss,
    "huber": nn.HuberLoss,
    "bce_logits": nn.BCEWithLogitsLoss,
    "kl": lambda: Fn(lambda x, y: functional.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean")),
    "hinge": lambda: Fn(lambda x, y: torch.clamp(1 - x * y.sign(), min=0).mean()),
    "cosine": lambda: Fn(lambda x, y: (1 - functional.cosine_similarity(x, y, 1)).mean()),
    "triplet": lambda: Fn(lambda x, y: functional.triplet_margin_loss(x, y, x.flip(0))),
    "gaussian": lambda: Fn(lambda x, y: functional.gaussian_nll_loss(x, y, torch.ones_like(x))),
    "poisson": nn.PoissonNLLLoss,
    "soft_margin": lambda: Fn(lambda x, y: functional.soft_margin_loss(x, y.sign())),
}
CASES |= {f"loss_{name}": of(make, (4096, 2048), (4096, 2048)) for name, make in LOSSES.items()}


def _classes(make, n):
    rows, classes = n(4096, 5), n(1000, 7)
    return make(), (torch.randn(rows, classes), torch.randint(0, classes, (rows,)))


CASES |= {
    "loss_cross_entropy": scaled(lambda n: _classes(nn.CrossEntropyLoss, n)),
    "loss_label_smoothing": scaled(lambda n: _classes(lambda: nn.CrossEntropyLoss(label_smoothing=0.1), n)),
    "loss_nll": scaled(lambda n: _classes(lambda: Fn(lambda x, y: functional.nll_loss(x.log_softmax(-1), y)), n)),
}

CASES |= {
    "rnn": scaled(lambda n: (nn.RNN(n(128, 6), n(256, 8), batch_first=True), (torch.randn(n(16, 2), n(64, 3), n(128, 6)),))),
    "lstm": scaled(lambda n: (nn.LSTM(n(128, 6), n(256, 8), 2), (torch.randn(n(64, 3), n(16, 2), n(128, 6)),))),
    "lstm_bidirectional": scaled(
        lambda n: (nn.LSTM(n(128, 6), n(256, 8), bidirectional=True), (torch.randn(n(64, 3), n(16, 2), n(128, 6)),))
    ),
    "gru": scaled(
        lambda n: (
            nn.GRU(n(128, 6), n(256, 8)),
            (torch.randn(n(64, 3), n(16, 2), n(128, 6)), torch.randn(1, n(16, 2), n(256, 8))),
        )
    ),
    "lstm_cell": scaled(lambda n: (nn.LSTMCell(n(256, 6), n(512, 8)), (torch.randn(n(64, 2), n(256, 6)),))),
    "gru_cell": scaled(lambda n: (nn.GRUCell(n(256, 6), n(512, 8)), (torch.randn(n(64, 2), n(256, 6)),))),
    "rnn_cell": scaled(lambda n: (nn.RNNCell(n(256, 6), n(512, 8)), (torch.randn(n(64, 2), n(256, 6)),))),
    "multihead": scaled(
        lambda n: (
            Fn(lambda f, x: f(x, x, x, need_weights=False)[0], nn.MultiheadAttention(n(512, 16), n(8, 2), batch_first=True)),
            (torch.randn(n(8, 2), n(256, 5), n(512, 16)),),
        )
    ),
    "multihead_weights": scaled(
        lambda n: (
            Fn(lambda f, x: f(x, x, x), nn.MultiheadAttention(n(512, 16), n(8, 2))),
            (torch.randn(n(128, 5), n(8, 2), n(512, 16)),),
        )
    ),
    "attention": fn(functional.scaled_dot_product_attention, *((8, 16, 512, 64),) * 3, small=((1, 2, 9, 16),) * 3),
    "attention_causal": fn(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        *((8, 16, 512, 64),) * 3,
        small=((1, 2, 9, 16),) * 3,
    ),
    "encoder_layer": scaled(
        lambda n: (
            nn.TransformerEncoderLayer(n(512, 16), n(8, 2), n(2048, 32), batch_first=True),
            (torch.randn(n(8, 2), n(128, 6), n(512, 16)),),
        )
    ),
    "decoder_layer": scaled(
        lambda n: (
            nn.TransformerDecoderLayer(n(512, 16), n(8, 2), n(2048, 32), batch_first=True),
            (torch.randn(n(8, 2), n(128, 6), n(512, 16)), torch.randn(n(8, 2), n(64, 5), n(512, 16))),
        )
    ),
    "transformer": scaled(
        lambda n: (
            nn.Transformer(n(256, 16), 2, 1, 1, n(512, 32), batch_first=True),
            (torch.randn(n(4, 2), n(64, 6), n(256, 16)), torch.randn(n(4, 2), n(64, 5), n(256, 16))),
        )
    ),
}
