"""µGraph files in Mirage's form, written by hand: the structures that its authors published, without what only the code
generator needs.
"""

from __future__ import annotations

from typing import Any

Tensor = dict[str, Any]
Op = dict[str, Any]


def dims3(**values: int) -> dict[str, int]:
    return {d: values.get(d, -1) for d in "xyz"}


class File:
    """Collects the operators of one µGraph."""

    def __init__(self) -> None:
        self.count = 0
        self.ops: list[Op] = []

    def tensor(self, *shape: int) -> Tensor:
        self.count += 1
        return {"guid": 1000 + self.count, "data_type": 941, "dim": [*shape, *[0] * (4 - len(shape))], "num_dims": len(shape)}

    def input(self, *shape: int) -> Tensor:
        t = self.tensor(*shape)
        self.ops.append({"op_type": "kn_input_op", "input_tensors": [], "output_tensors": [t], "input_strides": []})
        return t

    def output(self, t: Tensor) -> list[Op]:
        self.ops.append({"op_type": "kn_output_op", "input_tensors": [t], "output_tensors": []})
        return self.ops

    def kernel(self, kind: str, *args: Tensor, shape: tuple[int, ...]) -> Tensor:
        out = self.tensor(*shape)
        self.ops.append({"op_type": f"kn_{kind}_op", "input_tensors": list(args), "output_tensors": [out]})
        return out

    def block(self, grid: tuple[int, int], loop: int, dimx: int = 64) -> Block:
        return Block(self, grid, loop, dimx)


class Block:
    def __init__(self, file: File, grid: tuple[int, int], loop: int, dimx: int) -> None:
        self.file, self.grid, self.loop, self.dimx = file, grid, loop, dimx
        self.ops: list[Op] = []
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []

    def load(self, t: Tensor, shape: tuple[int, ...], fmap: int = -1, **imap: int) -> Tensor:
        self.inputs.append(t)
        return self._add({"op_type": "tb_input_op", "dtensor": t, "forloop_dim": fmap, "input_map": dims3(**imap)}, (), shape)

    def op(self, kind: str, *args: Tensor, shape: tuple[int, ...]) -> Tensor:
        return self._add({"op_type": f"tb_{kind}_op"}, args, shape)

    def _add(self, op: Op, args: tuple[Tensor, ...], shape: tuple[int, ...]) -> Tensor:
        out = self.file.tensor(*shape)
        self.ops.append(op | {"input_tensors": list(args), "output_tensors": [out]})
        return out

    def store(self, value: Tensor, shape: tuple[int, ...], **omap: int) -> Tensor:
        out = self.file.tensor(*shape)
        self.ops.append(
            {
                "op_type": "tb_output_op",
                "dtensor": out,
                "output_map": dims3(**omap),
                "input_tensors": [value],
                "output_tensors": [],
            }
        )
        self.outputs.append(out)
        return out

    def end(self) -> None:
        x, y = self.grid
        graph = {
            "graph_level": "thread_block_graph",
            "grid_dim": {"x": x, "y": y, "z": 1},
            "block_dim": {"x": 128, "y": 1, "z": 1},
            "forloop_range": self.loop,
            "reduction_dimx": self.dimx,
            "operators": self.ops,
        }
        self.file.ops.append(
            {"op_type": "kn_customized_op", "bgraph": graph, "input_tensors": self.inputs, "output_tensors": self.outputs}
        )


def rms_norm(accumulator: str = "forloop_accum") -> list[Op]:
    """RMSNorm and linear layer in one kernel, the division behind the product."""
    f = File()
    x, w = f.input(16, 4096), f.input(4096, 6144)
    b = f.block((256, 1), 4)
    bx, bw = b.load(x, (16, 1024), fmap=1), b.load(w, (1024, 24), fmap=0, x=1)
    rms = b.op(f"{accumulator}_red_ld_rms", bx, shape=(16, 1))
    total = b.op(f"{accumulator}_nored", b.op("matmul", bx, bw, shape=(16, 24)), shape=(16, 24))
    y = b.store(b.op("div", total, rms, shape=(16, 24)), (16, 6144), x=1)
    b.end()
    return f.output(y)


def lora() -> list[Op]:
    """X W + (X A) B as one product of concatenations."""
    f = File()
    x, w, a, b = f.input(16, 256), f.input(256, 4096), f.input(256, 16), f.input(16, 4096)
    t = f.block((64, 1), 4)
    bx, bw = t.load(x, (16, 64), fmap=1), t.load(w, (64, 64), fmap=0, x=1)
    ba, bb = t.load(a, (64, 16), fmap=0), t.load(b, (16, 64), x=1)
    low = t.op("matmul", bx, ba, shape=(16, 16))
    left, right = t.op("concat_1", bx, low, shape=(16, 80)), t.op("concat_0", bw, bb, shape=(80, 64))
    total = t.op("accum_nored", t.op("matmul", left, right, shape=(16, 64)), shape=(16, 64))
    y = t.store(total, (16, 4096), x=1)
    t.end()
    return f.output(y)


def attention() -> list[Op]:
    """Grouped-query attention in two kernels: keys split over grid y and summed in the loop; then partial results are added and
    divided.
    """
    f = File()
    q, k, v = f.input(2, 256, 64), f.input(2, 64, 4096), f.input(2, 4096, 64)
    b = f.block((2, 16), 4)
    bq = b.load(q, (1, 256, 64), x=0)
    bk, bv = b.load(k, (1, 64, 64), fmap=2, x=0, y=2), b.load(v, (1, 64, 64), fmap=1, x=0, y=1)
    e = b.op("exp", b.op("matmul", bq, bk, shape=(1, 256, 64)), shape=(1, 256, 64))
    top = b.op("accum_nored", b.op("matmul", e, bv, shape=(1, 256, 64)), shape=(1, 256, 64))
    row = b.op("accum_red_ld_sum", e, shape=(1, 256, 1))
    tops, rows = b.store(top, (2, 256, 1024), x=0, y=2), b.store(row, (2, 256, 16), x=0, y=2)
    b.end()
    b = f.block((2, 16), 1)
    bt, br = b.load(tops, (1, 16, 1024), x=0, y=1), b.load(rows, (1, 16, 16), x=0, y=1)
    total = b.op("accum_redtox_ld_sum", bt, shape=(1, 16, 64))
    below = b.op("accum_red_ld_sum", br, shape=(1, 16, 1))
    o = b.store(b.op("div", total, below, shape=(1, 16, 64)), (2, 256, 64), x=0, y=1)
    b.end()
    return f.output(o)


def wrong_qk_norm() -> list[Op]:
    """The published form that is no attention: row sums of rms(Q), times K, where the product of rms(Q) and K belongs."""
    f = File()
    q, k, v = f.input(2, 256, 64), f.input(2, 64, 4096), f.input(2, 4096, 64)
    b = f.block((2, 64), 1)
    bq, bk = b.load(q, (1, 4, 64), x=0, y=1), b.load(k, (1, 1, 4096), x=0, y=1)
    bv = b.op("rms_norm", b.load(v, (1, 64, 64), x=0, y=1), shape=(1, 64, 64))
    rows = b.op("accum_red_ld_sum", b.op("rms_norm", bq, shape=(1, 4, 64)), shape=(1, 4, 1))
    product = b.op("mul", b.op("accum_nored", bk, shape=(1, 1, 4096)), rows, shape=(1, 4, 4096))
    scores, values = b.store(product, (2, 4, 262144), x=0, y=2), b.store(bv, (2, 64, 4096), x=0, y=2)
    b.end()
    e = f.kernel("exp", scores, shape=(2, 4, 262144))
    b = f.block((2, 64), 1)
    bv, be = b.load(values, (1, 64, 64), x=0, y=2), b.load(e, (1, 4, 4096), x=0, y=2)
    p = b.op("div", be, b.op("accum_red_ld_sum", be, shape=(1, 4, 1)), shape=(1, 4, 4096))
    values, p = b.store(bv, (2, 4096, 64), x=0, y=1), b.store(p, (2, 256, 4096), x=0, y=1)
    b.end()
    return f.output(f.kernel("matmul", p, values, shape=(2, 256, 64)))
